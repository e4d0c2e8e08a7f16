//! LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus), for background transfers. It keeps the queueing delay at a
//! target and yields to flows that fill the queue further.
//!
//! ```text
//! gain = 1 / min(16, ceil(2 target / base))
//! each round trip, queueing delay d <= target:  w += gain
//!                                  d > target:  w += max(gain - w (d / target - 1), -w / 2)
//! each loss event:                              w /= 2
//! ```
//!
//! Slow start grows by `gain` per acknowledged packet, and ends for the first time at three quarters of the
//! target. Regular *slowdowns* show the round-trip time of the empty path to all flows, so that a latecomer
//! does not take the queue of others for the path: two packets for two round trips, then slow start up to the
//! previous window. The first slowdown comes two round trips after the first slow start, the next ones after
//! nine times the duration of the last one: at most a tenth of the time.
//!
//! The delay is the minimum of the last four samples minus the shortest round-trip time of ten minutes,
//! `base`. Our deviation: a round-trip time that grows in one step by more than the target and stays so for a
//! second and four round trips belongs to a longer path ([`LongerPath`]): no queue fills so fast, and two
//! packets in flight do not fill one. (A slowdown in which the delay stays high proves nothing, as other
//! flows may fill the queue.) The base grows by the same amount, and slow start runs as after a slowdown.
//! `longer_path = false` disables this. The law reacts to losses once per round trip. Choices: the formula is
//! applied to each report by its share of the window; two probe timeouts in a row cause a slowdown, since
//! steps of `gain` would take minutes to recover from an outage.

use haul_base::{Rate, Span, Time};
use haul_stack::{Configuration as _, configuration};

use super::loss_events::LossEvents;
use super::window::{MAX_PACKETS, MIN_PACKETS, initial_window, longer_path, unreported_bytes};
use super::{ControllerConfig, FeedbackSample, LawRegistration, Limits, Permit, RateController, RateState};
use crate::longer_path::{LongerPath, Rise};
use crate::rtt::{RttEstimator, WindowedMin};

configuration! {
    /// Parameters of `ledbat_plus_plus`.
    pub struct LedbatPlusPlusConfig: "ledbat_plus_plus" {
        initial_window: u64 = initial_window;
        target: Span in (Span::from_millis(1), Span::from_secs(10)) = "60ms", "target queueing delay";
        decrease: f64 in (0.01, 10.0) = "1",
            "relative decrease per round trip at twice the target delay, at most half (the draft: 1)";
        longer_path: bool = longer_path;
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "ledbat_plus_plus",
    version: 1,
    summary: "for background transfers: keeps the queue at a target and yields to all others",
    source: "LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus)",
    parameters: LedbatPlusPlusConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(LedbatPlusPlus::new(&parameters.read(), config))),
};

/// Minimum gain.
const MIN_GAIN: f64 = 1.0 / 16.0;
/// Share of the target at which the first slow start ends.
const START_SHARE: f64 = 0.75;
/// Round trips from the first slow start to the first slowdown, and with the minimum window in a slowdown.
const ROUND_TRIPS: u64 = 2;
/// Time from a slowdown to the next, as a multiple of the slowdown's duration.
const BETWEEN: u64 = 9;
const PACING: f64 = 1.25;
const START_PACING: f64 = 2.0;
/// A window counts as used if this share of it was in flight.
const USED: f64 = 0.75;
/// Probe timeouts in a row that are an outage (RFC 9002, section 7.6.1).
const PERSISTENT: u32 = 2;
/// Window of the shortest round-trip time (RFC 6817, section 4.2: ten minutes).
const BASE_WINDOW: Span = Span::from_secs(600);
/// Number of samples of which the minimum counts.
const SAMPLES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Start,
    /// Until the next slowdown; `None`: not known yet.
    Avoidance(Option<Time>),
    /// A slowdown that began at `since` and keeps the minimum window until `until`.
    Slowdown {
        since: Time,
        until: Time,
    },
    /// Slow start after a slowdown that began at this time.
    Regaining(Time),
}

/// The law: see the module documentation.
#[derive(Debug)]
struct LedbatPlusPlus {
    target: Span,
    decrease: f64,
    ceiling: Option<Rate>,
    initial: f64,
    /// Window in packets.
    window: f64,
    /// Window at which slow start ends.
    threshold: f64,
    phase: Phase,
    events: LossEvents,
    samples: [Span; SAMPLES],
    newest: usize,
    shortest: WindowedMin,
    base: Span,
    /// `None` if the base is always the shortest round-trip time of ten minutes.
    path: Option<LongerPath>,
    in_silence: bool,
    datagram: f64,
    rtt: Span,
    /// Longest delay of the report of a received packet.
    unreported: Span,
}

