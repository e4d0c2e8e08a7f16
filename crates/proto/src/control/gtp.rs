//! Rate control of one flow of the Group Transport Protocol (Wu and Chien, "GTP: Group Transport Protocol for
//! lambda-grids", `CCGrid` 2004): the rate follows the receiver's losses, each round trip.
//!
//! ```text
//! with losses:  R = R (1 - decrease l),  l the share of the round trip's packets that was lost
//! without:      R = R (1 + rise)
//! ```
//!
//! The sharing between the senders of one receiver is not part of this law: the receiver divides its capacity
//! max-min fair ([`crate::group::QuotaAssigner`]) and sends each sender its quota, which bounds every law.
//! Flows with equal loss rates keep their shares, so without a group this law is not fair.
//!
//! Steady state: with one loss per `N` packets and `n` packets per round trip, `decrease / n` is lost in one
//! of `N / n` round trips, and `rise` is gained in each of the others: `n = N - decrease / rise`.
//!
//! Choices: the paper was not available, only what others report of it (proportional increase and decrease, a
//! round trip as interval); the size of `rise` is ours. A round trip in which a timeout expired is an outage
//! and is not judged.

use haul_base::{Rate, Time};
use haul_stack::{Configuration as _, configuration};

use super::reaction::{FeedbackSums, clamped, first_rate, least, rate_or_ceiling};
use super::{
    ControllerConfig, ControllerError, FeedbackSample, LawRegistration, Limits, Permit, RateController,
    RateState,
};
use crate::rtt::RttEstimator;

const NAME: &str = "gtp";
/// Maximum ratio of the rate to the arrival rate at which the rate still rises: beyond it something else is
/// the limit. Our choice.
const MAX_UNUSED: f64 = 2.0;

configuration! {
    /// Parameters of `gtp`.
    pub struct GtpConfig: "gtp" {
        first_rate: Rate = first_rate;
        least: f64 = least;
        rise: f64 in (0.000_1, 1.0) = "0.02",
            "relative increase after a round trip without loss";
        decrease: f64 in (0.1, 10.0) = "1",
            "relative decrease, as a multiple of the round trip's loss rate";
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: NAME,
    version: 1,
    summary: "each round trip, decreases by the loss rate or increases slightly; the receiver divides its rate among senders",
    source: "GTP (Wu and Chien, CCGrid 2004)",
    parameters: GtpConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(Gtp::new(&parameters.read(), config)?)),
};

/// The law: see the module documentation.
#[derive(Debug)]
struct Gtp {
    ceiling: Option<Rate>,
    least: Rate,
    rise: f64,
    decrease: f64,
    rate: Rate,
    sums: FeedbackSums,
    was_silent: bool,
    phase: &'static str,
}

impl Gtp {
    fn new(parameters: &GtpConfig, config: &ControllerConfig) -> Result<Self, ControllerError> {
        let rate = rate_or_ceiling(NAME, parameters.first_rate, config)?;
        Ok(Self {
            ceiling: config.ceiling,
            least: rate.mul_f64(parameters.least),
            rise: parameters.rise,
            decrease: parameters.decrease,
            rate: clamped(rate, config.ceiling),
            sums: FeedbackSums::default(),
            was_silent: false,
            phase: "steady",
        })
    }

    fn on_round_trip(&mut self, loss: f64, may_rise: bool) {
        (self.phase, self.rate) = if loss > 0.0 {
            let reduced = self.rate.mul_f64((1.0 - self.decrease * loss).max(0.0));
            ("fall", reduced.max(self.least).min(self.rate))
        } else if may_rise {
            ("rise", self.rate.mul_f64(1.0 + self.rise))
        } else {
            ("steady", self.rate)
        };
        self.rate = clamped(self.rate, self.ceiling);
    }
}

