//! ASYNCH (asynch, section 3): feedback at time intervals, independent of rounds and of the object's size.
//! Loss raised in two intervals in a row lowers the rate to the drain rate; `k` intervals without loss raise
//! it.
//!
//! The paper specifies neither the step sizes nor the interval nor `k`: the rate falls to the receiver's
//! drain rate, the rest are parameters. For its "increase compared to the last value" see `reaction.rs`.

use haul_base::{Rate, Span, Time};
use haul_stack::Configuration as _;

use super::reaction::{AsynchConfig, Reaction};
use super::{FeedbackSample, LawRegistration, Limits, Permit, RateController, RateState};
use crate::rtt::RttEstimator;

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "asynch",
    version: 1,
    summary: "falls to the drain rate after two intervals of raised loss in a row, rises after some without loss",
    source: "ASYNCH (asynch, section 3)",
    parameters: AsynchConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(Asynch(Reaction::new("asynch", &parameters.read(), config)?))),
};

/// The law: see the module documentation.
#[derive(Debug)]
struct Asynch(Reaction);

impl RateController for Asynch {
    fn permit(&self) -> Permit {
        Permit::Go(Limits::at_rate(self.0.rate))
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.0.on_feedback(sample);
    }

    fn take_over(&mut self, rate: Rate, _: &RttEstimator) {
        self.0.rate = self.0.rate.min(rate.max(super::MIN_RATE));
    }

    fn on_silence(&mut self, _: Time, _: u32) {}

    fn report_interval(&self) -> Option<Span> {
        Some(self.0.interval)
    }

    fn answers_marks(&self) -> bool {
        false
    }

    fn ceiling(&self) -> Option<Rate> {
        self.0.ceiling
    }

