//! Exit from slow start before the queue is full: `HyStart` (Ha and Rhee, 2008), as in Linux's `tcp_cubic.c`.

use haul_base::{Span, Time};

/// Which of the two criteria are used, and their thresholds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HystartConfig {
    /// Whether to use ACK trains: closely spaced acknowledgements for half a round trip.
    pub ack_train: bool,
    /// Whether to use delay increase: risen round-trip times.
    pub delay: bool,
    /// Minimum window for leaving slow start (16).
    pub least_window: u64,
    /// Maximum gap between the acknowledgements of a train (2 ms).
    pub gap: Span,
    /// Number of samples evaluated per round (8).
    pub samples: u32,
    /// Bounds of the delay threshold, which is an eighth of the minimum (4 and 16 ms).
    pub rise: (Span, Span),
}

impl Default for HystartConfig {
    fn default() -> Self {
        Self {
            ack_train: true,
            delay: true,
            least_window: 16,
            gap: Span::from_millis(2),
            samples: 8,
            rise: (Span::from_millis(4), Span::from_millis(16)),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Hystart {
    config: HystartConfig,
    round_start: Time,
    last_close: Time,
    sampled: u32,
    round_min: Span,
    flow_min: Span,
}

impl Hystart {
    pub(super) fn new(config: HystartConfig) -> Self {
        Self {
            config,
            round_start: Time::ZERO,
            last_close: Time::ZERO,
            sampled: 0,
            round_min: Span::MAX,
            flow_min: Span::MAX,
        }
    }

    /// Returns whether slow start should end now.
    pub(super) fn on_ack(&mut self, now: Time, rtt: Option<Span>, round_start: bool, window: u64) -> bool {
        if round_start {
            (self.round_start, self.last_close) = (now, now);
            (self.sampled, self.round_min) = (0, Span::MAX);
        }
        let Some(rtt) = rtt else { return false };
        self.flow_min = self.flow_min.min(rtt);
        let train = self.train(now);
        let rise = self.rise(rtt);
        window >= self.config.least_window && (train || rise)
    }

    fn train(&mut self, now: Time) -> bool {
        if now.since(self.last_close) > self.config.gap {
            return false;
        }
        self.last_close = now;
        self.config.ack_train && now.since(self.round_start) > self.flow_min / 2
    }

    fn rise(&mut self, rtt: Span) -> bool {
        if self.sampled < self.config.samples {
            self.sampled += 1;
            self.round_min = self.round_min.min(rtt);
            return false;
        }
        let (least, most) = self.config.rise;
        let rise = (self.flow_min / 8).clamp(least, most);
        self.config.delay && self.round_min > self.flow_min + rise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_slow_start() {
        let mut hystart = Hystart::new(HystartConfig::default());
        let rtt = Some(Span::from_millis(100));
        assert!(!hystart.on_ack(at(100), rtt, true, 100));
        let end = (101..200).find(|&ms| hystart.on_ack(at(ms), rtt, false, 100));
        assert_eq!(end, Some(151));
        // With gaps it is not a train, and a small window never ends slow start.
        assert!(!(101..200).any(|n| hystart.on_ack(at(100 + 3 * n), rtt, false, 100)));
        assert!(!hystart.on_ack(at(1_000), rtt, true, 15));
        assert!(!(1_000..1_100).any(|ms| hystart.on_ack(at(ms), rtt, false, 15)));
    }

    #[test]
    fn a_rise_of_an_eighth_in_the_minimum_of_eight_samples_ends_slow_start() {
        let mut hystart = Hystart::new(HystartConfig { ack_train: false, ..HystartConfig::default() });
        assert!(!hystart.on_ack(at(100), Some(Span::from_millis(80)), true, 100));
        // 80 ms + 10 ms: 90 is not above, 91 is.
        for (rtt, ends) in [(90, false), (91, true)] {
            let mut any = hystart.on_ack(at(200), Some(Span::from_millis(rtt)), true, 100);
            for ms in 0..9 {
                any |= hystart.on_ack(at(200 + ms), Some(Span::from_millis(rtt + ms)), false, 100);
            }
            assert_eq!(any, ends, "{rtt} ms");
        }
    }
}
