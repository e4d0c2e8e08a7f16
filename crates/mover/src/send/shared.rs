//! What the threads of a sending job share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use haul_wire::control::{ControlMessage, Destination, Fault, Growth, Preserve, Removal};

use crate::entries::EntryTable;
use crate::link::ControlLink;
use crate::progress::{Progress, WakeSlot};
use crate::report::Failures;
use crate::send::blocks::{Block, Keep, Store};
use crate::send::slots::Slots;
use crate::send::wanted::Wanted;
use crate::threads::Job;

/// Longest wait before a thread looks again whether the job is over.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Bytes read ahead at first: they are still in the processor's caches when they are sent.
const AHEAD: u64 = 1 << 20;

/// Bytes of large files that are kept behind what was sent, once reading again has waited for the storage; nothing
/// before.
const KEPT_OF_LARGE: u64 = 1 << 20;

/// With less than a batch left the data path has to wait: it keeps back what does not fill a packet.
const LAST_BATCH: u64 = 64 << 10;

/// Files that may wait between the walk and the end of their reading.
const PLANNED_AHEAD: usize = 1 << 16;

/// How a sending job works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Bytes of contents read ahead of what was sent, at most. It begins with less, and grows when the data path had to
    /// wait because reading waited for the storage: what lies further ahead leaves the processor's caches before it is sent.
    pub read_ahead: u64,
    /// Bytes kept for retransmission, at most; what is lost beyond is read from the files again. Of large files nothing
    /// is kept at first, and more each time that reading again had to wait for the storage.
    pub keep: u64,
    /// What happens to files that grow meanwhile.
    pub growth: Growth,
    /// What of hard links, owners, attributes and access control lists travels.
    pub preserve: Preserve,
}

impl Default for SendLimits {
    fn default() -> Self {
        let (growth, preserve) = (Growth::default(), Preserve::default());
        Self { read_ahead: 24 << 20, keep: 96 << 20, growth, preserve }
    }
}

/// The set and what became of it.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) table: EntryTable,
    pub(crate) failures: Failures,
    /// Entries whose fate is known.
    pub(crate) settled: u64,
    /// All entries are known.
    pub(crate) complete: bool,
    /// Bytes of files that were not sent because the receiver had them from an earlier attempt.
    pub(crate) resumed: u64,
    /// The same as the receiver has said it name by name; in a dry run nothing else tells.
    pub(crate) resumed_as_said: u64,
    /// What became of names that the set does not have.
    pub(crate) removal: Removal,
}

pub(crate) struct Shared {
    pub(crate) link: Arc<dyn ControlLink>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) wake: WakeSlot,
    pub(crate) limits: SendLimits,
    pub(crate) slots: Slots,
    wanted: Mutex<Wanted>,
    ready: OnceLock<Destination>,
    upto: AtomicU64,
    /// Bytes that are read ahead at present.
    ahead: AtomicU64,
    /// Bytes kept of large parts at present.
    kept: AtomicU64,
    /// Whether the reader had to wait for the last that it read.
    disk_is_slow: AtomicBool,
    ended: AtomicBool,
    sent: AtomicU64,
    stop: AtomicBool,
    reader_waits: AtomicBool,
    store: Mutex<Store>,
    room: Condvar,
    ledger: Mutex<Ledger>,
    fault: OnceLock<Fault>,
}

impl Job for Shared {
    fn fail(&self, fault: Fault) {
        Self::fail(self, fault);
    }
}

