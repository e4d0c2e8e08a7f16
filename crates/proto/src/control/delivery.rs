//! Follows the delivery rate.
//!
//! Like BBR (Cardwell et al., CACM 60(2), 2017) it keeps the highest delivery rate of the last rounds and the
//! smallest round-trip time, sends at that rate and probes above it from time to time. Unlike in BBR, rates
//! are measured by the receiver's clock, so late or lost feedback does not distort them; the window allows
//! for the feedback interval; and persistent heavy loss makes the law drop its old maximum at once.

use haul_base::{Rate, Span, Time};

use crate::rtt::RttEstimator;

use super::{
    ControllerConfig, FeedbackSample, LawRegistration, Limits, Permit, RateController, RateState, burst_for,
};

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "delivery",
    version: 1,
    summary: "follows the rate at which data is delivered",
    source: "this project, after BBR (Cardwell et al., CACM 60(2), 2017)",
    parameters: &[],
    build: |_, config| Ok(Box::new(Delivery::new(config))),
};

/// Bytes in flight before anything was measured: 64 full packets.
const INITIAL_WINDOW: u64 = 64 * 1_472;
/// Lower bound of the window: with fewer bytes in flight, a single loss could stop feedback.
const MIN_WINDOW: u64 = 16 * 1_472;
const MIN_RATE: Rate = Rate::from_bps(500_000);
/// Doubles the sending rate each round trip.
const STARTUP_GAIN: f64 = 2.0;
/// Start-up ends after this many rounds without [`STARTUP_GROWTH`] (BBR, section "startup").
const STARTUP_ROUNDS: u32 = 3;
const STARTUP_GROWTH: f64 = 1.25;
const DRAIN_GAIN: f64 = 0.5;
/// One round above the known rate, one below to drain what that queued, then six at it.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// A probe that raises the known rate by this factor (of at most 1.25) has found free capacity: the law
/// returns to start-up. If other flows share the bottleneck, a probe raises it by less. Our choice; eight
/// rounds per increase of 25 % would take seconds after an outage, or if the capacity has grown tenfold.
const CAPACITY_FOUND: f64 = 1.2;
/// Twice the bandwidth-delay product: enough to double each round trip in start-up (a rate that doubles has
/// 1.44 times the last measured product in flight), and at most one product in the bottleneck's queue.
const WINDOW_GAIN: f64 = 2.0;
/// Start-up also ends when this many samples in a row exceed the smallest round-trip time by [`queue_delay`]:
/// a queue builds up (`HyStart++`, RFC 9406, section 4.2, which compares with the previous round).
const QUEUE_SAMPLES: u32 = 8;
/// Share of lost packets in a round above which the receiver or path cannot sustain the rate.
const HEAVY_LOSS: f64 = 0.10;
/// With fewer losses in a round, nothing is concluded about the rate.
const HEAVY_LOSS_PACKETS: u64 = 16;
/// The maximum of delivery rates is remembered for one to two periods of this many rounds.
const MEMORY_ROUNDS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup { best: Rate, stalled: u32 },
    Drain,
    Cruise { step: usize },
}

/// The law: see the module documentation.
#[derive(Debug)]
pub struct Delivery {
    ceiling: Rate,
    feedback_interval: Span,
    /// Current report interval.
    report_interval: Span,
    min_rtt: Span,
    phase: Phase,
    /// Highest delivery rate of the current and of the previous period of rounds.
    best: [Rate; 2],
    latest: Rate,
    round_end: Time,
    rounds: u32,
    round_acked: u64,
    round_lost: u64,
    app_limited_round: bool,
    /// Known rate when the last probe began.
    probed_from: Rate,
    /// Consecutive round-trip samples that show a queue.
    queued_samples: u32,
    /// Shortest round-trip time of this cycle of rounds.
    least: Span,
    /// Shortest round-trip time since the path became longer, while it exceeds the minimum of the last 10 s.
    longer: Option<Span>,
}

