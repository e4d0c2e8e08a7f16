//! RAPID+ (datta-rapid-plus, section 6 and figure 6): the rate follows from the losses of one iteration
//! compared with those of the previous one.
//!
//! ```text
//! a_n <= a_(n-1):  count += 1
//!                  count <= k: R stays;  g = running mean of the relative decrease of the loss
//!                  else:       R = R * (1 + g);  count = 0;  g = 0
//! a_n >  a_(n-1):  R = d_(n-1) (the drain rate);  g = 0;  count = 0
//! ```
//!
//! Choices where the paper is silent or contradicts itself:
//! - The figure prints `g` from `a_(n-1) / a_n`, which at least doubles the rate each time, although the text
//!   says "proportionate": this uses `(a_(n-1) - a_n) / a_(n-1)`, and `probe` where both are 0, as otherwise
//!   a loss-free path would never get faster.
//! - Before the first iteration nothing was lost, so losses in the first one are a rise. The drain rate of
//!   that iteration is then used for the previous one. It never raises the rate, nor lowers it below the
//!   share `least` of the first.
//! - An iteration is a round, as in the paper's implementation, or a time interval, as its text permits.
//! - The paper's sender always has data. Here an app-limited iteration is not counted: an unused rate would
//!   rise without bound, and later data would leave at line rate.
//! - The drain rate of a round is what arrived of it over the time for which it was sent, without the pause
//!   before the next. An app-limited round, or one shorter than `interval`, keeps the previous drain rate: the
//!   paper's assumes that the receiver's buffer is full.

use haul_base::{Rate, Span, Time};
use haul_stack::{Configuration as _, choice, configuration};

use super::reaction::{
    FeedbackSums, Interval, clamped, first_rate, interval, least, rate_or_ceiling, reduced_rate,
};
use super::{
    Boundary, ControllerConfig, ControllerError, FeedbackSample, LawRegistration, Limits, Permit,
    RateController, RateState, Unit,
};
use crate::rtt::RttEstimator;

choice! {
    /// Kind of iteration of `rapid_plus`.
    pub enum Iteration {
        /// An interval of time.
        Interval = "interval",
        /// A round.
        Round = "round",
    }
}

choice! {
    /// Measure of losses that `rapid_plus` compares.
    pub enum LossMeasure {
        /// Number of lost packets.
        Packets = "packets",
        /// Share of lost packets.
        Share = "share",
    }
}

configuration! {
    /// Parameters of `rapid_plus`.
    pub struct RapidPlusConfig: "rapid_plus" {
        first_rate: Rate = first_rate;
        per: Iteration = "interval", "an iteration; `round` needs `bitmap_ack.when = \"round\"`";
        interval: Span = interval;
        k: u64 in (1, 1_000_000) = "3", "iterations without growing losses before the rate rises";
        probe: f64 in (0.0, 1.0) = "0.02", "assumed relative decrease between two iterations without loss";
        loss: LossMeasure = "packets", "losses compared";
        least: f64 = least;
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "rapid_plus",
    version: 1,
    summary: "falls to the drain rate when losses grow, rises as they shrink",
    source: "RAPID+ (datta-rapid-plus, section 6)",
    parameters: RapidPlusConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(RapidPlus::new(&parameters.read(), config)?)),
};

/// The law: see the module documentation.
#[derive(Debug)]
struct RapidPlus {
    rate: Rate,
    ceiling: Option<Rate>,
    least: Rate,
    interval: Span,
    by_round: bool,
    by_share: bool,
    k: u64,
    probe: f64,
    sums: FeedbackSums,
    /// Loss and drain rate of the previous iteration.
    before: (f64, Option<Rate>),
    count: u64,
    /// The paper's `g`.
    decrease: f64,
    phase: &'static str,
}

impl RapidPlus {
    fn new(parameters: &RapidPlusConfig, config: &ControllerConfig) -> Result<Self, ControllerError> {
        let first = rate_or_ceiling(LAW.name, parameters.first_rate, config)?;
        Ok(Self {
            rate: clamped(first, config.ceiling),
            ceiling: config.ceiling,
            least: first.mul_f64(parameters.least),
            interval: parameters.interval,
            by_round: parameters.per == Iteration::Round,
            by_share: parameters.loss == LossMeasure::Share,
            k: parameters.k,
            probe: parameters.probe,
            sums: FeedbackSums::default(),
            before: (0.0, None),
            count: 0,
            decrease: 0.0,
            phase: "steady",
        })
    }

