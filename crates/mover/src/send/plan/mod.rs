//! Announces entries to the peer during the walk.

pub(super) mod jobs;
mod requests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_wire::control::{ControlMessage, Destination, Entry, EntryKind, Fault, HardLinks, encoded_len};
use parking_lot::{Condvar, Mutex};

use crate::identity::Identity;
use crate::job::{self, spawn_for};
use crate::send::blocks::SourceFile;
use crate::send::plan::jobs::Job;
use crate::send::shared::Shared;
use crate::send::walk::completeness::Completeness;
use crate::send::walk::{Found, Walker};

struct Planner {
    shared: Arc<Shared>,
    announcer: Arc<Announcer>,
    names: Names,
}

/// Runs the walk once the receiver is ready and announces its entries; `completeness` applies if nothing
/// fails.
pub(super) fn run(shared: Arc<Shared>, walker: Walker, completeness: &Completeness) -> Result<(), Fault> {
    let Some(destination) = shared.wait_until_ready() else { return Ok(()) };
    let announcer = Arc::new(Announcer::new(shared.clone(), destination));
    let timed = announcer.clone();
    let clock = spawn_for(&shared, "haul-announce", move || timed.keep_time())?;
    let mut planner = Planner { shared, announcer, names: Names::default() };
    let done = planner.plan_all(walker, completeness);
    planner.announcer.close();
    job::join(clock).and(done)
}

impl Planner {
    fn plan_all(&mut self, mut walker: Walker, completeness: &Completeness) -> Result<(), Fault> {
        if let Some(lineage) = self.shared.lineage.get() {
            walker.check_destination(lineage)?;
        }
        while let Some(found) = walker.next() {
            if self.shared.stopped() {
                return Ok(());
            }
            self.send_attributes(&mut walker)?;
            self.add(found)?;
        }
        self.send_attributes(&mut walker)?;
        self.announcer.flush()?;
        walker.finish()?;
        let ledger = self.shared.ledger.lock();
        let is_whole = ledger.failures.is_all_special();
        let (entries, bytes) = (ledger.table.len().into(), ledger.table.bytes);
        drop(ledger);
        self.shared.progress.found_all();
        if self.announcer.destination == Destination::Fresh {
            self.shared.wanted.lock().send(Job::End);
        }
        completeness.tell(&*self.shared.link, is_whole)?;
        self.shared.link.send(ControlMessage::EntriesEnd { entries, bytes })
    }

    fn send_attributes(&self, walker: &mut Walker) -> Result<(), Fault> {
        let attributes = walker.take_attributes();
        attributes.map_or(Ok(()), |known| self.shared.link.send(ControlMessage::DestinationAttributes(known)))
    }

    fn add(&mut self, found: Found) -> Result<(), Fault> {
        let Found { mut entry, mut file, names } = found;
        let mut ledger = self.shared.ledger.lock();
        if let Err(fault) = ledger.table.place(&entry) {
            entry.kind = EntryKind::Failed(fault);
            file = None;
        }
        let index = ledger.table.len();
        let keeps_links = self.shared.limits.preserve.hard_links == HardLinks::Keep && names > 1;
        if let Some((_, identity)) = file.as_ref().filter(|_| keeps_links)
            && let Some(first) = self.names.first(*identity, names, index)
        {
            entry.kind = EntryKind::HardLink { entry: first.into() };
            entry.extras = None;
            file = None;
        }
        if let Some(fault) = ledger.table.push(&entry)? {
            ledger.failures.add(entry.path.as_bytes(), fault);
            self.shared.progress.one_failed();
        }
        self.shared.budget.take_entry(ledger.table.cost(index))?;
        let shape = ledger.table.shape(index);
        drop(ledger);
        self.shared.progress.found(1, 0);
        let file = match (file, &entry.kind) {
            (Some((source_root, identity)), EntryKind::File { .. }) => {
                let (path, growth) = (entry.path.as_bytes().to_vec(), self.shared.limits.growth);
                Some(Arc::new(SourceFile { entry: index, source_root, path, shape, identity, growth }))
            }
            _ => None,
        };
        self.announcer.add(entry, file)
    }
}

