//! Round-trip time from echoed timestamps.

use haul_base::Span;

/// Smoothed round-trip time, its variation and its minimum (RFC 6298, section 2; RFC 9002, section 5).
#[derive(Clone, Debug)]
pub struct RttEstimator {
    latest: Span,
    smoothed: Span,
    variation: Span,
    min: Span,
    measured: bool,
}

impl RttEstimator {
    /// Starts from a guess (for example the round trip of the handshake), which the first sample replaces.
    pub fn new(initial: Span) -> Self {
        Self { latest: initial, smoothed: initial, variation: initial / 2, min: initial, measured: false }
    }

    /// Takes one sample, with the receiver's own delay already subtracted.
    pub fn on_sample(&mut self, sample: Span) {
        self.latest = sample;
        if !self.measured {
            self.measured = true;
            self.smoothed = sample;
            self.variation = sample / 2;
            self.min = sample;
            return;
        }
        self.min = self.min.min(sample);
        let difference = self.smoothed.saturating_sub(sample).max(sample.saturating_sub(self.smoothed));
        // RFC 6298: beta = 1/4, alpha = 1/8.
        self.variation = (self.variation * 3 + difference) / 4;
        self.smoothed = (self.smoothed * 7 + sample) / 8;
    }

    /// The last sample, or the initial guess.
    pub fn latest(&self) -> Span {
        self.latest
    }

    /// The smoothed round-trip time.
    pub fn smoothed(&self) -> Span {
        self.smoothed
    }

    /// The mean deviation.
    pub fn variation(&self) -> Span {
        self.variation
    }

    /// The smallest sample so far, or the initial guess.
    pub fn min(&self) -> Span {
        self.min
    }

    /// Whether there was a sample at all.
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// Time after which silence means loss: `srtt + 4 var` (RFC 6298, section 2.3) plus what the receiver may
    /// wait before it reports.
    pub fn probe_timeout(&self, report_delay: Span) -> Span {
        self.smoothed + (self.variation * 4).max(Span::from_millis(1)) + report_delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_replaces_the_guess() {
        let mut rtt = RttEstimator::new(Span::from_millis(333));
        assert!(!rtt.is_measured());
        rtt.on_sample(Span::from_millis(50));
        assert_eq!(rtt.smoothed(), Span::from_millis(50));
        assert_eq!(rtt.min(), Span::from_millis(50));
    }

    #[test]
    fn smoothing_converges_and_the_minimum_stays() {
        let mut rtt = RttEstimator::new(Span::from_millis(10));
        rtt.on_sample(Span::from_millis(10));
        for _ in 0..100 {
            rtt.on_sample(Span::from_millis(30));
        }
        assert!(rtt.smoothed() > Span::from_millis(29));
        assert_eq!(rtt.min(), Span::from_millis(10));
        assert!(rtt.probe_timeout(Span::from_millis(2)) > Span::from_millis(31));
    }
}
