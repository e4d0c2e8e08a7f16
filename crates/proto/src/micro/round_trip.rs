//! Round-trip times measured from the receiver's reports, and values derived from them.

use haul_base::{Span, Time};
use haul_stack::{Context, Declaration, Event, SharedValue};

use super::events::{RTT_SAMPLE, RttSample};
use crate::rtt::RttEstimator;

/// A longer round trip comes from a wrong clock or a false report.
const LONGEST: Span = Span::from_secs(60);
/// Tolerated difference of both ends' clocks over the time between a packet and its report (our choice).
const CLOCK_ERROR: Span = Span::from_millis(1);
/// Bounds of the reordering window; the minimum keeps batched reads at the receiver from looking like
/// reordering.
const REORDERING_MIN: Span = Span::from_micros(500);
const REORDERING_MAX: Span = Span::from_millis(50);

/// Returns the round-trip time of a packet whose report arrived `elapsed` after it was sent, of which the
/// receiver reports `delay` as its own waiting. `None` if `delay` is longer than `elapsed`: the receiver's
/// clock has jumped.
pub(super) fn without_delay(elapsed: Span, delay: Span) -> Option<Span> {
    (delay <= elapsed + CLOCK_ERROR).then(|| elapsed.saturating_sub(delay))
}

/// The reordering window: a quarter of the minimum round trip, times `steps` (RFC 8985, section 6.2.1),
/// within bounds.
pub(super) fn reordering_window(min_rtt: Span, steps: u32) -> Span {
    let base = (min_rtt / 4).max(REORDERING_MIN);
    (base * u64::from(steps)).min(REORDERING_MAX)
}

/// The stack's round-trip estimator and the event of its samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    pub(super) estimator: SharedValue<RttEstimator>,
    sampled: Event<RttSample>,
}

impl RoundTrip {
    pub(super) fn declare(declaration: &mut Declaration<'_>, initial: Span) -> Self {
        let estimator = declaration.shared(|| RttEstimator::new(initial));
        Self { estimator, sampled: declaration.event(RTT_SAMPLE) }
    }

    /// Records the round trip of a packet whose report arrived at `at`, `elapsed` after it was sent,
    /// including the receiver's `delay`; `None` if it is impossible.
    pub(super) fn measure(
        self,
        at: Time,
        elapsed: Span,
        delay: Span,
        context: &mut Context<'_>,
    ) -> Option<RttSample> {
        let rtt = without_delay(elapsed, delay)?.max(Span::from_micros(1));
        (rtt < LONGEST).then(|| {
            context.shared(self.estimator).on_sample(at, rtt);
            RttSample { at, rtt }
        })
    }

    /// Writes the estimate into the path's state, and raises the sample's event.
    pub(super) fn publish(self, mut sample: RttSample, context: &mut Context<'_>) {
        let estimator = context.shared(self.estimator);
        let (smoothed, variation, min) = (estimator.smoothed(), estimator.variation(), estimator.min());
        let path = context.path_mut();
        (path.rtt, path.rtt_variation, path.min_rtt) = (smoothed, variation, min);
        context.raise(self.sampled, &mut sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_delay_longer_than_the_round_trip_gives_no_sample() {
        let [ms, hour] = [Span::from_millis(1), Span::from_secs(3_600)];
        assert_eq!(without_delay(ms * 25, ms * 5), Some(ms * 20));
        assert_eq!(without_delay(ms * 25, ms * 26), Some(Span::ZERO), "clocks differ");
        assert_eq!(without_delay(ms * 25, hour), None);
    }
}
