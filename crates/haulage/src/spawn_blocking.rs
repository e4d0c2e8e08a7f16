//! Blocking work for tasks, on a thread of its own.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use haul_engine::EngineError as Error;

/// What the thread and the task share.
struct Completion<T, E> {
    result: Option<Result<T, E>>,
    waker: Option<Waker>,
}

/// Blocking work that runs on a thread of its own.
pub(crate) struct BlockingTask<T, E>(Arc<Mutex<Completion<T, E>>>);

impl<T: Send + 'static, E: From<Error> + Send + 'static> BlockingTask<T, E> {
    /// Starts the thread.
    pub(crate) fn start(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<Self, E> {
        let completion = Arc::new(Mutex::new(Completion { result: None, waker: None }));
        let ours = completion.clone();
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked().into()));
            let mut completion = ours.lock().unwrap_or_else(PoisonError::into_inner);
            completion.result = Some(result);
            let waker = completion.waker.take();
            drop(completion);
            waker.into_iter().for_each(Waker::wake);
        };
        let thread = std::thread::Builder::new().name("haul-blocking".to_owned()).spawn(run);
        thread.map_err(|e| Error::System { what: "cannot start a thread", reason: e.to_string() })?;
        Ok(Self(completion))
    }

    /// Polls for the result, which is given once.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Result<T, E>> {
        let mut completion = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = completion.result.take() {
            return Poll::Ready(result);
        }
        completion.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Runs `work` on a thread of its own. If the task stops waiting, the work still runs to its end and the result is
/// dropped.
pub(crate) async fn spawn_blocking<T: Send + 'static, E: From<Error> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let task = BlockingTask::start(work)?;
    poll_fn(|context| task.poll(context)).await
}

fn panicked() -> Error {
    Error::System { what: "what was done for a task has panicked", reason: "see its message".to_owned() }
}
