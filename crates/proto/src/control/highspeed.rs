//! The response function of `HighSpeed` TCP (RFC 3649, section 5), equation-based as FOBS uses it (dickens-classifier,
//! section 2.1): the window follows from the long-term loss rate `p` alone, and the rate is that window a round trip.
//!
//! ```text
//! window above Low_Window:  w = 0.12 / p^0.835
//! otherwise:                w = 1.2 / sqrt(p)
//! ```
//!
//! Choices where the sources are silent:
//! - `p` is one over the mean interval between loss events, weighted as TFRC does (RFC 5348, section 5.4), where losses of
//!   one round trip are one event; with `loss = "packets"` it is the share of lost packets, older ones forgotten
//!   exponentially. For single losses both are the same.
//! - Until the first loss the window grows as in slow start (RFC 5681, section 3.1). The first interval is the one that
//!   gives half the window in use (RFC 5348, section 6.3.1, has the same idea).
//! - The window is decided anew each round trip (TFRC), at loss events only (FOBS as a rate-based system), or at the end of
//!   each transmission window (FOBS as a window-based one).
//! - After silence the window is halved, as TFRC's no-feedback timer does (RFC 5348, section 4.4), and doubles each round
//!   trip until it is what the equation gives. What was lost meanwhile is one event.

use std::collections::VecDeque;

use haul_base::{Rate, Span, Time};
use haul_stack::{ParameterKind, ParameterSpec, Parameters};

use super::reaction::clamped;
use super::{
    Boundary, ControllerConfig, FeedbackSample, LawRegistration, Limits, LossRuns, MIN_WINDOW, Permit,
    RateController, RateState, Unit, burst_for,
};

/// The line of the registry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "highspeed",
    version: 1,
    summary: "the window that HighSpeed TCP has at the long-term loss rate",
    source: "RFC 3649, section 5; its use in FOBS (dickens-classifier, section 2.1)",
    parameters: &[
        ParameterSpec {
            name: "low_window",
            kind: ParameterKind::Number(1.0, 1e6),
            default: "38",
            help: "packets: below it the response is that of TCP Reno (RFC 3649: `Low_Window`)",
        },
        ParameterSpec {
            name: "initial_window",
            kind: ParameterKind::Integer(2, 1_000_000),
            default: "10",
            help: "packets in flight at the start (RFC 6928: 10)",
        },
        ParameterSpec {
            name: "decide",
            kind: ParameterKind::Choice(&["round_trip", "event", "window"]),
            default: "round_trip",
            help: "when the window is decided anew: each round trip, at loss events only, or after `unit_window` bytes",
        },
        ParameterSpec {
            name: "loss",
            kind: ParameterKind::Choice(&["events", "packets"]),
            default: "events",
            help: "what the long-term loss rate counts: losses of one round trip as one, or packets",
        },
        ParameterSpec {
            name: "intervals",
            kind: ParameterKind::Integer(1, 1_000),
            default: "8",
            help: "intervals between loss events that the mean is of (RFC 5348: 8)",
        },
        ParameterSpec {
            name: "memory",
            kind: ParameterKind::Integer(1_000, 1_000_000_000_000),
            default: "1000000",
            help: "packets after which a lost one counts for 1/e, with `loss = \"packets\"`",
        },
    ],
    build: |parameters, config| Ok(Box::new(HighSpeed::new(parameters, config))),
};

/// RFC 3649, section 5: `w = 0.12 / p^0.835` passes through 38 packets at 10^-3 and 83,000 at 10^-7.
const HIGH_FACTOR: f64 = 0.12;
const HIGH_EXPONENT: f64 = 0.835;
/// RFC 3649: the response of standard TCP.
const LOW_FACTOR: f64 = 1.2;
/// More than any path holds, packets.
const MOST: f64 = 1e9;

/// Packets in flight at the loss rate `p`.
fn response(p: f64, low_window: f64) -> f64 {
    let high = HIGH_FACTOR / p.powf(HIGH_EXPONENT);
    let window = if high > low_window { high } else { LOW_FACTOR / p.sqrt() };
    window.clamp(1.0, MOST)
}

