//! State shared by the threads of a sending job, and the receiver's requests.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Sender;
use derive_more::Deref;
use haul_base::{AlignedBytes, Bytes};
use haul_proto::Available;
use haul_wire::control::{
    ControlMessage, Destination, DestinationLineage, Fault, FileDigest, Growth, Preserve, Removal,
};
use parking_lot::{Condvar, Mutex};

use crate::budget::{Reserved, SET_MEMORY};
use crate::entries::{EntryState, EntryTable};
use crate::job::{Common, Job, Stage};
use crate::link::ControlLink;
use crate::report::Failures;
use crate::send::blocks::{BLOCK, Block, Sections, SourceFile, Store};
use crate::stream::Units;
use crate::tree::{Groups, Tree, Value};

/// Maximum wait of a thread before it checks again whether the job is over.
const RECV_TIMEOUT: Duration = Duration::from_millis(20);

/// Initial read-ahead in bytes: small enough that data is still in the processor's caches when it is sent.
const AHEAD: u64 = 1 << 20;

/// With fewer bytes left, the data path has to wait: it holds back what does not fill a packet.
const LAST_BATCH: u64 = 64 << 10;

/// Number of files found by the walk and not yet completely read above which no more are announced.
const PLANNED_AHEAD: usize = 1 << 16;

/// Limits and options of a sending job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Maximum read-ahead of contents in bytes. The read-ahead starts small and grows when the data path had
    /// to wait because reading waited for the storage: data further ahead leaves the processor's caches
    /// before it is sent.
    pub read_ahead: u64,
    /// Maximum bytes kept for retransmission; lost data beyond that is read from the files again. Of large
    /// files nothing is kept at first, and more each time a re-read had to wait for the storage.
    pub keep: u64,
    /// Memory limit in bytes for names, links and holes of the set and for the receiver's requests; above it,
    /// the job ends with [`FaultCode::SetTooLarge`](haul_wire::control::FaultCode::SetTooLarge).
    pub set_memory: Bytes,
    /// How files that grow during the transfer are handled.
    pub growth: Growth,
    /// Whether hard links, owners, extended attributes and access control lists are preserved.
    pub preserve: Preserve,
    /// Size of one read of the object, at most 100 MB; two of these are in memory regardless of `read_ahead`
    /// and `keep`. `None`: 128 KiB.
    pub chunk: Option<Bytes>,
}

impl Default for SendLimits {
    fn default() -> Self {
        let (growth, preserve) = (Growth::default(), Preserve::default());
        Self { read_ahead: 24 << 20, keep: 96 << 20, set_memory: SET_MEMORY, growth, preserve, chunk: None }
    }
}

/// The set and the results of its entries.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) table: EntryTable,
    pub(crate) failures: Failures,
    /// Bytes of files that were not sent because the receiver had them from an earlier attempt.
    pub(crate) resumed: u64,
    /// The same, summed from the receiver's items; the only source in a dry run.
    pub(crate) resumed_by_items: u64,
    /// Result of removing names that the set does not have.
    pub(crate) removal: Removal,
}

#[derive(Deref)]
pub(crate) struct Shared {
    #[deref]
    common: Common,
    pub(crate) limits: SendLimits,
    pub(crate) units: Option<Units>,
    pub(crate) requests: Mutex<Requests>,
    ready: OnceLock<Destination>,
    /// The destination's lineage. Accepted once, and only before the receiver is ready.
    pub(crate) lineage: OnceLock<DestinationLineage>,
    upto: AtomicU64,
    ahead: AtomicU64,
    /// Whether the reader had to wait for its last read or for the next file, that is, whether storage
    /// rather than the CPU limits reading.
    pub(crate) disk_is_slow: AtomicBool,
    idle: AtomicBool,
    ended: AtomicBool,
    sent: AtomicU64,
    stop: AtomicBool,
    pub(crate) store: Mutex<Store>,
    room: Condvar,
    pub(crate) ledger: Mutex<Ledger>,
}

