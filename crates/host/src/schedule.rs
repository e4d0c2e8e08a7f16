//! Pacing of samples.

use haul_base::{Span, Time};

/// Minimum ratio of the time until the next sample to the CPU time of one. There are four kinds of samples,
/// so that all together stay below 0.1 % of a core.
const MIN_INTERVAL_RATIO: u64 = 4_000;

/// Schedule of one kind of sample.
#[derive(Debug)]
pub(crate) struct SampleSchedule {
    interval: Span,
    due: Time,
}

impl SampleSchedule {
    /// Creates a schedule with at least this interval. The first sample is due at once.
    pub(crate) fn new(interval: Span) -> Self {
        Self { interval, due: Time::ZERO }
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        now >= self.due
    }

    /// Notes a sample at `now` that took this much CPU time.
    pub(crate) fn on_sample(&mut self, now: Time, duration: Span) {
        self.due =
            now + self.interval.max(Span::from_nanos(duration.as_nanos().saturating_mul(MIN_INTERVAL_RATIO)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expensive_readings_are_taken_less_often() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut schedule = SampleSchedule::new(Span::from_millis(50));
        assert!(schedule.is_due(at(0)));
        schedule.on_sample(at(10), Span::from_micros(5));
        assert!(!schedule.is_due(at(59)) && schedule.is_due(at(60)));
        schedule.on_sample(at(60), Span::from_micros(200));
        assert!(!schedule.is_due(at(859)) && schedule.is_due(at(860)), "200 us in 800 ms");
    }
}
