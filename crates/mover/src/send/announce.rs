//! Tells the peer what the walk finds, in batches that wait no longer than a moment: also while the walk itself waits
//! for a directory.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_wire::control::{ControlMessage, Destination, Entry, Fault, encoded_len};

use crate::send::read::opened::Planned;
use crate::send::shared::Shared;

const BATCH_ENTRIES: usize = 1024;

/// Bytes of entries in one message; the last may exceed it.
const BATCH_BYTES: usize = 64 << 10;

/// Found entries wait no longer than this before they go out.
const BATCH_AGE: Duration = Duration::from_millis(10);

/// A file is read only after its entry went out, so that no digest overtakes it.
pub(super) struct Announcer {
    shared: Arc<Shared>,
    destination: Destination,
    batch: Mutex<Batch>,
    /// The first entry of a batch is there, or no more come.
    begun: Condvar,
}

/// What was found and is not announced.
struct Batch {
    entries: Vec<Entry>,
    bytes: usize,
    files: Vec<Planned>,
    since: Instant,
    closed: bool,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.entries.len() >= BATCH_ENTRIES || self.bytes >= BATCH_BYTES
    }

    /// How long it may still wait.
    fn left(&self) -> Duration {
        BATCH_AGE.saturating_sub(self.since.elapsed())
    }
}

impl Announcer {
    pub(super) fn new(shared: Arc<Shared>, destination: Destination) -> Self {
        let (entries, files, since) = (Vec::new(), Vec::new(), Instant::now());
        let batch = Mutex::new(Batch { entries, bytes: 0, files, since, closed: false });
        Self { shared, destination, batch, begun: Condvar::new() }
    }

    pub(super) fn destination(&self) -> Destination {
        self.destination
    }

    fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry, with its file if it is one that may be read.
    pub(super) fn add(&self, entry: Entry, file: Option<Planned>) -> Result<(), Fault> {
        let mut batch = self.batch();
        if batch.entries.is_empty() {
            batch.since = Instant::now();
            self.begun.notify_one();
        }
        batch.bytes += encoded_len(&entry);
        batch.entries.push(entry);
        batch.files.extend(file);
        if batch.is_full() || batch.left().is_zero() { self.send(&mut batch) } else { Ok(()) }
    }

    pub(super) fn flush(&self) -> Result<(), Fault> {
        self.send(&mut self.batch())
    }

    pub(super) fn close(&self) {
        self.batch().closed = true;
        self.begun.notify_one();
    }

    /// Announces what has waited long enough, until no more comes.
    pub(super) fn keep_time(&self) -> Result<(), Fault> {
        let mut batch = self.batch();
        while !batch.closed && !self.shared.stopped() {
            let waited = if batch.entries.is_empty() {
                self.begun.wait(batch).unwrap_or_else(PoisonError::into_inner)
            } else {
                let left = batch.left();
                self.begun.wait_timeout(batch, left).unwrap_or_else(PoisonError::into_inner).0
            };
            batch = waited;
            if batch.left().is_zero() {
                self.send(&mut batch)?;
            }
        }
        Ok(())
    }

    fn send(&self, batch: &mut Batch) -> Result<(), Fault> {
        if batch.entries.is_empty() {
            return Ok(());
        }
        batch.bytes = 0;
        for _ in &batch.files {
            if !self.shared.slots.take(|| self.shared.stopped()) {
                return Ok(());
            }
        }
        let entries = ControlMessage::Entries(std::mem::take(&mut batch.entries));
        match self.destination {
            Destination::Occupied => {
                let mut wanted = self.shared.wanted();
                batch.files.drain(..).for_each(|file| wanted.announced.push_back(file));
                drop(wanted);
                self.shared.link.send(entries)
            }
            Destination::Fresh => {
                self.shared.link.send(entries)?;
                let mut wanted = self.shared.wanted();
                batch.files.drain(..).try_for_each(|file| wanted.whole(&self.shared, file))
            }
        }
    }
}
