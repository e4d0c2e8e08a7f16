//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. A poisoned lock is fine: every update behind these locks is complete before anything can panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
