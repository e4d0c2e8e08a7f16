//! State shared by the threads of a receiving job, and their messages to each other.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use derive_more::Deref;
use haul_base::RangeSet;
use haul_wire::control::{
    ByteRange, ControlMessage, Destination, Durability, EntryRequest, Fault, FileDigest, Item, More, Proof,
    ReceivePolicy, RequestRun, RunMode,
};
use parking_lot::Mutex;

use crate::budget::{Budget, Reserved};
use crate::entries::{EntryState, EntryTable};
use crate::job::{Common, Job, Stage};
use crate::journal::{FileIdentity, Journal};
use crate::link::{ControlLink, RECV_TIMEOUT};
use crate::receive::ledger::Ledger;
use crate::receive::metadata::{MetadataFailures, MetadataWriter};
use crate::receive::options::{Expectations, ReceiveOptions};
use crate::receive::place::Place;
use crate::receive::queue::{BufferGuard, Queue};
use crate::receive::sync::Writeback;
use crate::report::MoveReport;
use crate::stream::{Shape, Units};
use crate::tree::Value;

/// Timeout for the sender to close after everything is final.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Deref)]
pub(crate) struct Shared {
    #[deref]
    common: Common,
    pub(crate) queue: Arc<Queue>,
    pub(crate) place: Place,
    pub(crate) durability: Durability,
    pub(crate) receive_policy: ReceivePolicy,
    pub(crate) expectations: Option<Expectations>,
    pub(crate) destination: Destination,
    /// Number of compared files that may still be requested, plus one until all entries have been decided.
    /// Locked while requests are sent, so that both sides append them to the object in the same order.
    pending_comparisons: Mutex<u64>,
    /// Items not yet reported to the sender.
    pub(crate) unreported: Mutex<Vec<Item>>,
    pub(crate) metadata: MetadataWriter,
    pub(crate) writeback: Writeback,
    pub(crate) ledger: Mutex<Ledger>,
    finished: AtomicBool,
    /// Notes on journals that were left alone.
    pub(crate) skipped: Vec<String>,
}

impl Job for Shared {
    fn stop(&self) {
        self.queue.close();
    }

    fn stage(&self) -> Stage {
        let (written, known) = (self.progress.bytes_done.get(), self.progress.bytes_known.get());
        if self.finished() {
            Stage::Confirmation
        } else if self.queue.has_data() {
            Stage::Writing
        } else if !self.progress.all_known() {
            self.listing
        } else if written < known {
            Stage::Delivery
        } else if self.ledger.lock().object_len.is_none() {
            Stage::Requests
        } else {
            Stage::Completion
        }
    }

    fn notes(&self) -> Vec<String> {
        let broken = self.place.opened_journal().and_then(Journal::broken).map(|errno| {
            let why = std::io::Error::from(errno);
            format!("the transfer cannot be resumed if interrupted: {why}")
        });
        self.skipped.iter().cloned().chain(broken).collect()
    }
}

impl Shared {
    pub(crate) fn new(
        link: Arc<dyn ControlLink>,
        place: Place,
        options: ReceiveOptions,
        destination: Destination,
        listing: Stage,
    ) -> Self {
        let common = Common::new(link, options.set_memory, listing);
        let queue = Queue::new(options.memory, options.chunk.map(Units::new), common.progress.wake.clone());
        Self {
            queue: Arc::new(queue),
            place,
            durability: options.durability,
            receive_policy: options.receive_policy,
            expectations: options.expectations,
            destination,
            pending_comparisons: Mutex::new(1),
            unreported: Mutex::default(),
            metadata: MetadataWriter::new(options.permit),
            writeback: Writeback::default(),
            ledger: Mutex::new(Ledger::new(common.budget.clone())),
            common,
            finished: AtomicBool::new(false),
            skipped: Vec::new(),
        }
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.receive_policy.run == RunMode::ListChanges
    }

    /// Whether no names are created: in a dry run, and without a destination.
    pub(crate) fn makes_nothing(&self) -> bool {
        self.is_dry_run() || self.place.is_nowhere()
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.receive_policy.run == RunMode::Verbose
    }

    pub(crate) fn note(&self, path: &[u8], metadata_failures: MetadataFailures) {
        for what in metadata_failures {
            self.ledger.lock().notes.add(|| format!("`{}`: {what}", crate::fault::show(path)));
        }
    }

