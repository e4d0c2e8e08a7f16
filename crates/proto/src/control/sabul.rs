//! SABUL's rate control (Gu, Hong, Mazzucco and Grossman, "SABUL: a high performance data transfer protocol",
//! 2003). It adjusts the sending period `P`, the time from one packet to the next, every SYN = 10 ms by the
//! loss rate `l` of that SYN:
//!
//! ```text
//! h = 0.1 h + 0.9 l
//! h < 0.001:  P = P (1 - 10 (0.001 - h))        1 % shorter without any loss
//! h > 0.001:  P = P (1 + 0.1 (h - 0.001)) + 0.5 us
//! h = 0.001:  P = P + 0.1 us
//! ```
//!
//! The paper was not available. Law and constants are those of the authors' code, version of 16 March 2003,
//! `sender.cpp`, which keeps them as a comment beside the later law, which is nearly UDT's. The round-trip
//! time has no influence, and flows with equal loss rates keep their shares.
//!
//! Steady state: with one loss per `N` packets and `n` packets per SYN, a SYN with the loss lengthens `P` by
//! `0.5 us / P + 0.09 / n`, and each of the `N / n - 1` without shortens it by 1 % (the first of them by
//! `0.9 / n` less). With `P` of `10 ms / n` both are equal at `n = sqrt(200 N - 9,800) - 100`, while
//! `n < 900`. Above that a single loss is below the limit: from `N = 5,000` on the rate rises without bound.
//!
//! Choices:
//! - SABUL's shortest period, 10 us, corresponds to the ceiling here; SABUL starts there, this law at the
//!   longest, 1,000 us. From a much lower rate it could not rise, as a SYN without a packet changes nothing.
//! - SABUL's fixed window of packets in flight is the recipe's (`retransmit.window`).
//! - If reports are rarer than SYN, one counts for all SYNs since the last. A late report delays the start of
//!   the next SYN: over the whole transport 0.96 of `n` at `N = 1,000`, 0.6 at 300.

use haul_base::{Rate, Span, Time};
use haul_stack::{Configuration as _, configuration};

use super::reaction::{FeedbackSums, clamped};
use super::{ControllerConfig, FeedbackSample, LawRegistration, Limits, Permit, RateController, RateState};
use crate::rtt::RttEstimator;

configuration! {
    /// Parameters of `sabul`.
    pub struct SabulConfig: "sabul" {
        first_rate: Rate = "12Mbit", "initial rate (SABUL: 1.2 Gbit/s, a packet every 10 us)";
        least_rate: Rate = "12Mbit",
            "minimum rate, unless the maximum rate is lower (SABUL: 12 Mbit/s, a packet every millisecond)";
        limit: f64 in (0.0, 1.0) = "0.001",
            "loss rate below which the rate rises and above which it falls (SABUL: 0.001)";
        weight: f64 in (0.0, 0.99) = "0.1", "weight of earlier intervals in the mean loss rate (SABUL: 0.1)";
        rise: f64 in (0.0, 1_000.0) = "10",
            "relative decrease of the sending period, as a multiple of the loss rate below the limit (SABUL: 10)";
        fall: f64 in (0.0, 1_000.0) = "0.1",
            "relative increase of the period, as a multiple of the loss rate above the limit (SABUL: 0.1)";
        step: Span in (Span::ZERO, Span::from_millis(1)) = "500ns",
            "minimum increase of the period above the limit (SABUL: 0.5 us)";
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "sabul",
    version: 1,
    summary: "every 10 ms, shortens or lengthens the time between packets, depending on whether more than 0.1 % were lost",
    source: "SABUL (Gu, Hong, Mazzucco and Grossman, 2003), constants of the authors' code of that year",
    parameters: SabulConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(Sabul::new(&parameters.read(), config))),
};

/// Interval of all steps.
const SYN: Span = Span::from_millis(10);
/// Growth of the period at exactly the limit, seconds.
const AT_LIMIT: f64 = 0.1e-6;
/// Limit of a step's shortening factor, whatever the parameters.
const MIN_FACTOR: f64 = 0.5;

/// The law: see the module documentation.
#[derive(Debug)]
struct Sabul {
    ceiling: Option<Rate>,
    least: Rate,
    limit: f64,
    weight: f64,
    rise: f64,
    fall: f64,
    /// Seconds.
    step: f64,
    rate: Rate,
    /// Weighted mean loss rate.
    loss: f64,
    sums: FeedbackSums,
    ended: Time,
    phase: &'static str,
}

impl Sabul {
    fn new(parameters: &SabulConfig, config: &ControllerConfig) -> Self {
        Self {
            ceiling: config.ceiling,
            least: parameters.least_rate,
            limit: parameters.limit,
            weight: parameters.weight,
            rise: parameters.rise,
            fall: parameters.fall,
            step: parameters.step.as_secs_f64(),
            rate: clamped(parameters.first_rate, config.ceiling),
            loss: 0.0,
            sums: FeedbackSums::default(),
            ended: Time::ZERO,
            phase: "steady",
        }
    }

