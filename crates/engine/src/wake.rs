//! Waiting and waking: threads blocked on file descriptors, polling threads and async tasks.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use derive_more::{Deref, DerefMut, IntoIterator};
use haul_stack::caught;
use rustix::event::{EventfdFlags, PollFd, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use smallvec::SmallVec;

use crate::EngineError;
use crate::clock::after;

/// Locks, ignoring poison: every update under these locks is complete before anything can panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes a thread blocked on its socket, such as a data thread when more of the object is readable or the
/// sink has capacity again. Cheap to clone; waking a thread that has ended does nothing.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Creates a waker for one thread.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn new() -> Result<Self, EngineError> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map(|fd| Self(Arc::new(fd)))
            .map_err(|error| EngineError::system("cannot make an eventfd", error))
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        // The counter is full only if the thread is about to wake anyway.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn reset(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Tasks and threads waiting for the same event, without duplicates. There are many thousand lists, nearly
/// all with at most one waker.
#[derive(Debug, Default, IntoIterator)]
pub struct WakerList(SmallVec<[task::Waker; 1]>);

impl WakerList {
    /// Adds a waker for the next change, unless it is already in the list. Returns those of a full list, to be
    /// woken once no lock is held: tasks that have stopped waiting would stay in it. Those that still wait come
    /// back and find twice the space.
    #[must_use]
    pub fn add(&mut self, waker: &task::Waker) -> Self {
        const MANY: usize = 1_024;
        const MAX_SPACE: usize = 65_536;
        let mut stale = Self::default();
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            let len = self.0.len();
            if len >= MANY && len == self.0.capacity() {
                stale.0 = std::mem::replace(&mut self.0, SmallVec::with_capacity((2 * len).min(MAX_SPACE)));
            }
            self.0.push(waker.clone());
        }
        stale
    }

    /// Takes the wakers, to be woken once no lock is held.
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Adds wakers, such as those of another list.
    pub fn append(&mut self, others: impl IntoIterator<Item = task::Waker>) {
        self.0.extend(others);
    }

    /// Wakes each waker, even if another one panics (its message is already reported). No lock may be held,
    /// except by a thread that defers its wake-ups.
    pub fn wake(self) {
        if let Some(mut deferred) = DEFERRED.try_with(Cell::take).ok().flatten() {
            deferred.append(self);
            return DEFERRED.set(Some(deferred));
        }
        for waker in self {
            let _ = caught(|| waker.wake());
        }
    }
}

thread_local! {
    /// Wakers to be woken by [`deferring`]; `None` outside of it.
    static DEFERRED: Cell<Option<WakerList>> = const { Cell::new(None) };
}

/// Defers the wake-ups of `work`, which may hold locks, until it has ended.
pub(crate) fn deferring<R>(work: impl FnOnce() -> R) -> R {
    DEFERRED.set(Some(WakerList::default()));
    let result = catch_unwind(AssertUnwindSafe(work));
    DEFERRED.take().unwrap_or_default().wake();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Waits until a descriptor is ready or `timeout` expires (`None`: no limit). Returns how many are ready, 0
/// if a signal interrupts the wait.
///
/// # Errors
/// [`EngineError::System`].
pub(crate) fn wait_ready(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<usize, EngineError> {
    // A timeout too long for a `Timespec` is no timeout.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(fds, timeout.as_ref()) {
        Err(Errno::INTR) => Ok(0),
        polled => polled.map_err(|error| EngineError::system("cannot wait for the network", error)),
    }
}

/// A value behind a lock, and the tasks and threads waiting for it to change.
#[derive(Debug, Default)]
pub struct Monitor<T>(Mutex<Watched<T>>);

/// The locked value of a [`Monitor`].
#[derive(Debug, Default, Deref, DerefMut)]
pub struct Watched<T> {
    #[deref]
    #[deref_mut]
    value: T,
    pub(crate) wakers: WakerList,
}

impl<T> Monitor<T> {
    /// Creates a monitor with this value.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(Watched { value, wakers: WakerList::default() }))
    }

    /// Locks the value. After a change, call [`Monitor::release`] to wake the waiters.
    pub fn lock(&self) -> MutexGuard<'_, Watched<T>> {
        lock(&self.0)
    }

    /// Unlocks the value and wakes the waiters.
    pub fn release(mut watched: MutexGuard<'_, Watched<T>>) {
        let wakers = watched.wakers.take();
        drop(watched);
        wakers.wake();
    }

    /// Changes the value and wakes the waiters.
    pub fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut watched = self.lock();
        let result = change(&mut watched);
        Self::release(watched);
        result
    }

    /// Returns the result of `done`; if it is `None`, wakes the task at the next change.
    pub fn poll<R>(&self, context: &Context<'_>, done: impl FnOnce(&mut T) -> Option<R>) -> Poll<R> {
        let mut watched = self.lock();
        if let Some(result) = done(&mut watched) {
            return Poll::Ready(result);
        }
        let oldest = watched.wakers.add(context.waker());
        drop(watched);
        oldest.wake();
        Poll::Pending
    }

    /// Blocks this thread until `done` returns a result or `until` has passed.
    pub fn wait<R>(&self, until: Option<Instant>, mut done: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        block_until(until, |context| self.poll(context, &mut done))
    }
}

