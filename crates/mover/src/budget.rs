//! Memory budget of a file set: names, links, holes, attributes and messages about them. The peer determines
//! their number, so memory held is counted here; the budget is exceeded by at most one entry or message.
//!
//! Buffered file contents have their own limit ([`ReceiveOptions::memory`](crate::ReceiveOptions::memory)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use haul_base::Bytes;
use haul_wire::control::{Fault, FaultCode, MAX_FRAME};

/// Default memory budget of a set, enough for about four million entries.
pub const SET_MEMORY: Bytes = Bytes(1 << 30);

/// Reserve for messages in progress: one being read, one being decoded, and its answer.
const MESSAGE_RESERVE: u64 = 3 * MAX_FRAME as u64;

/// Memory used by the set of a job, and its limit.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit: Bytes,
    used: AtomicU64,
    entries: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: Bytes) -> Arc<Self> {
        Arc::new(Self { limit, ..Self::default() })
    }

    /// Counts bytes that are held until the job ends. Fails if the set exceeds its budget.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), Fault> {
        let used = self.used.fetch_add(bytes, Relaxed) + bytes;
        if used + MESSAGE_RESERVE.min(self.limit.0 / 4) <= self.limit.0 {
            return Ok(());
        }
        let message = format!(
            "the names, links, holes and attributes of the file set exceed the memory limit of {}, with {} entries so far",
            self.limit,
            self.entries.load(Relaxed)
        );
        let hint = "copy it in parts, or give `--set-memory SIZE` to both `haul cp` and `haul serve`";
        Err(Fault::new(FaultCode::SetTooLarge, message, hint))
    }

    pub(crate) fn take_entry(&self, bytes: u64) -> Result<(), Fault> {
        self.entries.fetch_add(1, Relaxed);
        self.take(bytes)
    }

    /// Counts bytes that are held until the returned [`Reserved`] is dropped.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reserved, Fault> {
        self.take(bytes)?;
        Ok(Reserved { budget: self.clone(), bytes })
    }
}

#[derive(Debug)]
pub(crate) struct Reserved {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reserved {
    pub(crate) fn empty(budget: &Arc<Budget>) -> Self {
        Self { budget: budget.clone(), bytes: 0 }
    }

    /// Replaces the reserved amount. Exceeding the budget is detected only by the next [`Budget::take`].
    pub(crate) fn resize(&mut self, bytes: u64) {
        self.budget.used.fetch_add(bytes, Relaxed);
        self.budget.used.fetch_sub(self.bytes, Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// Maximum bytes per item in a hash table: `hashbrown` has up to 16 slots for 7 items, and 8 more while it
/// grows, each with one control byte.
pub(crate) fn slot_bytes<T>() -> u64 {
    (size_of::<T>() as u64 + 1) * 24 / 7
}

/// Maximum memory of a vector with `bytes` bytes that grows with [`make_room`].
pub(crate) fn vec_bytes(bytes: usize) -> u64 {
    bytes as u64 * 9 / 8
}

/// Reserves capacity for `additional` items, growing by at least an eighth: doubling would leave half of a large
/// vector unused.
pub(crate) fn make_room<T>(vec: &mut Vec<T>, additional: usize) {
    if vec.len() + additional > vec.capacity() {
        vec.reserve_exact(additional.max(vec.len() / 8).max(64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceeding_the_budget_is_a_fault_with_a_hint() {
        let budget = Budget::new(Bytes(1_000));
        for _ in 0..3 {
            assert_eq!(budget.take_entry(200), Ok(()));
        }
        assert_eq!(budget.take(150), Ok(()));
        let fault = budget.take(1).unwrap_err();
        assert_eq!((fault.code, fault.code.exit_code(), fault.retryable), (FaultCode::SetTooLarge, 1, false));
        assert!(fault.hint.contains("--set-memory") && fault.message.contains("3 entries"), "{fault}");
    }

    #[test]
    fn a_large_budget_keeps_only_a_small_reserve() {
        let budget = Budget::new(SET_MEMORY);
        assert_eq!(budget.take(SET_MEMORY.0 - (3 << 20)), Ok(()));
        budget.take(1).unwrap_err();
    }

    #[test]
    fn a_reservation_counts_until_it_is_dropped() {
        let budget = Budget::new(Bytes(1_000));
        let mut reserved = budget.reserve(700).unwrap();
        budget.take(51).unwrap_err();
        reserved.resize(699);
        assert_eq!(budget.take(0), Ok(()));
        drop(reserved);
        assert_eq!(budget.take(699), Ok(()));
    }

    #[test]
    fn vector_capacity_stays_within_the_estimate() {
        let mut vec = Vec::new();
        for number in 0..100_000u64 {
            make_room(&mut vec, 1);
            vec.push(number);
            assert!((vec.capacity() * 8) as u64 <= vec_bytes(vec.len() * 8) + 64 * 8);
        }
    }
}
