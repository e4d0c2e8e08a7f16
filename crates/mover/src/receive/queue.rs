//! Received bytes between the data path and the writer.
//!
//! Pieces are copied into buffers and coalesced into runs. A buffer that the writer has not taken yet is
//! filled up first, so a busy writer gets large runs and an idle one gets data at once. Flow control counts
//! bytes: the sender may send below `bytes freed + budget`. As no byte is delivered twice, queued data never
//! exceeds the budget, even with gaps.
//!
//! With [`Units`], each byte is copied to its place in the buffer of its unit. The writer takes complete
//! units; incomplete ones only when the object or the job ends, or when no data arrives for [`IDLE`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use haul_base::{AlignedBytes, Piece};
use parking_lot::{Condvar, Mutex};

use crate::progress::WakeSlot;
use crate::stream::Units;

pub(crate) const BUFFER: usize = 1 << 20;

const SPARE: usize = 8;

/// Rise of the limit, in bytes, after which the data path is woken.
const WAKE_STEP: u64 = 4 << 20;

/// Queued bytes for which the writer is woken at once; fewer wait for [`LINGER`].
const WRITER_WAKE_BYTES: u64 = 256 << 10;

const LINGER: Duration = Duration::from_millis(5);

/// Timeout for the rest of a unit: the sender may be waiting for a reply to these bytes.
const IDLE: Duration = Duration::from_millis(100);

/// A range of the object in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) range: Range<usize>,
}

impl Run {
    fn end(&self) -> u64 {
        self.offset + self.range.len() as u64
    }
}

#[derive(Debug, Default)]
struct QueueBuffer {
    memory: AlignedBytes,
    used: usize,
    runs: Vec<Run>,
    /// Highest end of all runs in the object.
    end_offset: u64,
    unit: Option<Unit>,
}

/// A unit of the object, and its number of bytes not taken before.
#[derive(Debug)]
struct Unit {
    range: Range<u64>,
    remaining: usize,
}

impl QueueBuffer {
    /// Returns the free space for bytes from `offset` on.
    fn room(&self, offset: u64) -> usize {
        self.unit.as_ref().map_or(self.memory.len() - self.used, |unit| (unit.range.end - offset) as usize)
    }

    fn append(&mut self, offset: u64, bytes: &[u8]) {
        let at = self.unit.as_ref().map_or(self.used, |unit| (offset - unit.range.start) as usize);
        let range = at..at + bytes.len();
        self.memory[range.clone()].copy_from_slice(bytes);
        self.used += bytes.len();
        match self.runs.last_mut() {
            Some(last) if last.end() == offset => last.range.end = range.end,
            _ => self.runs.push(Run { offset, range }),
        }
        self.end_offset = self.end_offset.max(offset + bytes.len() as u64);
    }

    fn is_complete_unit(&self) -> bool {
        self.unit.as_ref().is_some_and(|unit| unit.remaining == self.used)
    }

    /// Sorts and joins runs that arrived out of order: neighbours in the object are neighbours in a unit's
    /// buffer.
    fn join_runs(&mut self) {
        self.runs.sort_unstable_by_key(|run| run.offset);
        self.runs.dedup_by(|next, last| {
            let follows = last.end() == next.offset;
            if follows {
                last.range.end = next.range.end;
            }
            follows
        });
    }
}

#[derive(Default)]
struct Inner {
    units: Option<Units>,
    buffers: VecDeque<QueueBuffer>,
    spare: Vec<AlignedBytes>,
    queued: u64,
    /// Whether data has arrived since the writer began to wait.
    has_new_data: bool,
    /// Bytes taken of incomplete units, by the units' offsets.
    taken: HashMap<u64, usize>,
    has_other_work: bool,
    completed: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    ready: Condvar,
    budget: u64,
    freed: AtomicU64,
    /// `freed` at the last wake-up.
    last_wake: AtomicU64,
    /// Number of buffers taken and not dropped.
    taken: AtomicUsize,
    closed: AtomicBool,
    wake: WakeSlot,
}