/// A thread that polls, and sleeps until it is woken.
pub(crate) struct ThreadWaker {
    thread: Thread,
    /// Set by each wake-up, so that one between a poll and the sleep is not missed.
    is_woken: AtomicBool,
    /// Woken instead of unparking the thread.
    descriptor: Mutex<Option<Waker>>,
}

impl ThreadWaker {
    /// Whether it was woken since its last poll.
    pub(crate) fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::SeqCst)
    }

    /// Makes wake-ups write `descriptor`, or unpark the thread. Check [`ThreadWaker::is_woken`] afterwards.
    pub(crate) fn wait_for(&self, descriptor: Option<Waker>) {
        *lock(&self.descriptor) = descriptor;
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if thread::current().id() != self.thread.id() {
            match &*lock(&self.descriptor) {
                Some(descriptor) => descriptor.wake(),
                None => self.thread.unpark(),
            }
        }
    }
}

thread_local! {
    /// The thread's waker, reused by every wait so that a [`WakerList`] recognises it; `None` during a wait.
    static WAKER: Cell<Option<Arc<ThreadWaker>>> = const { Cell::new(None) };
}

/// Polls in this thread until there is a result; returns `None` if `until` passes first.
pub fn block_until<T>(until: Option<Instant>, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    block_with(until, poll, |_| park(until))
}

/// Parks this thread until it is unparked or `until` passes.
pub(crate) fn park(until: Option<Instant>) {
    match until {
        None => thread::park(),
        Some(until) => thread::park_timeout(until.saturating_duration_since(Instant::now())),
    }
}

/// Like [`block_until`]; `sleep` waits, or does useful work, until the thread is woken or `until` passes.
pub(crate) fn block_with<T>(
    until: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    mut sleep: impl FnMut(&Arc<ThreadWaker>),
) -> Option<T> {
    let thread_waker = WAKER.try_with(Cell::take).ok().flatten().unwrap_or_else(|| {
        let (is_woken, descriptor) = (AtomicBool::new(false), Mutex::default());
        Arc::new(ThreadWaker { thread: thread::current(), is_woken, descriptor })
    });
    let waker = task::Waker::from(thread_waker.clone());
    let mut context = Context::from_waker(&waker);
    let result = 'poll: loop {
        thread_waker.is_woken.store(false, Ordering::SeqCst);
        if let Poll::Ready(result) = poll(&mut context) {
            break Some(result);
        }
        while !thread_waker.is_woken() {
            if until.is_some_and(|until| until <= Instant::now()) {
                break 'poll None;
            }
            sleep(&thread_waker);
        }
    };
    let _ = WAKER.try_with(|waker| waker.set(Some(thread_waker)));
    result
}

/// Blocks this thread on a future.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Some(result) = block_until(None, |context| future.as_mut().poll(context)) {
            return result;
        }
    }
}

