//! A time that counts its comparisons, so that tests can measure the work of tables sorted by time.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Add;

use haul_base::Span;

thread_local! {
    static COMPARISONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns how often this thread has compared times.
pub(super) fn comparisons() -> u64 {
    COMPARISONS.get()
}

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(haul_base::Time);

impl Time {
    pub(super) const ZERO: Self = Self(haul_base::Time::ZERO);
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        COMPARISONS.set(COMPARISONS.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Add<Span> for Time {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0 + span)
    }
}
