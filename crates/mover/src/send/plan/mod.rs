//! Announces entries to the peer during the walk.

mod requests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use haul_wire::control::{ControlMessage, Destination, Entry, EntryKind, Fault, HardLinks, encoded_len};
use parking_lot::Mutex;

use crate::budget::slot_bytes;
use crate::identity::Identity;
use crate::job::{self, spawn_for};
use crate::send::blocks::SourceFile;
use crate::send::shared::{ReadJob, Shared};
use crate::send::walk::completeness::{BATCH, BATCH_BYTES};
use crate::send::walk::{Found, Walker};

/// Runs the walk once the receiver is ready and announces its entries.
pub(super) fn run(shared: &Arc<Shared>, walker: Walker) -> Result<(), Fault> {
    let Some(destination) = shared.wait_for(|_| shared.destination()) else { return Ok(()) };
    let batch = Batch { entries: Vec::new(), bytes: 0, files: Vec::new(), since: Instant::now() };
    let announcer = Arc::new(Announcer { shared: shared.clone(), destination, batch: Mutex::new(batch) });
    let (closing, closed) = bounded::<()>(0);
    let timer_announcer = announcer.clone();
    let clock = move || {
        while closed.recv_timeout(BATCH_AGE) == Err(RecvTimeoutError::Timeout) {
            timer_announcer.send_if_due(&mut timer_announcer.batch.lock())?;
        }
        Ok(())
    };
    let clock = spawn_for(shared, "haul-announce", clock)?;
    let done = announcer.announce_all(walker);
    drop(closing);
    job::join(clock).and(done)
}

/// First entry of each file with hard links. The walk may find one more often than it has names: through symbolic
/// links, and in sources that overlap.
type FirstEntries = HashMap<Identity, u32>;

/// Time after which a found entry is due to be sent.
const BATCH_AGE: Duration = Duration::from_millis(10);

/// Announces found entries to the peer in batches, after twice [`BATCH_AGE`] at the latest, even while the
/// walk waits for a directory. A file is read only after its entry was sent, so no digest precedes it.
struct Announcer {
    shared: Arc<Shared>,
    destination: Destination,
    batch: Mutex<Batch>,
}

struct Batch {
    entries: Vec<Entry>,
    bytes: usize,
    files: Vec<Arc<SourceFile>>,
    /// When the first entry was added.
    since: Instant,
}

impl Announcer {
    fn announce_all(&self, mut walker: Walker) -> Result<(), Fault> {
        if let Some(lineage) = self.shared.lineage.get() {
            walker.check_destination(lineage)?;
        }
        let mut first_entries = FirstEntries::default();
        for found in walker.by_ref() {
            if self.shared.stopped() {
                return Ok(());
            }
            self.add(found, &mut first_entries)?;
        }
        self.send(&mut self.batch.lock())?;
        let ledger = self.shared.ledger.lock();
        let is_complete = ledger.failures.is_all_special();
        let (entries, bytes) = (ledger.table.len().into(), ledger.table.bytes);
        drop(ledger);
        self.shared.progress.set_all_known();
        if self.destination == Destination::Fresh {
            self.shared.requests.lock().jobs = None;
        }
        walker.completeness.finish(is_complete)?;
        self.shared.link.send(ControlMessage::EntriesEnd { entries, bytes })
    }

    fn add(&self, found: Found, first_entries: &mut FirstEntries) -> Result<(), Fault> {
        let Found { mut entry, mut file, names } = found;
        let mut ledger = self.shared.ledger.lock();
        if let Err(fault) = ledger.table.find_parent(&entry) {
            entry.kind = EntryKind::Failed(fault);
            file = None;
        }
        let index = ledger.table.len();
        let keeps_links = self.shared.limits.preserve.hard_links == HardLinks::Keep && names > 1;
        if let Some((_, identity)) = file.as_ref().filter(|_| keeps_links) {
            let first = *first_entries.entry(*identity).or_insert(index);
            if first == index {
                self.shared.budget.take(slot_bytes::<(Identity, u32)>())?;
            } else {
                entry.kind = EntryKind::HardLink { entry: first.into() };
                entry.extras = None;
                file = None;
            }
        }
        if let Some(fault) = ledger.table.push(&entry)? {
            ledger.failures.add(entry.path.as_bytes(), fault);
            self.shared.progress.failed.add(1);
        }
        self.shared.budget.take_entry(ledger.table.cost(index))?;
        let shape = ledger.table.shape(index);
        drop(ledger);
        self.shared.progress.entries.add(1);
        let file = file.map(|(source_root, identity)| {
            let (path, growth) = (entry.path.as_bytes().to_vec(), self.shared.limits.growth);
            Arc::new(SourceFile { entry: index, source_root, path, shape, identity, growth })
        });
        let mut batch = self.batch.lock();
        if batch.entries.is_empty() {
            batch.since = Instant::now();
        }
        batch.bytes += encoded_len(&entry);
        batch.entries.push(entry);
        batch.files.extend(file);
        self.send_if_due(&mut batch)
    }

    fn send_if_due(&self, batch: &mut Batch) -> Result<(), Fault> {
        let is_due =
            batch.entries.len() >= BATCH || batch.bytes >= BATCH_BYTES || batch.since.elapsed() >= BATCH_AGE;
        if is_due { self.send(batch) } else { Ok(()) }
    }

    fn send(&self, batch: &mut Batch) -> Result<(), Fault> {
        if batch.entries.is_empty() {
            return Ok(());
        }
        batch.bytes = 0;
        if !self.shared.wait_for_pending_files() {
            return Ok(());
        }
        let entries = ControlMessage::Entries(std::mem::take(&mut batch.entries));
        match self.destination {
            Destination::Occupied => {
                let mut requests = self.shared.requests.lock();
                batch.files.drain(..).for_each(|file| requests.announced.push_back(file));
                drop(requests);
                self.shared.link.send(entries)
            }
            Destination::Fresh => {
                self.shared.link.send(entries)?;
                let mut requests = self.shared.requests.lock();
                let mut jobs =
                    batch.files.drain(..).map(|file| ReadJob { file, sections: None, hashes: None });
                jobs.try_for_each(|job| requests.read(&self.shared, job))
            }
        }
    }
}
