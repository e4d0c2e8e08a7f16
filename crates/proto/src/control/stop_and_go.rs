//! Stop and go: a given rate, with pauses while the receiving process is estimated to be suspended (RAPID and
//! RBUDP+, as described by datta-rapid-plus, section 3, and asynch, section 4). Both papers conclude that the
//! guess cannot be right: the law serves for comparison.
//!
//! - `rapid`: remembers the dynamic priority of the receiving process at a loss. When its priority comes to
//!   one less, sending stops for a time proportional to its average sleep time. The O(1) scheduler derives
//!   the dynamic priority from that average (ten levels of 100 ms), which host samples contain; current
//!   schedulers have neither, so there are no pauses.
//! - `rbudp+`: the process is assumed to run for one time slice and then to be suspended for the time of the
//!   scheduler model ([`super::suspension`]), fed with the mean of the last suspensions (run delay per
//!   involuntary switch).
//!
//! In the papers a process beside the receiver guesses and tells the sender to pause:
//! `guess_at = "receiver"`. Otherwise the sender guesses from the host samples in feedback.
//!
//! Choices where the papers are silent: the factor of RAPID's pause; RBUDP+'s estimate, which the papers only
//! call another one: the case of the model, its share and `D`, the time in wait queues, due to which it also
//! pauses for an idle receiver. Observed suspensions are used for eight pauses, of two seconds in total, and
//! each is capped at the time since the previous host sample.

use haul_base::{HostSample, Probability, Rate, Span, Time};
use haul_stack::{Configuration as _, choice, configuration};

use super::reaction::{clamped, first_rate, rate_or_ceiling};
use super::suspension::{Case, Reentry, TasksAhead};
use super::{
    ControllerConfig, ControllerError, FeedbackSample, LawRegistration, Limits, LocalHostSample, MAX_PAUSE,
    Permit, RateController, RateState, SentBatch,
};

choice! {
    /// Method by which `stop_and_go` guesses.
    pub enum Guesser {
        /// RBUDP+'s estimate of suspensions.
        Rbudp = "rbudp+",
        /// RAPID's dynamic priority.
        Rapid = "rapid",
    }
}

choice! {
    /// End at which the guess is made.
    pub enum GuessAt {
        /// The sender, from feedback.
        Sender = "sender",
        /// The receiver, which requests a pause from the sender.
        Receiver = "receiver",
    }
}

choice! {
    /// A [`Case`] of the scheduler model.
    pub enum SchedulerCase { I = "I", II = "II", III = "III", IV = "IV", V = "V", VI = "VI" }
}

configuration! {
    /// Parameters of `stop_and_go`.
    pub struct StopAndGoConfig: "stop_and_go" {
        first_rate: Rate = first_rate;
        predictor: Guesser = "rbudp+", "RBUDP+'s estimate of suspensions, or RAPID's dynamic priority";
        guess_at: GuessAt = "sender",
            "which end estimates: the sender, from feedback, or the receiver, which tells the sender how long to pause";
        pause: f64 in (0.0, 10.0) = "1", "length of a pause of `rapid`, in average sleep times";
        time_slice: Span in (Span::from_millis(1), Span::from_secs(1)) = "100ms",
            "how long the process runs between suspensions (`rbudp+`)";
        case: SchedulerCase = "I", "case of the scheduler model (`rbudp+`)";
        reentry: f64 in (0.0, 0.99) = "0.5",
            "fraction of tasks that re-enter the active array, cases III and VI";
        waiting: Span in (Span::ZERO, Span::from_secs(1)) = "10ms", "time in wait queues (the paper's D)";
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "stop_and_go",
    version: 1,
    summary: "a given rate, with pauses while the receiving process is estimated to be suspended",
    source: "RAPID and RBUDP+ (datta-rapid-plus, sections 3 and 5; asynch, section 4)",
    parameters: StopAndGoConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(StopAndGo::new(&parameters.read(), config)?)),
};

