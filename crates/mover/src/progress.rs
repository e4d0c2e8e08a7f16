//! What both jobs tell while they run, and how they wake the data path.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use haul_wire::control::Item;
use parking_lot::Mutex;

/// Live numbers of a job. All of them only grow.
#[derive(Default)]
pub struct Progress {
    entries: AtomicU64,
    bytes_known: AtomicU64,
    all_known: AtomicBool,
    bytes_done: AtomicU64,
    files_done: AtomicU64,
    failed: AtomicU64,
    worked: AtomicU64,
    /// Who learns what is done to names, and what was done before there was anybody.
    items: Mutex<(Option<Tell>, Vec<Item>)>,
    pub(crate) wake: WakeSlot,
}

impl Progress {
    /// Entries found so far: files, directories, links, and what could not be read.
    pub fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// Bytes of all regular files found so far.
    pub fn bytes_known(&self) -> u64 {
        self.bytes_known.load(Relaxed)
    }

    /// Whether nothing more will be found: entries and bytes known are those of the whole set.
    pub fn all_known(&self) -> bool {
        self.all_known.load(Relaxed)
    }

    /// Bytes that are through: delivered to the peer (sender), written to files (receiver).
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Relaxed)
    }

    /// Regular files that are verified and under their final names.
    pub fn files_done(&self) -> u64 {
        self.files_done.load(Relaxed)
    }

    /// Entries that failed so far.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// How much has been done, of whatever kind. While it stays the same, nothing happens.
    pub fn activity(&self) -> u64 {
        let counts = [&self.entries, &self.bytes_known, &self.bytes_done, &self.files_done, &self.failed];
        counts.into_iter().chain([&self.worked]).fold(0, |sum, count| sum.wrapping_add(count.load(Relaxed)))
    }

    /// Names who learns what is done to names: what is removed, and in a dry run or with `--verbose` everything.
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

    /// Something was done that no other number shows.
    pub(crate) fn worked(&self) {
        self.worked.fetch_add(1, Relaxed);
    }

    pub(crate) fn one_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }
}

/// Learns what is done to a name. Called from the threads of the job.
pub type Tell = Arc<dyn Fn(&Item) + Send + Sync>;

/// Items that are kept for somebody who comes late.
const EARLY: usize = 4096;

/// Tells the data path that there is more to do. Cheap, and may be called from any thread.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Where the data path leaves its [`Wake`] once it runs.
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
