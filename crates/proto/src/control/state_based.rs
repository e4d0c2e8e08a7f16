//! The state-based controller of FOBS (dickens-system-aware-fobs, section 2.2.2): acts once per segment, on
//! the current state and the current loss only. Green, Yellow and Red are excellent, moderate and poor
//! conditions; each has its own limits, steps and exit conditions. Negligible or massive loss moves the rate
//! far at once.
//!
//! The paper gives no numbers. They are shares of the path's capacity, chosen so that one bad segment costs
//! little and the rate follows within three segments when the path becomes half as fast. Further choices: it
//! starts at the capacity, in Green; *far* is a share of the way to the highest rate of the state, or down to
//! the lowest of Red; a segment is ignored if most of it was sent before the last change, or if there was no
//! feedback for three probe timeouts in a row during it: an outage is no load.
//!
//! It requests no report interval: `bitmap_ack.when = "segment"` sends reports at the paper's control
//! interval, and a time interval of the same length would delay the end of an object by two of them (100 MB
//! at 180 Mbit/s: 6.0 s instead of 4.7).

use haul_base::{Rate, Time};
use haul_stack::{Configuration as _, configuration};

use super::reaction::{capacity, clamped, first_rate, rate_or_ceiling};
use super::{
    Boundary, ControllerConfig, ControllerError, FeedbackSample, LawRegistration, Limits, Permit,
    RateController, RateState, Unit,
};

configuration! {
    /// Parameters of `state_based`.
    pub struct StateBasedConfig: "state_based" {
        capacity: Rate = capacity;
        first_rate: Rate = first_rate;
        green_min: f64 in (0.0, 1.0) = "0.7", "minimum rate of the state, fraction of `capacity`";
        green_max: f64 in (0.0, 1.0) = "1", "maximum rate of the state, fraction of `capacity`";
        green_up: f64 in (0.0, 1.0) = "0.02", "step up in the state, fraction of `capacity`";
        green_down: f64 in (0.0, 1.0) = "0.05", "step down in the state, fraction of `capacity`";
        green_leave: f64 in (0.0, 1.0) = "0.02", "loss rate above which Green becomes Yellow";
        yellow_min: f64 in (0.0, 1.0) = "0.4", "minimum rate of the state, fraction of `capacity`";
        yellow_max: f64 in (0.0, 1.0) = "0.9", "maximum rate of the state, fraction of `capacity`";
        yellow_up: f64 in (0.0, 1.0) = "0.05", "step up in the state, fraction of `capacity`";
        yellow_down: f64 in (0.0, 1.0) = "0.1", "step down in the state, fraction of `capacity`";
        yellow_leave: f64 in (0.0, 1.0) = "0.1", "loss rate above which Yellow becomes Red";
        yellow_return: f64 in (0.0, 1.0) = "0.005", "loss rate up to which Yellow becomes Green";
        red_min: f64 in (0.0, 1.0) = "0.05", "minimum rate of the state, fraction of `capacity`";
        red_max: f64 in (0.0, 1.0) = "0.6", "maximum rate of the state, fraction of `capacity`";
        red_up: f64 in (0.0, 1.0) = "0.1", "step up in the state, fraction of `capacity`";
        red_down: f64 in (0.0, 1.0) = "0.2", "step down in the state, fraction of `capacity`";
        red_return: f64 in (0.0, 1.0) = "0.01", "loss rate up to which Red becomes Yellow";
        tolerated: f64 in (0.0, 1.0) = "0.005", "loss rate up to which the rate rises within a state";
        negligible: f64 in (0.0, 1.0) = "0.0005", "loss rate up to which it rises by `far_up` at once";
        massive: f64 in (0.0, 1.0) = "0.2", "loss rate above which it falls by `far_down` at once, to Red";
        far_up: f64 in (0.0, 1.0) = "0.25", "fraction of the way to the state's maximum rate";
        far_down: f64 in (0.0, 1.0) = "0.5", "fraction of the way to Red's minimum rate";
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "state_based",
    version: 1,
    summary: "steps up or down after each segment, by the state (of three) and the loss rate",
    source: "the state-based controller of FOBS (dickens-system-aware-fobs, section 2.2.2)",
    parameters: StateBasedConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(StateBased::new(&parameters.read(), config)?)),
};

/// Probe timeouts in a row that count as an outage.
const OUTAGE: u32 = 3;

/// One of the three states, with rates as shares of the capacity.
#[derive(Clone, Copy, Debug)]
struct Condition {
    name: &'static str,
    min: f64,
    max: f64,
    up: f64,
    down: f64,
    /// Loss above which the next worse state follows, and up to which the next better one does.
    leave: f64,
    back: f64,
}

/// The law: see the module documentation.
#[derive(Debug)]
struct StateBased {
    /// Green, Yellow, Red.
    conditions: [Condition; 3],
    present: usize,
    /// Current rate as a share of the capacity.
    share: f64,
    capacity: Rate,
    ceiling: Option<Rate>,
    tolerated: f64,
    negligible: f64,
    massive: f64,
    far_up: f64,
    far_down: f64,
    next_pn: u64,
    /// A segment is ignored if most of it was sent before this packet.
    evaluated_from_pn: u64,
    in_outage: bool,
}