impl Delivery {
    /// Creates a law that knows nothing of the path but a guess of its round-trip time.
    pub fn new(config: &ControllerConfig) -> Self {
        Self {
            ceiling: config.ceiling.unwrap_or(Rate::MAX),
            feedback_interval: config.feedback_interval,
            report_interval: config.feedback_interval,
            min_rtt: config.initial_rtt,
            phase: Phase::Startup { best: Rate::ZERO, stalled: 0 },
            best: [Rate::ZERO; 2],
            latest: Rate::ZERO,
            round_end: Time::ZERO,
            rounds: 0,
            round_acked: 0,
            round_lost: 0,
            app_limited_round: false,
            probed_from: Rate::MAX,
            queued_samples: 0,
            least: Span::MAX,
            longer: None,
        }
    }

    fn known_rate(&self) -> Option<Rate> {
        let best = self.best[0].max(self.best[1]);
        (best > Rate::ZERO).then_some(best)
    }

    /// Returns the time for which data is in flight until its feedback arrives.
    fn loop_time(&self) -> Span {
        self.min_rtt + self.report_interval
    }

    fn gain(&self) -> f64 {
        match self.phase {
            Phase::Startup { .. } => STARTUP_GAIN,
            Phase::Drain => DRAIN_GAIN,
            Phase::Cruise { step } => CYCLE[step],
        }
    }

    fn rate(&self) -> Rate {
        let base = match self.known_rate() {
            Some(rate) => rate.mul_f64(self.gain()),
            None => Rate::from_transfer(INITIAL_WINDOW, self.loop_time().max(Span::from_micros(100))),
        };
        base.max(MIN_RATE).min(self.ceiling)
    }

    fn window(&self) -> u64 {
        let Some(rate) = self.known_rate() else {
            return INITIAL_WINDOW;
        };
        let window = rate.mul_f64(WINDOW_GAIN).bytes_in(self.loop_time());
        window.max(if matches!(self.phase, Phase::Startup { .. }) { INITIAL_WINDOW } else { MIN_WINDOW })
    }

    fn shows_queue(&mut self, rtt: &RttEstimator) -> bool {
        let shortest = self.min_rtt;
        let queued = rtt.latest() > shortest + queue_delay(shortest) + self.feedback_interval;
        self.queued_samples = if queued { self.queued_samples + 1 } else { 0 };
        self.queued_samples >= QUEUE_SAMPLES
    }

    fn on_round(&mut self, now: Time, in_flight: u64) {
        let packets = self.round_acked + self.round_lost;
        let heavy =
            self.round_lost >= HEAVY_LOSS_PACKETS && self.round_lost as f64 > HEAVY_LOSS * packets as f64;
        if heavy && self.latest > Rate::ZERO {
            self.best = [self.latest; 2];
        }
        self.phase = self.next_phase(heavy, in_flight);
        if self.phase == (Phase::Cruise { step: 0 }) {
            self.probed_from = self.known_rate().unwrap_or(Rate::MAX);
        }
        self.rounds += 1;
        if self.rounds.is_multiple_of(MEMORY_ROUNDS) && !self.app_limited_round {
            self.best = [Rate::ZERO.max(self.latest), self.best[0]];
        }
        if self.rounds.is_multiple_of(CYCLE.len() as u32) {
            self.on_cycle();
        }
        self.round_acked = 0;
        self.round_lost = 0;
        self.app_limited_round = false;
        self.round_end = now + self.loop_time();
    }

    /// Two bandwidth-delay products in flight at most double the round-trip time. If all round trips of a
    /// cycle, which includes a draining round, are longer than that, the path has become longer, and the
    /// window has limited the delivery rate.
    fn on_cycle(&mut self) {
        let least = std::mem::replace(&mut self.least, Span::MAX);
        if least < Span::MAX && least > self.loop_time() * 2 + queue_delay(self.min_rtt) {
            (self.longer, self.min_rtt) = (Some(least), least);
            self.phase = Phase::Startup { best: self.known_rate().unwrap_or(Rate::ZERO), stalled: 0 };
        }
    }

    /// Adds the round-trip time of a feedback.
    fn on_round_trip(&mut self, rtt: &RttEstimator) {
        self.least = self.least.min(rtt.latest());
        self.longer = self.longer.map(|longer| longer.min(rtt.latest())).filter(|longer| *longer > rtt.min());
        self.min_rtt = self.longer.unwrap_or(rtt.min());
    }

    /// Whether the last probe found free capacity. Called after its round and the next one.
    fn found_capacity(&self) -> bool {
        self.known_rate().is_some_and(|known| known >= self.probed_from.mul_f64(CAPACITY_FOUND))
    }

