//! Starting threads, and running blocking work for tasks.

use std::future::poll_fn;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use haul_stack::caught;

use crate::{EngineError, Monitor};

/// Starts a thread.
///
/// # Errors
/// [`EngineError::System`] if the system has no more threads.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, EngineError> {
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| EngineError::system("cannot start a thread", error))
}

/// Runs blocking `work` in a new thread. If the task is dropped, `work` completes and its result is
/// discarded.
///
/// # Errors
/// Those of `work`; [`EngineError::System`] if no thread can be started or `work` panics.
pub(crate) async fn spawn_blocking<T: Send + 'static, E: From<EngineError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let completion = Arc::new(Monitor::new(None));
    let shared = completion.clone();
    spawn("haul-blocking", move || {
        let result = caught(work).unwrap_or_else(|message| {
            Err(EngineError::system_other("a background task has panicked", message).into())
        });
        shared.update(|completion| *completion = Some(result));
    })?;
    poll_fn(|context| completion.poll(context, Option::take)).await
}
