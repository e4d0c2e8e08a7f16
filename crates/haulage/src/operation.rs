use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use haul_engine::{Channel, EngineError as Error, wait_for};

/// The poll function of an [`Operation`]: returns its result, or registers the waker of the context.
pub trait Polled<T, E>: FnMut(&mut Context<'_>) -> Poll<Result<T, E>> + Unpin {}

impl<T, E, P: FnMut(&mut Context<'_>) -> Poll<Result<T, E>> + Unpin> Polled<T, E> for P {}

/// An operation that may have to wait. Does nothing until a task awaits it, on any executor, a thread calls
/// [`Operation::wait`] or [`Operation::wait_for`], or [`Operation::now`] tries it once.
#[must_use = "nothing happens before it is awaited or waited for"]
pub struct Operation<'o, P> {
    poll: P,
    what: &'static str,
    /// A waiting thread drives this channel's endpoint.
    channel: Option<&'o Channel>,
}

impl<'o, P> Operation<'o, P> {
    pub(crate) fn new<T, E>(what: &'static str, channel: Option<&'o Channel>, poll: P) -> Self
    where
        P: FnMut(&mut Context<'_>) -> Poll<Result<T, E>> + Unpin,
    {
        Self { poll, what, channel }
    }
}

impl<T, E: From<Error>, P: FnMut(&mut Context<'_>) -> Poll<Result<T, E>>> Operation<'_, P> {
    /// Blocks the thread until the operation completes.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait(self) -> Result<T, E> {
        self.wait_until(None)
    }

    /// Blocks the thread until the operation completes or `timeout` expires.
    ///
    /// # Errors
    /// Those of the operation; a timeout error, after which the operation may be started again.
    pub fn wait_for(self, timeout: Duration) -> Result<T, E> {
        self.wait_until(Some(timeout))
    }

    fn wait_until(self, timeout: Option<Duration>) -> Result<T, E> {
        match self.channel {
            Some(channel) => channel.wait_for(timeout, self.what, self.poll),
            None => wait_for(timeout, self.what, self.poll),
        }
    }

    /// Returns the result if it is available without waiting.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn now(mut self) -> Result<Option<T>, E> {
        match (self.poll)(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result.map(Some),
            Poll::Pending => Ok(None),
        }
    }
}

impl<T, E, P: FnMut(&mut Context<'_>) -> Poll<Result<T, E>> + Unpin> Future for Operation<'_, P> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        (self.poll)(context)
    }
}

/// Makes an operation from a future.
pub(crate) fn of_future<T, E>(
    what: &'static str,
    future: impl Future<Output = Result<T, E>> + Send,
) -> Operation<'static, impl Polled<T, E>> {
    let mut future = Box::pin(future);
    Operation::new(what, None, move |context| future.as_mut().poll(context))
}
