//! Work that blocks, done for tasks on a thread of its own.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use haul_engine::EngineError as Error;

/// What the thread and the task share.
struct Slot<T, E> {
    result: Option<Result<T, E>>,
    waker: Option<Waker>,
}

/// Work that is being done on a thread of its own.
pub(crate) struct Aside<T, E>(Arc<Mutex<Slot<T, E>>>);

impl<T: Send + 'static, E: From<Error> + Send + 'static> Aside<T, E> {
    /// Begins it.
    pub(crate) fn start(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<Self, E> {
        let slot = Arc::new(Mutex::new(Slot { result: None, waker: None }));
        let ours = slot.clone();
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked().into()));
            let mut slot = ours.lock().unwrap_or_else(PoisonError::into_inner);
            slot.result = Some(result);
            let waker = slot.waker.take();
            drop(slot);
            waker.into_iter().for_each(Waker::wake);
        };
        let thread = std::thread::Builder::new().name("haul-aside".to_owned()).spawn(run);
        thread.map_err(|e| Error::System { what: "cannot start a thread", reason: e.to_string() })?;
        Ok(Self(slot))
    }

    /// What came of it, once.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Result<T, E>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = slot.result.take() {
            return Poll::Ready(result);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Does `work` aside. If the task does not wait for the result any more, the work is done all the same and the result dropped.
pub(crate) async fn aside<T: Send + 'static, E: From<Error> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let aside = Aside::start(work)?;
    poll_fn(|context| aside.poll(context)).await
}

fn panicked() -> Error {
    Error::System { what: "what was done for a task has panicked", reason: "see its message".to_owned() }
}