/// Bonus of the O(1) scheduler: one priority level per 100 ms of average sleep time, up to ten.
const SLEEP_PER_LEVEL: Span = Span::from_millis(100);
const MAX_LEVELS: u64 = 10;
/// Weight of the newest value in the mean suspension.
const GAIN: f64 = 0.25;
/// After this many pauses without an observed suspension, or this much time in them, the mean is reset; a
/// pause is no longer than that, either. So a transfer resumes within three seconds, whatever was observed.
/// Our choices.
const MAX_UNSEEN_PAUSES: u32 = 8;
const MAX_UNSEEN_TIME: Span = Span::from_secs(2);

/// State of RAPID. A larger number is a worse priority, as in the kernel; nice values only shift it.
#[derive(Debug, Default)]
struct Rapid {
    priority: Option<u64>,
    /// Worst priority before it last improved.
    worst: u64,
    at_loss: Option<u64>,
}

impl Rapid {
    /// Whether the priority has just worsened to one less than that at the last loss.
    fn on_priority(&mut self, priority: u64, has_lost: bool) -> bool {
        let before = self.priority.replace(priority);
        if let Some(before) = before.filter(|&before| before > priority) {
            self.worst = before;
        }
        let bound = self.at_loss.map(|at_loss| at_loss.saturating_sub(1));
        if has_lost {
            // The process was suspended when they were lost, and has slept since.
            self.at_loss = Some(self.worst.max(priority));
        }
        bound.is_some_and(|bound| priority >= bound && before.is_some_and(|before| before < bound))
    }
}

/// State of RBUDP+.
#[derive(Debug)]
struct Estimate {
    time_slice: Span,
    case: SchedulerCase,
    reentry: Probability,
    waiting: Span,
    /// Mean of the observed suspensions.
    observed: Span,
    /// When the last host sample was taken.
    sampled_at: Option<Time>,
    /// Pauses since the last observed suspension, and their total time.
    unseen: u32,
    unseen_for: Span,
    /// When the current time slice ends; `None` while nothing is sent.
    slice_ends: Option<Time>,
}

impl Estimate {
    fn on_suspensions(&mut self, run_delay: Span, switches: u64) {
        let each = (run_delay / switches.max(1)).min(MAX_PAUSE);
        (self.unseen, self.unseen_for) = (0, Span::ZERO);
        self.observed = self.observed.mul_f64(1.0 - GAIN) + each.mul_f64(GAIN);
    }

    /// Returns the model's prediction of the next suspension.
    fn suspension(&self) -> Span {
        let others = [self.observed];
        let tasks_ahead =
            TasksAhead { active: &others, expired: &others, levels_ahead: 1, waiting: self.waiting };
        let reentry = Reentry::Constant(self.reentry);
        let case = match self.case {
            SchedulerCase::II => Case::II,
            SchedulerCase::III => Case::III(reentry),
            SchedulerCase::IV => Case::IV,
            SchedulerCase::V => Case::V,
            SchedulerCase::VI => Case::VI(reentry),
            SchedulerCase::I => Case::I,
        };
        tasks_ahead.suspension(case).unwrap_or(MAX_PAUSE)
    }
}

impl Estimate {
    fn on_host(&mut self, now: Time, host: &HostSample) {
        let possible = now.since(self.sampled_at.replace(now).unwrap_or(now));
        let switches = host.involuntary_switches.map_or(1, u64::from);
        if let Some(delay) = host.run_delay.filter(|&delay| delay > Span::ZERO && switches > 0) {
            self.on_suspensions((delay / switches).min(possible), 1);
        }
    }

    /// Returns the pause after the current time slice if the slice has ended.
    fn end_slice(&mut self, now: Time) -> Option<Span> {
        self.slice_ends.take_if(|ends| *ends <= now)?;
        let duration = self.suspension().min(MAX_UNSEEN_TIME);
        self.unseen += 1;
        self.unseen_for = self.unseen_for + duration;
        if self.unseen == MAX_UNSEEN_PAUSES || self.unseen_for >= MAX_UNSEEN_TIME {
            self.observed = Span::ZERO;
        }
        Some(duration)
    }
}

