//! For how long a thread may look: a token bucket.

use haul_base::{Span, Time};

/// A thread may look for itself for this part of the time; what it has not used it may use later.
pub(super) const SHARE: u64 = 5;

#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    longest: Span,
    left: Span,
    at: Time,
}

impl Allowance {
    /// For `longest` at a time at most.
    pub(super) fn new(now: Time, longest: Span) -> Self {
        Self { longest, left: longest, at: now }
    }

    /// What there is for a message if each takes so long.
    pub(super) fn budget(&self, each: Span) -> Span {
        (each / SHARE).min(self.longest)
    }

    /// What there is at `at`.
    pub(super) fn until(&self, at: Time) -> Span {
        (self.left + at.since(self.at) / SHARE).min(self.longest)
    }

    /// A thread has looked for so long since it last said so.
    pub(super) fn spend(&mut self, now: Time, looked: Span) {
        self.left = self.until(now).saturating_sub(looked);
        self.at = now;
    }
}
