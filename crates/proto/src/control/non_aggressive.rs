//! The non-aggressive controller of FOBS (dickens-system-aware-fobs, section 2.2.1): linear steps, once per
//! chunk, and a memory of higher rates that have failed.
//!
//! After each chunk with mean loss rate `L`: if `L > threshold`, the rate falls by one step. Otherwise it
//! rises by one, unless the history of the band above shows that this fails. A *band* is the rate divided by
//! the step.
//!
//! Choices where the paper is silent: how often a band must have been entered and what share of the entries
//! must have failed (`tries`, `failures`); that the history ages (`ageing`), as the paper expects bands to
//! move over time; the initial rate (the capacity); the lowest rate (one step); that a chunk is ignored if
//! most of it was sent before the last change.
//!
//! The law requests no report interval: `bitmap_ack.when = "chunk"` sends reports at the paper's control
//! interval, and a time interval of the same length would delay the end of an object by two of them
//! (`crates/sim/tests/feedback`).

use haul_base::{Rate, Time};
use haul_stack::{Configuration as _, configuration};

use super::reaction::{capacity, clamped, first_rate, rate_or_ceiling};
use super::{
    Boundary, ControllerConfig, ControllerError, FeedbackSample, LawRegistration, Limits, Permit,
    RateController, RateState, Unit,
};
use crate::rtt::RttEstimator;

configuration! {
    /// Parameters of `non_aggressive`.
    pub struct NonAggressiveConfig: "non_aggressive" {
        capacity: Rate = capacity;
        first_rate: Rate = first_rate;
        step: f64 in (0.001, 1.0) = "0.05", "step, as a fraction of `capacity` (the paper: 0.05)";
        threshold: f64 in (0.0, 1.0) = "0.005", "mean loss rate of a chunk that lowers the rate";
        tries: u64 in (1, 1_000_000) = "2", "entries into a band from below before its history counts";
        failures: f64 in (0.0, 1.0) = "0.5", "fraction of failed entries above which the band is not entered again";
        ageing: u64 in (1, 1_000_000) = "16", "chunks after which the history is halved";
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "non_aggressive",
    version: 1,
    summary: "one step up or down after each chunk, but not into a band that failed before",
    source: "the non-aggressive controller of FOBS (dickens-system-aware-fobs, section 2.2.1)",
    parameters: NonAggressiveConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(NonAggressive::new(&parameters.read(), config)?)),
};

/// How often a band was entered from below, and how often the next chunk lost too much.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    entered: f64,
    failed: f64,
}

/// The law: see the module documentation.
#[derive(Debug)]
struct NonAggressive {
    rate: Rate,
    most: Rate,
    ceiling: Option<Rate>,
    step: Rate,
    threshold: f64,
    tries: f64,
    failures: f64,
    ageing: u64,
    /// History of each band of rates.
    history: Vec<History>,
    /// Band entered from below by the last change.
    entered: Option<usize>,
    chunks: u64,
    next_pn: u64,
    /// First packet sent at the current rate.
    changed_at_pn: u64,
    phase: &'static str,
}

impl NonAggressive {
    fn new(parameters: &NonAggressiveConfig, config: &ControllerConfig) -> Result<Self, ControllerError> {
        let capacity = rate_or_ceiling(LAW.name, parameters.capacity, config)?;
        let step = Rate::from_bps((capacity.mul_f64(parameters.step)).as_bps().max(1));
        let bands = capacity.as_bps() / step.as_bps() + 2;
        Ok(Self {
            rate: clamped(parameters.first_rate.min(capacity), config.ceiling),
            most: capacity,
            ceiling: config.ceiling,
            step,
            threshold: parameters.threshold,
            tries: parameters.tries as f64,
            failures: parameters.failures,
            ageing: parameters.ageing,
            history: vec![History::default(); bands as usize],
            entered: None,
            chunks: 0,
            next_pn: 0,
            changed_at_pn: 0,
            phase: "steady",
        })
    }

    fn band(&self, rate: Rate) -> usize {
        ((rate.as_bps() / self.step.as_bps()) as usize).min(self.history.len() - 1)
    }

    fn age(&mut self) {
        self.chunks += 1;
        if self.chunks.is_multiple_of(self.ageing) {
            for band in &mut self.history {
                band.entered /= 2.0;
                band.failed /= 2.0;
            }
        }
    }

    fn change(&mut self, rate: Rate, phase: &'static str) {
        self.rate = clamped(rate.max(self.step).min(self.most), self.ceiling);
        (self.changed_at_pn, self.phase) = (self.next_pn, phase);
    }

    fn fall(&mut self) {
        if let Some(band) = self.entered.take() {
            self.history[band].failed += 1.0;
        }
        let rate = Rate::from_bps(self.rate.as_bps().saturating_sub(self.step.as_bps()));
        self.change(rate, "fall");
    }

    fn consider_rise(&mut self) {
        self.entered = None;
        let rate = Rate::from_bps(self.rate.as_bps().saturating_add(self.step.as_bps())).min(self.most);
        let band = self.band(rate);
        let History { entered, failed } = self.history[band];
        if rate == self.rate || (entered >= self.tries && failed > self.failures * entered) {
            self.phase = "steady";
            return;
        }
        self.history[band].entered += 1.0;
        self.entered = Some(band);
        self.change(rate, "rise");
    }
}

