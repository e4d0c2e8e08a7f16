//! Minimum round-trip time, when to probe it (draft-ietf-ccwg-bbr, section "`ProbeRTT`"), and detection of a
//! longer round-trip time.

use haul_base::{Span, Time};

use crate::rtt::MIN_RTT_WINDOW;

/// Extra round-trip time that shows a queue: an eighth, 4 to 16 ms (RFC 9406, section 4.2).
const QUEUE_DIVISOR: u64 = 8;
const MIN_QUEUE: Span = Span::from_millis(4);
const MAX_QUEUE: Span = Span::from_millis(16);

/// If the minimum of a round exceeds the path's minimum by this and by an eighth, even a short queue was
/// never empty. Our choice.
const MIN_STANDING: Span = Span::from_millis(1);

/// A sample above the minimum by at most this fraction of it, plus a burst, confirms the minimum. Our choice.
const CONFIRMS: u64 = 64;

/// Consecutive longer rounds required. Our choice: a single one could be a burst of other flows.
const RAISED_ROUNDS: u32 = 2;
/// Time for which every round must be longer. Our choice: if the capacity falls for a moment, the queue is
/// gone when it returns. On paths that vary in steps of 0.5 s and 20 ms, the law gets 0.82 of what TCP's BBR
/// gets (0.69 with 0.2 s).
const RAISED_DURATION: Span = Span::from_millis(400);

/// Minimum number of samples that show the variation of round-trip times. Our choice.
const MIN_SAMPLES: f64 = 20.0;

/// Round-trip times: see the module documentation.
#[derive(Debug)]
pub(super) struct RoundTrip {
    /// The draft's `min_rtt`, and when it was measured.
    least: Option<Span>,
    least_at: Time,
    /// The draft's `probe_rtt_min_delay` and its time.
    probed: Span,
    probed_at: Time,
    interval: Span,
    /// Current round: minimum, maximum, sum in seconds, number of samples.
    round_min: Span,
    round_max: Span,
    round_sum: f64,
    round_samples: f64,
    /// The previous round.
    last: Round,
    /// All earlier rounds: maximum and number of samples.
    earlier: (Span, f64),
    raised: u32,
    /// End of the last round that was not longer.
    last_not_raised: Time,
}

/// Round-trip times of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) least: Span,
    pub(super) mean: Span,
    most: Span,
    samples: f64,
}

impl RoundTrip {
    pub(super) fn new(interval: Span) -> Self {
        Self {
            least: None,
            least_at: Time::ZERO,
            probed: Span::MAX,
            probed_at: Time::ZERO,
            interval,
            round_min: Span::MAX,
            round_max: Span::ZERO,
            round_sum: 0.0,
            round_samples: 0.0,
            last: Round { least: Span::ZERO, mean: Span::ZERO, most: Span::ZERO, samples: 0.0 },
            earlier: (Span::ZERO, 0.0),
            raised: 0,
            last_not_raised: Time::ZERO,
        }
    }

    /// Adds a sample; returns whether the minimum is due to be probed (the draft's `UpdateMinRTT`). Unlike in
    /// the draft, a sample close to the minimum, up to `serialization`, confirms it.
    pub(super) fn on_sample(&mut self, now: Time, rtt: Span, serialization: Span) -> bool {
        let rtt = rtt.max(Span::from_micros(1));
        self.round_min = self.round_min.min(rtt);
        self.round_max = self.round_max.max(rtt);
        self.round_sum += rtt.as_secs_f64();
        self.round_samples += 1.0;
        let is_first = self.least.is_none();
        if self.least.is_some_and(|least| rtt <= least + least / CONFIRMS + serialization) {
            (self.probed_at, self.least_at) = (now, now);
        }
        let is_expired = now > self.probed_at + self.interval;
        if rtt < self.probed || is_expired {
            (self.probed, self.probed_at) = (rtt, now);
        }
        if self.least.is_none_or(|least| self.probed < least) || now > self.least_at + MIN_RTT_WINDOW {
            (self.least, self.least_at) = (Some(self.probed), self.probed_at);
        }
        is_expired && !is_first
    }

    /// Returns the minimum, or `guess` before the first sample.
    pub(super) fn least(&self, guess: Span) -> Span {
        self.least.unwrap_or(guess)
    }

    /// Restarts the interval to the next probe.
    pub(super) fn on_probed(&mut self, now: Time) {
        self.probed_at = now;
    }

    /// Adopts the minimum of a changed path.
    pub(super) fn adopt(&mut self, now: Time, least: Span) {
        (self.least, self.least_at) = (Some(least), now);
        (self.probed, self.probed_at) = (least, now);
        (self.raised, self.last_not_raised) = (0, now);
    }

    /// Ends a round. A queue shows in a round-trip time above the minimum by a share of it and by
    /// `serialization`, the time in which the bottleneck sends a burst. `rise` is the factor that shows a
    /// longer path.
    pub(super) fn on_round(&mut self, now: Time, serialization: Span, rise: f64) -> Round {
        if self.round_samples > 0.0 {
            let mean = Span::from_secs_f64(self.round_sum / self.round_samples);
            let (most, samples) = self.earlier;
            self.earlier = (most.max(self.last.most), samples + self.last.samples);
            let (least, most, samples) = (self.round_min, self.round_max, self.round_samples);
            self.last = Round { least, mean, most, samples };
        }
        (self.round_min, self.round_max) = (Span::MAX, Span::ZERO);
        (self.round_sum, self.round_samples) = (0.0, 0.0);
        let least = self.least(Span::ZERO);
        let is_raised = self.last.least > least.mul_f64(rise).max(least + Self::queue(least) + serialization);
        if is_raised {
            self.raised += 1;
        } else {
            (self.raised, self.last_not_raised) = (0, now);
        }
        self.last
    }