    fn next_phase(&self, heavy: bool, in_flight: u64) -> Phase {
        match self.phase {
            Phase::Startup { .. } if heavy => Phase::Drain,
            Phase::Startup { best, stalled } => {
                let known = self.known_rate().unwrap_or(Rate::ZERO);
                if known >= best.mul_f64(STARTUP_GROWTH) || self.app_limited_round {
                    Phase::Startup { best: known, stalled: 0 }
                } else if stalled + 1 >= STARTUP_ROUNDS {
                    Phase::Drain
                } else {
                    Phase::Startup { best, stalled: stalled + 1 }
                }
            }
            Phase::Drain => {
                let target = self.known_rate().map_or(MIN_WINDOW, |r| r.bytes_in(self.loop_time()));
                if in_flight <= target.max(MIN_WINDOW) { Phase::Cruise { step: 2 } } else { Phase::Drain }
            }
            Phase::Cruise { .. } if heavy => Phase::Cruise { step: 1 },
            Phase::Cruise { step: 1 } if self.found_capacity() => {
                Phase::Startup { best: self.known_rate().unwrap_or(Rate::ZERO), stalled: 0 }
            }
            Phase::Cruise { step } => Phase::Cruise { step: (step + 1) % CYCLE.len() },
        }
    }
}

/// Extra round-trip time that shows a queue: an eighth, 4 to 16 ms (RFC 9406, section 4.2).
fn queue_delay(min_rtt: Span) -> Span {
    (min_rtt / 8).max(Span::from_millis(4)).min(Span::from_millis(16))
}

impl RateController for Delivery {
    fn permit(&self) -> Permit {
        let rate = self.rate();
        Permit::Go(Limits { rate, window: Some(self.window()), unreported: 0, burst: burst_for(rate) })
    }

    fn on_feedback(&mut self, feedback: &FeedbackSample<'_>) {
        self.report_interval = feedback.report_interval.max(self.feedback_interval);
        self.on_round_trip(feedback.rtt);
        self.round_acked += feedback.acked_packets;
        self.round_lost += feedback.lost_packets;
        self.app_limited_round |= feedback.app_limited || feedback.sender_absent;
        if let Some(rate) = feedback.arrival_rate {
            // An app-limited rate says nothing about the path, unless it is higher than the known one.
            if !feedback.app_limited || self.known_rate().is_none_or(|known| rate > known) {
                self.latest = rate;
                self.best[0] = self.best[0].max(rate);
            }
        }
        if let Phase::Startup { .. } = self.phase
            && self.shows_queue(feedback.rtt)
        {
            self.phase = Phase::Drain;
        }
        if feedback.now >= self.round_end {
            self.on_round(feedback.now, feedback.in_flight);
        }
    }

    fn take_over(&mut self, rate: Rate, rtt: &RttEstimator) {
        self.min_rtt = rtt.min();
        self.best = [rate; 2];
        self.phase = Phase::Cruise { step: 2 };
    }

    fn on_silence(&mut self, _: Time, count: u32) {
        if count >= 3 {
            self.best = self.best.map(|rate| rate.mul_f64(0.5));
        }
    }

    fn answers_marks(&self) -> bool {
        false
    }

    fn ceiling(&self) -> Option<Rate> {
        Some(self.ceiling).filter(|&ceiling| ceiling < Rate::MAX)
    }