impl Shared {
    pub(crate) fn new(link: Arc<dyn ControlLink>, limits: SendLimits, wanted: Wanted) -> Self {
        Self {
            link,
            limits,
            slots: Slots::new(PLANNED_AHEAD),
            wanted: Mutex::new(wanted),
            ready: OnceLock::new(),
            progress: Arc::default(),
            wake: WakeSlot::default(),
            upto: AtomicU64::new(0),
            ahead: AtomicU64::new(AHEAD.min(limits.read_ahead)),
            kept: AtomicU64::new(0),
            disk_is_slow: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            reader_waits: AtomicBool::new(false),
            store: Mutex::default(),
            room: Condvar::new(),
            ledger: Mutex::default(),
            fault: OnceLock::new(),
        }
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The receiver is ready. False: it was before.
    pub(crate) fn set_ready(&self, destination: Destination) -> bool {
        let first = self.ready.set(destination).is_ok();
        self.room.notify_all();
        first
    }

    /// What the receiver has said of its destination.
    pub(crate) fn destination(&self) -> Option<Destination> {
        self.ready.get().copied()
    }

    /// Waits for the receiver. `None`: the job is over.
    pub(crate) fn wait_until_ready(&self) -> Option<Destination> {
        let mut store = self.store();
        while !self.stopped() {
            if let Some(&destination) = self.ready.get() {
                return Some(destination);
            }
            store = self.room.wait_timeout(store, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the job with `fault`, unless it has ended already, and tells the peer.
    pub(crate) fn fail(&self, fault: Fault) {
        if self.fault.set(fault.clone()).is_ok() {
            // The channel may be what failed; the fault is kept anyway.
            let _ = self.link.send(ControlMessage::Abort(fault));
        }
        self.stop();
    }

    /// The peer, or the channel, ended the job.
    pub(crate) fn fail_silently(&self, fault: Fault) {
        let _ = self.fault.set(fault);
        self.stop();
    }

    /// Lets the threads end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.room.notify_all();
        self.wake.call();
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault.get().cloned()
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Bytes that can be read, and whether they are all.
    pub(crate) fn available(&self) -> (u64, bool) {
        let ended = self.ended.load(Ordering::Acquire);
        (self.upto.load(Ordering::Acquire), ended)
    }

    /// Whether the data path has taken all that there was.
    pub(crate) fn hungry(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= self.upto.load(Ordering::Relaxed)
    }

    /// The reader says whether it had to wait for the last that it read, or for the next file.
    pub(crate) fn set_disk_is_slow(&self, slow: bool) {
        self.disk_is_slow.store(slow, Ordering::Relaxed);
    }

    /// Whether reading waits for the storage, and does not just take processor time.
    pub(crate) fn disk_is_slow(&self) -> bool {
        self.disk_is_slow.load(Ordering::Relaxed)
    }

    /// Makes a block available to the data path.
    pub(crate) fn publish(&self, block: Block) {
        let end = block.end();
        let left = block.offset.saturating_sub(self.sent.load(Ordering::Relaxed));
        if block.offset > 0 && left < LAST_BATCH && self.disk_is_slow() {
            self.read_further_ahead();
        }
        let keep = Keep { in_all: self.limits.keep, of_large: self.kept.load(Ordering::Relaxed) };
        self.store().publish(block, self.sent.load(Ordering::Relaxed), keep);
        self.upto.store(end, Ordering::Release);
        self.wake.call();
    }

    /// Only the reader calls this.
    fn read_further_ahead(&self) {
        let ahead = self.ahead.load(Ordering::Relaxed);
        self.ahead.store((2 * ahead).min(self.limits.read_ahead), Ordering::Relaxed);
    }

    /// Only the data path calls this.
    pub(crate) fn keep_more(&self) {
        let kept = self.kept.load(Ordering::Relaxed);
        self.kept.store((2 * kept).max(KEPT_OF_LARGE).min(self.limits.keep), Ordering::Relaxed);
    }

    /// The object ends here.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake.call();
    }

    /// The data path has read up to here (only it calls this).
    pub(crate) fn note_sent(&self, end: u64) {
        if end <= self.sent.load(Ordering::Relaxed) {
            return;
        }
        self.sent.store(end, Ordering::Relaxed);
        let ahead = self.upto.load(Ordering::Relaxed).saturating_sub(end);
        if self.reader_waits.load(Ordering::Relaxed) && ahead <= self.ahead.load(Ordering::Relaxed) * 3 / 4 {
            self.reader_waits.store(false, Ordering::Relaxed);
            self.room.notify_all();
        }
    }

    /// Waits until the reader may read on. False: the job is over.
    pub(crate) fn wait_for_room(&self) -> bool {
        let mut store = self.store();
        while !self.stopped() {
            let ahead = self.upto.load(Ordering::Relaxed).saturating_sub(self.sent.load(Ordering::Relaxed));
            if ahead < self.ahead.load(Ordering::Relaxed) {
                return true;
            }
            self.reader_waits.store(true, Ordering::Relaxed);
            // A notice can fall between the look and the wait, hence the time limit.
            store = self.room.wait_timeout(store, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;
    use haul_base::AlignedBytes;

    use super::*;

    struct Nobody;

    impl ControlLink for Nobody {
        fn send(&self, _: ControlMessage) -> Result<(), Fault> {
            Ok(())
        }

        fn recv(&self, _: Duration) -> Result<Option<ControlMessage>, Fault> {
            Ok(None)
        }
    }

    fn shared(read_ahead: u64) -> Shared {
        let wanted = Wanted::new(unbounded().0, unbounded().0);
        Shared::new(Arc::new(Nobody), SendLimits { read_ahead, ..SendLimits::default() }, wanted)
    }

    fn block(offset: u64) -> Block {
        Block::new(offset, AlignedBytes::zeroed(10), 10)
    }

    #[test]
    fn further_ahead_is_read_when_the_data_path_had_to_wait_and_never_beyond_the_limit() {
        let shared = shared(3 * AHEAD);
        let ahead = || shared.ahead.load(Ordering::Relaxed);
        shared.publish(block(0));
        assert_eq!(ahead(), AHEAD, "at the beginning everybody waits");
        shared.note_sent(LAST_BATCH);
        shared.publish(block(2 * LAST_BATCH));
        assert_eq!(ahead(), AHEAD, "there was something to send");
        shared.set_disk_is_slow(false);
        shared.note_sent(3 * LAST_BATCH);
        shared.publish(block(3 * LAST_BATCH));
        assert_eq!(ahead(), AHEAD, "the disk was not the reason");
        shared.set_disk_is_slow(true);
        for (n, expected) in [(4, 2 * AHEAD), (5, 3 * AHEAD), (6, 3 * AHEAD)] {
            shared.note_sent(n * LAST_BATCH - 1_000);
            shared.publish(block(n * LAST_BATCH));
            assert_eq!(ahead(), expected);
        }
    }

    #[test]
    fn more_is_kept_when_reading_again_waits_and_never_more_than_permitted() {
        let shared = shared(AHEAD);
        let kept = || shared.kept.load(Ordering::Relaxed);
        assert_eq!(kept(), 0);
        shared.keep_more();
        assert_eq!(kept(), KEPT_OF_LARGE);
        shared.keep_more();
        assert_eq!(kept(), 2 * KEPT_OF_LARGE);
        for _ in 0..20 {
            shared.keep_more();
        }
        assert_eq!(kept(), shared.limits.keep);
    }

    #[test]
    fn little_memory_is_not_exceeded_at_first() {
        assert_eq!(shared(1).ahead.into_inner(), 1);
    }
}