impl RateController for NonAggressive {
    fn permit(&self) -> Permit {
        Permit::Go(Limits::at_rate(self.rate))
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.next_pn = sample.next_pn;
    }

    fn on_boundary(&mut self, end: &Boundary) {
        if end.unit != Unit::Chunk || !end.mostly_after(self.changed_at_pn) {
            return;
        }
        self.age();
        if end.loss_rate() > self.threshold { self.fall() } else { self.consider_rise() }
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
    use haul_base::Span;

    use super::super::testing::{Harness, PathModel, boundary, built};
    use super::*;

    const PATH: Rate = Rate::from_mbps(100);

    /// Rates (Mbit/s) after each of a series of chunks with these losses per 10,000 packets.
    fn rates(settings: &[(&str, &str)], losses: &[u64]) -> Vec<u64> {
        let mut law = built("non_aggressive", settings, PATH);
        let each = |&lost: &u64| {
            law.on_boundary(&boundary(Unit::Chunk, 0, lost));
            law.state().rate.as_bps() / 1_000_000
        };
        losses.iter().map(each).collect()
    }

    #[test]
    fn steps_are_5_of_100_mbit_and_half_a_percent_is_the_threshold() {
        assert_eq!(rates(&[], &[51, 51, 51, 50, 0]), [95, 90, 85, 90, 95]);
        assert_eq!(rates(&[("step", "0.1"), ("threshold", "0.01")], &[101, 100]), [90, 100]);
        assert_eq!(*rates(&[], &[9_000; 40]).last().unwrap(), 5, "the least is a step");
        assert!(built("non_aggressive", &[], PATH).state().rate == PATH);
    }

    #[test]
    fn a_band_that_failed_twice_is_avoided_until_the_failures_are_old() {
        // 90 is good, 95 fails: entered from below twice, then no more.
        let found = rates(&[], &[60, 60, 0, 60, 0, 60, 0, 0, 0, 0]);
        assert_eq!(found, [95, 90, 95, 90, 95, 90, 90, 90, 90, 90]);
        // The counts halve with the 16th chunk: 1 of the 2 required tries is left.
        let mut losses = vec![60, 60, 0, 60, 0, 60];
        losses.extend([0; 11]);
        let found = rates(&[], &losses);
        assert_eq!((found[14], found[15]), (90, 95));
        assert_eq!(*rates(&[("ageing", "1000")], &losses).last().unwrap(), 90);
    }

    #[test]
    fn a_band_that_succeeded_more_often_than_it_failed_is_entered_again() {
        // 95 held once, failed once: not more than half.
        assert_eq!(rates(&[], &[60, 60, 0, 0, 60, 60, 0, 60, 0])[8], 95);
        assert_eq!(rates(&[("failures", "0.4")], &[60, 60, 0, 0, 60, 60, 0, 60, 0])[8], 90);
    }

    #[test]
    fn a_chunk_sent_before_the_last_change_is_not_evaluated() {
        let mut law =
            NonAggressive::new(&NonAggressiveConfig::default(), &super::super::testing::config(Some(PATH)))
                .unwrap();
        law.next_pn = 40_000;
        law.on_boundary(&boundary(Unit::Chunk, 10_000, 500));
        assert_eq!(law.rate, Rate::from_mbps(95));
        law.on_boundary(&boundary(Unit::Chunk, 20_000, 500));
        law.on_boundary(&boundary(Unit::Chunk, 30_000, 500));
        assert_eq!(law.rate, Rate::from_mbps(95));
        law.on_boundary(&boundary(Unit::Chunk, 40_000, 500));
        assert_eq!(law.rate, Rate::from_mbps(90));
    }

    #[test]
    fn the_rate_stays_below_a_bottleneck_with_almost_no_loss() {
        // 93 of 100 Mbit/s pass: the bands 90 and 95 are good and bad.
        let path = PathModel {
            chunk: 20_000_000,
            ..PathModel::bottleneck(Rate::from_mbps(93), Span::from_millis(20), 0.5)
        };
        let mut run = Harness::new(built("non_aggressive", &[], PATH), path.clone());
        run.run_for(Span::from_secs(30));
        let measured = run.measure(Span::from_secs(150));
        assert!(measured.goodput > Rate::from_mbps(88), "{measured:?}");
        assert!(measured.loss_rate() < 0.005, "{measured:?}");
        let decreases = run.reductions.len();
        run.measure(Span::from_secs(170));
        // 100 chunks, and one try per 16 of them.
        assert!(run.reductions.len() - decreases <= 10, "{} falls", run.reductions.len() - decreases);
        // The same with a receiver that reads at 93 Mbit/s.
        let path =
            PathModel { drain: Some(Rate::from_mbps(93)), capacity: PATH, socket_buffer: 100_000, ..path };
        let mut run = Harness::new(built("non_aggressive", &[], PATH), path);
        run.run_for(Span::from_secs(30));
        let measured = run.measure(Span::from_secs(150));
        assert!(measured.goodput > Rate::from_mbps(88) && measured.loss_rate() < 0.005, "{measured:?}");
    }
}
