//! The receiving side.

mod commit;
mod decide;
mod delete;
mod ledger;
mod messages;
mod metadata;
mod options;
mod place;
mod queue;
mod shared;
mod sync;
mod verify;
mod write;

use std::os::fd::AsFd as _;
use std::sync::Arc;

use crossbeam_channel::Sender;
use haul_proto::ObjectSink;
use haul_wire::control::{Destination, Fault, Layout, RunMode};

pub(crate) use commit::commit_only;
pub(crate) use ledger::FilePiece;
pub(crate) use metadata::{FILE_BITS, mode_of};
pub use options::{Expectations, ReceiveOptions};
pub use place::base::create_directory;
pub(crate) use place::base::{Base, open_base, umask};
pub use place::space::MinFree;
pub(crate) use place::space::NoSpace;
pub(crate) use place::{Place, digest_mismatch};
pub(crate) use queue::{BufferGuard, InOrder, Work};
pub(crate) use shared::{Check, Shared, Written};
pub(crate) use write::{FileSink, Pipeline};

use crate::entries::{EntryState, Kind};
use crate::job::{self, JobHandle, Stage, Task, Worker, spawn_all};
use crate::journal::{Leftovers, LockMode};
use crate::link::ControlLink;
use crate::report::MoveReport;
use crate::root::Root;
use commit::Committer;
use messages::MessageHandler;
use place::base::Presence;
use sync::WritebackJob;
use verify::Verifier;
use write::Writer;

const CHECKS: usize = 1024;

const COMMIT_EVENTS: usize = 4096;

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
    let writes = options.receive_policy.run != RunMode::ListChanges;
    let lock_mode = if writes { LockMode::Keep } else { LockMode::Release };
    let is_there = place.base.presence == Presence::There;
    let leftovers = is_there.then(|| Leftovers::find(place.base.directory.as_fd(), lock_mode)).flatten();
    let skipped = leftovers.as_ref().map(Leftovers::notes).unwrap_or_default();
    let has_no_leftovers =
        |leftovers: &Leftovers| leftovers.is_empty_at(place.base.rename.as_deref().unwrap_or_default());
    let fresh = writes && place.is_fresh && leftovers.as_ref().is_none_or(has_no_leftovers);
    let destination = if fresh { Destination::Fresh } else { Destination::Occupied };
    let mut shared = Shared::new(link, place, options, destination, Stage::Listing);
    for note in &skipped {
        shared.ledger.lock().notes.add(|| note.clone());
    }
    shared.skipped = skipped;
    let shared = Arc::new(shared);
    let sink = Box::new(FileSink { shared: shared.clone(), takes_any_order: true });
    let write = move |pipeline, writeback_jobs| -> Task {
        let writer = Writer { shared: pipeline, writeback: writeback_jobs, unsynced: 0 };
        Box::new(move || writer.run())
    };
    let handle = JobHandle::start(shared, "haul-receive", move |shared| run(shared, leftovers, write))?;
    Ok(ReceiveJob { sink, handle })
}

/// Runs the job to its end, with the task that `write` returns as the writer. When it returns, all its
/// threads have ended, and only temporary files that a later job can resume are left.
pub(crate) fn run(
    shared: &Arc<Shared>,
    leftovers: Option<Leftovers>,
    write: impl FnOnce(Pipeline, Sender<WritebackJob>) -> Task,
) -> Result<MoveReport, Fault> {
    let (checks, checks_in) = crossbeam_channel::bounded(CHECKS);
    let (events, events_in) = crossbeam_channel::bounded(COMMIT_EVENTS);
    let (writeback_jobs, jobs_in) = crossbeam_channel::bounded(1);
    let pipeline = Pipeline { shared: shared.clone(), checks: checks.clone(), events: events.clone() };
    let write = write(pipeline.clone(), writeback_jobs);
    let writing = shared.clone();
    let run_writeback = move || {
        writing.writeback.run(&jobs_in);
        Ok(())
    };
    let verifier = Verifier::new(shared.clone(), checks_in, events);
    let committer = Committer::new(shared.clone(), events_in);
    let (hashing, hashing_in) = crossbeam_channel::unbounded();
    let comparing = shared.clone();
    let compare = move || verify::compare(&comparing, &hashing_in, &checks);
    let workers: [Worker; 5] = [
        ("haul-write", write),
        ("haul-verify", Box::new(move || verifier.run())),
        ("haul-commit", Box::new(move || committer.run())),
        ("haul-compare", Box::new(compare)),
        ("haul-writeback", Box::new(run_writeback)),
    ];
    let threads = spawn_all(shared, workers);
    let to_hash = Vec::new();
    let mut handler = MessageHandler { shared: pipeline, leftovers, hashing, to_hash, source_root: None };
    let result = handler.listen();
    handler.remove_leftovers();
    // The threads end when their channels are closed.
    drop(handler);
    shared.queue.close();
    let joined = threads.into_iter().try_for_each(job::join);
    let is_started = |kind, state| matches!((kind, state), (Kind::File(_), EntryState::Started));
    let unfinished: Vec<u32> = shared.table(|table| table.select(is_started).collect());
    for entry in unfinished {
        shared.place.abandon(entry, &shared.path(entry));
    }
    // Otherwise the committer has done it.
    if !shared.finished() {
        shared.place.finish(false);
    }
    if result.is_err() {
        shared.place.base.remove_created();
    }
    joined.and(result)
}
