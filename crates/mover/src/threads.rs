//! Threads of a job.

use std::thread::{Builder, JoinHandle};

use haul_wire::control::{Fault, FaultCode};

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

/// Waits for a thread; a panic in it becomes a fault.
pub(crate) fn join<T>(thread: JoinHandle<T>) -> Result<T, Fault> {
    thread.join().map_err(|_| {
        Fault::new(FaultCode::Internal, "a thread of the file mover panicked", "please report this")
    })
}

/// The handle of a running job was dropped.
pub(crate) fn dropped() -> Fault {
    Fault::new(FaultCode::Interrupted, "the transfer was given up", "run the same command again")
}