    fn state(&self) -> RateState {
        let phase = match self.phase {
            Phase::Startup { .. } => "startup",
            Phase::Drain => "drain",
            Phase::Cruise { step: 0 } => "probe",
            Phase::Cruise { .. } => "cruise",
        };
        RateState { phase, rate: self.rate() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Harness, PathModel, built, literal_sample};
    use super::*;

    const RTT: Span = Span::from_millis(50);

    fn config() -> ControllerConfig {
        ControllerConfig { ceiling: None, initial_rtt: RTT, feedback_interval: Span::from_millis(2) }
    }

    /// Delivers one feedback per round trip from a path with at most `capacity`.
    fn rounds(c: &mut Delivery, now: &mut Time, n: usize, capacity: Rate, loss: f64) {
        let mut rtt = RttEstimator::new(RTT);
        rtt.on_sample(*now, RTT);
        for _ in 0..n {
            *now += RTT + Span::from_millis(3);
            let Permit::Go(limits) = c.permit() else { panic!("held") };
            let windowed = Rate::from_transfer(limits.window.unwrap_or(u64::MAX), RTT);
            let delivered = limits.rate.min(windowed).mul_f64(1.0 - loss).min(capacity);
            c.on_feedback(&FeedbackSample {
                acked_packets: 1000,
                lost_packets: (1000.0 * loss / (1.0 - loss)) as u64,
                in_flight: delivered.bytes_in(RTT),
                arrival_rate: Some(delivered),
                ..literal_sample(*now, &rtt)
            });
        }
    }

    #[test]
    fn startup_reaches_a_gigabit_within_twelve_rounds_and_then_cruises() {
        let (mut c, mut now) = (Delivery::new(&config()), Time::ZERO);
        let gigabit = Rate::from_mbps(1000);
        rounds(&mut c, &mut now, 12, gigabit, 0.0);
        assert!(c.known_rate().unwrap() >= gigabit.mul_f64(0.99), "{c:?}");
        rounds(&mut c, &mut now, 10, gigabit, 0.0);
        assert!(matches!(c.phase, Phase::Cruise { .. }), "{c:?}");
    }

    #[test]
    fn a_path_that_became_ten_times_as_wide_is_filled_within_thirty_rounds() {
        let (mut c, mut now) = (Delivery::new(&config()), Time::ZERO);
        rounds(&mut c, &mut now, 30, Rate::from_mbps(20), 0.0);
        assert!(c.known_rate().unwrap() <= Rate::from_mbps(20), "{c:?}");
        rounds(&mut c, &mut now, 30, Rate::from_mbps(200), 0.0);
        assert!(c.known_rate().unwrap() >= Rate::from_mbps(198), "{c:?}");
        // A probe that gains less than it asks for, due to other flows, does not restart the search.
        let steady = Rate::from_mbps(230);
        rounds(&mut c, &mut now, 60, steady, 0.0);
        let mut sought = 0;
        for _ in 0..60 {
            rounds(&mut c, &mut now, 1, steady, 0.0);
            sought += u32::from(matches!(c.phase, Phase::Startup { .. }));
        }
        assert_eq!(sought, 0);
    }

    #[test]
    fn one_percent_random_loss_does_not_slow_delivery() {
        let (mut c, mut now) = (Delivery::new(&config()), Time::ZERO);
        let capacity = Rate::from_mbps(990);
        rounds(&mut c, &mut now, 60, capacity, 0.01);
        assert!(c.known_rate().unwrap() >= capacity.mul_f64(0.97), "{c:?}");
    }

    #[test]
    fn the_rate_follows_a_shrinking_path_within_twelve_rounds() {
        let (mut c, mut now) = (Delivery::new(&config()), Time::ZERO);
        rounds(&mut c, &mut now, 30, Rate::from_mbps(1000), 0.0);
        rounds(&mut c, &mut now, 12, Rate::from_mbps(100), 0.0);
        assert!(c.known_rate().unwrap() <= Rate::from_mbps(101), "{c:?}");
    }

    #[test]
    fn a_path_that_became_ten_times_as_long_is_filled_again_within_ten_round_trips() {
        let path = PathModel::bottleneck(Rate::from_mbps(20), Span::from_millis(20), 1.0);
        let mut run = Harness::new(built("delivery", &[], Rate::from_mbps(100)), path.clone());
        run.run_for(Span::from_secs(10));
        run.path.rtt = path.rtt * 10;
        run.run_for(path.rtt * 100);
        let steady = run.measure(Span::from_secs(3));
        assert!(steady.goodput > path.capacity.mul_f64(0.8), "{steady:?}");
    }

    #[test]
    fn heavy_loss_discards_the_old_maximum_at_once() {
        let (mut c, mut now) = (Delivery::new(&config()), Time::ZERO);
        rounds(&mut c, &mut now, 30, Rate::from_mbps(1000), 0.0);
        rounds(&mut c, &mut now, 2, Rate::from_mbps(300), 0.4);
        assert!(c.known_rate().unwrap() <= Rate::from_mbps(301), "{c:?}");
    }
}