    /// `drain` is `None` if the iteration does not show the receiver's drain rate.
    fn on_iteration(&mut self, ended: &Interval, drain: Option<Rate>) {
        let loss = if self.by_share { ended.loss_rate() } else { ended.lost as f64 };
        let (before, drain_before) = self.before;
        self.before = (loss, drain.or(drain_before));
        if loss > before {
            let drain = drain_before.or(drain).unwrap_or(self.rate);
            self.rate = reduced_rate(self.rate, drain, self.least, self.ceiling);
            (self.count, self.decrease, self.phase) = (0, 0.0, "fall");
            return;
        }
        self.phase = "steady";
        if ended.app_limited {
            return;
        }
        self.count += 1;
        if self.count <= self.k {
            let decrease = if before > 0.0 { (before - loss) / before } else { self.probe };
            self.decrease += (decrease - self.decrease) / self.count as f64;
        } else {
            self.rate = clamped(self.rate.mul_f64(1.0 + self.decrease), self.ceiling);
            (self.count, self.decrease, self.phase) = (0, 0.0, "rise");
        }
    }
}

impl RateController for RapidPlus {
    fn permit(&self) -> Permit {
        Permit::Go(Limits::at_rate(self.rate))
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.sums.add(sample);
        if !self.by_round
            && let Some(ended) = self.sums.end(sample.now, self.interval)
        {
            self.on_iteration(&ended, Some(ended.drain).filter(|_| !ended.app_limited));
        }
    }

    fn on_boundary(&mut self, end: &Boundary) {
        if self.by_round && end.unit == Unit::Round {
            let Boundary { packets, lost, .. } = *end;
            let app_limited = std::mem::take(&mut self.sums).are_app_limited();
            let (sent_for, share) = (end.ended.since(end.began), lost as f64 / packets.max(1) as f64);
            let measured = Rate::from_transfer(end.bytes, sent_for).mul_f64(1.0 - share);
            let drain = Some(measured).filter(|_| !app_limited && sent_for >= self.interval);
            self.on_iteration(&Interval { lost, packets, drain: measured, app_limited }, drain);
        }
    }

    fn take_over(&mut self, rate: Rate, _: &RttEstimator) {
        self.rate = self.rate.min(rate.max(super::MIN_RATE));
    }

    fn on_silence(&mut self, _: Time, _: u32) {}

    fn answers_marks(&self) -> bool {
        false
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
    use super::super::law;
    use super::super::testing::{Harness, PathModel, assert_near, boundary, built, feedback};
    use super::*;
    use crate::rtt::RttEstimator;

    const FIRST: [(&str, &str); 1] = [("first_rate", "500Mbit")];
    const GIGABIT: Rate = Rate::from_mbps(1_000);

    /// Rates (Mbit/s) after each of several iterations of 10,000 packets. The receiver reads at 400 + 10 n.
    fn rates(settings: &[(&str, &str)], losses: &[u64]) -> Vec<f64> {
        let mut law = built("rapid_plus", &[&FIRST, settings].concat(), GIGABIT);
        let rtt = RttEstimator::new(Span::from_millis(20));
        let rate = |law: &dyn RateController| law.state().rate.as_bps() as f64 / 1e6;
        // The first feedback starts the first interval.
        law.on_feedback(&feedback(Time::ZERO, &rtt, 0, 0, Some(Rate::from_mbps(400))));
        let mut found = Vec::new();
        for (n, &lost) in losses.iter().enumerate() {
            let n = n as u64;
            let now = Time::ZERO + Span::from_millis(100 * (n + 1));
            law.on_feedback(&feedback(now, &rtt, 10_000 - lost, lost, Some(Rate::from_mbps(400 + 10 * n))));
            law.on_boundary(&boundary(Unit::Round, n * 10_000, lost));
            found.push(rate(law.as_ref()));
        }
        found
    }

    #[track_caller]
    fn assert_rates(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert_near(*found, *expected, 1e-6);
        }
    }

    #[test]
    fn decreasing_losses_raise_the_rate_by_their_mean_relative_decrease() {
        // 0 to 800 is a rise: the drain rate of that iteration. Then 1/2, 1/2, 1/4 in the mean: 5/12.
        let risen = 400.0 * (1.0 + 5.0 / 12.0);
        assert_rates(&rates(&[], &[800, 400, 200, 150, 150]), &[400.0, 400.0, 400.0, 400.0, risen]);
        let risen = 400.0 * (1.0 + 0.5);
        assert_rates(&rates(&[("k", "1")], &[800, 400, 400]), &[400.0, 400.0, risen]);
    }

