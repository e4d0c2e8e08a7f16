//! The proactive approach (asynch, section 4): the rate of ASYNCH, reduced or zero while the receiving
//! process is predicted to be without a processor.
//!
//! The paper ends with the prediction: act half-way of the sleep average's saw-tooth. Choices where it is
//! silent: until the predicted suspension has passed, the rate is lowered so that the receiver's socket
//! buffer can hold the data (`act = "lower"`), or nothing is sent (`"hold"`); an action lasts at most
//! `longest`, with at least a round trip between two, so that a wrong prediction costs little; the length of
//! a suspension is the mean of those seen. It requests no report interval: the paper polls at the receiver,
//! here each report is a sample.

use haul_base::{Bytes, Rate, Span, Time};
use haul_stack::{Configuration as _, choice, configuration};

use super::predictor::{Predictor, PredictorConfig, Suspension};
use super::reaction::{AsynchConfig, Reaction, clamped};
use super::{FeedbackSample, LawRegistration, Limits, MAX_PAUSE, Permit, RateController, RateState};

choice! {
    /// Action of `proactive` during a suspension.
    pub enum Action {
        /// Sends what the socket buffer can hold.
        Lower = "lower",
        /// Sends nothing.
        Hold = "hold",
    }
}

configuration! {
    /// Parameters of `proactive`.
    pub struct ProactiveConfig: "proactive" {
        ..reaction: AsynchConfig;
        ..predictor: PredictorConfig;
        act: Action = "lower", "during a suspension, send what the socket buffer can hold, or nothing";
        socket_buffer: Bytes in (Bytes(4_096), Bytes(1 << 32)) = "4MiB", "size of the receiver's socket buffer";
        longest: Span in (Span::from_millis(1), MAX_PAUSE) = "1s", "longest action";
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "proactive",
    version: 1,
    summary: "as `asynch`, and sends less before the receiving process is predicted to be suspended",
    source: "the proactive approach (asynch, section 4)",
    parameters: ProactiveConfig::PARAMETERS,
    build: |parameters, config| {
        let parameters: ProactiveConfig = parameters.read();
        Ok(Box::new(Proactive {
            reaction: Reaction::new("proactive", &parameters.reaction, config)?,
            predictor: Predictor::new(&parameters.predictor),
            uses_hold: parameters.act == Action::Hold,
            buffer: parameters.socket_buffer.0,
            longest: parameters.longest,
            fill: 0,
            rtt: config.initial_rtt,
            expected: None,
            acting: None,
            earliest: Time::ZERO,
        }))
    },
};

/// The law: see the module documentation.
#[derive(Debug)]
struct Proactive {
    reaction: Reaction,
    predictor: Predictor,
    uses_hold: bool,
    buffer: u64,
    longest: Span,
    /// Fill level of the socket buffer, in thousandths.
    fill: u16,
    rtt: Span,
    expected: Option<Suspension>,
    acting: Option<Suspension>,
    /// No action starts before.
    earliest: Time,
}

impl Proactive {
    /// Ends and starts actions that are due.
    fn advance(&mut self, now: Time) {
        if self.acting.is_some_and(|acting| acting.until <= now) {
            self.acting = None;
            self.earliest = now + self.rtt;
        }
        if self.acting.is_none()
            && let Some(due) = self.expected.take_if(|expected| expected.from <= now)
            && due.until > now
        {
            let until = due.until.min(now + self.longest);
            self.acting = Some(Suspension { until, ..due });
            if self.uses_hold {
                self.predictor.on_pause(until);
            }
        }
    }

    fn expect(&mut self, expected: Suspension) {
        let from = expected.from.max(self.earliest);
        if self.acting.is_none() && expected.until > from {
            self.expected = Some(Suspension { from, ..expected });
        }
    }

    /// Returns the rate at which the socket buffer holds all data of the suspension.
    fn rate(&self) -> Rate {
        let Some(acting) = self.acting.filter(|_| !self.uses_hold) else { return self.reaction.rate };
        let free = self.buffer - self.buffer * u64::from(self.fill.min(1_000)) / 1_000;
        let max_rate = Rate::from_transfer(free, acting.duration.max(Span::from_micros(1)));
        clamped(max_rate.min(self.reaction.rate), self.reaction.ceiling)
    }
}

impl RateController for Proactive {
    fn permit(&self) -> Permit {
        match self.acting.filter(|_| self.uses_hold) {
            Some(acting) => Permit::Pause(acting.until),
            None => Permit::Go(Limits::at_rate(self.rate())),
        }
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.rtt = sample.rtt.smoothed();
        if let Some(fill) = sample.host.and_then(|host| host.socket_fill) {
            self.fill = fill;
        }
        self.reaction.on_feedback(sample);
        self.advance(sample.now);
        if let Some(expected) = self.predictor.on_feedback(sample) {
            self.expect(expected);
        }
        self.advance(sample.now);
    }

    fn on_silence(&mut self, now: Time, _: u32) {
        self.advance(now);
    }

    fn on_deadline(&mut self, now: Time) {
        self.advance(now);
    }

    fn deadline(&self) -> Option<Time> {
        self.acting.map(|acting| acting.until).or(self.expected.map(|expected| expected.from))
    }

    fn answers_marks(&self) -> bool {
        false
    }

    fn ceiling(&self) -> Option<Rate> {
        self.reaction.ceiling
    }

    fn state(&self) -> RateState {
        let phase = match self.acting {
            Some(_) if self.uses_hold => "hold",
            Some(_) => "lower",
            None => self.reaction.phase,
        };
        RateState { phase, rate: self.rate() }
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Cause, HostSample, Verdict};

    use super::super::testing::{Harness, PathModel, assert_near, built, feedback};
    use super::*;
    use crate::rtt::RttEstimator;

    const RATE: Rate = Rate::from_mbps(400);

    /// A host whose processor is taken by another process for 50 of every 200 ms.
    fn loaded() -> PathModel {
        PathModel {
            verdict: Some(Verdict::of(Cause::ReceiverHost)),
            drain: Some(Rate::from_mbps(1_000)),
            suspended: Some((Span::from_millis(200), Span::from_millis(50))),
            socket_buffer: 1_000_000,
            ..PathModel::default()
        }
    }

    /// Long-run loss rate and goodput on the loaded host. The rate never falls by itself.
    fn outcome(settings: &[(&str, &str)]) -> (f64, Rate) {
        let always = [("raised", "1000"), ("socket_buffer", "900000B")];
        let mut run = Harness::new(built("proactive", &[&always, settings].concat(), RATE), loaded());
        run.run_for(Span::from_secs(10));
        let measured = run.measure(Span::from_secs(30));
        (measured.loss_rate(), measured.goodput)
    }

    #[test]
    fn each_predictor_avoids_most_losses_of_a_periodic_load() {
        // Without a prediction, 15 % are lost: 1.5 of 2.5 MB in each 50 ms.
        let mut fixed = Harness::new(built("fixed", &[], RATE), loaded());
        fixed.run_for(Span::from_secs(10));
        let plain = fixed.measure(Span::from_secs(30));
        assert_near(plain.loss_rate(), 0.15, 0.05);
        for predictor in ["read_delay", "run_delay", "gaps", "host_losses", "sleep_average"] {
            for act in ["lower", "hold"] {
                let (loss, goodput) = outcome(&[("predictor", predictor), ("act", act)]);
                assert!(loss < 0.05, "{predictor}, {act}: {loss} lost");
                // A hold sends nothing for a quarter of the time, part of which the socket could have
                // buffered. Acting half-way of the saw-tooth leaves half of the run unused: that is the
                // paper's rule.
                let least = if predictor == "sleep_average" { 0.3 } else { 0.85 };
                assert!(goodput > plain.goodput.mul_f64(least), "{predictor}, {act}: {goodput}");
            }
        }
    }

    #[test]
    fn an_idle_receiver_causes_no_slowdown() {
        for predictor in ["read_delay", "run_delay", "gaps", "host_losses", "sleep_average"] {
            let path = PathModel { drain: Some(Rate::from_mbps(1_000)), ..PathModel::default() };
            let settings = [("predictor", predictor), ("act", "hold")];
            let mut run = Harness::new(built("proactive", &settings, RATE), path);
            let measured = run.measure(Span::from_secs(20));
            assert!(measured.held < 1e-9 && measured.lost == 0, "{predictor}: {measured:?}");
        }
    }

    #[test]
    fn halfway_through_the_saw_tooth_it_sends_what_the_socket_buffer_holds() {
        let settings = [("predictor", "sleep_average"), ("socket_buffer", "1MB")];
        let mut law = built("proactive", &settings, RATE);
        let rtt = RttEstimator::new(Span::from_millis(20));
        let mut report = |millis: u64, sleep: u64, fill: u16| {
            let now = Time::ZERO + Span::from_millis(millis);
            let host = HostSample {
                sleep_average: Some(Span::from_millis(sleep)),
                socket_fill: Some(fill),
                ..HostSample::default()
            };
            law.on_feedback(&FeedbackSample { host: Some(host), ..feedback(now, &rtt, 100, 0, None) });
            (law.state().phase, law.state().rate.as_bps(), law.deadline())
        };
        // The first tooth shows the extremes, 200 to 800 ms, and that the suspension took 100 ms.
        for (n, sleep) in [800, 600, 400, 200].into_iter().enumerate() {
            assert_eq!(report(n as u64 * 10, sleep, 0).0, "steady");
        }
        assert_eq!(report(130, 800, 0).0, "steady");
        assert_eq!(report(140, 600, 0).0, "steady");
        // Half-way is 500; 400 is 200 above the minimum, at 20 a millisecond, and 100 ms more.
        let until = Time::ZERO + Span::from_millis(150 + 10 + 100);
        assert_eq!(report(150, 400, 0), ("lower", 80_000_000, Some(until)));
        assert_eq!(report(155, 300, 500), ("lower", 40_000_000, Some(until)));
        let mut law = law;
        law.on_deadline(until);
        assert_eq!((law.state().rate, law.deadline()), (RATE, None));
    }

    #[test]
    fn it_acts_one_round_trip_before_a_regular_suspension_and_for_its_length() {
        let settings = [("predictor", "read_delay"), ("act", "hold"), ("seen", "3"), ("blind", "2")];
        let mut law = built("proactive", &settings, RATE);
        let rtt = RttEstimator::new(Span::from_millis(20));
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        let mut report = |millis: u64, delay: u64| {
            let read_delay = Some(Span::from_millis(delay));
            law.on_feedback(&FeedbackSample { read_delay, ..feedback(at(millis), &rtt, 100, 0, None) });
            law.deadline()
        };
        // Detected when they are over, at 1,040, 1,140 and 1,240; they began 40 ms earlier.
        for begun in [1_000, 1_100] {
            assert_eq!((report(begun + 40, 40), report(begun + 42, 0)), (None, None));
        }
        assert_eq!(report(1_240, 40), None);
        assert_eq!(report(1_242, 0), Some(at(1_280)), "the next at 1,300, less a round trip");
        law.on_deadline(at(1_280));
        assert_eq!(law.permit(), Permit::Pause(at(1_320)));
        law.on_deadline(at(1_320));
        assert_eq!(law.permit(), Permit::Go(Limits::at_rate(RATE)));
        let mut report_nothing = |millis| {
            law.on_feedback(&FeedbackSample {
                read_delay: Some(Span::ZERO),
                ..feedback(at(millis), &rtt, 100, 0, None)
            });
            law.deadline()
        };
        assert_eq!(report_nothing(1_330), Some(at(1_380)));
        // That one passes as well; a third is not predicted without having seen one.
        assert_eq!(report_nothing(1_430), None);
    }

    #[test]
    fn only_gaps_with_host_losses_count() {
        let predicted = |cause: Option<Cause>| {
            let settings = [("predictor", "host_losses"), ("act", "hold"), ("seen", "3")];
            let mut law = built("proactive", &settings, RATE);
            let rtt = RttEstimator::new(Span::from_millis(20));
            let mut report = |millis: u64, lost: u64| {
                let (now, verdict) = (Time::ZERO + Span::from_millis(millis), cause.map(Verdict::of));
                let sample =
                    FeedbackSample { in_flight: 1_000_000, verdict, ..feedback(now, &rtt, 100, lost, None) };
                law.on_feedback(&sample);
                law.deadline()
            };
            // Silent from 50 to 90 ms of every 200; losses are detected a round trip later.
            let samples = (0..1_000u64).step_by(2).filter(|millis| !(52..90).contains(&(millis % 200)));
            samples.map(|millis| report(millis, u64::from(millis % 200 == 110))).last().unwrap()
        };
        for cause in [None, Some(Cause::Congestion), Some(Cause::Random)] {
            assert_eq!(predicted(cause), None, "{cause:?}");
        }
        let Some(next) = predicted(Some(Cause::ReceiverHost)) else { panic!("nothing is predicted") };
        let expected = Time::ZERO + Span::from_millis(1_050 - 20);
        assert!(next.since(expected).max(expected.since(next)) <= Span::from_millis(2), "{next:?}");
    }

    #[test]
    fn actions_are_bounded_and_at_least_one_round_trip_apart() {
        let settings = [("act", "hold"), ("seen", "2"), ("longest", "30ms"), ("irregularity", "1")];
        let mut law = built("proactive", &settings, RATE);
        let rtt = RttEstimator::new(Span::from_millis(20));
        let (mut held, mut permitted, mut longest) = (0, 0, Span::ZERO);
        for millis in 0..20_000u64 {
            let now = Time::ZERO + Span::from_millis(millis);
            // A receiver that reports arbitrary values.
            let read_delay = Some(Span::from_millis(if millis % 7 < 3 { millis % 900 } else { 0 }));
            law.on_feedback(&FeedbackSample { read_delay, ..feedback(now, &rtt, 100, 0, None) });
            law.on_deadline(now);
            match law.permit() {
                Permit::Pause(until) => (held, longest) = (held + 1, longest.max(until.since(now))),
                Permit::Go(_) => permitted += 1,
            }
        }
        assert!(
            longest <= Span::from_millis(30) && permitted * 3 > held,
            "{held} ms held, {permitted} ms not, {longest}"
        );
    }
}
