//! Blocking work for tasks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Builder;

use haul_engine::EngineError as Error;

/// Helper threads of the process. A server that does not answer holds one up for its timeouts.
const MOST_HELPERS: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// Work that waits for a helper thread. A helper ends when there is none.
struct Helpers {
    jobs: VecDeque<Job>,
    threads: usize,
}

static HELPERS: Mutex<Helpers> = Mutex::new(Helpers { jobs: VecDeque::new(), threads: 0 });

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code of others runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = Builder::new().name("haul-blocking".to_owned()).spawn(work);
    thread.map(drop).map_err(|e| Error::System { what: "cannot start a thread", reason: e.to_string() })
}

/// Gives work to a helper thread, a new one if there may be one more.
fn queue(job: Job) -> Result<(), Error> {
    let mut helpers = lock(&HELPERS);
    helpers.jobs.push_back(job);
    if helpers.threads == MOST_HELPERS {
        return Ok(());
    }
    match spawn(help) {
        Ok(()) => helpers.threads += 1,
        // The others do it.
        Err(_) if helpers.threads > 0 => {}
        Err(error) => {
            helpers.jobs.pop_back();
            return Err(error);
        }
    }
    Ok(())
}

fn help() {
    loop {
        let mut helpers = lock(&HELPERS);
        let Some(job) = helpers.jobs.pop_front() else {
            helpers.threads -= 1;
            return;
        };
        drop(helpers);
        job();
    }
}

/// What the thread and the task share.
struct Completion<T, E> {
    result: Option<Result<T, E>>,
    waker: Option<Waker>,
}

/// Blocking work on another thread.
pub(crate) struct BlockingTask<T, E>(Arc<Mutex<Completion<T, E>>>);

impl<T: Send + 'static, E: From<Error> + Send + 'static> BlockingTask<T, E> {
    /// A task and its work.
    fn new(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> (Self, Job) {
        let completion = Arc::new(Mutex::new(Completion { result: None, waker: None }));
        let ours = completion.clone();
        let job = move || {
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked().into()));
            let mut completion = lock(&ours);
            completion.result = Some(result);
            let waker = completion.waker.take();
            drop(completion);
            // A panic of the waker has been reported by its message.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.into_iter().for_each(Waker::wake)));
        };
        (Self(completion), Box::new(job))
    }

    /// Starts work that may wait for the application at the other end, on a thread of its own.
    pub(crate) fn start(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<Self, E> {
        let (task, job) = Self::new(work);
        spawn(job)?;
        Ok(task)
    }

    /// Polls for the result, which is given once.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Result<T, E>> {
        let mut completion = lock(&self.0);
        if let Some(result) = completion.result.take() {
            return Poll::Ready(result);
        }
        completion.waker = Some(context.waker().clone());
        Poll::Pending
    }

    pub(crate) async fn wait(self) -> Result<T, E> {
        poll_fn(|context| self.poll(context)).await
    }
}

/// Runs work that ends in a time of its own, as a handshake does, on a helper thread. If the task stops waiting, work
/// that has begun runs to its end and the result is dropped; other work does not begin.
pub(crate) async fn spawn_blocking<T: Send + 'static, E: From<Error> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let (task, job) = BlockingTask::new(work);
    let completion = Arc::downgrade(&task.0);
    queue(Box::new(move || {
        // The job has one, and the task the other.
        if completion.strong_count() > 1 {
            job();
        }
    }))?;
    task.wait().await
}

fn panicked() -> Error {
    Error::System { what: "what was done for a task has panicked", reason: "see its message".to_owned() }
}