impl RateController for Gtp {
    fn permit(&self) -> Permit {
        Permit::Go(Limits::at_rate(self.rate))
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.sums.add(sample);
        let length = sample.rtt.smoothed().max(sample.report_interval);
        if let Some(ended) = self.sums.end_when_due(sample.now, length)
            && !std::mem::take(&mut self.was_silent)
        {
            let is_used = sample.arrival_rate.is_none_or(|arrived| self.rate <= arrived.mul_f64(MAX_UNUSED));
            self.on_round_trip(ended.loss_rate(), is_used && !sample.app_limited);
        }
    }

    fn take_over(&mut self, rate: Rate, _: &RttEstimator) {
        self.rate = clamped(self.rate.min(rate), self.ceiling);
    }

    fn on_silence(&mut self, _: Time, _: u32) {
        self.was_silent = true;
    }

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        RateState { phase: self.phase, rate: self.rate }
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Span;

    use super::super::testing::{Harness, PathModel, assert_near, built, feedback, measure_together};
    use super::*;

    const UNBOUNDED: Rate = Rate::from_mbps(1_000_000);
    const RTT: Span = Span::from_millis(20);

    /// Rates in Mbit/s after round trips of 1,000 packets with these losses, starting at 100.
    fn rates(settings: &[(&str, &str)], losses: &[u64]) -> Vec<f64> {
        let settings = [&[("first_rate", "100Mbit")], settings].concat();
        let mut law = built(NAME, &settings, UNBOUNDED);
        let rtt = RttEstimator::new(RTT);
        law.on_feedback(&feedback(Time::ZERO, &rtt, 0, 0, None));
        let each = |(n, &lost): (usize, &u64)| {
            let now = Time::ZERO + RTT * (n as u64 + 1);
            law.on_feedback(&feedback(now, &rtt, 1_000 - lost, lost, None));
            law.state().rate.as_bps() as f64 / 1e6
        };
        losses.iter().enumerate().map(each).collect()
    }

    #[test]
    fn the_rate_falls_by_the_loss_share_and_rises_by_its_own_share() {
        for (settings, losses, expected) in [
            (&[][..], [0, 0, 100], [102.0, 104.04, 93.636]),
            (&[("decrease", "2"), ("rise", "0.1")], [0, 100, 0], [110.0, 88.0, 96.8]),
            (&[], [1_000, 0, 0], [5.0, 5.1, 5.202]),
        ] {
            for (found, expected) in rates(settings, &losses).into_iter().zip(expected) {
                assert_near(found, expected, 1e-6);
            }
        }
    }

    #[test]
    fn periodic_losses_give_the_equilibrium_rate() {
        for (n, rise) in [(300u64, "0.02"), (1_000, "0.02"), (1_000, "0.005")] {
            let law = built(NAME, &[("first_rate", "10Mbit"), ("rise", rise), ("least", "0")], UNBOUNDED);
            let mut run = Harness::new(law, PathModel::lossy(n));
            run.run_for(Span::from_secs(300));
            let steady = run.measure(Span::from_secs(300));
            let expected = n as f64 - 1.0 / rise.parse::<f64>().unwrap();
            let found = steady.mean_rate.bytes_in(Span::from_millis(100)) as f64 / 1_472.0;
            assert_near(found, expected, 0.05);
        }
    }

    #[test]
    fn a_bottleneck_is_used_and_ungrouped_flows_keep_their_shares() {
        let capacity = Rate::from_mbps(200);
        let flow = |rate| {
            let path = PathModel::bottleneck(capacity, Span::from_millis(40), 1.0);
            Harness::new(built(NAME, &[("first_rate", rate)], UNBOUNDED), path)
        };
        let mut alone = flow("300Mbit");
        alone.run_for(Span::from_secs(10));
        let steady = alone.measure(Span::from_secs(30));
        assert!(steady.goodput > capacity.mul_f64(0.85), "{steady:?}");
        let mut both = [flow("50Mbit"), flow("150Mbit")];
        measure_together(&mut both, Span::from_secs(10));
        let together = measure_together(&mut both, Span::from_secs(30));
        let [less, more] = [0, 1].map(|n| together[n].goodput);
        assert!(more > less.mul_f64(2.0), "{less} and {more}");
    }
}