impl StateBased {
    fn new(p: &StateBasedConfig, config: &ControllerConfig) -> Result<Self, ControllerError> {
        let capacity = rate_or_ceiling(LAW.name, p.capacity, config)?;
        let first = p.first_rate.min(capacity);
        let condition = |name, [min, max, up, down]: [f64; 4], leave, back| Condition {
            name,
            min,
            max,
            up,
            down,
            leave,
            back,
        };
        let conditions = [
            condition("green", [p.green_min, p.green_max, p.green_up, p.green_down], p.green_leave, -1.0),
            condition(
                "yellow",
                [p.yellow_min, p.yellow_max, p.yellow_up, p.yellow_down],
                p.yellow_leave,
                p.yellow_return,
            ),
            condition("red", [p.red_min, p.red_max, p.red_up, p.red_down], 1.0, p.red_return),
        ];
        let (negligible, massive) = (p.negligible, p.massive);
        check(&conditions, negligible, massive)?;
        Ok(Self {
            conditions,
            present: 0,
            share: first.as_bps() as f64 / capacity.as_bps() as f64,
            capacity,
            ceiling: config.ceiling,
            tolerated: p.tolerated,
            negligible,
            massive,
            far_up: p.far_up,
            far_down: p.far_down,
            next_pn: 0,
            evaluated_from_pn: 0,
            in_outage: false,
        })
    }

    fn rate(&self) -> Rate {
        clamped(self.capacity.mul_f64(self.share), self.ceiling)
    }

    fn next_state(&self, loss: f64) -> usize {
        let condition = self.conditions[self.present];
        if loss >= self.massive {
            2
        } else if loss > condition.leave {
            self.present + 1
        } else if loss <= condition.back {
            self.present - 1
        } else {
            self.present
        }
    }

    fn evaluate(&mut self, loss: f64) {
        let old = self.conditions[self.present];
        self.present = self.next_state(loss);
        let new = self.conditions[self.present];
        let share = if loss >= self.massive {
            self.share - self.far_down * (self.share - new.min).max(0.0)
        } else if loss <= self.negligible {
            self.share + (self.far_up * (old.max - self.share)).max(old.up)
        } else if loss <= self.tolerated.max(old.back) {
            self.share + old.up
        } else {
            self.share - old.down
        };
        self.share = share.clamp(new.min, new.max);
    }
}

/// Checks that the numbers are consistent.
fn check(conditions: &[Condition; 3], negligible: f64, massive: f64) -> Result<(), ControllerError> {
    let unsuitable = |message: String| Err(ControllerError::Unsuitable { law: LAW.name, message });
    for Condition { name, min, max, leave, back, .. } in conditions {
        if min > max {
            return unsuitable(format!("{name}_min = {min} is above {name}_max = {max}"));
        }
        if back > leave {
            return unsuitable(format!("{name}_return = {back} is above {name}_leave = {leave}"));
        }
    }
    if negligible >= massive {
        return unsuitable(format!("negligible = {negligible} is not below massive = {massive}"));
    }
    Ok(())
}

impl RateController for StateBased {
    fn permit(&self) -> Permit {
        Permit::Go(Limits::at_rate(self.rate()))
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.next_pn = sample.next_pn;
        if sample.acked_packets > 0 && std::mem::take(&mut self.in_outage) {
            self.evaluated_from_pn = sample.next_pn;
        }
    }

    fn on_boundary(&mut self, end: &Boundary) {
        if end.unit != Unit::Segment || self.in_outage || !end.mostly_after(self.evaluated_from_pn) {
            return;
        }
        let before = (self.present, self.share);
        self.evaluate(end.loss_rate());
        if before != (self.present, self.share) {
            self.evaluated_from_pn = self.next_pn;
        }
    }

    fn on_silence(&mut self, _: Time, count: u32) {
        self.in_outage |= count >= OUTAGE;
    }