    /// Whether the last round shows a queue.
    pub(super) fn is_queued(&self, serialization: Span) -> bool {
        self.last.mean > self.least(Span::ZERO) + self.queue_threshold(serialization)
    }

    /// Whether no packet of the last round found the queue empty, however short it is.
    pub(super) fn has_standing_queue(&self) -> bool {
        let least = self.least(Span::ZERO);
        self.last.least > least + (least / QUEUE_DIVISOR).max(MIN_STANDING)
    }

    /// Returns the extra delay above which there is a queue; `serialization` is the time in which the
    /// bottleneck sends a burst.
    pub(super) fn queue_threshold(&self, serialization: Span) -> Span {
        Self::queue(self.least(Span::ZERO)) + serialization
    }

    /// Whether whole rounds were longer than the minimum explains.
    pub(super) fn is_raised(&self, now: Time) -> bool {
        self.raised >= RAISED_ROUNDS && now >= self.last_not_raised + RAISED_DURATION
    }

    /// Restarts the count of longer rounds: in this round a queue is intended.
    pub(super) fn reset_raised(&mut self) {
        self.raised = 0;
    }

    /// Whether a round-trip time exceeds all before the last round, which may include a queue of our own.
    pub(super) fn is_longer(&self, rtt: Span) -> bool {
        self.earlier.1 >= MIN_SAMPLES && rtt > self.earlier.0
    }

    /// Resets the variation of round-trip times.
    pub(super) fn forget_earlier(&mut self) {
        self.earlier = (Span::ZERO, 0.0);
        (self.last.most, self.last.samples) = (Span::ZERO, 0.0);
    }

    /// Returns the round-trip times of the last round.
    pub(super) fn last_round(&self) -> Round {
        self.last
    }

    fn queue(least: Span) -> Span {
        (least / QUEUE_DIVISOR).max(MIN_QUEUE).min(MAX_QUEUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn trip() -> RoundTrip {
        RoundTrip::new(Span::from_secs(5))
    }

    #[test]
    fn a_probe_is_due_after_five_seconds_and_the_minimum_expires_after_ten() {
        let (mut trip, guess) = (trip(), Span::from_millis(333));
        assert_eq!(trip.least(guess), guess);
        assert!(!trip.on_sample(at(100_000), Span::from_millis(10), Span::ZERO), "the first is no probe");
        for n in 1..=5_000 {
            assert!(!trip.on_sample(at(100_000 + n), Span::from_millis(60), Span::ZERO));
        }
        assert!(trip.on_sample(at(105_001), Span::from_millis(60), Span::ZERO));
        assert_eq!(trip.least(guess), Span::from_millis(10));
        trip.on_sample(at(110_001), Span::from_millis(60), Span::ZERO);
        assert_eq!(trip.least(guess), Span::from_millis(60));
        trip.on_sample(at(110_002), Span::from_millis(20), Span::ZERO);
        assert_eq!(trip.least(guess), Span::from_millis(20));
    }

    #[test]
    fn a_round_trip_is_longer_only_if_compared_with_enough_older_ones() {
        let mut trip = trip();
        let mut is_longer = |least: u64| {
            (least..least + 10).for_each(|ms| {
                trip.on_sample(at(100_000), Span::from_millis(ms), Span::ZERO);
            });
            trip.on_round(at(100_000), Span::ZERO, 1.25);
            [15, 20, 50].map(|ms| trip.is_longer(Span::from_millis(ms)))
        };
        assert_eq!(is_longer(10), [false; 3]);
        assert_eq!(is_longer(1), [false; 3]);
        assert_eq!(is_longer(40), [false, true, true]);
        assert_eq!(is_longer(70), [false, false, true], "those of 40 to 49 are known now");
        trip.forget_earlier();
        assert!(!trip.is_longer(Span::from_millis(90)));
    }

    #[test]
    fn only_long_lasting_longer_rounds_raise_the_minimum() {
        let (mut trip, rise) = (trip(), 1.25);
        let mut round = |millis: u64, samples: &[u64]| {
            let now = at(100_000 + millis);
            for &ms in samples {
                trip.on_sample(now, Span::from_millis(ms), Span::ZERO);
            }
            trip.on_round(now, Span::from_millis(1), rise);
            (trip.is_raised(now), trip.is_queued(Span::from_millis(1)))
        };
        assert_eq!(round(0, &[10, 11, 12]), (false, false));
        assert_eq!(round(600, &[60, 60, 60]), (false, true), "one round");
        assert_eq!(round(660, &[60, 11, 60]), (false, true));
        assert_eq!(round(720, &[60, 60]), (false, true));
        assert_eq!(round(780, &[60, 60]), (false, true), "not for long enough");
        assert_eq!(round(1_060, &[16, 17]), (true, true));
        assert_eq!(
            round(1_120, &[15, 14]),
            (false, false),
            "no more than an eighth, at least 4 ms, and a burst"
        );
    }

    #[test]
    fn an_adopted_path_is_the_new_reference() {
        let mut trip = trip();
        trip.on_sample(at(100_000), Span::from_millis(10), Span::ZERO);
        trip.adopt(at(101_000), Span::from_millis(60));
        assert_eq!(trip.least(Span::ZERO), Span::from_millis(60));
        assert!(!trip.on_sample(at(106_000), Span::from_millis(61), Span::ZERO));
        assert_eq!(trip.least(Span::ZERO), Span::from_millis(60));
    }
}