impl LedbatPlusPlus {
    fn new(parameters: &LedbatPlusPlusConfig, config: &ControllerConfig) -> Self {
        let initial = parameters.initial_window as f64;
        Self {
            target: parameters.target,
            decrease: parameters.decrease,
            ceiling: config.ceiling,
            initial,
            window: initial,
            threshold: MAX_PACKETS,
            phase: Phase::Start,
            events: LossEvents::default(),
            samples: [Span::MAX; SAMPLES],
            newest: 0,
            shortest: WindowedMin::new(BASE_WINDOW),
            base: config.initial_rtt,
            path: parameters.longer_path.then(LongerPath::default),
            in_silence: false,
            datagram: 1_472.0,
            rtt: config.initial_rtt,
            unreported: Span::ZERO,
        }
    }

    /// Returns the queueing delay in units of the target.
    fn delay(&mut self, now: Time, rtt: &RttEstimator) -> f64 {
        self.base = self.shortest.on_span(now, rtt.latest());
        self.newest = (self.newest + 1) % SAMPLES;
        self.samples[self.newest] = rtt.latest();
        let least = self.samples.iter().min().copied().unwrap_or(Span::ZERO);
        least.saturating_sub(self.base).as_secs_f64() / self.target.as_secs_f64()
    }

    fn unreported_bytes(&self) -> u64 {
        unreported_bytes(self.window * self.datagram, self.unreported, self.rtt)
    }

    fn gain(&self) -> f64 {
        let parts = (2.0 * self.target.as_secs_f64() / self.base.as_secs_f64().max(1e-6)).ceil().max(1.0);
        (1.0 / parts).max(MIN_GAIN)
    }

    /// Returns the window's increment per round trip in avoidance.
    fn step(&self, gain: f64, delay: f64) -> f64 {
        let over = (delay - 1.0).max(0.0);
        (gain - self.decrease * self.window * over).max(-self.window / 2.0)
    }

    /// Grows the window in slow start by `acked` packets; returns whether slow start has ended.
    fn start(&mut self, gain: f64, delay: f64, acked: f64) -> bool {
        // Without a known window to return to, a queue ends it.
        if self.threshold == MAX_PACKETS && delay > START_SHARE {
            return true;
        }
        self.window = (self.window + gain * acked).min(self.threshold);
        self.window >= self.threshold
    }

    /// Handles a longer path: a rise above the target has shrunk the window like a slowdown; restores it,
    /// with the longer base.
    fn on_longer_path(&mut self, now: Time, rise: Rise) {
        if rise.at_once <= self.target {
            return;
        }
        self.shortest = WindowedMin::new(BASE_WINDOW);
        self.shortest.on_span(now, self.base + rise.delay);
        self.threshold = MAX_PACKETS;
        self.phase = Phase::Regaining(now);
    }

    fn on_acked(&mut self, sample: &FeedbackSample<'_>, acked: f64) {
        let delay = self.delay(sample.now, sample.rtt);
        let gain = self.gain();
        let reached = sample.in_flight as f64 + (acked + 1.0) * self.datagram;
        let allowed = self.window * self.datagram + self.unreported_bytes() as f64;
        let is_used = !sample.app_limited && reached >= USED * allowed;
        let now = sample.now;
        match self.phase {
            Phase::Start | Phase::Regaining(_) if is_used => {
                if self.start(gain, delay, acked) {
                    self.end_start(now, sample.next_pn);
                }
            }
            Phase::Avoidance(Some(end)) if end <= now => {
                self.threshold = self.window;
                self.slow_down(now);
            }
            Phase::Avoidance(next) => {
                let step = self.step(gain, delay);
                // A report can acknowledge more than a window; a decrease is limited to half of it.
                let share = acked / self.window;
                let step = step * if step > 0.0 { share } else { share.min(1.0) };
                self.window += if is_used { step } else { step.min(0.0) };
                self.phase = Phase::Avoidance(next.or(Some(now + self.rtt * ROUND_TRIPS)));
            }
            Phase::Slowdown { since, until } if until <= now => self.phase = Phase::Regaining(since),
            Phase::Start | Phase::Regaining(_) | Phase::Slowdown { .. } => {}
        }
        self.window = self.window.clamp(MIN_PACKETS, MAX_PACKETS);
    }

    /// Ends slow start. On a longer path the window has doubled since the queue began to grow: a slowdown to
    /// half of it drains the queue.
    fn end_start(&mut self, now: Time, next_pn: u64) {
        match self.phase {
            Phase::Regaining(since) if self.threshold == MAX_PACKETS => {
                self.window = (self.window / 2.0).max(MIN_PACKETS);
                self.threshold = self.window;
                // The losses of that queue are part of the same event.
                self.events.close(next_pn);
                self.phase = Phase::Slowdown { since, until: now + self.rtt * ROUND_TRIPS };
            }
            _ => self.begin_avoidance(now),
        }
    }

