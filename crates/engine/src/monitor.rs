//! Values that threads and tasks share and wait for.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::guard::lock;
use crate::wake::{WakerList, block_until};

/// A value behind a lock, and those who wait for it to change.
#[derive(Debug, Default)]
pub struct Monitor<T>(Mutex<Watched<T>>);

/// The value of a [`Monitor`] that is locked.
#[derive(Debug, Default)]
pub struct Watched<T> {
    value: T,
    wakers: WakerList,
}

impl<T> Monitor<T> {
    /// With this value.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(Watched { value, wakers: WakerList::default() }))
    }

    /// Locks the value. Whoever changes it wakes those who wait: [`Monitor::release`].
    pub fn lock(&self) -> MutexGuard<'_, Watched<T>> {
        lock(&self.0)
    }

    /// Unlocks the value, and wakes those who wait.
    pub fn release(mut watched: MutexGuard<'_, Watched<T>>) {
        let wakers = watched.take_wakers();
        drop(watched);
        wakers.wake();
    }

    /// Changes the value and wakes those who wait.
    pub fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut watched = self.lock();
        let result = change(&mut watched);
        Self::release(watched);
        result
    }

    /// What `done` gives; if it gives nothing, the task is woken at the next change.
    pub fn poll<R>(&self, context: &Context<'_>, done: impl FnOnce(&mut T) -> Option<R>) -> Poll<R> {
        let mut watched = self.lock();
        if let Some(result) = done(&mut watched) {
            return Poll::Ready(result);
        }
        watched.wake_later(context.waker());
        Poll::Pending
    }

    /// Waits in this thread until `done` gives something, or `until` has passed.
    pub fn wait<R>(&self, until: Option<Instant>, mut done: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        block_until(until, |context| self.poll(context, &mut done))
    }
}

impl<T> Watched<T> {
    /// Has the next change wake this waker too.
    pub fn wake_later(&mut self, waker: &Waker) {
        self.wakers.add(waker);
    }

    /// Takes those who wait, to be woken once no lock is held.
    pub(crate) fn take_wakers(&mut self) -> WakerList {
        self.wakers.take()
    }
}

impl<T> Deref for Watched<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_polls_again_and_again_is_woken_once_and_a_change_wakes_it() {
        let monitor = Monitor::new(0);
        let context = Context::from_waker(Waker::noop());
        for _ in 0..100 {
            assert!(monitor.poll(&context, |value| (*value > 0).then_some(())).is_pending());
        }
        assert_eq!(monitor.lock().wakers.len(), 1);
        monitor.update(|value| *value = 1);
        assert!(monitor.lock().wakers.is_empty());
        assert_eq!(monitor.wait(None, |value| (*value > 0).then_some(*value)), Some(1));
    }
}