    pub(crate) fn table<T>(&self, read: impl FnOnce(&EntryTable) -> T) -> T {
        read(&self.ledger.lock().table)
    }

    pub(crate) fn path(&self, entry: u32) -> Vec<u8> {
        self.table(|table| table.path(entry))
    }

    /// Returns the shape of a file, and the identity that distinguishes it from others of the same name.
    pub(crate) fn identity(&self, entry: u32, path: &[u8]) -> (FileIdentity, Arc<Shape>) {
        let (attributes, shape) = self.table(|table| (table.attributes(entry), table.shape(entry)));
        (FileIdentity::new(self.place.local(path), &shape, attributes.mtime), shape)
    }

    /// Marks an entry as failed and removes its temporary file. Returns false if it had failed before, and is
    /// settled elsewhere.
    pub(crate) fn mark_failed(&self, entry: u32) -> bool {
        let mut ledger = self.ledger.lock();
        let (state, path) = (ledger.table.state(entry), ledger.table.path(entry));
        ledger.table.set_state(entry, EntryState::Failed);
        drop(ledger);
        if state == EntryState::Started {
            self.place.discard(entry, &path);
        }
        state != EntryState::Failed
    }

    /// Handles the sender's messages until the set is final or the job has failed.
    pub(crate) fn listen(
        &self,
        mut handle: impl FnMut(ControlMessage) -> Result<(), Fault>,
    ) -> Result<MoveReport, Fault> {
        while !self.finished() {
            if let Some(journal) = self.place.opened_journal() {
                journal.flush_in_time();
            }
            self.check_ending()?;
            match self.link.recv(RECV_TIMEOUT) {
                Ok(Some(ControlMessage::Close)) | Err(_) if self.finished() => {
                    return Ok(self.ledger.lock().report());
                }
                received => self.receive(received, &mut handle),
            }
        }
        let is_closed = || matches!(self.link.recv(RECV_TIMEOUT), Ok(Some(ControlMessage::Close)) | Err(_));
        let until = Instant::now() + CLOSE_TIMEOUT;
        while Instant::now() < until && !is_closed() {}
        Ok(self.ledger.lock().report())
    }

    pub(crate) fn finish(&self) -> Result<(), Fault> {
        let summary = self.ledger.lock().summary();
        self.finished.store(true, Ordering::Release);
        self.link.send(ControlMessage::Finish(summary))
    }

    pub(crate) fn finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Starts a comparison: more of the file may be requested until [`end_requests`](Self::end_requests).
    pub(crate) fn open_comparison(&self) {
        *self.pending_comparisons.lock() += 1;
    }

    /// Sends the requests for the entries from `first` on; to a fresh destination everything is sent without
    /// requests.
    pub(crate) fn send_requests(&self, first: u32, requests: &[EntryRequest]) -> Result<(), Fault> {
        let _order = self.pending_comparisons.lock();
        let mut ledger = self.ledger.lock();
        for (entry, request) in (first..).zip(requests) {
            match request {
                EntryRequest::All => {
                    let range = 0..ledger.table.stream_len(entry);
                    self.append(&mut ledger, entry, &[range.into()])?;
                }
                EntryRequest::Ranges(ranges) => self.append(&mut ledger, entry, ranges)?,
                EntryRequest::Nothing | EntryRequest::Kept | EntryRequest::Compare => {}
            }
        }
        ledger.decided = ledger.table.len();
        drop(ledger);
        if self.destination == Destination::Occupied && !requests.is_empty() {
            self.link.send(ControlMessage::EntryRequests(runs(requests)))?;
        }
        Ok(())
    }

    pub(crate) fn request_more(&self, entry: u32, ranges: Vec<ByteRange>) -> Result<(), Fault> {
        let pending_comparisons = self.pending_comparisons.lock();
        debug_assert!(*pending_comparisons > 0, "only of files that are being compared");
        self.append(&mut self.ledger.lock(), entry, &ranges)?;
        self.link.send(ControlMessage::More(More { entry: entry.into(), ranges }))
    }

    fn append(&self, ledger: &mut Ledger, entry: u32, ranges: &[ByteRange]) -> Result<(), Fault> {
        for &ByteRange { start, len } in ranges {
            ledger.append(entry, &(start..start + len))?;
            self.progress.bytes_known.add(len);
        }
        Ok(())
    }

