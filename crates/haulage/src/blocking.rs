//! Blocks a thread on what tasks poll, and lists of wakers.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use haul_engine::EngineError as Error;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One for each thread, so that a list of wakers recognises the thread at its next wait.
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// Polls in this thread until there is a result; `None` if there is none by `until`.
pub(crate) fn block_until<T>(
    until: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let waker =
        UNPARK.try_with(Waker::clone).unwrap_or_else(|_| Waker::from(Arc::new(Unpark(thread::current()))));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(result) = poll(&mut context) {
            return Some(result);
        }
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(left) if left.is_zero() => return None,
            Some(left) => thread::park_timeout(left),
        }
    }
}

/// As [`block_until`], as the traits of the standard library have it.
pub(crate) fn block_io<T>(
    until: Option<Instant>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>,
) -> io::Result<T> {
    block_until(until, poll).unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

/// As [`block_until`] the timeout has passed, which is then an error that says for what.
pub(crate) fn block_on<T, E: From<Error>>(
    timeout: Option<Duration>,
    what: &'static str,
    poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, E>>,
) -> Result<T, E> {
    block_until(timeout.map(|timeout| Instant::now() + timeout), poll).unwrap_or_else(|| {
        let seconds = timeout.unwrap_or_default().as_secs_f64();
        Err(Error::TimedOut { what, seconds }.into())
    })
}

/// Wakes each task, also if another one's waker panics.
pub(crate) fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        // The panic has been reported by its message.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

/// Adds a waker to those that the next change wakes, unless it is there already: a task may poll any number of times.
pub(crate) fn wake_later(wakers: &mut Vec<Waker>, waker: &Waker) {
    if !wakers.iter().any(|known| known.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_result_or_in_time() {
        let (mut polls, until) = (0, Instant::now() + Duration::from_secs(20));
        let third = block_until(Some(until), |context| {
            polls += 1;
            context.waker().wake_by_ref();
            if polls == 3 { Poll::Ready(polls) } else { Poll::Pending }
        });
        assert_eq!(third, Some(3));
        assert_eq!(block_until(Some(Instant::now()), |_| Poll::<()>::Pending), None);
    }
}
