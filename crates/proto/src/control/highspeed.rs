//! The response function of `HighSpeed` TCP (RFC 3649, section 5), equation-based as in FOBS
//! (dickens-classifier, section 2.1): the window depends on the long-term loss rate `p` only, and the rate is
//! that window per round trip.
//!
//! ```text
//! window above Low_Window:  w = 0.12 / p^0.835
//! otherwise:                w = 1.2 / sqrt(p)
//! ```
//!
//! For choices where the sources are silent see [`super::equation`]. The law requests no report interval,
//! though FOBS evaluates losses at the end of each 100 MB window: its window is full two round trips after a
//! report.

use haul_stack::{Configuration as _, choice, configuration};

use super::LawRegistration;
use super::equation::{Decide, Equation, Response};
use super::window::{MAX_PACKETS, initial_window, longer_path};

choice! {
    /// How the loss rate of `highspeed` is counted.
    pub enum LossCount {
        /// Loss events, each covering a round trip.
        Events = "events",
        /// Lost packets.
        Packets = "packets",
    }
}

configuration! {
    /// Parameters of `highspeed`.
    pub struct HighspeedConfig: "highspeed" {
        low_window: f64 in (1.0, 1e6) = "38",
            "window in packets below which it responds as TCP Reno (RFC 3649: `Low_Window`)";
        initial_window: u64 = initial_window;
        decide: Decide = "round_trip",
            "when the window is set: each round trip, at loss events, or after `unit_window` bytes";
        loss: LossCount = "events", "what the loss rate counts";
        intervals: usize in (1, 1_000) = "8", "loss intervals averaged (RFC 5348: 8)";
        memory: u64 in (1_000, 1_000_000_000_000) = "1000000",
            "packets after which a lost one counts 1/e, with `loss = \"packets\"`";
        longer_path: bool = longer_path;
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "highspeed",
    version: 1,
    summary: "window of HighSpeed TCP at the long-term loss rate",
    source: "RFC 3649, section 5; its use in FOBS (dickens-classifier, section 2.1)",
    parameters: HighspeedConfig::PARAMETERS,
    build: |parameters, config| {
        let parameters: HighspeedConfig = parameters.read();
        let response = HighSpeed { low_window: parameters.low_window };
        let law = Equation::new(response, parameters.intervals, parameters.initial_window, config)
            .with_longer_path(parameters.longer_path)
            .deciding(parameters.decide);
        Ok(Box::new(match parameters.loss {
            LossCount::Events => law,
            LossCount::Packets => law.by_packets(parameters.memory as f64),
        }))
    },
};

/// RFC 3649, section 5: `w = 0.12 / p^0.835` passes through 38 packets at 10^-3 and 83,000 at 10^-7.
const HIGH_FACTOR: f64 = 0.12;
const HIGH_EXPONENT: f64 = 0.835;
/// RFC 3649: response of standard TCP.
const LOW_FACTOR: f64 = 1.2;

/// Returns the window in packets at the loss rate `p`: the response function of RFC 3649, section 5, and that
/// of standard TCP below `low_window` packets.
pub fn response(p: f64, low_window: f64) -> f64 {
    let high = HIGH_FACTOR / p.powf(HIGH_EXPONENT);
    let window = if high > low_window { high } else { LOW_FACTOR / p.sqrt() };
    window.clamp(1.0, MAX_PACKETS)
}

/// Returns the loss rate at which the window is `window` packets.
fn loss_for(window: f64, low_window: f64) -> f64 {
    let p = if window > low_window {
        (HIGH_FACTOR / window).powf(1.0 / HIGH_EXPONENT)
    } else {
        (LOW_FACTOR / window).powi(2)
    };
    p.clamp(1e-12, 1.0)
}

#[derive(Debug)]
struct HighSpeed {
    low_window: f64,
}

impl Response for HighSpeed {
    fn window(&self, p: f64) -> f64 {
        response(p, self.low_window)
    }

    fn loss_for(&self, window: f64) -> f64 {
        loss_for(window, self.low_window)
    }

    fn phase(&self, window: f64) -> &'static str {
        if window > self.low_window { "high" } else { "low" }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{
        Harness, Loss, PathModel, assert_near, boundary, built, feedback, lost_packet,
    };
    use haul_base::{Rate, Span, Time};

    use super::super::{FeedbackSample, LossRuns, Permit, RateController, Unit};
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
    fn the_window_matches_the_response_function_for_periodic_losses() {
        let packets = [(100, "round_trip"), (1_000, "round_trip"), (10_000, "event"), (10_000, "window")];
        let events = [&packets[..], &[(10_000, "round_trip"), (100_000, "round_trip")]].concat();
        // The mean of the last 8 intervals, or a memory of 20 of them.
        for (loss, cases, intervals) in [("events", &events[..], 14.0), ("packets", &packets, 60.0)] {
            for &(n, decide) in cases {
                let memory = (20 * n).to_string();
                let settings = [("decide", decide), ("loss", loss), ("memory", &memory)];
                let path = PathModel { unit_window: 2_000_000, ..PathModel::lossy(n) };
                let mut run = Harness::new(built("highspeed", &settings, UNBOUNDED), path);
                let expected = response(1.0 / n as f64, 38.0);
                run.run_for(Span::from_secs_f64(20.0 + intervals * n as f64 / expected * 0.1));
                let steady = run.measure(Span::from_secs(30));
                let in_flight = steady.mean_rate.bytes_in(RTT) as f64 / 1_472.0;
                assert_near(in_flight, expected, 0.05);
            }
        }
    }

    /// Reports `acked` packets and a run of `lost` ones, all new.
    fn feed(law: &mut dyn RateController, millis: u64, pn: &mut u64, acked: u64, lost: u64) {
        let mut rtt = RttEstimator::new(RTT);
        let now = Time::ZERO + Span::from_millis(millis);
        rtt.on_sample(now, RTT);
        let mut runs = LossRuns::default();
        (0..lost).for_each(|n| runs.push(lost_packet(*pn + n)));
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
        for (loss, expected) in [("events", 1.0 / 10_000.0), ("packets", 10.0 / 10_000.0)] {
            let mut law = built("highspeed", &[("loss", loss), ("memory", "100000")], UNBOUNDED);
            let mut pn = 0;
            for n in 0..200 {
                feed(law.as_mut(), n * 200, &mut pn, 9_990, 10);
            }
            assert_near(window(law.as_ref()), response(expected, 38.0), 0.05);
        }
    }

    #[test]
    fn decisions_happen_only_at_the_given_times() {
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
    fn silence_halves_the_rate_and_answers_restore_it() {
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
    fn a_bottleneck_is_used_again_after_an_outage() {
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
    fn random_loss_gives_the_equations_rate() {
        let path = PathModel { loss: Loss::Random(1e-3), ..PathModel::lossy(1) };
        let mut run = Harness::new(built("highspeed", &[], UNBOUNDED), path);
        run.run_for(Span::from_secs(60));
        let steady = run.measure(Span::from_secs(200));
        let in_flight = steady.mean_rate.bytes_in(RTT) as f64 / 1_472.0;
        // Events are slightly rarer than losses, as those of a round trip are one.
        assert_near(in_flight, response(1e-3, 38.0), 0.25);
    }
}