#[derive(Debug)]
enum Guess {
    Rapid(Rapid, f64),
    Estimate(Estimate),
}

/// The law: see the module documentation.
#[derive(Debug)]
struct StopAndGo {
    rate: Rate,
    ceiling: Option<Rate>,
    guess: Guess,
    at_receiver: bool,
    /// Whether packets were lost since the last host sample.
    has_lost: bool,
    held_until: Option<Time>,
}

impl StopAndGo {
    fn new(parameters: &StopAndGoConfig, config: &ControllerConfig) -> Result<Self, ControllerError> {
        let rate = rate_or_ceiling(LAW.name, parameters.first_rate, config)?;
        let guess = if parameters.predictor == Guesser::Rapid {
            Guess::Rapid(Rapid::default(), parameters.pause)
        } else {
            Guess::Estimate(Estimate {
                time_slice: parameters.time_slice,
                case: parameters.case,
                reentry: Probability::new(parameters.reentry).unwrap_or_default(),
                waiting: parameters.waiting,
                observed: Span::ZERO,
                sampled_at: None,
                unseen: 0,
                unseen_for: Span::ZERO,
                slice_ends: None,
            })
        };
        let rate = clamped(rate, config.ceiling);
        let at_receiver = parameters.guess_at == GuessAt::Receiver;
        Ok(Self { rate, ceiling: config.ceiling, guess, at_receiver, has_lost: false, held_until: None })
    }

    fn pause(&mut self, now: Time, duration: Span) {
        if duration > Span::ZERO && self.held_until.is_none() {
            self.held_until = Some(now + duration.min(MAX_PAUSE));
        }
    }

    fn advance(&mut self, now: Time) {
        if self.held_until.is_some_and(|until| until <= now) {
            self.held_until = None;
        }
        if let Guess::Estimate(estimate) = &mut self.guess
            && let Some(duration) = estimate.end_slice(now)
        {
            self.pause(now, duration);
        }
    }

    /// Returns the pause that follows directly from a host sample.
    fn guess(&mut self, now: Time, host: &HostSample) -> Option<Span> {
        match &mut self.guess {
            Guess::Rapid(rapid, factor) => {
                let sleep = host.sleep_average?;
                let levels = (sleep.as_nanos() / SLEEP_PER_LEVEL.as_nanos()).min(MAX_LEVELS);
                let has_lost = std::mem::take(&mut self.has_lost);
                rapid.on_priority(MAX_LEVELS - levels, has_lost).then(|| sleep.mul_f64(*factor))
            }
            Guess::Estimate(estimate) => {
                estimate.on_host(now, host);
                None
            }
        }
    }
}

impl RateController for StopAndGo {
    fn permit(&self) -> Permit {
        match self.held_until {
            Some(until) => Permit::Pause(until),
            None => Permit::Go(Limits::at_rate(self.rate)),
        }
    }

    fn on_sent(&mut self, sent: &SentBatch) {
        self.advance(sent.now);
        if let Guess::Estimate(estimate) = &mut self.guess
            && self.held_until.is_none()
            && !self.at_receiver
        {
            estimate.slice_ends.get_or_insert(sent.now + estimate.time_slice);
        }
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.advance(sample.now);
        // The receiving host knows the drops of its socket before the sender detects the losses.
        self.has_lost |= sample.lost_packets > 0 || sample.socket_drops > 0;
        let Some(host) = sample.host.filter(|_| !self.at_receiver) else { return };
        if let Some(duration) = self.guess(sample.now, &host) {
            self.pause(sample.now, duration);
        }
    }

    fn on_pause(&mut self, now: Time, duration: Span) {
        if self.at_receiver {
            self.held_until = None;
            self.pause(now, duration);
        }
    }

