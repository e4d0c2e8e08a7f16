//! Turns the walk into messages for the peer, while it goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_wire::control::{ControlMessage, Destination, Entry, EntryKind, Fault, HardLinks, encoded_len};

use crate::send::blocks::SourceFile;
use crate::send::claim::Claim;
use crate::send::hard_links::Names;
use crate::send::opened::Planned;
use crate::send::shared::Shared;
use crate::send::walk::{Found, Walker};
use crate::stream::Shape;

/// Entries in one message at most.
const BATCH_ENTRIES: usize = 1024;

/// Bytes of entries in one message; the last may exceed it.
const BATCH_BYTES: usize = 64 << 10;

/// Found entries wait no longer than this before they go out.
const BATCH_AGE: Duration = Duration::from_millis(10);

/// Walks and announces. A file is read only after its entry went out, so that no digest overtakes it.
pub(crate) struct Planner {
    shared: Arc<Shared>,
    destination: Destination,
    entries: Vec<Entry>,
    bytes: usize,
    since: Instant,
    files: Vec<Planned>,
    names: Names,
}

impl Planner {
    /// Waits for the receiver to be ready. `None`: the job is over.
    pub(crate) fn when_ready(shared: Arc<Shared>) -> Option<Self> {
        let destination = shared.wait_until_ready()?;
        let since = Instant::now();
        Some(Self {
            shared,
            destination,
            entries: Vec::new(),
            bytes: 0,
            since,
            files: Vec::new(),
            names: Names::default(),
        })
    }

    /// Goes through a walk that finds what `claim` says, if nothing fails.
    pub(super) fn run(mut self, walker: Walker, claim: &Claim) {
        if let Err(fault) = self.plan_all(walker, claim) {
            self.shared.fail(fault);
        }
    }

    fn plan_all(&mut self, mut walker: Walker, claim: &Claim) -> Result<(), Fault> {
        for found in walker.by_ref() {
            if self.shared.stopped() {
                return Ok(());
            }
            self.add(found)?;
            let full = self.entries.len() >= BATCH_ENTRIES || self.bytes >= BATCH_BYTES;
            if full || self.since.elapsed() >= BATCH_AGE {
                self.flush()?;
            }
        }
        self.flush()?;
        walker.finish()?;
        let mut ledger = self.shared.ledger();
        ledger.complete = true;
        let is_whole = ledger.failures.is_all_special();
        let (entries, bytes) = (ledger.table.len().into(), ledger.table.bytes());
        drop(ledger);
        self.shared.progress.found_all();
        if self.destination == Destination::Fresh {
            self.shared.wanted().end_of_whole();
        }
        claim.tell(&*self.shared.link, is_whole)?;
        self.shared.link.send(ControlMessage::EntriesEnd { entries, bytes })
    }

    fn add(&mut self, found: Found) -> Result<(), Fault> {
        let Found { mut entry, mut file, names } = found;
        let mut ledger = self.shared.ledger();
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
            ledger.settled += 1;
            self.shared.progress.one_failed();
        }
        drop(ledger);
        self.shared.progress.found(1, 0);
        if let (Some((top, identity)), EntryKind::File { size, holes }) = (file, &entry.kind) {
            let path = entry.path.as_bytes().to_vec();
            let file = Arc::new(SourceFile { top, path, shape: Shape::new(*size, holes) });
            let growth = self.shared.limits.growth;
            self.files.push(Planned { entry: index, identity, file, growth });
        }
        if self.entries.is_empty() {
            self.since = Instant::now();
        }
        self.bytes += encoded_len(&entry);
        self.entries.push(entry);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Fault> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        for _ in &self.files {
            if !self.shared.slots.take(|| self.shared.stopped()) {
                return Ok(());
            }
        }
        let entries = ControlMessage::Entries(std::mem::take(&mut self.entries));
        match self.destination {
            Destination::Occupied => {
                let mut wanted = self.shared.wanted();
                self.files.drain(..).for_each(|file| wanted.announce(file));
                drop(wanted);
                self.shared.link.send(entries)
            }
            Destination::Fresh => {
                self.shared.link.send(entries)?;
                let mut wanted = self.shared.wanted();
                self.files.drain(..).try_for_each(|file| wanted.whole(&self.shared, file))
            }
        }
    }
}
