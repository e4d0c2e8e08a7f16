//! Threads, and what can only block, for tasks.

use std::future::poll_fn;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use haul_stack::caught;

use crate::{EngineError, Monitor};

/// Starts a thread.
///
/// # Errors
/// [`EngineError::System`] if there is none to be had.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, EngineError> {
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| EngineError::system("cannot start a thread", error))
}

/// Runs `work`, which blocks, on a thread of its own. If the task stops waiting, the work runs to its end and its
/// result is dropped.
///
/// # Errors
/// Those of `work`; [`EngineError::System`] if there is no thread, or `work` has panicked.
pub async fn spawn_blocking<T: Send + 'static, E: From<EngineError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let completion = Arc::new(Monitor::new(None));
    let ours = completion.clone();
    spawn("haul-blocking", move || {
        let result = caught(work).unwrap_or_else(|message| {
            Err(EngineError::system_other("what was done for a task has panicked", message).into())
        });
        ours.update(|completion| *completion = Some(result));
    })?;
    poll_fn(|context| completion.poll(context, Option::take)).await
}