    fn advise(&mut self, sample: &LocalHostSample) -> Option<Span> {
        if !self.at_receiver {
            return None;
        }
        self.has_lost |= sample.socket_drops > 0;
        let at_once = sample.host.and_then(|host| self.guess(sample.now, &host));
        let Guess::Estimate(estimate) = &mut self.guess else { return at_once };
        let over = estimate.end_slice(sample.now);
        if over.is_none() && sample.host.is_some() && sample.received > 0 {
            estimate.slice_ends.get_or_insert(sample.now + estimate.time_slice);
        }
        over.filter(|&duration| duration > Span::ZERO)
    }

    fn on_silence(&mut self, now: Time, _: u32) {
        self.advance(now);
    }

    fn on_deadline(&mut self, now: Time) {
        self.advance(now);
    }

    fn deadline(&self) -> Option<Time> {
        match &self.guess {
            Guess::Estimate(estimate) => self.held_until.or(estimate.slice_ends),
            Guess::Rapid(..) => self.held_until,
        }
    }

    fn answers_marks(&self) -> bool {
        false
    }

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        let phase = if self.held_until.is_some() { "hold" } else { "go" };
        RateState { phase, rate: self.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Harness, PathModel, assert_near, built, feedback};
    use super::*;
    use crate::rtt::RttEstimator;

    const RATE: Rate = Rate::from_mbps(400);

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn report(law: &mut dyn RateController, millis: u64, lost: u64, host: HostSample) -> Permit {
        let rtt = RttEstimator::new(Span::from_millis(20));
        let sample = feedback(at(millis), &rtt, 100, lost, None);
        law.on_feedback(&FeedbackSample { host: Some(host), ..sample });
        law.permit()
    }

    fn sleep(millis: u64) -> HostSample {
        HostSample { sleep_average: Some(Span::from_millis(millis)), ..HostSample::default() }
    }

    #[test]
    fn rapid_stops_one_priority_before_that_of_the_last_loss_for_the_average_sleep_time() {
        let mut law = built("stop_and_go", &[("predictor", "rapid"), ("pause", "0.5")], RATE);
        let go = Permit::Go(Limits::at_rate(RATE));
        // Priorities 2, 4, 6 of 10, and a loss at 6; then 3, 4: not yet one less; 5 is.
        for (n, (millis, lost)) in [(800, 0), (600, 0), (450, 9), (700, 0), (600, 0)].into_iter().enumerate()
        {
            assert_eq!(report(law.as_mut(), n as u64 * 10, lost, sleep(millis)), go, "{millis}");
        }
        assert_eq!(report(law.as_mut(), 100, 0, sleep(540)), Permit::Pause(at(370)));
        law.on_deadline(at(370));
        assert_eq!(law.permit(), go);
        // It is there already; it must have been better in between.
        assert_eq!(report(law.as_mut(), 380, 0, sleep(520)), go);
        assert_eq!(report(law.as_mut(), 390, 0, sleep(640)), go);
        assert_eq!(report(law.as_mut(), 400, 0, sleep(440)), Permit::Pause(at(620)));
    }

    #[test]
    fn socket_drops_count_for_rapid_before_the_round_ends() {
        let stops = |socket_drops| {
            let mut law = built("stop_and_go", &[("predictor", "rapid")], RATE);
            let rtt = RttEstimator::new(Span::from_millis(20));
            // Priorities 8, 10 with the loss, 8, 9: one less than at the loss.
            for (n, (millis, drops)) in
                [(250, 0), (50, socket_drops), (250, 0), (150, 0)].into_iter().enumerate()
            {
                let sample = feedback(at(n as u64 * 10), &rtt, 100, 0, None);
                let host = Some(sleep(millis));
                law.on_feedback(&FeedbackSample { host, socket_drops: drops, ..sample });
            }
            matches!(law.permit(), Permit::Pause(_))
        };
        assert!(stops(7) && !stops(0));
    }

