//! Loss events (the losses of one round trip) and the mean interval between them.

use std::collections::VecDeque;

use super::FeedbackSample;

/// Detects the first loss of a congestion event: losses of packets sent before the law reacted belong to the
/// same event (RFC 6582, section 3.2; RFC 9002, section 7.3.2).
#[derive(Debug, Default)]
pub(super) struct LossEvents {
    until_pn: u64,
}

impl LossEvents {
    /// Whether the losses of this feedback are a new event.
    pub(super) fn is_new(&self, sample: &FeedbackSample<'_>) -> bool {
        sample.lost_packets > 0 && sample.loss.end_pn() > self.until_pn
    }

    /// The same, with congestion marks (ECN CE) as losses (RFC 9002, section 7.1; RFC 5348, section 5.1).
    pub(super) fn is_new_or_marked(&self, sample: &FeedbackSample<'_>) -> bool {
        self.is_new(sample) || (sample.ecn_ce > 0 && !self.in_recovery(sample))
    }

    /// Assigns losses of packets below `next_pn` to the current event.
    pub(super) fn close(&mut self, next_pn: u64) {
        self.until_pn = next_pn;
    }

    /// Whether the newest acknowledged packet was sent before the last event: the reaction had no effect yet.
    pub(super) fn in_recovery(&self, sample: &FeedbackSample<'_>) -> bool {
        sample.largest_acked_pn < self.until_pn
    }
}

/// Mean interval between loss events (RFC 5348, section 5.4).
#[derive(Debug)]
pub(super) struct Intervals {
    kept: usize,
    /// Packets since the last event.
    pub(super) open: f64,
    /// Packets between events, newest first.
    closed: VecDeque<f64>,
}

impl Intervals {
    /// Creates a mean over `kept` intervals.
    pub(super) fn new(kept: usize) -> Self {
        Self { kept, open: 0.0, closed: VecDeque::new() }
    }

    /// Returns the number of known intervals, up to `kept`.
    pub(super) fn count(&self) -> usize {
        self.closed.len()
    }

    fn weight(&self, i: usize) -> f64 {
        let n = self.kept as f64;
        (2.0 * (n - i as f64) / (n + 2.0)).min(1.0)
    }

    fn weighted(&self, intervals: impl Iterator<Item = f64>) -> f64 {
        let used = self.closed.len().min(self.kept);
        let total_weight: f64 = (0..used).map(|i| self.weight(i)).sum();
        intervals.take(used).enumerate().map(|(i, packets)| packets * self.weight(i)).sum::<f64>()
            / total_weight
    }

    /// Removes all intervals.
    pub(super) fn clear(&mut self) {
        self.closed.clear();
        self.open = 0.0;
    }

    /// Ends an interval of this many packets with an event.
    pub(super) fn close(&mut self, packets: f64) {
        self.closed.push_front(packets.max(1.0));
        self.closed.truncate(self.kept);
        self.open = 0.0;
    }

    /// Returns the mean; `None` before the first event.
    pub(super) fn mean(&self) -> Option<f64> {
        if self.closed.is_empty() {
            return None;
        }
        let closed = self.weighted(self.closed.iter().copied());
        let with_open = self.weighted(std::iter::once(self.open).chain(self.closed.iter().copied()));
        Some(closed.max(with_open))
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Span, Time};

    use super::super::LossRuns;
    use super::super::testing::{assert_near, literal_sample, lost_packet};
    use super::*;
    use crate::rtt::RttEstimator;

    #[test]
    fn the_mean_interval_is_weighted_as_in_tfrc_and_a_long_open_one_counts() {
        let mut intervals = Intervals::new(8);
        let weights: Vec<_> = (0..8).map(|i| intervals.weight(i)).collect();
        for (weight, expected) in weights.iter().zip([1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]) {
            assert_near(*weight, expected, 1e-12);
        }
        assert_eq!(intervals.mean(), None);
        for packets in [600.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0] {
            intervals.close(packets);
        }
        // The oldest has the weight 0.2 of 6 in total.
        assert_near(intervals.mean().unwrap(), 100.0 + 500.0 * 0.2 / 6.0, 1e-9);
        intervals.open = 1_300.0;
        assert_near(intervals.mean().unwrap(), (1_300.0 + 3.0 * 100.0 + 2.0 * 100.0) / 6.0, 1e-9);
    }

    #[test]
    fn losses_of_packets_sent_before_the_reaction_are_no_new_event() {
        let rtt = RttEstimator::new(Span::from_millis(20));
        let mut events = LossEvents::default();
        let is_new = |events: &LossEvents, pn: u64| {
            let mut loss = LossRuns::default();
            loss.push(lost_packet(pn));
            let sample = FeedbackSample { lost_packets: 1, loss: &loss, ..literal_sample(Time::ZERO, &rtt) };
            events.is_new(&sample)
        };
        assert!(is_new(&events, 0) && is_new(&events, 50));
        events.close(100);
        assert!(!is_new(&events, 50) && !is_new(&events, 99) && is_new(&events, 100));
        let arrived = |pn| FeedbackSample { largest_acked_pn: pn, ..literal_sample(Time::ZERO, &rtt) };
        assert!(events.in_recovery(&arrived(99)) && !events.in_recovery(&arrived(100)));
    }
}
