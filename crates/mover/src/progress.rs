//! Live progress of a job on either side, and waking the data path.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// A number that never decreases.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    pub(crate) fn raise_to(&self, value: u64) {
        self.0.fetch_max(value, Relaxed);
    }
}

/// Live counters of a job.
#[derive(Default)]
pub struct Progress {
    /// Entries found so far: files, directories, links, and unreadable entries.
    pub entries: Counter,
    /// Bytes of the object so far: contents to transfer, without those that the receiver has.
    pub bytes_known: Counter,
    /// Bytes transferred: delivered to the peer (sender), written to files (receiver).
    pub bytes_done: Counter,
    /// Regular files that are verified and under their final names.
    pub files_done: Counter,
    /// Entries that failed so far.
    pub failed: Counter,
    /// Progress that no other counter shows.
    pub(crate) other_steps: Counter,
    all_known: AtomicBool,
    pub(crate) wake: WakeSlot,
}

impl Progress {
    /// Whether the listing is complete, so that `entries` is final.
    pub fn all_known(&self) -> bool {
        self.all_known.load(Relaxed)
    }

    /// Returns a sum that changes with every kind of progress; while it stays the same, nothing happens.
    pub fn activity(&self) -> u64 {
        let counts = [&self.entries, &self.bytes_known, &self.bytes_done, &self.files_done, &self.failed];
        counts.into_iter().chain([&self.other_steps]).fold(0, |sum, count| sum.wrapping_add(count.get()))
    }

    pub(crate) fn set_all_known(&self) {
        self.all_known.store(true, Relaxed);
    }
}

/// Wakes the data path because there is more to do. Cheap; may be called from any thread.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Slot for the data path's [`Wake`], set once it runs.
#[derive(Clone, Default)]
pub(crate) struct WakeSlot(Arc<OnceLock<Wake>>);

impl WakeSlot {
    pub(crate) fn set(&self, wake: Wake) {
        let _ = self.0.set(wake);
        self.call();
    }

    pub(crate) fn call(&self) {
        if let Some(wake) = self.0.get() {
            wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_function_set_after_a_call_is_called_at_once() {
        let slot = WakeSlot::default();
        slot.call();
        let calls = Arc::new(AtomicU64::new(0));
        let seen = calls.clone();
        slot.set(Arc::new(move || {
            seen.fetch_add(1, Relaxed);
        }));
        slot.call();
        assert_eq!(calls.load(Relaxed), 2);
    }
}
