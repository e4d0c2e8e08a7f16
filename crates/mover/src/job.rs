//! A running job: its current stage, its worker threads, and the owner's handle.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use derive_more::Display;
use haul_base::Bytes;
use haul_wire::control::{ControlMessage, Fault, FaultCode};
use nix::sys::resource::{UsageWho, getrusage};

use crate::budget::Budget;
use crate::link::ControlLink;
use crate::progress::{Progress, Wake};
use crate::report::MoveReport;
use crate::storage::Inherited;

/// State shared by the threads of a sending or receiving job.
pub(crate) struct Common {
    pub(crate) link: Arc<dyn ControlLink>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) budget: Arc<Budget>,
    /// The stage to report while the sender has nothing more to read.
    pub(crate) listing: Stage,
    /// The fault that ended the job, and whether the peer still has to be told.
    ending: OnceLock<(Fault, bool)>,
}

impl Common {
    pub(crate) fn new(link: Arc<dyn ControlLink>, set_memory: Bytes, listing: Stage) -> Self {
        let budget = Budget::new(set_memory);
        Self { link, progress: Arc::default(), budget, listing, ending: OnceLock::new() }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ending.get().is_some()
    }

    /// Fails with the fault that ended the job, and sends it to the peer if necessary.
    pub(crate) fn check_ending(&self) -> Result<(), Fault> {
        let Some((fault, notify_peer)) = self.ending.get() else { return Ok(()) };
        if *notify_peer {
            // The channel itself may have failed.
            let _ = self.link.send(ControlMessage::Abort(fault.clone()));
        }
        Err(fault.clone())
    }
}

pub(crate) trait Job: Deref<Target = Common> + Send + Sync + 'static {
    fn stage(&self) -> Stage;
    /// Stops all threads and wakes those that wait.
    fn stop(&self);
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Ends the job. False: it had already ended with another fault, which is kept.
    fn end_with(&self, fault: Fault, notify_peer: bool) -> bool {
        let is_first = self.ending.set((fault, notify_peer)).is_ok();
        self.stop();
        is_first
    }

    /// Ends the job, and tells the peer.
    fn fail(&self, fault: Fault) {
        // A thread that stopped listening has reported its own fault, or will once its panic has unwound.
        if fault != job_ended(()) {
            self.end_with(fault, true);
        }
    }

    /// Handles the result of a receive; any error ends the job.
    fn receive(
        &self,
        received: Result<Option<ControlMessage>, Fault>,
        handle: impl FnOnce(ControlMessage) -> Result<(), Fault>,
    ) where
        Self: Sized,
    {
        use ControlMessage as M;
        match received {
            Ok(Some(M::Abort(fault))) | Err(fault) => drop(self.end_with(fault, false)),
            // These belong to the session.
            Ok(Some(M::Ping(_) | M::Pong(_) | M::UdpSeen { .. }) | None) => {}
            Ok(Some(message)) => {
                self.progress.other_steps.add(1);
                if let Err(fault) = handle(message) {
                    self.fail(fault);
                }
            }
        }
    }
}

/// The fault for a channel whose receiver is gone because the job is over.
pub(crate) fn job_ended<T>(_: T) -> Fault {
    Fault::new(FaultCode::Interrupted, "the transfer is over", "")
}

/// Handle of a running job. Dropping it aborts the job and waits for its threads; a receiver then removes its
/// temporary files.
pub struct JobHandle {
    job: Arc<dyn Job>,
    thread: Option<JoinHandle<Result<MoveReport, Fault>>>,
}

impl JobHandle {
    pub(crate) fn start<J: Job>(
        job: Arc<J>,
        name: &str,
        run: impl FnOnce(&Arc<J>) -> Result<MoveReport, Fault> + Send + 'static,
    ) -> Result<Self, Fault> {
        let working = job.clone();
        let thread = spawn(name, move || run(&working))?;
        Ok(Self { job, thread: Some(thread) })
    }

    /// Returns the live counters of the job.
    pub fn progress(&self) -> Arc<Progress> {
        self.job.progress.clone()
    }

    /// Returns what the job waits for when it makes no progress.
    pub fn stage(&self) -> Stage {
        self.job.stage()
    }

    /// Sets the callback that any thread calls when there is more to send or flow control permits
    /// substantially more.
    pub fn on_wake(&self, wake: Wake) {
        self.job.progress.wake.set(wake);
    }

