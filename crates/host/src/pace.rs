//! Pacing of samples.

use haul_base::{Span, Time};

/// Minimum ratio of the time until the next sample to the CPU time of one. There are four kinds of samples,
/// so that all together stay below 0.1 % of a core.
const RARITY: u64 = 4_000;

/// Schedule of one kind of sample.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Span,
    due: Time,
}

impl Pace {
    /// Creates a schedule with at least this interval. The first sample is due at once.
    pub(crate) fn new(interval: Span) -> Self {
        Self { interval, due: Time::ZERO }
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        now >= self.due
    }

    /// Notes a sample at `now` that took this much CPU time.
    pub(crate) fn looked(&mut self, now: Time, took: Span) {
        self.due = now + self.interval.max(Span::from_nanos(took.as_nanos().saturating_mul(RARITY)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_more_is_done_more_rarely() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut pace = Pace::new(Span::from_millis(50));
        assert!(pace.is_due(at(0)));
        pace.looked(at(10), Span::from_micros(5));
        assert!(!pace.is_due(at(59)) && pace.is_due(at(60)));
        pace.looked(at(60), Span::from_micros(200));
        assert!(!pace.is_due(at(859)) && pace.is_due(at(860)), "200 us in 800 ms");
    }
}
