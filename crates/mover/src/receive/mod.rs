//! The receiving side.

mod book;
mod change_list;
mod commit;
mod decide;
mod delete;
mod options;
mod peer;
mod place;
mod queue;
mod shared;
mod verify;
mod write;

use std::os::fd::AsFd as _;
use std::sync::Arc;

use crossbeam_channel::Sender;
use haul_proto::ObjectSink;
use haul_wire::control::{Destination, Fault, Layout, RunMode};

pub(crate) use book::FilePiece;
pub(crate) use commit::commit_only;
pub use options::{Expectations, ReceiveOptions};
pub(crate) use place::base::{Base, open_base};
pub use place::space::MinFree;
pub(crate) use place::space::NoSpace;
pub(crate) use place::{Place, mismatch};
pub(crate) use queue::{BufferGuard, InOrder, Work};
pub(crate) use shared::{Check, Shared, Written};
pub(crate) use write::{FileSink, Pipeline};

use crate::entries::{EntryState, Kind};
use crate::job::{self, JobHandle, Stage, Task, Worker, spawn_all};
use crate::journal::{Hold, Leftovers};
use crate::link::ControlLink;
use crate::report::MoveReport;
use crate::root::Root;
use commit::Committer;
use commit::sync::Order;
use peer::Peer;
use place::base::Presence;
use verify::Verifier;
use write::Writer;

const CHECKS: usize = 1024;

const SETTLES: usize = 4096;

/// A running job that receives files.
pub struct ReceiveJob {
    /// Sink for the contents delivered by the data path.
    pub sink: Box<dyn ObjectSink>,
    /// Handle of the job.
    pub handle: JobHandle,
}

/// Receives a set to `destination`, which [`Root`] may confine. An existing directory takes the entries in;
/// otherwise `layout` decides (see [`crate::layout_for`]). Files appear under their final names only whole
/// and verified.
///
/// # Errors
/// The destination does not exist, is not a directory where it has to be, or cannot be opened or written;
/// then the peer is told nothing yet. Or the threads could not be started.
pub fn receive_files(
    destination: &[u8],
    root: &Root,
    layout: Layout,
    link: Arc<dyn ControlLink>,
    options: ReceiveOptions,
) -> Result<ReceiveJob, Fault> {
    let base = open_base(root, destination, layout, options.receive_policy.run)?;
    let place = Place::new(base, &options);
    let moves = options.receive_policy.run != RunMode::ListChanges;
    let hold = if moves { Hold::Keep } else { Hold::Release };
    let is_there = place.base.presence == Presence::There;
    let leftovers = is_there.then(|| Leftovers::find(place.base.directory.as_fd(), hold)).flatten();
    let skipped = leftovers.as_ref().map(Leftovers::notes).unwrap_or_default();
    let nothing_left =
        |leftovers: &Leftovers| leftovers.is_empty_at(place.base.rename.as_deref().unwrap_or_default());
    let fresh = moves && place.is_fresh && leftovers.as_ref().is_none_or(nothing_left);
    let destination = if fresh { Destination::Fresh } else { Destination::Occupied };
    let mut shared = Shared::new(link, place, options, destination, Stage::Listing);
    for note in &skipped {
        shared.book.lock().notes.add(|| note.clone());
    }
    shared.skipped = skipped;
    let shared = Arc::new(shared);
    let sink = Box::new(FileSink { shared: shared.clone(), takes_any_order: true });
    let looks = shared.is_dry_run();
    let write = move |pipeline, orders| -> Task {
        let writer = Writer { shared: pipeline, writeback: orders, since: 0 };
        Box::new(move || if looks { Ok(()) } else { writer.run() })
    };
    let handle = JobHandle::start(shared, "haul-receive", move |shared| run(shared, leftovers, write))?;
    Ok(ReceiveJob { sink, handle })
}

/// Runs the job to its end, with the task that `write` returns as the writer. When it returns, all its
/// threads have ended, and only temporary files that a later job can resume are left.
pub(crate) fn run(
    shared: &Arc<Shared>,
    leftovers: Option<Leftovers>,
    write: impl FnOnce(Pipeline, Sender<Order>) -> Task,
) -> Result<MoveReport, Fault> {
    let (checks, checks_in) = crossbeam_channel::bounded(CHECKS);
    let (settles, settles_in) = crossbeam_channel::bounded(SETTLES);
    let (orders, ordered) = crossbeam_channel::bounded(1);
    let pipeline = Pipeline { shared: shared.clone(), checks: checks.clone(), settles: settles.clone() };
    let write = write(pipeline.clone(), orders);
    let writing = shared.clone();
    let write_back = move || {
        writing.writeback.run(&ordered);
        Ok(())
    };
    let verifier = Verifier::new(shared.clone(), checks_in, settles);
    let committer = Committer::new(shared.clone(), settles_in);
    let (hashing, hashing_in) = crossbeam_channel::unbounded();
    let comparing = shared.clone();
    let compare = move || verify::compare(&comparing, &hashing_in, &checks);
    let workers: [Worker; 5] = [
        ("haul-write", write),
        ("haul-verify", Box::new(move || verifier.run())),
        ("haul-commit", Box::new(move || committer.run())),
        ("haul-compare", Box::new(compare)),
        ("haul-writeback", Box::new(write_back)),
    ];
    let threads = spawn_all(shared, workers);
    let to_hash = Vec::new();
    let mut peer = Peer { shared: pipeline, leftovers, hashing, to_hash, source_root: None, ended: false };
    let result = peer.listen();
    peer.remove_leftovers();
    // The threads end when their channels are closed.
    drop(peer);
    shared.queue.close();
    let joined = threads.into_iter().try_for_each(job::join);
    let is_started = |kind, state| matches!((kind, state), (Kind::File(_), EntryState::Started));
    let unfinished: Vec<u32> = shared.table(|table| table.those(is_started).collect());
    for entry in unfinished {
        shared.place.abandon(entry, &shared.path(entry));
    }
    // Otherwise the committer has done it.
    if !shared.finished() {
        shared.place.finish(false);
    }
    if result.is_err() {
        shared.place.base.remove_made();
    }
    joined.and(result)
}