/// Files with further hard links that the walk has not reached yet.
#[derive(Default)]
pub(crate) struct Names {
    /// First entry of the file, and number of its names still to come.
    open: HashMap<Identity, (u32, u64)>,
}

impl Names {
    /// Returns the earlier entry of this file. `None`: `entry` is recorded as the first of its `names`.
    pub(crate) fn first(&mut self, identity: Identity, names: u64, entry: u32) -> Option<u32> {
        let (first, left) = self.open.entry(identity).or_insert((entry, names));
        let first = *first;
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.open.remove(&identity);
        }
        (first != entry).then_some(first)
    }
}

const BATCH_ENTRIES: usize = 1024;

/// Target size of one message in bytes; the last entry may exceed it.
const BATCH_BYTES: usize = 64 << 10;

/// Maximum time that a found entry waits before it is sent.
const BATCH_AGE: Duration = Duration::from_millis(10);

/// Announces found entries to the peer in batches, after [`BATCH_AGE`] at the latest, even while the walk
/// waits for a directory. A file is read only after its entry was sent, so no digest precedes it.
pub(super) struct Announcer {
    shared: Arc<Shared>,
    destination: Destination,
    batch: Mutex<Batch>,
    /// Signalled when a batch gets its first entry or the announcer closes.
    begun: Condvar,
}

struct Batch {
    entries: Vec<Entry>,
    bytes: usize,
    files: Vec<Arc<SourceFile>>,
    since: Instant,
    closed: bool,
}

impl Batch {
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

    /// Adds an entry, with its file if it can be read.
    pub(super) fn add(&self, entry: Entry, file: Option<Arc<SourceFile>>) -> Result<(), Fault> {
        let mut batch = self.batch.lock();
        if batch.entries.is_empty() {
            batch.since = Instant::now();
            self.begun.notify_one();
        }
        batch.bytes += encoded_len(&entry);
        batch.entries.push(entry);
        batch.files.extend(file);
        let is_full = batch.entries.len() >= BATCH_ENTRIES || batch.bytes >= BATCH_BYTES;
        if is_full || batch.left().is_zero() { self.send(&mut batch) } else { Ok(()) }
    }

    pub(super) fn flush(&self) -> Result<(), Fault> {
        self.send(&mut self.batch.lock())
    }

    pub(super) fn close(&self) {
        self.batch.lock().closed = true;
        self.begun.notify_one();
    }

    /// Sends batches that have reached their maximum age, until the announcer closes.
    pub(super) fn keep_time(&self) -> Result<(), Fault> {
        let mut batch = self.batch.lock();
        while !batch.closed && !self.shared.stopped() {
            if batch.entries.is_empty() {
                self.begun.wait(&mut batch);
            } else {
                let left = batch.left();
                self.begun.wait_for(&mut batch, left);
            }
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
                let mut wanted = self.shared.wanted.lock();
                batch.files.drain(..).for_each(|file| wanted.announced.push_back(file));
                drop(wanted);
                self.shared.link.send(entries)
            }
            Destination::Fresh => {
                self.shared.link.send(entries)?;
                let mut wanted = self.shared.wanted.lock();
                batch.files.drain(..).try_for_each(|file| wanted.whole(&self.shared, file))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::CWD;

    use super::*;
    use crate::storage::lstatat;

    #[test]
    fn a_file_is_forgotten_with_its_last_name() {
        let identity = Identity::of(&lstatat(CWD, ".").unwrap());
        let mut names = Names::default();
        assert_eq!(names.first(identity, 3, 7), None);
        assert_eq!(names.first(identity, 3, 8), Some(7));
        assert_eq!(names.first(identity, 3, 9), Some(7));
        assert!(names.open.is_empty());
    }
}