    #[test]
    fn with_receiver_side_guessing_the_sender_pauses_only_on_request() {
        for predictor in ["rapid", "rbudp+"] {
            let settings = [("predictor", predictor), ("guess_at", "receiver"), ("waiting", "15ms")];
            let (mut sends, mut receives) =
                (built("stop_and_go", &settings, RATE), built("stop_and_go", &settings, RATE));
            let go = Permit::Go(Limits::at_rate(RATE));
            // Priorities 2, 4, 6 of 10 with a loss at the last one, 3 and 5: RAPID stops there. RBUDP+ stops
            // after a slice of 100 ms.
            let mut advice = Vec::new();
            for (n, (millis, drops)) in
                [(800, 0), (600, 0), (450, 9), (700, 0), (540, 0)].into_iter().enumerate()
            {
                let now = at(50 * n as u64);
                let sample =
                    LocalHostSample { now, host: Some(sleep(millis)), received: 10, socket_drops: drops };
                advice.extend(receives.advise(&sample).map(|duration| (n, duration)));
                sends.on_sent(&SentBatch { now, packets: 1, bytes: 1_472, in_flight: 1_472 });
                report(sends.as_mut(), 50 * n as u64, drops, sleep(millis));
                sends.on_deadline(now);
                assert_eq!((sends.permit(), sends.deadline()), (go, None), "{predictor}");
            }
            let expected = match predictor {
                "rapid" => vec![(4, Span::from_millis(540))],
                _ => vec![(2, Span::from_millis(15))],
            };
            assert_eq!(advice, expected);
            sends.on_pause(at(300), expected[0].1);
            assert_eq!(sends.permit(), Permit::Pause(at(300) + expected[0].1));
            sends.on_pause(at(310), Span::from_secs(100));
            assert_eq!(sends.permit(), Permit::Pause(at(310) + MAX_PAUSE), "the newer one counts, bounded");
            sends.on_deadline(at(310) + MAX_PAUSE);
            assert_eq!(sends.permit(), go);
        }
        let mut sender = built("stop_and_go", &[], RATE);
        sender.on_pause(at(1), Span::from_millis(5));
        assert!(matches!(sender.permit(), Permit::Go(_)), "it guesses itself");
    }

    #[test]
    fn rapid_without_a_sleep_average_never_stops() {
        let mut law = built("stop_and_go", &[("predictor", "rapid")], RATE);
        let host = HostSample { run_delay: Some(Span::from_millis(50)), ..HostSample::default() };
        for n in 0..100 {
            assert!(matches!(report(law.as_mut(), n * 10, n % 2, host), Permit::Go(_)));
        }
    }

    #[test]
    fn rbudp_plus_pauses_after_each_time_slice_as_the_model_predicts() {
        use SchedulerCase::{I, II, III, IV, V, VI};
        let estimate = |case, observed| Estimate {
            time_slice: Span::from_millis(100),
            case,
            reentry: Probability::new(0.5).unwrap(),
            waiting: Span::from_millis(10),
            observed: Span::from_millis(observed),
            sampled_at: None,
            unseen: 0,
            unseen_for: Span::ZERO,
            slice_ends: None,
        };
        for (case, millis) in [(I, 50), (II, 50), (III, 90), (IV, 50), (V, 90), (VI, 90)] {
            assert_eq!(estimate(case, 40).suspension(), Span::from_millis(millis), "{case:?}");
        }
        let mut known = estimate(I, 40);
        known.on_suspensions(Span::from_millis(240), 3);
        assert_eq!(known.observed, Span::from_millis(50), "a quarter of 80 and three of 40");
        let mut law = built("stop_and_go", &[("waiting", "15ms")], RATE);
        let sent = SentBatch { now: at(50), packets: 1, bytes: 1_472, in_flight: 1_472 };
        law.on_sent(&sent);
        law.on_sent(&SentBatch { now: at(90), ..sent });
        assert_eq!(law.deadline(), Some(at(150)));
        law.on_deadline(at(150));
        assert_eq!((law.permit(), law.deadline()), (Permit::Pause(at(165)), Some(at(165))));
        law.on_deadline(at(165));
        assert_eq!(law.deadline(), None, "a slice begins with what leaves");
    }