/// The loss rate at which that many packets are in flight.
fn loss_for(window: f64, low_window: f64) -> f64 {
    let p = if window > low_window {
        (HIGH_FACTOR / window).powf(1.0 / HIGH_EXPONENT)
    } else {
        (LOW_FACTOR / window).powi(2)
    };
    p.clamp(1e-12, 1.0)
}

/// The mean interval between loss events (RFC 5348, section 5.4).
#[derive(Debug)]
struct Intervals {
    kept: usize,
    /// Packets since the last event.
    open: f64,
    /// Packets between events, newest first.
    closed: VecDeque<f64>,
}

impl Intervals {
    fn weight(&self, i: usize) -> f64 {
        let n = self.kept as f64;
        (2.0 * (n - i as f64) / (n + 2.0)).min(1.0)
    }

    fn weighted(&self, intervals: impl Iterator<Item = f64>) -> f64 {
        let used = self.closed.len().min(self.kept);
        let whole: f64 = (0..used).map(|i| self.weight(i)).sum();
        intervals.take(used).enumerate().map(|(i, packets)| packets * self.weight(i)).sum::<f64>() / whole
    }

    fn close(&mut self, packets: f64) {
        self.closed.push_front(packets.max(1.0));
        self.closed.truncate(self.kept);
        self.open = 0.0;
    }

    /// `None` before the first event.
    fn mean(&self) -> Option<f64> {
        if self.closed.is_empty() {
            return None;
        }
        let closed = self.weighted(self.closed.iter().copied());
        let with_open = self.weighted(std::iter::once(self.open).chain(self.closed.iter().copied()));
        Some(closed.max(with_open))
    }
}

/// The share of lost packets, older ones forgotten exponentially.
#[derive(Debug)]
struct Share {
    memory: f64,
    lost: f64,
    packets: f64,
}

