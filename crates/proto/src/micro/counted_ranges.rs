//! A range set that counts its work, so that tests can measure that of its users.

use std::cell::Cell;
use std::ops::Range;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of calls of this thread to range sets, plus other steps counted.
pub(crate) fn steps() -> u64 {
    STEPS.get()
}

/// Counts one step.
pub(super) fn count() {
    STEPS.set(STEPS.get() + 1);
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet(haul_base::RangeSet);

impl RangeSet {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        count();
        self.0.insert(range);
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        count();
        self.0.remove(range);
    }

    pub(crate) fn containing(&self, value: u64) -> Option<Range<u64>> {
        count();
        self.0.containing(value)
    }

    pub(crate) fn covers(&self, range: Range<u64>) -> bool {
        count();
        self.0.covers(range)
    }

    pub(crate) fn intersects(&self, range: Range<u64>) -> bool {
        count();
        self.0.intersects(range)
    }

    pub(crate) fn len(&self) -> usize {
        count();
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        count();
        self.0.is_empty()
    }
}
