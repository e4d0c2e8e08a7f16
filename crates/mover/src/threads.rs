//! Threads of a job.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use haul_wire::control::{Fault, FaultCode};
use nix::sys::resource::{UsageWho, getrusage};

use crate::storage::Inherited;

/// Starts a named thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Fault> {
    let storage = Inherited::here();
    Builder::new().name(name.to_owned()).spawn(move || storage.run(run)).map_err(|e| {
        Fault::new(
            FaultCode::Io,
            format!("cannot start a thread: {e}"),
            "raise the limit on processes (ulimit -u)",
        )
    })
}

/// A job that several threads work for.
pub(crate) trait Job: Send + Sync + 'static {
    /// Ends the job, and tells the peer.
    fn fail(&self, fault: Fault);
}

/// Starts a named thread that works for a job, which does not go on if the thread panics.
pub(crate) fn spawn_for<J: Job>(
    job: &Arc<J>,
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Fault> {
    let guard = Guard(job.clone());
    spawn(name, move || {
        let _guard = guard;
        run();
    })
}

/// A thread's name and what it does.
pub(crate) type Worker = (&'static str, Box<dyn FnOnce() + Send>);

/// Starts threads that work for a job, which ends if one of them cannot be started. Those that could.
pub(crate) fn spawn_all<J: Job>(
    job: &Arc<J>,
    workers: impl IntoIterator<Item = Worker>,
) -> Vec<JoinHandle<()>> {
    let started = workers.into_iter().map(|(name, run)| spawn_for(job, name, run));
    started.map_while(|thread| thread.map_err(|fault| job.fail(fault)).ok()).collect()
}

struct Guard<J: Job>(Arc<J>);

impl<J: Job> Drop for Guard<J> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(panicked());
        }
    }
}

fn panicked() -> Fault {
    Fault::new(FaultCode::Internal, "a thread of the file mover panicked", "please report this")
}

/// Waits for a thread; a panic in it becomes a fault.
pub(crate) fn join<T>(thread: JoinHandle<T>) -> Result<T, Fault> {
    thread.join().map_err(|_| panicked())
}

/// The handle of a running job was dropped.
pub(crate) fn dropped() -> Fault {
    Fault::new(FaultCode::Interrupted, "the transfer was given up", "run the same command again")
}

/// How often the calling thread has given its processor up to wait for something.
pub(crate) fn waits() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_sleeps_waits_and_one_that_works_does_not() {
        let before = waits();
        black_box(blake3::hash(&[7; 10_000]));
        assert_eq!(waits(), before);
        std::thread::sleep(Duration::from_millis(1));
        assert!(waits() > before);
    }
}