impl Share {
    fn add(&mut self, lost: f64, packets: f64) {
        let left = (-packets / self.memory).exp();
        self.lost = self.lost * left + lost;
        self.packets = self.packets * left + packets;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decide {
    RoundTrip,
    Event,
    Window,
}

/// See the module's text.
#[derive(Debug)]
struct HighSpeed {
    ceiling: Option<Rate>,
    low_window: f64,
    decide: Decide,
    by_packets: bool,
    intervals: Intervals,
    share: Share,
    /// Packets in flight as decided last, and the rate from that.
    window: f64,
    rate: Rate,
    /// What silence has left of the window.
    bound: Option<f64>,
    datagram: f64,
    rtt: Span,
    /// Losses of packets below this number belong to the last event.
    event_until_pn: u64,
    next_pn: u64,
    in_silence: bool,
    decide_at: Time,
}

impl HighSpeed {
    fn new(parameters: &Parameters, config: &ControllerConfig) -> Self {
        let mut law = Self {
            ceiling: config.ceiling,
            low_window: parameters.number("low_window"),
            decide: match parameters.text("decide") {
                "event" => Decide::Event,
                "window" => Decide::Window,
                _ => Decide::RoundTrip,
            },
            by_packets: parameters.text("loss") == "packets",
            intervals: Intervals {
                kept: parameters.integer("intervals") as usize,
                open: 0.0,
                closed: VecDeque::new(),
            },
            share: Share { memory: parameters.integer("memory") as f64, lost: 0.0, packets: 0.0 },
            window: parameters.integer("initial_window") as f64,
            rate: Rate::ZERO,
            bound: None,
            datagram: 1_472.0,
            rtt: config.initial_rtt,
            event_until_pn: 0,
            next_pn: 0,
            in_silence: false,
            decide_at: Time::ZERO,
        };
        law.set_rate();
        law
    }

    fn in_use(&self) -> f64 {
        self.bound.map_or(self.window, |bound| bound.min(self.window))
    }

    fn set_rate(&mut self) {
        let bytes = (self.in_use() * self.datagram) as u64;
        self.rate = clamped(Rate::from_transfer(bytes, self.rtt.max(Span::from_micros(1))), self.ceiling);
    }

    fn is_event(&self, sample: &FeedbackSample<'_>) -> bool {
        let last = sample.loss.listed().last();
        let newest = match last.filter(|_| sample.loss.count() <= LossRuns::LISTED as u64) {
            Some(run) => run.first_pn.saturating_add(run.packets),
            // Of so many, the newest is about the newest known.
            None => sample.largest_acked_pn,
        };
        sample.lost_packets > 0 && newest > self.event_until_pn
    }

    fn on_event(&mut self, next_pn: u64) {
        let first = 1.0 / loss_for((self.in_use() / 2.0).max(1.0), self.low_window);
        let packets = if self.intervals.closed.is_empty() { first } else { self.intervals.open };
        if self.intervals.closed.is_empty() {
            // As if that had been the first interval.
            (self.share.lost, self.share.packets) = (1.0, first);
        }
        self.intervals.close(packets);
        self.event_until_pn = next_pn;
    }

    /// The window that the long-term loss rate gives; `None` before the first loss.
    fn decided(&self) -> Option<f64> {
        let mean = self.intervals.mean()?;
        let p = if self.by_packets { self.share.lost / self.share.packets.max(1.0) } else { 1.0 / mean };
        Some(response(p.clamp(1e-12, 1.0), self.low_window))
    }

    fn grow(&mut self, acked: f64, may_grow: bool) {
        if let Some(bound) = self.bound {
            self.bound = Some(bound + acked).filter(|&bound| bound < self.window);
        } else if self.intervals.closed.is_empty() && may_grow {
            // More than twice what the ceiling needs is never used.
            let most = self.ceiling.map_or(MOST, |ceiling| {
                (2.0 * ceiling.bytes_in(self.rtt) as f64 / self.datagram).clamp(self.window, MOST)
            });
            self.window = (self.window + acked).min(most);
        }
    }
}

impl RateController for HighSpeed {
    fn permit(&self) -> Permit {
        // Twice the window: it never binds while feedback comes, and bounds what leaves into an outage.
        let window = ((2.0 * self.in_use() * self.datagram) as u64).max(MIN_WINDOW);
        Permit::Go(Limits { rate: self.rate, window: Some(window), burst: burst_for(self.rate) })
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        (self.datagram, self.rtt) = (sample.datagram.max(1) as f64, sample.rtt.smoothed());
        self.next_pn = sample.next_pn;
        let (acked, lost) = (sample.acked_packets as f64, sample.lost_packets as f64);
        self.intervals.open += acked + lost;
        self.share.add(lost, acked + lost);
        let is_event = self.is_event(sample);
        if is_event {
            self.on_event(sample.next_pn);
        }
        if acked > 0.0 && std::mem::take(&mut self.in_silence) {
            self.event_until_pn = sample.next_pn;
        }
        self.grow(acked, !sample.app_limited);
        let is_due = self.decide == Decide::RoundTrip && sample.now >= self.decide_at;
        let is_first = self.intervals.closed.len() == 1 && is_event;
        if let Some(window) = self.decided()
            && (is_due || is_first || (is_event && self.decide != Decide::Window))
        {
            self.window = window;
            self.decide_at = sample.now + self.rtt;
        }
        // In between the rate is constant, though the round-trip time moves.
        if is_due || is_event || self.bound.is_some() || self.intervals.closed.is_empty() {
            self.set_rate();
        }
    }

    fn on_boundary(&mut self, end: &Boundary) {
        if end.unit == Unit::Window
            && self.decide == Decide::Window
            && let Some(window) = self.decided()
        {
            self.window = window;
            self.set_rate();
        }
    }

    fn on_silence(&mut self, _: Time, _: u32) {
        self.bound = Some((self.in_use() / 2.0).max(2.0));
        self.in_silence = true;
        self.set_rate();
    }

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        let phase = if self.bound.is_some() {
            "silence"
        } else if self.intervals.closed.is_empty() {
            "start"
        } else if self.window > self.low_window {
            "high"
        } else {
            "low"
        };
        RateState { phase, rate: self.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Harness, Loss, PathModel, assert_near, boundary, built, feedback};
    use super::super::{LossRuns, RateController};
    use super::*;
    use crate::rtt::RttEstimator;

    const RTT: Span = Span::from_millis(100);
    const UNBOUNDED: Rate = Rate::from_mbps(1_000_000);

    #[test]
    fn the_response_is_that_of_rfc_3649_and_of_reno_below_38_packets() {
        for (p, window) in [(1e-3, 38.0), (1e-4, 263.0), (1e-5, 1_795.0), (1e-6, 12_279.0), (1e-7, 83_981.0)]
        {
            assert_near(response(p, 38.0), window, 0.012);
            assert_near(loss_for(response(p, 38.0), 38.0), p, 1e-6);
        }
        assert_near(response(0.01, 38.0), 12.0, 1e-9);
        assert_near(response(0.0025, 38.0), 24.0, 1e-9);
        assert_near(loss_for(24.0, 38.0), 0.0025, 1e-9);
        assert_near(response(1e-4, 1e6), 120.0, 1e-9);
    }

    #[test]
    fn the_mean_interval_is_weighted_as_in_tfrc_and_a_long_open_one_counts() {
        let mut intervals = Intervals { kept: 8, open: 0.0, closed: VecDeque::new() };
        let weights: Vec<_> = (0..8).map(|i| intervals.weight(i)).collect();
        for (weight, wanted) in weights.iter().zip([1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]) {
            assert_near(*weight, wanted, 1e-12);
        }
        assert_eq!(intervals.mean(), None);
        for packets in [600.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0] {
            intervals.close(packets);
        }
        // The oldest has the weight 0.2 of 6.
        assert_near(intervals.mean().unwrap(), 100.0 + 500.0 * 0.2 / 6.0, 1e-9);
        intervals.open = 1_300.0;
        assert_near(intervals.mean().unwrap(), (1_300.0 + 3.0 * 100.0 + 2.0 * 100.0) / 6.0, 1e-9);
    }

    #[test]
    fn its_window_is_the_response_to_one_loss_each_so_many_packets() {
        let packets = [(100, "round_trip"), (1_000, "round_trip"), (10_000, "event"), (10_000, "window")];
        let events = [&packets[..], &[(10_000, "round_trip"), (100_000, "round_trip")]].concat();
        // The mean of the last 8 intervals, or a memory of 20 of them.
        for (loss, cases, intervals) in [("events", &events[..], 14.0), ("packets", &packets, 60.0)] {
            for &(n, decide) in cases {
                let memory = (20 * n).to_string();
                let given = [("decide", decide), ("loss", loss), ("memory", &memory)];
                let path = PathModel { unit_window: 2_000_000, ..PathModel::lossy(n) };
                let mut run = Harness::new(built("highspeed", &given, UNBOUNDED), path);
                let wanted = response(1.0 / n as f64, 38.0);
                run.run_for(Span::from_secs_f64(20.0 + intervals * n as f64 / wanted * 0.1));
                let steady = run.measure(Span::from_secs(30));
                let in_flight = steady.mean_rate.bytes_in(RTT) as f64 / 1_472.0;
                assert_near(in_flight, wanted, 0.05);
            }
        }
    }

    /// Feeds `acked` packets and a run of `lost`, all new.
    fn feed(law: &mut dyn RateController, millis: u64, pn: &mut u64, acked: u64, lost: u64) {
        let mut rtt = RttEstimator::new(RTT);
        let now = Time::ZERO + Span::from_millis(millis);
        rtt.on_sample(now, RTT);
        let mut runs = LossRuns::default();
        (0..lost).for_each(|n| runs.push(*pn + n));
        *pn += acked + lost;
        law.on_feedback(&FeedbackSample {
            loss: &runs,
            next_pn: *pn,
            largest_acked_pn: *pn - 1,
            ..feedback(now, &rtt, acked, lost, None)
        });
    }

    fn window(law: &dyn RateController) -> f64 {
        let Permit::Go(limits) = law.permit() else { panic!("held") };
        limits.rate.bytes_in(RTT) as f64 / 1_472.0
    }

    #[test]
    fn bursts_are_one_event_or_many_packets() {
        for (loss, wanted) in [("events", 1.0 / 10_000.0), ("packets", 10.0 / 10_000.0)] {
            let mut law = built("highspeed", &[("loss", loss), ("memory", "100000")], UNBOUNDED);
            let mut pn = 0;
            for n in 0..200 {
                feed(law.as_mut(), n * 200, &mut pn, 9_990, 10);
            }
            assert_near(window(law.as_ref()), response(wanted, 38.0), 0.05);
        }
    }

    #[test]
    fn it_decides_when_it_is_told_to() {
        let mut constant = built("highspeed", &[("decide", "event")], UNBOUNDED);
        let mut by_window = built("highspeed", &[("decide", "window")], UNBOUNDED);
        let mut each_round = built("highspeed", &[], UNBOUNDED);
        let mut pn = 0;
        for law in [&mut constant, &mut by_window, &mut each_round] {
            pn = 0;
            feed(law.as_mut(), 0, &mut pn, 1_000, 0);
            feed(law.as_mut(), 200, &mut pn, 99, 1);
        }
        let first = window(constant.as_ref());
        assert_near(first, 1_010.0 / 2.0, 0.01);
        let before = pn;
        for law in [&mut constant, &mut by_window, &mut each_round] {
            pn = before;
            (2..200).for_each(|n| feed(law.as_mut(), n * 200, &mut pn, 1_000, 0));
        }
        assert_near(window(constant.as_ref()), first, 1e-9);
        assert_near(window(by_window.as_ref()), first, 1e-9);
        assert!(window(each_round.as_ref()) > 1.5 * first, "{}", window(each_round.as_ref()));
        by_window.on_boundary(&boundary(Unit::Segment, 0, 0));
        assert_near(window(by_window.as_ref()), first, 1e-9);
        by_window.on_boundary(&boundary(Unit::Window, 0, 0));
        assert_near(window(by_window.as_ref()), window(each_round.as_ref()), 1e-9);
        let before = pn;
        feed(constant.as_mut(), 50_000, &mut pn, 99, 1);
        assert!(pn > before && window(constant.as_ref()) > first, "an event shows the long interval");
    }

    #[test]
    fn silence_halves_it_and_answers_bring_it_back() {
        let mut law = built("highspeed", &[], UNBOUNDED);
        let mut pn = 0;
        feed(law.as_mut(), 0, &mut pn, 790, 0);
        assert_near(window(law.as_ref()), 800.0, 0.01);
        law.on_silence(Time::ZERO + Span::from_millis(400), 1);
        law.on_silence(Time::ZERO + Span::from_millis(700), 2);
        assert_near(window(law.as_ref()), 200.0, 0.01);
        feed(law.as_mut(), 900, &mut pn, 200, 0);
        assert_near(window(law.as_ref()), 400.0, 0.01);
        feed(law.as_mut(), 1_000, &mut pn, 400, 0);
        assert_near(window(law.as_ref()), 800.0, 0.01);
    }

    #[test]
    fn a_bottleneck_is_used_and_an_outage_forgotten() {
        let path = PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(40), 1.0);
        let mut run = Harness::new(built("highspeed", &[], Rate::from_mbps(1_000)), path);
        run.run_for(Span::from_secs(30));
        let before = run.measure(Span::from_secs(30)).goodput;
        assert!(before > Rate::from_mbps(80), "{before}");
        run.outage(Span::from_secs(4));
        run.run_for(Span::from_secs(4 + 3));
        let after = run.measure(Span::from_secs(5)).goodput;
        assert!(after > before.mul_f64(0.8), "{before} {after}");
    }

    #[test]
    fn random_loss_gives_what_the_equation_gives() {
        let path = PathModel { loss: Loss::Random(1e-3), ..PathModel::lossy(1) };
        let mut run = Harness::new(built("highspeed", &[], UNBOUNDED), path);
        run.run_for(Span::from_secs(60));
        let steady = run.measure(Span::from_secs(200));
        let in_flight = steady.mean_rate.bytes_in(RTT) as f64 / 1_472.0;
        // Events are a little rarer than losses, as those of a round trip are one.
        assert_near(in_flight, response(1e-3, 38.0), 0.25);
    }
}