    fn begin_avoidance(&mut self, now: Time) {
        let wait = match self.phase {
            Phase::Regaining(since) => now.since(since) * BETWEEN,
            _ => self.rtt * ROUND_TRIPS,
        };
        self.phase = Phase::Avoidance(Some(now + wait));
    }

    /// Begins a slowdown. The threshold is the previous window.
    fn slow_down(&mut self, now: Time) {
        self.window = MIN_PACKETS;
        self.phase = Phase::Slowdown { since: now, until: now + self.rtt * ROUND_TRIPS };
    }

    fn on_event(&mut self, now: Time) {
        match self.phase {
            Phase::Slowdown { .. } => self.threshold = (self.threshold / 2.0).max(MIN_PACKETS),
            _ => self.window = (self.window / 2.0).max(MIN_PACKETS),
        }
        if matches!(self.phase, Phase::Start | Phase::Regaining(_)) {
            self.begin_avoidance(now);
        }
    }
}

impl RateController for LedbatPlusPlus {
    fn permit(&self) -> Permit {
        let gain = if matches!(self.phase, Phase::Avoidance(_)) { PACING } else { START_PACING };
        let ceiling = self.ceiling.unwrap_or(Rate::MAX);
        let limits = Limits::of_window(self.window * self.datagram, self.rtt, gain, ceiling);
        Permit::Go(Limits { unreported: self.unreported_bytes(), ..limits })
    }

    fn take_over(&mut self, rate: Rate, rtt: &RttEstimator) {
        self.rtt = rtt.smoothed();
        self.window = (rate.bytes_in(self.rtt) as f64 / self.datagram).clamp(self.initial, MAX_PACKETS);
        self.phase = Phase::Avoidance(None);
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        (self.datagram, self.rtt) = (sample.datagram.max(1) as f64, sample.rtt.smoothed());
        self.unreported = sample.report_interval;
        if sample.acked_packets > 0 && std::mem::take(&mut self.in_silence) {
            // The losses of an outage are no separate event.
            self.events.close(sample.next_pn);
        }
        if self.events.is_new_or_marked(sample) {
            self.on_event(sample.now);
            self.events.close(sample.next_pn);
        }
        if let Some(rise) = self.path.as_mut().and_then(|path| path.rise(sample)) {
            self.on_longer_path(sample.now, rise);
        }
        if sample.acked_packets > 0 {
            self.on_acked(sample, sample.acked_packets as f64);
        }
    }

    fn on_silence(&mut self, now: Time, count: u32) {
        if count < PERSISTENT || std::mem::replace(&mut self.in_silence, true) {
            return;
        }
        if matches!(self.phase, Phase::Start | Phase::Avoidance(_)) {
            self.threshold = self.window;
        }
        self.slow_down(now);
    }

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        let phase = match self.phase {
            Phase::Start | Phase::Regaining(_) => "slow start",
            Phase::Avoidance(_) => "avoidance",
            Phase::Slowdown { .. } => "slowdown",
        };
        let Permit::Go(limits) = self.permit() else { return RateState { phase, rate: super::MIN_RATE } };
        RateState { phase, rate: limits.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Harness, PathModel, assert_near, built, config, feedback, measure_together};
    use super::*;

    const UNBOUNDED: Rate = Rate::from_mbps(1_000_000);

    /// Rate of each flow in Mbit/s over the next seconds.
    fn shares(flows: &mut [Harness], seconds: u64) -> Vec<f64> {
        let measured = measure_together(flows, Span::from_secs(seconds));
        measured.into_iter().map(|one| one.goodput.as_bps() as f64 / 1e6).collect()
    }

    fn law() -> LedbatPlusPlus {
        let parameters = LAW.parameters(&[]).unwrap();
        LedbatPlusPlus::new(&parameters.read(), &config(Some(UNBOUNDED)))
    }

    #[test]
    fn gain_and_step_match_the_draft() {
        let mut law = law();
        let gains = [(1, 1.0 / 16.0), (10, 1.0 / 12.0), (50, 1.0 / 3.0), (120, 1.0), (600, 1.0)];
        for (base, gain) in gains {
            law.base = Span::from_millis(base);
            assert_near(law.gain(), gain, 1e-9);
        }
        law.window = 100.0;
        for (delay, step) in
            [(0.0, 0.25), (1.0, 0.25), (1.1, -9.75), (1.5, -49.75), (1.6, -50.0), (3.0, -50.0)]
        {
            assert_near(law.step(0.25, delay), step, 1e-9);
        }
    }