impl Job for Shared {
    /// Tells the peer at once: it would continue with the data that it has.
    fn fail(&self, fault: Fault) {
        if self.end_with(fault.clone(), false) {
            // The channel itself may have failed; the fault is kept anyway.
            let _ = self.link.send(ControlMessage::Abort(fault));
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.room.notify_all();
        self.progress.wake.call();
    }

    fn stage(&self) -> Stage {
        let Available { upto, end } = self.available();
        if self.destination().is_none() {
            Stage::Destination
        } else if self.progress.bytes_done.get() < upto {
            Stage::Delivery
        } else if end {
            Stage::Completion
        } else if self.waits_for_receiver() {
            Stage::Requests
        } else if self.is_idle() {
            self.listing
        } else {
            Stage::Reading
        }
    }
}

impl Shared {
    pub(crate) fn new(link: Arc<dyn ControlLink>, limits: SendLimits, listing: Stage) -> Self {
        let units = limits.chunk.map(Units::new);
        let buffer_len = units.map_or(BLOCK, Units::longest);
        Self {
            common: Common::new(link, limits.set_memory, listing),
            limits,
            units,
            requests: Mutex::default(),
            ready: OnceLock::new(),
            lineage: OnceLock::new(),
            upto: AtomicU64::new(0),
            ahead: AtomicU64::new(AHEAD.min(limits.read_ahead)),
            disk_is_slow: AtomicBool::new(true),
            idle: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            store: Mutex::new(Store::new(buffer_len, limits.keep)),
            room: Condvar::new(),
            ledger: Mutex::default(),
        }
    }

    /// Records that the receiver is ready. False: it already was.
    pub(crate) fn set_ready(&self, destination: Destination) -> bool {
        let first = self.ready.set(destination).is_ok();
        self.room.notify_all();
        first
    }

    pub(crate) fn destination(&self) -> Option<Destination> {
        self.ready.get().copied()
    }

    /// Waits until `ready` returns a value. `None`: the job is over.
    pub(crate) fn wait_for<T>(&self, ready: impl Fn(&Store) -> Option<T>) -> Option<T> {
        let mut store = self.store.lock();
        while !self.stopped() {
            let found = ready(&store);
            if found.is_some() {
                return found;
            }
            // A notification may arrive between the check and the wait, hence the timeout.
            self.room.wait_for(&mut store, RECV_TIMEOUT);
        }
        None
    }

