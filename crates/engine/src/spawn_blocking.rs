//! What can only block, for tasks.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::EngineError;

/// What the thread and the task share.
struct Completion<T, E> {
    result: Option<Result<T, E>>,
    waker: Option<Waker>,
}

/// Runs `work`, which blocks, on a thread of its own. If the task stops waiting, the work runs to its end and its
/// result is dropped.
///
/// # Errors
/// Those of `work`; [`EngineError::System`] if there is no thread, or `work` has panicked.
pub async fn spawn_blocking<T: Send + 'static, E: From<EngineError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let completion = Arc::new(Mutex::new(Completion { result: None, waker: None }));
    let ours = completion.clone();
    let run = move || {
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            Err(EngineError::system("what was done for a task has panicked", "see its message").into())
        });
        let mut completion = lock(&ours);
        completion.result = Some(result);
        let waker = completion.waker.take();
        drop(completion);
        waker.into_iter().for_each(Waker::wake);
    };
    std::thread::Builder::new()
        .name("haul-blocking".to_owned())
        .spawn(run)
        .map_err(|e| EngineError::system("cannot start a thread", e))?;
    poll_fn(|context| {
        let mut completion = lock(&completion);
        if let Some(result) = completion.result.take() {
            return Poll::Ready(result);
        }
        completion.waker = Some(context.waker().clone());
        Poll::Pending
    })
    .await
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code of others runs under this lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