    #[test]
    fn a_report_of_two_windows_grows_like_two_reports_of_one() {
        let after = |reports: &[u64]| {
            let (mut law, mut rtt) = (law(), RttEstimator::new(Span::from_millis(40)));
            rtt.on_sample(Time::ZERO, Span::from_millis(40));
            law.take_over(Rate::from_transfer(60 * 1_472, Span::from_millis(40)), &rtt);
            for &acked in reports {
                let sample = feedback(Time::ZERO, &rtt, acked, 0, None);
                law.on_feedback(&FeedbackSample { in_flight: 120 * 1_472, ..sample });
            }
            law.window
        };
        assert_near(after(&[120]), after(&[60, 60]), 1e-3);
    }

    #[test]
    fn the_queue_stays_at_the_target_and_the_path_is_used_except_for_slowdowns() {
        for (mbps, millis) in [(20, 100), (100, 50), (200, 20)] {
            let path = PathModel::bottleneck(Rate::from_mbps(mbps), Span::from_millis(millis), 10.0);
            let mut run = Harness::new(built("ledbat_plus_plus", &[], UNBOUNDED), path.clone());
            run.run_for(Span::from_secs(120));
            let steady = run.measure(Span::from_secs(120));
            assert_eq!(steady.lost, 0);
            assert!(steady.goodput > path.capacity.mul_f64(0.88), "{mbps} {steady:?}");
            let queued = steady.mean_rtt.saturating_sub(path.rtt).as_secs_f64();
            assert!((0.035..0.065).contains(&queued), "{mbps} {queued}");
        }
    }

    #[test]
    fn a_longer_path_is_filled_again_but_the_drafts_rule_sees_a_queue() {
        for (longer_path, bounds) in [("true", 0.8..1.01), ("false", 0.0..0.2)] {
            let path = PathModel::bottleneck(Rate::from_mbps(20), Span::from_millis(20), 10.0);
            let law = built("ledbat_plus_plus", &[("longer_path", longer_path)], UNBOUNDED);
            let mut run = Harness::new(law, path.clone());
            run.run_for(Span::from_secs(10));
            run.path.rtt = path.rtt * 10;
            run.run_for(Span::from_secs(3));
            let share = run.measure(Span::from_secs(3)).goodput.as_bps() as f64 / 20e6;
            assert!(bounds.contains(&share), "{longer_path}: {share}");
        }
    }

    #[test]
    fn ledbat_yields_to_reno_and_uses_the_remaining_capacity() {
        let path = PathModel::bottleneck(Rate::from_mbps(50), Span::from_millis(50), 3.0);
        let mut flows =
            ["ledbat_plus_plus", "reno"].map(|name| Harness::new(built(name, &[], UNBOUNDED), path.clone()));
        measure_together(&mut flows, Span::from_secs(60));
        let shares = shares(&mut flows, 120);
        let [ledbat, reno] = shares[..] else { panic!("{shares:?}") };
        assert!(ledbat < 5.0 && reno > 40.0, "{ledbat} {reno}");
    }

    #[test]
    fn slowdowns_give_a_late_flow_its_share() {
        let path = PathModel::bottleneck(Rate::from_mbps(50), Span::from_millis(50), 6.0);
        let mut first = Harness::new(built("ledbat_plus_plus", &[], UNBOUNDED), path.clone());
        first.run_for(Span::from_secs(30));
        let second = Harness::new(built("ledbat_plus_plus", &[], UNBOUNDED), path);
        let mut flows = [first, second];
        measure_together(&mut flows, Span::from_secs(120));
        let shares = shares(&mut flows, 240);
        assert!(shares.iter().all(|share| (14.0..34.0).contains(share)), "{shares:?}");
    }

    #[test]
    fn slowdowns_are_spaced_by_nine_times_their_duration() {
        let path = PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(50), 10.0);
        let mut run = Harness::new(built("ledbat_plus_plus", &[], UNBOUNDED), path);
        let (mut slow, mut all) = (0.0, 0.0);
        run.run_for(Span::from_secs(30));
        let mut slowdowns = 0;
        let mut before = "";
        for _ in 0..60_000 {
            run.run_for(Span::from_millis(5));
            let phase = run.law.state().phase;
            slowdowns += u32::from(phase == "slowdown" && before != "slowdown");
            before = phase;
            slow += f64::from(u8::from(phase != "avoidance"));
            all += 1.0;
        }
        assert!(slowdowns > 5, "{slowdowns}");
        assert_near(slow / all, 0.1, 0.1);
    }
}