    /// Waits while too many files are announced and not read. False: the job is over.
    pub(crate) fn wait_for_pending_files(&self) -> bool {
        while self.requests.lock().pending_files() >= PLANNED_AHEAD && !self.stopped() {
            std::thread::sleep(RECV_TIMEOUT);
        }
        !self.stopped()
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn available(&self) -> Available {
        let end = self.ended.load(Ordering::Acquire);
        Available { upto: self.upto.load(Ordering::Acquire), end }
    }

    /// Whether the data path has consumed all published data.
    pub(crate) fn is_drained(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= self.upto.load(Ordering::Relaxed)
    }

    /// Sets whether all readable data has been published, so that what comes next depends on the walk, on a
    /// pipe, or on the receiver, which may need the last bytes before it sends further requests.
    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Release);
        if idle && !self.is_drained() {
            // The data path may hold back bytes that do not fill a packet.
            self.progress.wake.call();
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    /// Whether all data requested so far has been read, and only further requests can continue the job.
    pub(crate) fn waits_for_receiver(&self) -> bool {
        self.is_idle() && self.progress.all_known()
    }

    pub(crate) fn publish(&self, block: Block) {
        let end = block.end();
        let backlog = block.offset.saturating_sub(self.sent.load(Ordering::Relaxed));
        if block.offset > 0 && backlog < LAST_BATCH && self.disk_is_slow.load(Ordering::Relaxed) {
            // Only the reader publishes, so no other thread changes it.
            let ahead = self.ahead.load(Ordering::Relaxed);
            self.ahead.store((2 * ahead).min(self.limits.read_ahead), Ordering::Relaxed);
        }
        self.progress.other_steps.add(1);
        self.store.lock().publish(block, self.sent.load(Ordering::Relaxed));
        self.upto.store(end, Ordering::Release);
        self.progress.wake.call();
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.progress.wake.call();
    }

    /// Records that the data path has read up to `end`. Only the data path calls this.
    pub(crate) fn note_sent(&self, end: u64) {
        if end <= self.sent.load(Ordering::Relaxed) {
            return;
        }
        self.sent.store(end, Ordering::Relaxed);
        let ahead = self.upto.load(Ordering::Relaxed).saturating_sub(end);
        if ahead <= self.ahead.load(Ordering::Relaxed) * 3 / 4 {
            self.room.notify_all();
        }
    }

    /// Whether the reader may continue.
    pub(crate) fn has_room_in(&self, store: &Store) -> bool {
        let ahead = self.upto.load(Ordering::Relaxed).saturating_sub(self.sent.load(Ordering::Relaxed));
        let next_fits = |units: Units| ahead.max(store.held().1) <= units.longest() as u64;
        ahead < self.ahead.load(Ordering::Relaxed) || self.units.is_some_and(next_fits)
    }

    /// Takes a buffer for reuse. Frees memory for the next unit before: drops sent blocks, oldest first, even if they
    /// may still be lost.
    pub(crate) fn spare_buffer(&self) -> Option<AlignedBytes> {
        let mut store = self.store.lock();
        if let Some(units) = self.units {
            let most = units.memory().max(self.limits.read_ahead.saturating_add(self.limits.keep));
            store.shrink(self.sent.load(Ordering::Relaxed), most - units.longest() as u64);
        }
        store.spare.pop()
    }
}

/// Ranges of the stream of a file, to be read.
pub(crate) struct ReadJob {
    pub(crate) file: Arc<SourceFile>,
    /// `None`: the whole stream, of which the receiver has nothing.
    pub(crate) sections: Option<Arc<Sections>>,
    /// Collects the hashes of the groups that the ranges overlap; `None` if the receiver has nothing of the
    /// file, or was already sent the hashes.
    pub(crate) hashes: Option<Arc<BlockHashes>>,
}

/// A file whose group hashes are sent to the receiver: computed by the reader where it sends bytes of a
/// group, else by the prover.
pub(crate) struct BlockHashes {
    pub(crate) file: Arc<SourceFile>,
    tree: Mutex<Tree>,
    is_reported: AtomicBool,
}

impl BlockHashes {
    pub(crate) fn new(file: Arc<SourceFile>) -> Self {
        let tree = Mutex::new(Tree::new(Groups::of(file.shape.len)));
        Self { file, tree, is_reported: AtomicBool::new(false) }
    }

    pub(crate) fn groups(&self) -> Groups {
        Groups::of(self.file.shape.len)
    }

    /// Records the values of groups. Returns the file's digest once all are known; an empty stream has no
    /// groups.
    pub(crate) fn set(&self, values: &[(u32, Value)]) -> Option<Value> {
        let mut tree = self.tree.lock();
        for &(group, value) in values {
            tree.set(group, value);
        }
        tree.root()
    }