    #[test]
    fn rbudp_plus_pauses_for_an_idle_receiver_too_and_rapid_does_not() {
        let path = PathModel { drain: Some(Rate::from_mbps(1_000)), ..PathModel::default() };
        let mut run = Harness::new(built("stop_and_go", &[], RATE), path.clone());
        let measured = run.measure(Span::from_secs(20));
        // 10 ms after each 100 ms: the transfer takes a tenth longer, within the range of figure 3.
        assert_near(measured.held, 10.0 / 110.0, 0.02);
        let mut run = Harness::new(built("stop_and_go", &[("predictor", "rapid")], RATE), path);
        let measured = run.measure(Span::from_secs(20));
        assert!(measured.held < 1e-9, "{measured:?}");
    }

    #[test]
    fn a_loaded_receiver_and_an_outage_are_survived() {
        for predictor in ["rbudp+", "rapid"] {
            let path = PathModel {
                drain: Some(Rate::from_mbps(1_000)),
                suspended: Some((Span::from_millis(200), Span::from_millis(50))),
                socket_buffer: 1_000_000,
                ..PathModel::default()
            };
            let mut run = Harness::new(built("stop_and_go", &[("predictor", predictor)], RATE), path);
            run.run_for(Span::from_secs(5));
            let before = run.measure(Span::from_secs(20));
            assert!(before.held > 0.1 && before.goodput > Rate::from_mbps(50), "{predictor}: {before:?}");
            run.outage(Span::from_secs(2));
            run.run_for(Span::from_secs(5));
            let after = run.measure(Span::from_secs(20));
            // How its pauses coincide with the load's is chance.
            assert!(after.goodput > before.goodput.mul_f64(0.5), "{predictor}: {after:?}");
        }
    }

    #[test]
    fn a_transfer_recovers_within_three_seconds_after_the_last_reported_suspension() {
        let pause_after = |apart, host: HostSample| {
            let mut run = Harness::new(built("stop_and_go", &[], RATE), PathModel::default());
            for _ in 0..6 {
                run.run_for(apart);
                let rtt = run.rtt.clone();
                let sample = feedback(run.now, &rtt, 100, 0, None);
                run.law.on_feedback(&FeedbackSample { host: Some(host), ..sample });
            }
            run.run_for(Span::from_secs(3));
            run.measure(Span::from_secs(5)).held
        };
        let of = |run_delay| HostSample { run_delay: Some(run_delay), ..HostSample::default() };
        for (apart, host) in [
            // Longer than the time since the previous host sample.
            (Span::from_millis(1), of(Span::MAX)),
            (Span::from_secs(20), of(Span::from_secs(10))),
            (Span::from_secs(2), of(Span::from_millis(700))),
        ] {
            let held = pause_after(apart, host);
            assert!(held < 0.12, "{host:?}, {apart} apart: on hold for {held:.2} of the time");
        }
    }

    #[test]
    fn pauses_are_bounded_for_any_host_report() {
        let mut law = built("stop_and_go", &[("case", "VI"), ("reentry", "0.99")], RATE);
        let host = HostSample { run_delay: Some(Span::MAX), ..HostSample::default() };
        report(law.as_mut(), 1, 0, host);
        report(law.as_mut(), 60_001, 0, host);
        law.on_sent(&SentBatch { now: at(60_002), packets: 1, bytes: 1, in_flight: 1 });
        law.on_deadline(at(60_102));
        assert_eq!(law.permit(), Permit::Pause(at(60_102) + MAX_UNSEEN_TIME));
    }
}
