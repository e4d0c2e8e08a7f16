//! Delivery rate at the receiver, measured with the receiver's clock.

use std::collections::VecDeque;

use haul_base::{Rate, Span};

/// Total `bytes` received at the receiver's time `at` (unwrapped microseconds).
#[derive(Clone, Copy, Debug)]
struct Arrived {
    at: u64,
    bytes: u64,
}

/// Computes delivery rates over about one round trip from the counters in feedback. It uses the receiver's
/// counters and clock, so lost, late or bunched feedback does not distort it (compare Linux's sender-side
/// `rate_sample`).
#[derive(Clone, Debug, Default)]
pub(crate) struct DeliveryMeter {
    history: VecDeque<Arrived>,
    /// Whether the history starts after a gap caused by the sender and is shorter than the measurement span.
    is_resumed: bool,
}

/// Number of feedbacks kept. At one per 0.5 ms they span 128 ms; over a longer span some are dropped.
const HISTORY: usize = 256;

/// Minimum time resolution: the measurement span divided by this.
const PARTS: u64 = 128;

/// After a gap caused by the sender, a rate is measured over this fraction of the span, and at most over
/// [`RESUMED`]: the sender may pause again before a whole span has passed. Our choice: a few bursts.
const RESUMED_PART: u64 = 4;
const RESUMED: Span = Span::from_millis(5);

/// Shorter measurements reflect the bunching of the receive path, not the path.
const SHORTEST: Span = Span::from_millis(1);

impl DeliveryMeter {
    /// Clears the history: the next feedback covers packets sent after a gap caused by the sender, and no
    /// rate is measured across the gap.
    pub(crate) fn resume(&mut self) {
        self.history.clear();
        self.is_resumed = true;
    }

    /// Whether the history starts after such a gap and is shorter than the span.
    pub(crate) fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Adds the receiver's byte counter and its wrapped clock (microseconds), and returns the rate over the
    /// last `span` or slightly more. Returns `None` while the history is too short, and for late feedback.
    pub(crate) fn on_feedback(&mut self, received_at: u32, bytes: u64, span: Span) -> Option<Rate> {
        let at = match self.history.back() {
            None => u64::from(received_at),
            Some(last) => {
                let step = received_at.wrapping_sub(last.at as u32).cast_signed();
                if step <= 0 || bytes < last.bytes {
                    return None;
                }
                last.at + step as u64
            }
        };
        if self.history.capacity() == 0 {
            self.history.reserve(HISTORY);
        }
        let span = span.max(SHORTEST).as_micros();
        // Replace closely spaced entries by the newest, so that the history covers the whole span.
        let spacing = span / PARTS;
        let kept = self.history.len();
        if kept >= 2 && self.history[kept - 1].at - self.history[kept - 2].at < spacing {
            self.history.pop_back();
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(Arrived { at, bytes });
        // Start at the newest entry that is at least `span` old, to keep the measured time short.
        while self.history.len() > 2 && at - self.history[1].at >= span {
            self.history.pop_front();
        }
        let from = self.history.front()?;
        let stretch = at - from.at;
        self.is_resumed &= stretch < span;
        let least = if self.is_resumed {
            (span / RESUMED_PART).clamp(SHORTEST.as_micros(), RESUMED.as_micros())
        } else {
            span
        };
        (stretch >= least).then(|| Rate::from_transfer(bytes - from.bytes, Span::from_micros(stretch)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_stream_measures_its_rate_across_a_clock_wrap() {
        let mut meter = DeliveryMeter::default();
        let mut clock = u32::MAX - 5_000;
        let mut last = None;
        for n in 1..100u64 {
            clock = clock.wrapping_add(1_000);
            last = meter.on_feedback(clock, n * 125_000, Span::from_millis(10));
        }
        assert_eq!(last, Some(Rate::from_mbps(1000)));
    }

    #[test]
    fn lost_feedback_does_not_change_the_rate() {
        let mut meter = DeliveryMeter::default();
        let rates: Vec<_> = (1..200u64)
            .filter(|n| n % 7 != 0 && n % 5 != 0)
            .filter_map(|n| meter.on_feedback(n as u32 * 1_000, n * 12_500, Span::from_millis(20)))
            .collect();
        assert!(!rates.is_empty());
        assert!(rates.iter().all(|&r| r == Rate::from_mbps(100)), "{rates:?}");
    }

    #[test]
    fn a_long_round_trip_with_frequent_feedback_is_measured_and_the_memory_bounded() {
        let mut meter = DeliveryMeter::default();
        let rates: Vec<_> = (1..20_000u64)
            .filter_map(|n| meter.on_feedback(n as u32 * 500, n * 6_250, Span::from_millis(600)))
            .collect();
        assert!(rates.len() > 18_700, "{}", rates.len());
        assert!(rates.iter().all(|&rate| rate == Rate::from_mbps(100)), "{:?}", rates.iter().max());
        assert!(meter.history.len() <= HISTORY);
    }

    #[test]
    fn sender_gaps_are_excluded_from_the_measurement() {
        let mut meter = DeliveryMeter::default();
        let span = Span::from_millis(20);
        // 100 Mbit/s for 20 ms, then nothing for 80 ms.
        let arrival = |n: u64| ((n / 20 * 100 + n % 20) as u32 * 1_000, n * 12_500);
        let rates: Vec<_> = (0..200u64)
            .filter_map(|n| {
                if n % 20 == 0 {
                    meter.resume();
                }
                let (at, bytes) = arrival(n);
                let rate = meter.on_feedback(at, bytes, span);
                assert!(meter.is_resumed(), "{n}");
                rate
            })
            .collect();
        assert_eq!(rates.len(), 10 * 15, "from 5 ms on");
        assert!(rates.iter().all(|&rate| rate == Rate::from_mbps(100)), "{rates:?}");
        // Without another gap the whole span counts again.
        for n in 0..21 {
            meter.on_feedback(2_000_000 + n * 1_000, 10_000_000, span);
        }
        assert!(!meter.is_resumed());
    }

    #[test]
    fn old_feedback_is_ignored() {
        let mut meter = DeliveryMeter::default();
        meter.on_feedback(10_000, 1_000_000, Span::from_millis(1));
        assert_eq!(meter.on_feedback(9_000, 900_000, Span::from_millis(1)), None);
    }
}