/// A buffer being written and verified. Dropping it frees its memory.
pub(crate) struct BufferGuard {
    filling: QueueBuffer,
    owner: Arc<Queue>,
}

impl BufferGuard {
    pub(crate) fn runs(&self) -> &[Run] {
        &self.filling.runs
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.filling.memory[range]
    }

    /// Whether at most `most` buffers are in use, this one included.
    pub(crate) fn in_use_at_most(&self, most: usize) -> bool {
        self.owner.taken.load(Ordering::Acquire) <= most
    }
}

impl Drop for BufferGuard {
    fn drop(&mut self) {
        self.owner.release(std::mem::take(&mut self.filling));
    }
}

/// Runs in object order. Runs behind a gap count as used memory.
#[derive(Default)]
pub(crate) struct InOrder {
    waiting: BTreeMap<u64, (Arc<BufferGuard>, Range<usize>)>,
    /// End of the data taken from the object.
    pub(crate) taken_end: u64,
}

impl InOrder {
    pub(crate) fn add(&mut self, guard: &Arc<BufferGuard>) {
        for run in guard.runs() {
            self.waiting.insert(run.offset, (guard.clone(), run.range.clone()));
        }
    }

    /// Takes the next run, if it has arrived.
    pub(crate) fn take(&mut self) -> Option<(Arc<BufferGuard>, Range<usize>)> {
        let run = self.waiting.remove(&self.taken_end)?;
        self.taken_end += run.1.len() as u64;
        Some(run)
    }
}

pub(crate) enum Work {
    /// Bytes whose files are known.
    Bytes(Arc<BufferGuard>),
    Recheck,
    Closed,
}

impl Queue {
    pub(crate) fn new(budget: u64, units: Option<Units>, wake: WakeSlot) -> Self {
        let inner = Mutex::new(Inner { units, ..Inner::default() });
        Self { inner, budget: budget.max(units.map_or(0, Units::memory)), wake, ..Self::default() }
    }

    /// Adds pieces from the data path. Returns false if they exceed the flow-control limit.
    pub(crate) fn push(&self, data: &[u8], pieces: &[Piece]) -> bool {
        if self.closed.load(Ordering::Relaxed) {
            return true;
        }
        let mut inner = self.inner.lock();
        for piece in pieces {
            inner.insert(piece.offset, &data[piece.range.clone()]);
        }
        inner.has_new_data = true;
        let notify = inner.has_enough();
        let fits = inner.queued <= self.budget;
        drop(inner);
        if notify {
            self.ready.notify_one();
        }
        fits
    }

    pub(crate) fn complete(&self, len: u64) {
        self.inner.lock().completed = Some(len);
        self.signal_work();
    }

    /// Returns the object's length once it was delivered completely.
    pub(crate) fn completed(&self) -> Option<u64> {
        self.inner.lock().completed
    }

    pub(crate) fn signal_work(&self) {
        self.inner.lock().has_other_work = true;
        self.ready.notify_one();
    }

    /// Whether arrived data has not been taken yet and does not wait for the rest of its unit.
    pub(crate) fn has_data(&self) -> bool {
        let inner = self.inner.lock();
        let waits_for_unit = inner.units.is_some() && inner.completed.is_none() && !inner.has_enough();
        inner.queued > 0 && !waits_for_unit
    }