    fn state(&self) -> RateState {
        RateState { phase: self.0.phase, rate: self.0.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Harness, Loss, PathModel, assert_near, built, feedback};
    use super::*;
    use crate::rtt::RttEstimator;

    /// Rates (Mbit/s) after each of a series of intervals of 1,000 packets with these losses. The receiver
    /// reads at 300 Mbit/s.
    fn rates(settings: &[(&str, &str)], losses: &[u64]) -> Vec<f64> {
        let settings = [&[("first_rate", "500Mbit")], settings].concat();
        let mut law = built("asynch", &settings, Rate::from_mbps(1_000));
        let rtt = RttEstimator::new(Span::from_millis(20));
        law.on_feedback(&feedback(Time::ZERO, &rtt, 0, 0, None));
        let each = |(n, &lost): (usize, &u64)| {
            let now = Time::ZERO + Span::from_millis(100 * (n as u64 + 1));
            law.on_feedback(&feedback(now, &rtt, 1_000 - lost, lost, Some(Rate::from_mbps(300))));
            law.state().rate.as_bps() as f64 / 1e6
        };
        losses.iter().enumerate().map(each).collect()
    }

    #[test]
    fn one_lossy_interval_is_a_transient_spike_and_two_in_a_row_are_not() {
        assert_eq!(rates(&[], &[0, 200, 0, 200, 0]), [500.0; 5]);
        assert_eq!(rates(&[], &[0, 200, 100, 0]), [500.0, 500.0, 300.0, 300.0]);
        assert_eq!(rates(&[("raised", "1")], &[0, 200]), [500.0, 300.0]);
    }

    #[test]
    fn consecutive_clean_intervals_raise_the_rate_by_the_fraction() {
        let found = rates(&[("rise", "0.1"), ("clean", "2")], &[0, 0, 0, 50, 0, 0]);
        for (found, expected) in found.iter().zip([500.0, 550.0, 550.0, 550.0, 550.0, 605.0]) {
            assert_near(*found, expected, 1e-6);
        }
    }

    #[test]
    fn a_loss_that_persists_after_a_decrease_lowers_the_rate_no_further() {
        let mut law = built("asynch", &[], Rate::from_mbps(1_000));
        let rtt = RttEstimator::new(Span::from_millis(20));
        let mut fell = Vec::new();
        for n in 0..40 {
            let before = law.state().rate;
            let now = Time::ZERO + Span::from_millis(100 * n);
            law.on_feedback(&feedback(now, &rtt, 990, 10, Some(before.mul_f64(0.99))));
            if law.state().rate < before {
                fell.push(n);
            }
        }
        assert_eq!(fell, [2], "the first feedback begins the first interval");
    }

    /// Regression test: a rate that nobody used rose without bound.
    #[test]
    fn app_limited_intervals_do_not_raise_the_rate() {
        for law in ["asynch", "proactive", "rapid_plus"] {
            let mut law = built(law, &[("first_rate", "10Mbit")], Rate::from_mbps(1_000_000));
            let rtt = RttEstimator::new(Span::from_millis(20));
            let mut rate_after = |n: u64, app_limited| {
                let now = Time::ZERO + Span::from_millis(100 * n);
                law.on_feedback(&FeedbackSample { app_limited, ..feedback(now, &rtt, 100, 0, None) });
                law.state().rate
            };
            for n in 0..1_000 {
                assert_eq!(rate_after(n, true), Rate::from_mbps(10));
            }
            let risen = (1_000..1_010).map(|n| rate_after(n, false)).last();
            assert!(risen > Some(Rate::from_mbps(10)), "{risen:?}");
        }
    }

    /// Regression test: the rate fell to that of an application that had sent little.
    #[test]
    fn losses_of_app_limited_intervals_lower_the_rate_by_their_share() {
        for law in ["asynch", "proactive"] {
            let mut law = built(law, &[("first_rate", "100Mbit")], Rate::from_mbps(1_000));
            let rtt = RttEstimator::new(Span::from_millis(20));
            for (n, lost) in (0..).zip([0, 0, 10, 10, 0, 5, 5]) {
                let now = Time::ZERO + Span::from_millis(100 * n);
                let sample = feedback(now, &rtt, 100 - lost, lost, Some(Rate::from_mbps(10)));
                law.on_feedback(&FeedbackSample { app_limited: true, ..sample });
            }
            assert_near(law.state().rate.as_bps() as f64 / 1e6, 100.0 * 0.9 * 0.95, 1e-6);
        }
    }

    #[test]
    fn a_tolerated_loss_counts_as_none() {
        assert_eq!(rates(&[("tolerance", "0.02")], &[10, 10, 20]), [500.0, 500.0, 525.0]);
        assert_eq!(rates(&[("least", "0.8")], &[200, 200]), [500.0, 400.0]);
    }

    #[test]
    fn the_rate_follows_a_slower_receiver_with_little_loss() {
        let path = PathModel {
            drain: Some(Rate::from_mbps(50)),
            socket_buffer: 500_000,
            ..PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(20), 1.0)
        };
        let mut run = Harness::new(built("asynch", &[], Rate::from_mbps(90)), path);
        run.run_for(Span::from_secs(5));
        let measured = run.measure(Span::from_secs(60));
        assert!(measured.goodput > Rate::from_mbps(47), "{measured:?}");
        assert!(measured.loss_rate() < 0.03, "{measured:?}");
        assert!(run.reductions.len() > 3, "{:?}", run.reductions);
        // Each fall is to the receiver's drain rate.
        assert!(
            run.reductions.iter().all(|cut| (49e6..51e6).contains(&(cut.after.rate.as_bps() as f64))),
            "{:?}",
            run.reductions
        );
    }

    #[test]
    fn the_rate_follows_a_bottleneck() {
        let path = PathModel {
            loss: Loss::None,
            ..PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(20), 1.0)
        };
        let mut run = Harness::new(built("asynch", &[("first_rate", "10Mbit")], Rate::from_mbps(200)), path);
        run.run_for(Span::from_secs(30));
        let measured = run.measure(Span::from_secs(60));
        assert!(measured.goodput > Rate::from_mbps(94), "{measured:?}");
        assert!(measured.loss_rate() < 0.03, "{measured:?}");
    }
}
