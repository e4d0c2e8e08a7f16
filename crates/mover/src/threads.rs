//! Threads, whose panics are faults.

use std::thread::{Builder, JoinHandle};

use haul_wire::control::{Fault, FaultCode};
use nix::sys::resource::{UsageWho, getrusage};

use crate::storage::Inherited;

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

/// What a panic of a thread is told as.
pub(crate) fn panicked() -> Fault {
    Fault::new(FaultCode::Internal, "a thread of the file mover panicked", "please report this")
}

/// Waits for a thread; a panic in it becomes a fault.
pub(crate) fn join<T>(thread: JoinHandle<T>) -> Result<T, Fault> {
    thread.join().map_err(|_| panicked())
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
        // A page that is not in memory yet is waited for, too.
        let works = |_| {
            let before = waits();
            black_box(blake3::hash(&[7; 10_000]));
            waits() == before
        };
        assert!((0..100).any(works));
        let before = waits();
        std::thread::sleep(Duration::from_millis(1));
        assert!(waits() > before);
    }
}
