//! What the queue of the path says: losses at a full queue are congestion, losses without a queue are the medium's.

use haul_base::{Cause, Span, Time};

use crate::control::FeedbackSample;

/// A queue that never held packets for longer than this is none: bursts of the sender's own make as much.
const LEAST_QUEUE: Span = Span::from_millis(1);
/// A queue that drops is full, or nearly so: at this share of the deepest that was seen lately. Early drops (RED, `CoDel`) come at
/// less than the deepest. Our choice.
const FULL_SHARE: f64 = 0.5;
/// The deepest queue counts for one to two times this long.
const MEMORY: Span = Span::from_secs(10);
/// And the shortest round trip: a queue that never empties moves the minimum of the last 10 s, by which `queue_delay` is measured.
const LONG_MEMORY: Span = Span::from_secs(120);
/// A loss of packets that left over at least this time, one behind the other, and at least a round trip, is an outage.
const OUTAGE: Span = Span::from_millis(100);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Queue {
    /// The deepest since `turned_at`, and that of the stretch before.
    deepest: [Span; 2],
    turned_at: Time,
    /// The same of the shortest round trip.
    shortest: [Span; 2],
    shortest_turned_at: Time,
    /// The deepest of the last half to whole round trip: losses are found so much later than they happened.
    recent: [Span; 2],
    recent_turned_at: Time,
    rate_bps: f64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            deepest: [Span::ZERO; 2],
            turned_at: Time::ZERO,
            shortest: [Span::MAX; 2],
            shortest_turned_at: Time::ZERO,
            recent: [Span::ZERO; 2],
            recent_turned_at: Time::ZERO,
            rate_bps: 0.0,
        }
    }
}

impl Queue {
    /// How much longer the last round trip was than the shortest in a long time.
    fn longer_round_trip(&mut self, sample: &FeedbackSample<'_>) -> Span {
        if !sample.rtt.is_measured() {
            return Span::ZERO;
        }
        if sample.now.since(self.shortest_turned_at) > LONG_MEMORY {
            self.shortest = [Span::MAX, self.shortest[0]];
            self.shortest_turned_at = sample.now;
        }
        let latest = sample.rtt.latest();
        self.shortest[0] = self.shortest[0].min(latest);
        latest.saturating_sub(self.shortest[0].min(self.shortest[1]))
    }

    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        if let Some(rate) = sample.arrival_rate {
            self.rate_bps = rate.as_bps() as f64;
        }
        let Some(delay) = sample.queue_delay else { return };
        let delay = delay.max(self.longer_round_trip(sample));
        if sample.now.since(self.recent_turned_at) > sample.rtt.smoothed() / 2 {
            self.recent = [Span::ZERO, self.recent[0]];
            self.recent_turned_at = sample.now;
        }
        self.recent[0] = self.recent[0].max(delay);
        if sample.now.since(self.turned_at) > MEMORY {
            self.deepest = [Span::ZERO, self.deepest[0]];
            self.turned_at = sample.now;
        }
        self.deepest[0] = self.deepest[0].max(delay);
    }

    /// What lost packets that no host has lost.
    pub(super) fn cause(&self, sample: &FeedbackSample<'_>) -> Cause {
        let deepest = self.deepest[0].max(self.deepest[1]);
        let now = self.recent[0].max(self.recent[1]);
        if sample.ecn_ce > 0 || (deepest > LEAST_QUEUE && now >= deepest.mul_f64(FULL_SHARE)) {
            Cause::Congestion
        } else if self.is_outage(sample) {
            Cause::Outage
        } else {
            Cause::Random
        }
    }

    fn is_outage(&self, sample: &FeedbackSample<'_>) -> bool {
        let bits = sample.loss.longest() as f64 * sample.datagram as f64 * 8.0;
        let lasted = bits / self.rate_bps.max(1.0);
        self.rate_bps > 0.0 && lasted >= OUTAGE.max(sample.rtt.smoothed()).as_secs_f64()
    }
}
