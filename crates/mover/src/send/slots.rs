//! How many files may wait between the walk and their end.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest wait before it is looked again whether the job is over.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A counting semaphore that a stopped job does not wait for.
pub(crate) struct Slots {
    free: Mutex<usize>,
    given: Condvar,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), given: Condvar::new() }
    }

    /// Takes one, waits while there is none. False: `over` said that the job is over.
    pub(crate) fn take(&self, over: impl Fn() -> bool) -> bool {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            if over() {
                return false;
            }
            free = self.given.wait_timeout(free, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        *free -= 1;
        true
    }

    /// Gives one back.
    pub(crate) fn give(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.given.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_can_be_taken_again() {
        let slots = Slots::new(1);
        assert!(slots.take(|| true));
        assert!(!slots.take(|| true));
        slots.give();
        assert!(slots.take(|| true));
    }
}