    #[test]
    fn growing_losses_lower_the_rate_to_the_previous_drain_rate() {
        // The counts restart with the fall.
        let found = rates(&[("k", "1"), ("probe", "0.1")], &[0, 0, 0, 500, 500, 500]);
        assert_rates(&found, &[500.0, 550.0, 550.0, 420.0, 420.0, 420.0]);
    }

    #[test]
    fn a_path_without_loss_is_probed() {
        assert_rates(&rates(&[], &[0, 0, 0, 0, 0]), &[500.0, 500.0, 500.0, 510.0, 510.0]);
        assert_rates(&rates(&[("probe", "0")], &[0, 0, 0, 0, 0]), &[500.0; 5]);
    }

    #[test]
    fn in_round_mode_only_rounds_count() {
        let found = rates(&[("per", "round"), ("interval", "1ms"), ("k", "1")], &[0, 0, 100]);
        // 14.72 MB of the second round in a second.
        assert_rates(&found, &[500.0, 510.0, 117.76]);
    }

    /// Regression test: what little arrived in a short round was taken for the receiver's drain rate.
    #[test]
    fn a_short_or_app_limited_round_does_not_lower_the_rate() {
        for (rtt_ms, app_limited) in [(1, false), (100, false), (1, true)] {
            let mut law = built("rapid_plus", &[&FIRST[..], &[("per", "round")]].concat(), GIGABIT);
            let rtt = RttEstimator::new(Span::from_millis(rtt_ms));
            let mut rate_after = |packets: u64, lost: u64, millis: u64, drain: u64, app_limited: bool| {
                let ended = Time::ZERO + Span::from_millis(millis);
                let drain = Some(Rate::from_mbps(drain));
                law.on_feedback(&FeedbackSample {
                    app_limited,
                    ..feedback(ended, &rtt, packets - lost, lost, drain)
                });
                let bytes = packets * 1_250;
                law.on_boundary(&Boundary { packets, bytes, ended, ..boundary(Unit::Round, 0, lost) });
                law.state().rate.as_bps() as f64 / 1e6
            };
            // The first is compared with no loss.
            assert_near(rate_after(50_000, 100, 1_000, 499, false), 499.0, 1e-6);
            let millis = if app_limited { 1_000 } else { 5 };
            assert_near(rate_after(200, 0, millis, 5, app_limited), 499.0, 1e-6);
            assert_near(rate_after(49_900, 100, 1_000, 498, false), 499.0, 1e-6);
            // Nor if it is the first.
            let mut law = built("rapid_plus", &[&FIRST[..], &[("per", "round")]].concat(), GIGABIT);
            let mut rate_after = |packets: u64, lost: u64, millis: u64, app_limited: bool| {
                let ended = Time::ZERO + Span::from_millis(millis);
                let sample = feedback(ended, &rtt, packets - lost, lost, None);
                law.on_feedback(&FeedbackSample { app_limited, ..sample });
                let bytes = packets * 1_250;
                law.on_boundary(&Boundary { packets, bytes, ended, ..boundary(Unit::Round, 0, lost) });
                law.state().rate.as_bps() as f64 / 1e6
            };
            assert_near(rate_after(200, 10, millis, app_limited), 500.0, 1e-6);
            assert_near(rate_after(45_000, 100, 1_000, false), 449.0, 1e-6);
        }
    }

    #[test]
    fn the_rate_follows_a_slower_receiver_and_survives_an_outage() {
        let path = PathModel {
            drain: Some(Rate::from_mbps(50)),
            socket_buffer: 500_000,
            ..PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(20), 1.0)
        };
        let mut run = Harness::new(built("rapid_plus", &[], Rate::from_mbps(90)), path);
        run.run_for(Span::from_secs(20));
        let over = run.measure(Span::from_secs(60));
        assert!(over.goodput > Rate::from_mbps(46), "{over:?}");
        // It tolerates losses that do not grow: asynch, figure 1, has 21.5 % for it where ASYNCH has 9.5 %.
        assert!(over.loss_rate() < 0.2, "{over:?}");
        run.outage(Span::from_secs(2));
        run.run_for(Span::from_secs(5));
        let after = run.measure(Span::from_secs(20));
        assert!(after.goodput > over.goodput.mul_f64(0.8), "{after:?}");
    }

    #[test]
    fn a_rate_is_required() {
        let config = super::super::testing::config(None);
        let error = law("rapid_plus").unwrap().build(&[], &config).unwrap_err();
        assert_eq!(error, ControllerError::NeedsRate("rapid_plus"));
        assert!(law("rapid_plus").unwrap().build(&FIRST, &config).is_ok());
    }
}