    /// Stops accepting data. The writer still gets queued data, which then need not be sent again.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.ready.notify_all();
        self.wake.call();
    }

    pub(crate) fn limit(&self) -> u64 {
        self.freed.load(Ordering::Acquire) + self.budget
    }

    /// Waits for work: a buffer entirely below `known`, or other work.
    pub(crate) fn take(self: &Arc<Self>, known: u64) -> Work {
        let mut inner = self.inner.lock();
        let (mut lingered, linger) = (false, if inner.units.is_some() { IDLE } else { LINGER });
        loop {
            let closed = self.closed.load(Ordering::Acquire);
            let accept_partial = closed || lingered || inner.completed.is_some();
            let enough = accept_partial || inner.has_enough();
            if let Some(filling) = if enough { inner.take_below(known, accept_partial) } else { None } {
                drop(inner);
                self.taken.fetch_add(1, Ordering::AcqRel);
                return Work::Bytes(Arc::new(BufferGuard { filling, owner: self.clone() }));
            }
            // Entries received before the end determine where queued data belongs.
            let recheck = std::mem::take(&mut inner.has_other_work);
            if recheck && !(closed && inner.queued == 0) {
                return Work::Recheck;
            }
            if closed {
                return Work::Closed;
            }
            inner.has_new_data = false;
            let timed_out = self.ready.wait_for(&mut inner, linger).timed_out();
            lingered = timed_out && !(inner.has_new_data && inner.units.is_some());
        }
    }

    fn release(&self, filling: QueueBuffer) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
        let used = filling.used as u64;
        let freed = self.freed.fetch_add(used, Ordering::AcqRel) + used;
        let mut inner = self.inner.lock();
        let most = if inner.units.is_some() { 1 } else { SPARE };
        if inner.spare.len() < most {
            inner.spare.push(filling.memory);
        }
        drop(inner);
        // Another thread may have freed more and woken the data path meanwhile.
        let since = freed.saturating_sub(self.last_wake.load(Ordering::Relaxed));
        if since >= WAKE_STEP.min(self.budget / 4) {
            self.last_wake.fetch_max(freed, Ordering::Relaxed);
            self.wake.call();
        }
    }
}

impl Inner {
    fn insert(&mut self, mut offset: u64, mut bytes: &[u8]) {
        self.queued += bytes.len() as u64;
        while !bytes.is_empty() {
            let buffer = self.buffer_for(offset);
            let (now, later) = bytes.split_at(bytes.len().min(buffer.room(offset)));
            buffer.append(offset, now);
            offset += now.len() as u64;
            bytes = later;
        }
    }

    /// Returns the buffer for the byte at `offset`, or a new one.
    fn buffer_for(&mut self, offset: u64) -> &mut QueueBuffer {
        let unit = self.units.map(|units| units.around(offset));
        let is_it = |buffer: &QueueBuffer| match (&unit, &buffer.unit) {
            (Some(unit), Some(of)) => of.range == *unit,
            _ => buffer.room(offset) > 0,
        };
        // Without units only the last one may have free space.
        let existing = self.buffers.iter().rposition(is_it);
        let at = existing.unwrap_or_else(|| {
            let len = self.units.map_or(BUFFER, Units::longest);
            let memory = self.spare.pop().unwrap_or_else(|| AlignedBytes::zeroed(len));
            let taken = |unit: &Range<u64>| self.taken.get(&unit.start).copied().unwrap_or_default();
            let remaining = |unit: &Range<u64>| (unit.end - unit.start) as usize - taken(unit);
            let unit = unit.map(|range| Unit { remaining: remaining(&range), range });
            self.buffers.push_back(QueueBuffer { memory, unit, ..QueueBuffer::default() });
            self.buffers.len() - 1
        });
        &mut self.buffers[at]
    }

    fn has_enough(&self) -> bool {
        match self.units {
            None => self.queued >= WRITER_WAKE_BYTES,
            Some(_) => self.buffers.iter().any(QueueBuffer::is_complete_unit),
        }
    }

    /// Takes the oldest buffer whose runs all end at or below `known`; with units, only complete ones unless
    /// `accept_partial`.
    fn take_below(&mut self, known: u64, accept_partial: bool) -> Option<QueueBuffer> {
        let is_takeable = |b: &QueueBuffer| accept_partial || b.unit.is_none() || b.is_complete_unit();
        let index = self.buffers.iter().position(|b| b.end_offset <= known && is_takeable(b))?;
        let mut filling = self.buffers.remove(index)?;
        self.queued -= filling.used as u64;
        if let Some(unit) = &filling.unit {
            if filling.is_complete_unit() {
                self.taken.remove(&unit.range.start);
            } else {
                *self.taken.entry(unit.range.start).or_default() += filling.used;
            }
            filling.join_runs();
        }
        Some(filling)
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
