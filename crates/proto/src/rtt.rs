//! Round-trip time from echoed timestamps.

use haul_base::{Span, Time};

/// Window of the minimum filter, as in BBR (draft-ietf-ccwg-bbr, `MinRTTFilterLen`): if the path becomes
/// longer, the minimum follows after this time.
pub const MIN_RTT_WINDOW: Span = Span::from_secs(10);

/// Minimum over a sliding time window, with a resolution of one tenth of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowedMin {
    /// Minimum of each tenth of the window.
    least: [i64; Self::SLOTS],
    /// Index of the newest tenth, counted from time zero.
    newest: u64,
    /// Length of a tenth in nanoseconds.
    tenth: u64,
}

impl WindowedMin {
    const SLOTS: usize = 10;

    pub(crate) fn new(window: Span) -> Self {
        let tenth = (window.as_nanos() / Self::SLOTS as u64).max(1);
        Self { least: [i64::MAX; Self::SLOTS], newest: 0, tenth }
    }

    /// Adds a value and returns the minimum of the window.
    pub(crate) fn on_value(&mut self, now: Time, value: i64) -> i64 {
        let slot = now.as_nanos() / self.tenth;
        let passed = slot.saturating_sub(self.newest).min(Self::SLOTS as u64);
        for gone in 0..passed {
            self.least[((slot - gone) % Self::SLOTS as u64) as usize] = i64::MAX;
        }
        self.newest = self.newest.max(slot);
        let present = &mut self.least[(self.newest % Self::SLOTS as u64) as usize];
        *present = (*present).min(value);
        self.least.iter().copied().min().unwrap_or(value)
    }

    /// [`WindowedMin::on_value`] for time spans.
    pub(crate) fn on_span(&mut self, now: Time, span: Span) -> Span {
        let nanos = i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        Span::from_nanos(self.on_value(now, nanos).unsigned_abs())
    }
}

/// Smoothed round-trip time, its variation and its minimum (RFC 6298, section 2; RFC 9002, section 5).
#[derive(Clone, Debug)]
pub struct RttEstimator {
    latest: Span,
    smoothed: Span,
    variation: Span,
    min: Span,
    /// When a sample last equalled the minimum.
    min_at: Time,
    window: WindowedMin,
    measured: bool,
}

impl RttEstimator {
    /// Creates an estimator with an initial guess (such as the handshake's), which the first sample replaces.
    pub fn new(initial: Span) -> Self {
        Self {
            latest: initial,
            smoothed: initial,
            variation: initial / 2,
            min: initial,
            min_at: Time::ZERO,
            window: WindowedMin::new(MIN_RTT_WINDOW),
            measured: false,
        }
    }

    /// Adds a sample taken at `now`; the receiver's own delay is already subtracted.
    pub fn on_sample(&mut self, now: Time, sample: Span) {
        self.latest = sample;
        self.min = self.window.on_span(now, sample);
        if sample <= self.min {
            self.min_at = now;
        }
        if !self.measured {
            self.measured = true;
            self.smoothed = sample;
            self.variation = sample / 2;
            return;
        }
        let difference = self.smoothed.saturating_sub(sample).max(sample.saturating_sub(self.smoothed));
        // RFC 6298: beta = 1/4, alpha = 1/8.
        self.variation = (self.variation * 3 + difference) / 4;
        self.smoothed = (self.smoothed * 7 + sample) / 8;
    }

    /// Returns the latest sample, or the initial guess.
    pub fn latest(&self) -> Span {
        self.latest
    }

    /// Returns the smoothed round-trip time.
    pub fn smoothed(&self) -> Span {
        self.smoothed
    }

    /// Returns the mean deviation.
    pub fn variation(&self) -> Span {
        self.variation
    }

    /// Returns the smallest sample of the last [`MIN_RTT_WINDOW`], or the initial guess.
    pub fn min(&self) -> Span {
        self.min
    }

    /// Returns when a sample last equalled the minimum. If that is long ago, a law that keeps the queue
    /// filled must drain it briefly to measure again.
    pub fn min_at(&self) -> Time {
        self.min_at
    }

    /// Whether any sample was taken.
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// Returns the silence after which packets count as lost: `srtt + 4 var` (RFC 6298, section 2.3) plus the
    /// receiver's longest report delay.
    pub fn probe_timeout(&self, report_delay: Span) -> Span {
        self.smoothed + (self.variation * 4).max(Span::from_millis(1)) + report_delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn the_first_sample_replaces_the_guess() {
        let mut rtt = RttEstimator::new(Span::from_millis(333));
        assert!(!rtt.is_measured());
        rtt.on_sample(at(5_000), Span::from_millis(50));
        assert_eq!(rtt.smoothed(), Span::from_millis(50));
        assert_eq!((rtt.min(), rtt.min_at()), (Span::from_millis(50), at(5_000)));
    }

    #[test]
    fn smoothing_converges_and_the_minimum_is_kept_for_the_window() {
        let mut rtt = RttEstimator::new(Span::from_millis(10));
        rtt.on_sample(at(0), Span::from_millis(10));
        for n in 0..100 {
            rtt.on_sample(at(n * 30), Span::from_millis(30));
        }
        assert!(rtt.smoothed() > Span::from_millis(29));
        assert_eq!((rtt.min(), rtt.min_at()), (Span::from_millis(10), at(0)));
        assert!(rtt.probe_timeout(Span::from_millis(2)) > Span::from_millis(31));
    }

    #[test]
    fn a_longer_path_is_noticed_after_the_window_and_a_shorter_one_at_once() {
        let mut rtt = RttEstimator::new(Span::from_millis(10));
        rtt.on_sample(at(0), Span::from_millis(10));
        for n in 1..=8_900 {
            rtt.on_sample(at(n), Span::from_millis(60));
        }
        assert_eq!(rtt.min(), Span::from_millis(10), "8.9 s later");
        for n in 8_901..=10_000 {
            rtt.on_sample(at(n), Span::from_millis(60));
        }
        assert_eq!(rtt.min(), Span::from_millis(60), "10 s later");
        rtt.on_sample(at(10_001), Span::from_millis(20));
        assert_eq!((rtt.min(), rtt.min_at()), (Span::from_millis(20), at(10_001)));
        rtt.on_sample(at(7_200_000), Span::from_millis(80));
        assert_eq!(rtt.min(), Span::from_millis(80), "after hours of silence");
    }
}
