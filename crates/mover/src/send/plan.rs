//! Turns the walk into messages for the peer and work for the reader, while it goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use haul_wire::control::{ControlMessage, Entry, EntryKind, Fault, encoded_len};

use crate::send::blocks::SentFile;
use crate::send::reader::PlannedFile;
use crate::send::shared::Shared;
use crate::send::walk::{Found, Walker};

/// Entries in one message at most.
const BATCH_ENTRIES: usize = 1024;

/// Bytes of entries in one message; the last may exceed it.
const BATCH_BYTES: usize = 64 << 10;

/// Found entries wait no longer than this before they go out.
const BATCH_AGE: Duration = Duration::from_millis(10);

/// Walks, announces, and hands files to the reader: each file only after its entry went out, so that no
/// digest overtakes it.
pub(crate) struct Planner {
    shared: Arc<Shared>,
    outgoing: Sender<PlannedFile>,
    entries: Vec<Entry>,
    bytes: usize,
    since: Instant,
    files: Vec<PlannedFile>,
}

impl Planner {
    pub(crate) fn new(shared: Arc<Shared>, outgoing: Sender<PlannedFile>) -> Self {
        let since = Instant::now();
        Self { shared, outgoing, entries: Vec::new(), bytes: 0, since, files: Vec::new() }
    }

    pub(crate) fn run(mut self, walker: Walker) {
        if let Err(fault) = self.plan_all(walker) {
            self.shared.fail(fault);
        }
    }

    fn plan_all(&mut self, walker: Walker) -> Result<(), Fault> {
        for found in walker {
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
        let mut ledger = self.shared.ledger();
        ledger.complete = true;
        let (entries, bytes) = (ledger.table.len().into(), ledger.table.bytes());
        drop(ledger);
        self.shared.progress.found_all();
        self.shared.link.send(ControlMessage::EntriesEnd { entries, bytes })
    }

    fn add(&mut self, found: Found) -> Result<(), Fault> {
        let Found { mut entry, mut file } = found;
        let mut ledger = self.shared.ledger();
        if let Err(fault) = ledger.table.place(&entry) {
            entry.kind = EntryKind::Failed(fault);
            file = None;
        }
        let (index, start) = (ledger.table.len(), ledger.table.bytes());
        if let Some(fault) = ledger.table.push(&entry)? {
            ledger.failures.add(entry.path.as_bytes(), fault);
            ledger.settled += 1;
            self.shared.progress.one_failed();
        }
        drop(ledger);
        self.shared.progress.found(1, entry.object_bytes());
        if let Some((top, identity)) = file {
            let path = entry.path.as_bytes().to_vec();
            let file = Arc::new(SentFile { start, size: identity.size(), top, path });
            self.files.push(PlannedFile { entry: index, identity, file });
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
        self.shared.link.send(ControlMessage::Entries(std::mem::take(&mut self.entries)))?;
        for file in self.files.drain(..) {
            if self.outgoing.send(file).is_err() {
                // The reader ends only when the job does.
                break;
            }
        }
        Ok(())
    }
}