    /// Handles one SYN with this loss rate and packets of `bits`.
    fn on_syn(&mut self, loss: f64, bits: f64, may_rise: bool) {
        self.loss = self.loss * self.weight + loss * (1.0 - self.weight);
        let (period, above) = (bits / self.rate.as_bps() as f64, self.loss - self.limit);
        let next = if above > 0.0 {
            self.phase = "fall";
            period * (1.0 + self.fall * above) + self.step
        } else if above < 0.0 {
            self.phase = if may_rise { "rise" } else { "steady" };
            if may_rise { period * (1.0 + self.rise * above).max(MIN_FACTOR) } else { period }
        } else {
            self.phase = "steady";
            period + AT_LIMIT
        };
        self.rate = clamped(Rate::from_bps((bits / next) as u64).max(self.least), self.ceiling);
    }
}

impl RateController for Sabul {
    fn permit(&self) -> Permit {
        Permit::Go(Limits::at_rate(self.rate))
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.sums.add(sample);
        let Some(ended) = self.sums.end(sample.now, SYN) else { return };
        let passed = sample.now.since(self.ended).as_nanos() / SYN.as_nanos();
        let most = 1 + sample.report_interval.as_nanos() / SYN.as_nanos();
        self.ended = sample.now;
        let bits = sample.datagram.max(1) as f64 * 8.0;
        for _ in 0..passed.clamp(1, most) {
            self.on_syn(ended.loss_rate(), bits, !sample.app_limited);
        }
    }

    fn take_over(&mut self, rate: Rate, _: &RttEstimator) {
        self.rate = clamped(rate, self.ceiling);
    }

    fn on_silence(&mut self, _: Time, _: u32) {}

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        RateState { phase: self.phase, rate: self.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Harness, PathModel, assert_near, built, feedback, measure_together};
    use super::*;

    const UNBOUNDED: Rate = Rate::from_mbps(1_000_000);

    /// Sending periods in microseconds after SYNs of 1,000 packets with these losses, starting at 100 Mbit/s.
    fn periods(losses: &[u64]) -> Vec<f64> {
        let mut law = built("sabul", &[("first_rate", "100Mbit")], UNBOUNDED);
        let rtt = RttEstimator::new(Span::from_millis(20));
        law.on_feedback(&feedback(Time::ZERO, &rtt, 0, 0, None));
        let each = |(n, &lost): (usize, &u64)| {
            let now = Time::ZERO + SYN * (n as u64 + 1);
            law.on_feedback(&feedback(now, &rtt, 1_000 - lost, lost, None));
            1_472.0 * 8.0 / (law.state().rate.as_bps() as f64 / 1e6)
        };
        losses.iter().enumerate().map(each).collect()
    }

    #[test]
    fn each_syn_changes_the_period_by_the_loss_rate_with_the_published_constants() {
        let first = 117.76;
        let clean = periods(&[0, 0, 0]);
        for (period, n) in clean.iter().zip(1..) {
            assert_near(*period, first * 0.99f64.powi(n), 1e-6);
        }
        // 10 % lost: h = 0.09; then 0.009, which is still above the limit; then 0.0009.
        let lossy = periods(&[100, 0, 0]);
        let one = first * (1.0 + 0.1 * 0.089) + 0.5;
        let two = one * (1.0 + 0.1 * 0.008) + 0.5;
        let three = two * (1.0 - 10.0 * 0.000_1);
        for (found, expected) in lossy.iter().zip([one, two, three]) {
            assert_near(*found, expected, 1e-6);
        }
    }

    #[test]
    fn periodic_losses_give_the_rate_where_steps_up_and_down_are_equal() {
        for n in [300u64, 600, 1_000, 2_000] {
            let mut run = Harness::new(built("sabul", &[], UNBOUNDED), PathModel::lossy(n));
            run.run_for(Span::from_secs(30));
            let steady = run.measure(Span::from_secs(120));
            let per_syn = (200.0 * n as f64 - 9_800.0).sqrt() - 100.0;
            let found = steady.mean_rate.bytes_in(SYN) as f64 / 1_472.0;
            assert_near(found, per_syn, 0.05);
        }
    }

    #[test]
    fn losses_below_the_limit_do_not_stop_growth() {
        let ceiling = Rate::from_mbps(5_000);
        let mut run = Harness::new(built("sabul", &[], ceiling), PathModel::lossy(5_500));
        run.run_for(Span::from_secs(60));
        assert!(run.measure(Span::from_secs(10)).mean_rate > ceiling.mul_f64(0.95));
    }

    #[test]
    fn a_bottleneck_is_used_and_flows_keep_their_shares() {
        let capacity = Rate::from_mbps(200);
        let path = |millis| PathModel {
            rtt: Span::from_millis(millis),
            ..PathModel::bottleneck(capacity, Span::from_millis(40), 1.0)
        };
        let flow =
            |rate, millis| Harness::new(built("sabul", &[("first_rate", rate)], UNBOUNDED), path(millis));
        let mut alone = flow("12Mbit", 40);
        alone.run_for(Span::from_secs(20));
        let steady = alone.measure(Span::from_secs(60));
        assert!(steady.goodput > capacity.mul_f64(0.85), "{steady:?}");
        let mut both = [flow("30Mbit", 40), flow("120Mbit", 40)];
        measure_together(&mut both, Span::from_secs(20));
        let together = measure_together(&mut both, Span::from_secs(30));
        let [less, more] = [0, 1].map(|n| together[n].goodput);
        assert!(more > less.mul_f64(1.5), "{less} and {more}");
    }
}