/// Like [`block_until`], but with a timeout that becomes [`EngineError::TimedOut`], which names `what`.
///
/// # Errors
/// Those of `poll`; [`EngineError::TimedOut`].
pub fn wait_for<T, E: From<EngineError>>(
    timeout: Option<Duration>,
    what: &'static str,
    poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, E>>,
) -> Result<T, E> {
    let found = block_until(timeout.map(after), poll);
    found.unwrap_or_else(|| Err(EngineError::timed_out(what, timeout).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_result_or_its_timeout() {
        let (mut polls, until) = (0, Instant::now() + Duration::from_secs(20));
        let third = block_until(Some(until), |context| {
            polls += 1;
            context.waker().wake_by_ref();
            if polls == 3 { Poll::Ready(polls) } else { Poll::Pending }
        });
        assert_eq!(third, Some(3));
        assert_eq!(block_until(Some(Instant::now()), |_| Poll::<()>::Pending), None);
    }

    #[test]
    fn a_nested_wait_is_woken_for_its_own_event() {
        let (mut outer, mut polls) = (0, 0);
        let both = block_until(None, |context| {
            outer += 1;
            let waker = context.waker().clone();
            let inner = block_until(None, |context| {
                let waker = context.waker().clone();
                polls += 1;
                thread::spawn(move || waker.wake());
                if polls > 1 { Poll::Ready(()) } else { Poll::Pending }
            });
            thread::spawn(move || waker.wake());
            if outer > 1 { Poll::Ready(inner) } else { Poll::Pending }
        });
        assert_eq!(both, Some(Some(())));
    }

    #[test]
    fn a_repolled_task_is_listed_once_and_a_panicking_waker_stops_no_other() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a task that cannot be woken");
            }
        }
        struct Counts(Arc<AtomicBool>);
        impl Wake for Counts {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let woken = Arc::new(AtomicBool::new(false));
        let wakers =
            [task::Waker::from(Arc::new(Panics)), task::Waker::from(Arc::new(Counts(woken.clone())))];
        let mut list = WakerList::default();
        for _ in 0..100 {
            for waker in &wakers {
                let _ = list.add(waker);
            }
        }
        assert_eq!(list.0.len(), 2);
        list.take().wake();
        assert!(woken.load(Ordering::SeqCst) && list.0.is_empty());
    }

    #[test]
    fn tasks_that_stop_waiting_for_an_event_that_never_happens_are_not_kept() {
        struct Task;
        impl Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        let monitor = Monitor::new(());
        let wait = |_| {
            let task = Arc::new(Task);
            let waker = task.clone().into();
            assert!(monitor.poll(&Context::from_waker(&waker), |()| None::<()>).is_pending());
            Arc::downgrade(&task)
        };
        let tasks: Vec<_> = (0..10_000).map(wait).collect();
        let is_kept = |task: &std::sync::Weak<Task>| task.strong_count() > 0;
        assert!(!tasks[..7_000].iter().any(is_kept) && tasks[9_900..].iter().all(is_kept));
    }

    #[test]
    fn many_tasks_that_wait_for_one_event_come_to_rest() {
        #[derive(Default)]
        struct Task(AtomicBool);
        impl Wake for Task {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let monitor = Monitor::new(());
        let tasks: Vec<_> = (0..5_000).map(|_| Arc::new(Task(true.into()))).collect();
        let mut polls = 0;
        while let Some(task) = tasks.iter().find(|task| task.0.swap(false, Ordering::Relaxed)) {
            let waker = task.clone().into();
            assert!(monitor.poll(&Context::from_waker(&waker), |()| None::<()>).is_pending());
            polls += 1;
            assert!(polls < 50_000, "tasks wake each other");
        }
        assert!(polls >= 5_000);
    }

    #[test]
    fn a_repolled_task_is_woken_once_per_change() {
        let monitor = Monitor::new(0);
        let context = Context::from_waker(task::Waker::noop());
        for _ in 0..100 {
            assert!(monitor.poll(&context, |value| (*value > 0).then_some(())).is_pending());
        }
        assert_eq!(monitor.lock().wakers.0.len(), 1);
        monitor.update(|value| *value = 1);
        assert!(monitor.lock().wakers.0.is_empty());
        assert_eq!(monitor.wait(None, |value| (*value > 0).then_some(*value)), Some(1));
    }
}
