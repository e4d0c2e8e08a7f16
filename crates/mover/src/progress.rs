//! Live progress of a job on either side, and waking the data path.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use haul_wire::control::Item;
use parking_lot::Mutex;

/// Live counters of a job. They never decrease.
#[derive(Default)]
pub struct Progress {
    entries: AtomicU64,
    bytes_known: AtomicU64,
    all_known: AtomicBool,
    bytes_done: AtomicU64,
    files_done: AtomicU64,
    failed: AtomicU64,
    worked: AtomicU64,
    /// Callback for changes of names, and the items recorded before it was set.
    items: Mutex<(Option<Tell>, Vec<Item>)>,
    pub(crate) wake: WakeSlot,
}

impl Progress {
    /// Returns the entries found so far: files, directories, links, and unreadable entries.
    pub fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// Returns the bytes of all regular files found so far.
    pub fn bytes_known(&self) -> u64 {
        self.bytes_known.load(Relaxed)
    }

    /// Whether the listing is complete: entries and bytes known are those of the whole set.
    pub fn all_known(&self) -> bool {
        self.all_known.load(Relaxed)
    }

    /// Returns the bytes transferred: delivered to the peer (sender), written to files (receiver).
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Relaxed)
    }

    /// Returns the number of regular files that are verified and under their final names.
    pub fn files_done(&self) -> u64 {
        self.files_done.load(Relaxed)
    }

    /// Returns the number of entries that failed so far.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Returns a counter that changes with every kind of progress; while it stays the same, nothing happens.
    pub fn activity(&self) -> u64 {
        let counts = [&self.entries, &self.bytes_known, &self.bytes_done, &self.files_done, &self.failed];
        counts.into_iter().chain([&self.worked]).fold(0, |sum, count| sum.wrapping_add(count.load(Relaxed)))
    }

    /// Sets the callback for changes of names: removals, and in a dry run or with `--verbose` all changes.
    /// Items recorded earlier are passed to it first.
    pub fn on_item(&self, tell: Tell) {
        let mut items = self.items.lock();
        items.1.drain(..).for_each(|item| tell(&item));
        items.0 = Some(tell);
    }

    pub(crate) fn tell(&self, item: &Item) {
        let mut items = self.items.lock();
        match &items.0 {
            Some(tell) => tell(item),
            None if items.1.len() < EARLY => items.1.push(item.clone()),
            None => {}
        }
    }

    pub(crate) fn found(&self, entries: u64, bytes: u64) {
        self.entries.fetch_add(entries, Relaxed);
        self.bytes_known.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn found_all(&self) {
        self.all_known.store(true, Relaxed);
    }

    pub(crate) fn add_done(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn set_done(&self, bytes: u64) {
        self.bytes_done.fetch_max(bytes, Relaxed);
    }

    pub(crate) fn file_done(&self) {
        self.files_done.fetch_add(1, Relaxed);
    }

    /// Records progress that no other counter shows.
    pub(crate) fn worked(&self) {
        self.worked.fetch_add(1, Relaxed);
    }

    pub(crate) fn one_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }
}

/// Callback for a change of a name. Called from the threads of the job.
pub type Tell = Arc<dyn Fn(&Item) + Send + Sync>;

/// Maximum number of items recorded before a callback is set; later ones are dropped.
const EARLY: usize = 4096;

/// Wakes the data path because there is more to do. Cheap; may be called from any thread.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Slot for the data path's [`Wake`], set once it runs.
#[derive(Clone, Default)]
pub(crate) struct WakeSlot(Arc<Mutex<Option<Wake>>>);

impl WakeSlot {
    pub(crate) fn set(&self, wake: Wake) {
        *self.0.lock() = Some(wake);
        self.call();
    }

    pub(crate) fn call(&self) {
        let wake = self.0.lock().clone();
        if let Some(wake) = wake {
            wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_that_comes_late_is_called_at_once() {
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
