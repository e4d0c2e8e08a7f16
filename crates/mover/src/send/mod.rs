//! The sending side: walks the sources, reads and hashes files, and handles the receiver's messages.

mod blocks;
mod messages;
mod plan;
mod read;
mod select;
mod shared;
mod source;
mod walk;

use std::sync::Arc;

use crossbeam_channel::unbounded;
use haul_proto::ObjectSource;
use haul_wire::control::{Fault, Selection};

pub(crate) use blocks::{BLOCK, Block};
pub(crate) use messages::listen;
pub(crate) use select::Rules;
pub use select::check_selection;
pub(crate) use select::ignores::{Ignores, NAMES as IGNORE_FILES, enter as obey_ignore_files};
pub use select::pattern::{BadPattern, check_pattern};
pub use shared::SendLimits;
pub(crate) use shared::Shared;
pub(crate) use source::FileSource;
pub use walk::completeness::{has_unknown_exclusions, leaves_out_unseen};

use crate::job::{self, Job as _, JobHandle, Stage, Worker, spawn_all};
use crate::link::ControlLink;
use crate::report::MoveReport;
use crate::root::Root;
use read::{Reader, hash_blocks};
use shared::Requests;
use walk::Walker;

/// A running job that sends files.
pub struct SendJob {
    /// The object's contents, read by the data path.
    pub source: Box<dyn ObjectSource>,
    /// Controls the job and reports its progress.
    pub handle: JobHandle,
}

/// Sends `sources` (files, directories, symbolic links; paths of any bytes), naming entries as `cp -a` does:
/// each source keeps its last component, except that `.`, `..` and `/` stand for their contents. Symbolic
/// links are sent as links; one that ends in `/` is followed. Unreadable entries are reported and the rest is
/// sent. `selection` restricts which entries are sent.
///
/// # Errors
/// The selection is invalid, or the threads could not be started.
pub fn send_files(
    sources: Vec<Vec<u8>>,
    root: Root,
    selection: &Selection,
    link: Arc<dyn ControlLink>,
    limits: SendLimits,
) -> Result<SendJob, Fault> {
    let shared = Arc::new(Shared::new(link, limits, Stage::Listing));
    let walker = Walker::new(root, sources, selection, &shared)?;
    let source = Box::new(FileSource::new(shared.clone()));
    let handle = JobHandle::start(shared, "haul-send", |shared| run(shared, walker))?;
    Ok(SendJob { source, handle })
}

/// Runs the job to its end; all threads that it starts have ended when it returns.
fn run(shared: &Arc<Shared>, walker: Walker) -> Result<MoveReport, Fault> {
    let (jobs, incoming) = unbounded();
    let (proofs, to_prove) = unbounded();
    *shared.requests.lock() = Requests { jobs: Some(jobs), proofs: Some(proofs), ..Requests::default() };
    let reader = Reader::new(shared.clone(), incoming);
    let (planning, hashing) = (shared.clone(), shared.clone());
    let plan = move || plan::run(&planning, walker);
    let workers: [Worker; 3] = [
        ("haul-walk", Box::new(plan)),
        ("haul-read", Box::new(move || reader.run())),
        ("haul-prove", Box::new(move || hash_blocks(&hashing, &to_prove))),
    ];
    let threads = spawn_all(shared, workers);
    let result = listen(shared);
    shared.stop();
    // Dropping the channels' senders ends the threads that wait for work.
    *shared.requests.lock() = Requests::default();
    threads.into_iter().try_for_each(job::join)?;
    result
}