    /// Returns the digest message of the file for the first caller, `None` afterwards.
    pub(crate) fn report(&self, result: Result<Value, Fault>) -> Option<FileDigest> {
        let first = !self.is_reported.swap(true, Ordering::AcqRel);
        first.then(|| FileDigest { entry: self.file.entry.into(), result })
    }
}

pub(crate) struct HashJob {
    pub(crate) hashes: Arc<BlockHashes>,
    pub(crate) groups: Vec<u32>,
}

/// A file that the receiver had in part.
pub(crate) struct Partial {
    pub(crate) hashes: Arc<BlockHashes>,
    /// Final state of the entry if no bytes need to be sent.
    pub(crate) state_if_unsent: EntryState,
    pub(crate) bytes: u64,
    /// Whether the receiver's data turned out to differ, also in a dry run.
    pub(crate) differs: bool,
    /// Memory reserved until the entry is settled.
    pub(crate) _reserved: Reserved,
}

#[derive(Default)]
pub(crate) struct Requests {
    /// Queue of the reader; `None` once the object is complete.
    pub(crate) jobs: Option<Sender<ReadJob>>,
    pub(crate) proofs: Option<Sender<HashJob>>,
    /// Files that were announced and not requested yet, in entry order.
    pub(crate) announced: VecDeque<Arc<SourceFile>>,
    /// Entries below this number have been answered by the receiver.
    pub(crate) answered: u32,
    pub(crate) partial: HashMap<u32, Partial>,
    /// Bytes of the object so far.
    pub(crate) object: u64,
}

impl Requests {
    /// Returns the number of files found by the walk whose end is still to come.
    pub(crate) fn pending_files(&self) -> usize {
        self.announced.len() + self.jobs.as_ref().map_or(0, Sender::len) + self.partial.len()
    }
}

#[cfg(test)]
mod tests {
    use haul_base::AlignedBytes;
    use haul_wire::control::{Growth, LinkChoice};

    use super::*;
    use crate::identity::Identity;
    use crate::link::tests::NullLink;
    use crate::root::{Root, SourceRoot};
    use crate::stream::Shape;

    fn shared(read_ahead: u64) -> Shared {
        let limits = SendLimits { read_ahead, ..SendLimits::default() };
        Shared::new(Arc::new(NullLink), limits, Stage::Listing)
    }

    fn block(offset: u64) -> Block {
        Block::new(offset, AlignedBytes::zeroed(10), 10)
    }

    #[test]
    fn read_ahead_grows_up_to_the_limit_when_the_data_path_waits() {
        let shared = shared(3 * AHEAD);
        let ahead = || shared.ahead.load(Ordering::Relaxed);
        shared.publish(block(0));
        assert_eq!(ahead(), AHEAD, "at the beginning everybody waits");
        shared.note_sent(LAST_BATCH);
        shared.publish(block(2 * LAST_BATCH));
        assert_eq!(ahead(), AHEAD, "there was something to send");
        shared.disk_is_slow.store(false, Ordering::Relaxed);
        shared.note_sent(3 * LAST_BATCH);
        shared.publish(block(3 * LAST_BATCH));
        assert_eq!(ahead(), AHEAD, "the disk was not the reason");
        shared.disk_is_slow.store(true, Ordering::Relaxed);
        for (n, expected) in [(4, 2 * AHEAD), (5, 3 * AHEAD), (6, 3 * AHEAD)] {
            shared.note_sent(n * LAST_BATCH - 1_000);
            shared.publish(block(n * LAST_BATCH));
            assert_eq!(ahead(), expected);
        }
    }

    #[test]
    fn the_walk_waits_for_pending_files_until_the_job_stops() {
        let source_root = SourceRoot::new(&Root::Anywhere, b".", 0, LinkChoice::default()).unwrap();
        let file = Arc::new(SourceFile {
            entry: 0,
            source_root: Arc::new(source_root),
            path: b"f".to_vec(),
            shape: Arc::new(Shape::new(0, &[])),
            identity: Identity::of(&rustix::fs::stat(".").unwrap()),
            growth: Growth::Refuse,
        });
        let shared = Arc::new(shared(AHEAD));
        assert!(shared.wait_for_pending_files());
        let wait = || {
            shared.requests.lock().announced.resize(PLANNED_AHEAD, file.clone());
            let walk = shared.clone();
            let waiting = std::thread::spawn(move || walk.wait_for_pending_files());
            std::thread::sleep(3 * RECV_TIMEOUT);
            assert!(!waiting.is_finished());
            waiting
        };
        let waiting = wait();
        shared.requests.lock().announced.pop_front();
        assert!(waiting.join().unwrap());
        let waiting = wait();
        shared.stop.store(true, Ordering::Release);
        assert!(!waiting.join().unwrap());
    }

    #[test]
    fn the_initial_read_ahead_respects_a_small_limit() {
        assert_eq!(shared(1).ahead.into_inner(), 1);
    }
}