    fn answers_marks(&self) -> bool {
        false
    }

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        RateState { phase: self.conditions[self.present].name, rate: self.rate() }
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Span, Time};

    use super::super::testing::{Harness, PathModel, boundary, built, feedback};
    use super::super::{ControllerError, law};
    use super::*;
    use crate::rtt::RttEstimator;

    const PATH: Rate = Rate::from_mbps(100);

    /// State and rate (Mbit/s) after each of a series of segments with these losses per 10,000 packets.
    fn evaluated(settings: &[(&str, &str)], losses: &[u64]) -> Vec<(&'static str, f64)> {
        let mut law = built("state_based", settings, PATH);
        let each = |&lost: &u64| {
            law.on_boundary(&boundary(Unit::Segment, 0, lost));
            let state = law.state();
            (state.phase, (state.rate.as_bps() as f64 / 1e5).round() / 10.0)
        };
        losses.iter().map(each).collect()
    }

    #[test]
    fn each_state_has_its_own_steps_limits_and_exits() {
        // Green: 1 % is more than is tolerated, less than its exit of 2 %.
        assert_eq!(evaluated(&[], &[100, 200, 201]), [("green", 95.0), ("green", 90.0), ("yellow", 85.0)]);
        let settings = [("first_rate", "80Mbit")];
        assert_eq!(evaluated(&settings, &[40, 40]), [("green", 82.0), ("green", 84.0)]);
        // Yellow: down by 10 until 10 % make it Red, which goes down by 20; its limits bind.
        assert_eq!(
            evaluated(&[], &[300, 1_000, 1_001, 600, 600]),
            [("yellow", 90.0), ("yellow", 80.0), ("red", 60.0), ("red", 40.0), ("red", 20.0)]
        );
        // Back: 1 % is enough for Yellow, 0.5 % for Green.
        assert_eq!(
            evaluated(&[("yellow_min", "0.2"), ("green_min", "0.2")], &[300, 1_001, 600, 100, 60, 50]),
            [
                ("yellow", 90.0),
                ("red", 60.0),
                ("red", 40.0),
                ("yellow", 50.0),
                ("yellow", 40.0),
                ("green", 45.0)
            ]
        );
        assert_eq!(evaluated(&[], &[100; 10])[9], ("green", 70.0), "its minimum");
    }

    #[test]
    fn massive_and_negligible_losses_cause_large_immediate_changes() {
        // From 100 half-way to Red's 5; a step of Red; a quarter of the way to Yellow's 90, but at least
        // Green's minimum; to 100.
        let found = evaluated(&[], &[2_000, 5, 5, 0]);
        assert_eq!(found, [("red", 52.5), ("yellow", 62.5), ("green", 70.0), ("green", 77.5)]);
        assert_eq!(
            evaluated(&[("far_up", "1"), ("far_down", "1")], &[2_000, 0, 0]),
            [("red", 5.0), ("yellow", 60.0), ("green", 90.0)]
        );
        assert_eq!(evaluated(&[("massive", "0.3")], &[2_000])[0], ("yellow", 90.0));
    }

    #[test]
    fn other_units_segments_of_the_old_rate_and_outages_are_ignored() {
        let mut law = built("state_based", &[], PATH);
        let rtt = RttEstimator::new(Span::from_millis(20));
        law.on_boundary(&boundary(Unit::Chunk, 0, 9_000));
        assert_eq!(law.state().rate, PATH);
        let sample = feedback(Time::ZERO, &rtt, 100, 100, None);
        law.on_feedback(&FeedbackSample { next_pn: 50_000, ..sample });
        law.on_boundary(&boundary(Unit::Segment, 0, 100));
        law.on_boundary(&boundary(Unit::Segment, 10_000, 100));
        assert_eq!(law.state().rate, Rate::from_mbps(95));
        (1..=3).for_each(|count| law.on_silence(Time::ZERO, count));
        law.on_feedback(&FeedbackSample { next_pn: 90_000, ..sample });
        law.on_boundary(&boundary(Unit::Segment, 60_000, 10_000));
        assert_eq!(law.state().rate, Rate::from_mbps(95));
        law.on_boundary(&boundary(Unit::Segment, 90_000, 100));
        assert!(law.state().rate < Rate::from_mbps(91), "{:?}", law.state());
    }

    #[test]
    fn contradictory_parameters_are_refused_by_name() {
        for (settings, named) in [
            ([("green_min", "0.9"), ("green_max", "0.8")], "green_min"),
            ([("yellow_return", "0.2"), ("yellow_leave", "0.1")], "yellow_return"),
            ([("negligible", "0.3"), ("massive", "0.2")], "negligible"),
        ] {
            let config = super::super::testing::config(Some(PATH));
            let error = law("state_based").unwrap().build(&settings, &config).unwrap_err();
            assert!(matches!(error, ControllerError::Unsuitable { .. }), "{error}");
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn a_bottleneck_is_used_with_some_loss_and_host_spikes_are_recovered_from() {
        let path = PathModel::bottleneck(Rate::from_mbps(93), Span::from_millis(20), 0.5);
        let mut run = Harness::new(built("state_based", &[], PATH), path.clone());
        run.run_for(Span::from_secs(20));
        let measured = run.measure(Span::from_secs(100));
        assert!(measured.goodput > Rate::from_mbps(83), "{measured:?}");
        assert!(measured.loss_rate() < 0.03, "{measured:?}");
        let slow = PathModel { drain: Some(Rate::from_mbps(40)), socket_buffer: 100_000, ..path.clone() };
        run.path = slow;
        run.run_for(Span::from_secs(20));
        let slow = run.measure(Span::from_secs(60));
        // It has no memory, so it tries again and again.
        assert!(slow.goodput > Rate::from_mbps(27) && slow.loss_rate() < 0.12, "{slow:?}");
        run.path = path;
        let again = run.run_until(Span::from_secs(30), |run| run.law.state().rate > Rate::from_mbps(85));
        assert!(again.is_some_and(|elapsed| elapsed < Span::from_secs(15)), "{again:?}");
    }
}