    /// Returns notes for the user of a receiving job: leftovers of earlier jobs that stay, and why this job
    /// could not be resumed if it were interrupted now.
    pub fn notes(&self) -> Vec<String> {
        self.job.notes()
    }

    /// Ends the job with `fault` and tells the peer.
    pub fn abort(&self, fault: Fault) {
        self.job.fail(fault);
    }

    /// Whether [`JobHandle::join`] would return at once.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until every entry is final at the receiver and the sender knows.
    ///
    /// # Errors
    /// The fault that ended the whole job. Failures of single entries are in the report.
    pub fn join(mut self) -> Result<MoveReport, Fault> {
        join(self.thread.take().ok_or_else(panicked)?)?
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let message = "the transfer was cancelled";
            self.job.fail(Fault::new(FaultCode::Interrupted, message, "run the same command again"));
            // No caller is left to receive the result.
            let _ = join(thread);
        }
    }
}

/// Starts a named worker thread; the job ends if the thread fails or panics.
pub(crate) fn spawn_for<J: Job>(
    job: &Arc<J>,
    name: &str,
    run: impl FnOnce() -> Result<(), Fault> + Send + 'static,
) -> Result<JoinHandle<()>, Fault> {
    let job = job.clone();
    spawn(name, move || match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => {}
        Ok(Err(fault)) => job.fail(fault),
        Err(panic) => {
            job.fail(panicked());
            resume_unwind(panic);
        }
    })
}

pub(crate) type Task = Box<dyn FnOnce() -> Result<(), Fault> + Send>;

pub(crate) type Worker = (&'static str, Task);

/// Starts worker threads and returns their handles. The job ends if one of them cannot be started.
pub(crate) fn spawn_all<J: Job>(
    job: &Arc<J>,
    workers: impl IntoIterator<Item = Worker>,
) -> Vec<JoinHandle<()>> {
    let started = workers.into_iter().map(|(name, run)| spawn_for(job, name, run));
    started.map_while(|thread| thread.map_err(|fault| job.fail(fault)).ok()).collect()
}

/// What a job waits for when it makes no progress. The display text completes "waiting for".
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[expect(missing_docs, reason = "their texts say it")]
pub enum Stage {
    #[display("the receiver to examine its destination")]
    Destination,
    #[display("the sources to be listed")]
    Listing,
    /// The pipe is here or at the sender, and may be silent for any time.
    #[display("more data from the pipe")]
    Pipe,
    #[display("the receiver to compare its files and request what it lacks")]
    Requests,
    #[display("the sources to be read")]
    Reading,
    #[display("contents to arrive at the receiver")]
    Delivery,
    #[display("the receiver's disk to write received data")]
    Writing,
    #[display("files to be verified, synced and put in place")]
    Completion,
    #[display("the sender to confirm the end")]
    Confirmation,
}

impl Stage {
    /// Whether the stage ends within bounded time on a working machine and disk.
    pub fn is_limited(self) -> bool {
        self != Self::Pipe
    }
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Fault> {
    let storage = Inherited::here();
    Builder::new().name(name.to_owned()).spawn(move || storage.run(run)).map_err(|e| {
        Fault::new(
            FaultCode::Io,
            format!("cannot start a thread: {e}"),
            "raise the limits on processes and memory (ulimit -u, -v)",
        )
    })
}

pub(crate) fn panicked() -> Fault {
    Fault::new(FaultCode::Internal, "a thread of the file mover panicked", "please report this")
}

pub(crate) fn join<T>(thread: JoinHandle<T>) -> Result<T, Fault> {
    thread.join().map_err(|_| panicked())
}

/// Returns the number of voluntary context switches of the calling thread, each a wait for something.
pub(crate) fn voluntary_switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Duration;

    use super::*;

    #[test]
    fn sleeping_counts_as_a_wait_and_computing_does_not() {
        // A page fault counts as a wait, too.
        let uses_no_wait = |_| {
            let before = voluntary_switches();
            black_box(blake3::hash(&[7; 10_000]));
            voluntary_switches() == before
        };
        assert!((0..100).any(uses_no_wait));
        let before = voluntary_switches();
        std::thread::sleep(Duration::from_millis(1));
        assert!(voluntary_switches() > before);
    }
}