    pub(crate) fn end_requests(&self) -> Result<(), Fault> {
        let mut pending_comparisons = self.pending_comparisons.lock();
        debug_assert!(*pending_comparisons > 0, "each file ends once");
        *pending_comparisons = pending_comparisons.saturating_sub(1);
        if *pending_comparisons > 0 {
            return Ok(());
        }
        let mut ledger = self.ledger.lock();
        let bytes = ledger.layout.len;
        ledger.object_len = Some(bytes);
        drop(ledger);
        self.queue.signal_work();
        match self.destination {
            Destination::Fresh => Ok(()),
            Destination::Occupied => self.link.send(ControlMessage::EntryRequestsEnd { bytes }),
        }
    }
}

/// Joins equal consecutive requests into runs.
fn runs(requests: &[EntryRequest]) -> Vec<RequestRun> {
    let run = |equal: &[EntryRequest]| RequestRun { count: equal.len() as u64, request: equal[0].clone() };
    requests.chunk_by(PartialEq::eq).map(run).collect()
}

/// Messages to the verifier. `Existing` is the hash of a group of existing data; `None` if it cannot be read.
pub(crate) enum Check {
    Written(Written),
    Expected { digests: Vec<FileDigest>, _reserved: Reserved },
    Compare(Comparison),
    Existing { entry: u32, group: u32, value: Option<Value> },
    Proofs { proofs: Vec<Proof>, _reserved: Reserved },
    Abandoned(u32),
}

impl Check {
    pub(crate) fn expected(budget: &Arc<Budget>, digests: Vec<FileDigest>) -> Result<Self, Fault> {
        let text_len = |digest: &FileDigest| digest.result.as_ref().err().map_or(0, text);
        let bytes: usize = digests.iter().map(|digest| size_of::<FileDigest>() + text_len(digest)).sum();
        Ok(Self::Expected { digests, _reserved: budget.reserve(bytes as u64)? })
    }

    pub(crate) fn proofs(budget: &Arc<Budget>, proofs: Vec<Proof>) -> Result<Self, Fault> {
        let bytes = |proof: &Proof| size_of::<Proof>() + proof.values.len() * size_of::<Value>();
        let bytes = proofs.iter().map(bytes).sum::<usize>();
        Ok(Self::Proofs { proofs, _reserved: budget.reserve(bytes as u64)? })
    }
}

pub(crate) fn text(fault: &Fault) -> usize {
    fault.message.len() + fault.hint.len()
}

/// A file with existing data.
#[derive(Clone)]
pub(crate) struct Comparison {
    pub(crate) entry: u32,
    /// Ranges of the stream in the temporary file; `None`: the existing file is compared.
    pub(crate) claimed: Option<RangeSet>,
    /// Set when the rest of the file need not be hashed.
    pub(crate) is_over: Arc<AtomicBool>,
}

pub(crate) struct Written {
    pub(crate) entry: u32,
    /// Range of the stream.
    pub(crate) range: Range<u64>,
    /// The contiguous written range that contains it, at the time of the write.
    pub(crate) enclosing: Range<u64>,
    /// The bytes, unless too many buffers are in use.
    pub(crate) bytes: Option<(Arc<BufferGuard>, Range<usize>)>,
    /// Length of the stream.
    pub(crate) len: u64,
}

/// Messages to the committer: one per entry, and the number of entries.
pub(crate) enum CommitEvent {
    /// A directory or link, which is finished at the end, or a file that is left as it is.
    Deferred,
    /// The file is complete and verified.
    Verified(u32),
    /// The existing file is equal.
    Same(u32),
    Failed {
        entry: u32,
        fault: Fault,
        _reserved: Reserved,
    },
    /// Total number of entries.
    End(u64),
}

impl CommitEvent {
    pub(crate) fn failed(budget: &Arc<Budget>, entry: u32, fault: Fault) -> Result<Self, Fault> {
        let reserved = budget.reserve(text(&fault) as u64)?;
        Ok(Self::Failed { entry, fault, _reserved: reserved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_equal_wants_become_one_run() {
        let requests = vec![EntryRequest::Kept, EntryRequest::Kept, EntryRequest::All, EntryRequest::Kept];
        let counts: Vec<_> = runs(&requests).into_iter().map(|run| (run.count, run.request)).collect();
        assert_eq!(counts, [(2, EntryRequest::Kept), (1, EntryRequest::All), (1, EntryRequest::Kept)]);
    }
}
