//! Predicts when the receiving process will next be without a processor, from what feedback reports of the
//! host (asynch, section 4). Predictions are times of the sender's clock at which sending has to change, so
//! that packets in flight do not arrive during the suspension.
//!
//! The paper's predictor needs the average sleep time of the O(1) scheduler; the others work with current
//! schedulers. They detect suspensions and assume that those at regular intervals continue: half of the
//! paper's loads behave so.

use haul_base::{Cause, Span, Time};
use haul_stack::{choice, configuration};

use super::FeedbackSample;

choice! {
    /// Signal from which suspensions are predicted.
    pub enum PredictedBy {
        /// Read delays.
        ReadDelay = "read_delay",
        /// Run delay, as counted by the host's kernel.
        RunDelay = "run_delay",
        /// Gaps in the feedback.
        Gaps = "gaps",
        /// Gaps in the feedback with losses of the host.
        HostLosses = "host_losses",
        /// The sleep average of the O(1) scheduler.
        SleepAverage = "sleep_average",
    }
}

configuration! {
    /// Parameters of `proactive` for predicting suspensions.
    pub struct PredictorConfig: "proactive" {
        predictor: PredictedBy = "read_delay",
            "what predicts suspensions; `host_losses`: feedback gaps with host losses; `sleep_average` needs the O(1) scheduler";
        noticeable: Span in (Span::from_micros(100), Span::from_secs(1)) = "5ms", "shortest suspension that counts";
        seen: u64 in (2, 1_000) = "4", "suspensions seen before one is predicted";
        irregularity: f64 in (0.0, 1.0) = "0.2",
            "relative mean deviation of the intervals above which none is predicted";
        blind: u64 in (1, 1_000) = "8", "suspensions predicted in a row without observing one";
        memory: Span in (Span::from_millis(10), Span::from_secs(600)) = "10s",
            "how long extremes of the sleep average are remembered";
    }
}

/// Weight of the newest interval in the means. Our choice: a changed load is followed within about four.
const GAIN: f64 = 0.25;
/// Minimum length of a gap in the feedback, in multiples of the usual spacing.
const GAP: f64 = 4.0;
/// Losses are detected within this many round trips after the gap that explains them: the loss of a
/// retransmission takes one more than that of a first transmission.
const FOUND_ROUNDS: u64 = 3;

/// A predicted suspension: sending should change from `from` until `until`. `duration` is the length of the
/// suspension itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Suspension {
    pub(super) from: Time,
    pub(super) until: Time,
    pub(super) duration: Span,
}

/// Intervals and lengths of past suspensions.
#[derive(Debug)]
struct Periodic {
    needed: u64,
    irregularity: f64,
    blind: u64,
    seen: u64,
    last: Time,
    /// Means in seconds.
    period: f64,
    deviation: f64,
    length: f64,
}

impl Periodic {
    fn on_suspension(&mut self, began: Time, measured: Span) {
        let since = began.since(self.last).as_secs_f64();
        self.seen += 1;
        self.last = self.last.max(began);
        match self.seen {
            1 => self.length = measured.as_secs_f64(),
            2 => self.period = since,
            _ => self.on_interval(since),
        }
        self.length += (measured.as_secs_f64() - self.length) * GAIN;
    }

    /// Adds an interval. One that spans several undetected suspensions counts as several.
    fn on_interval(&mut self, since: f64) {
        let periods = if self.is_regular() { (since / self.period).round().max(1.0) } else { 1.0 };
        let difference = since / periods - self.period;
        self.deviation += (difference.abs() - self.deviation) * GAIN;
        self.period += difference * GAIN;
    }

    fn is_regular(&self) -> bool {
        self.seen >= self.needed
            && self.period > self.length
            && self.deviation <= self.irregularity * self.period
    }

    /// Returns the next suspension that is not over at `now`; sending has to change `lead` before it.
    fn next(&self, now: Time, lead: Span) -> Option<Suspension> {
        if !self.is_regular() {
            return None;
        }
        let over = now.since(self.last).as_secs_f64() + lead.as_secs_f64() - self.length;
        let periods = (over / self.period).ceil().max(1.0);
        let duration = Span::from_secs_f64(self.length);
        let from = (self.last + Span::from_secs_f64(self.period * periods)) - lead;
        let until = from + duration;
        (periods <= self.blind as f64 && until > now).then_some(Suspension { from, until, duration })
    }
}

/// Minimum and maximum of the last one to two halves of the memory.
#[derive(Debug)]
struct Extremes {
    memory: Span,
    half_ends: Time,
    halves: [Option<(Span, Span)>; 2],
}

impl Extremes {
    fn add(&mut self, now: Time, value: Span) {
        if now >= self.half_ends {
            self.halves = [None, self.halves[0].filter(|_| now < self.half_ends + self.memory)];
            self.half_ends = now + self.memory / 2;
        }
        let (least, most) = self.halves[0].unwrap_or((value, value));
        self.halves[0] = Some((least.min(value), most.max(value)));
    }

    fn both(&self) -> Option<(Span, Span)> {
        let known = self.halves.iter().flatten().copied();
        known.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// Saw-tooth of the average sleep time: it falls while the process runs, and the process is switched out at
/// its minimum. The time to act is half-way between maximum and minimum (asynch, section 4).
#[derive(Debug)]
struct SawTooth {
    extremes: Extremes,
    before: Option<(Time, Span)>,
    /// Mean length of the suspensions seen in the teeth, seconds.
    length: f64,
    cycles: u64,
    blind: u64,
    /// Times acted since a complete tooth was seen.
    acted: u64,
}

impl SawTooth {
    /// Adds a value. A tooth during which sending paused until `paused_until` is incomplete: neither its
    /// minimum nor the length of the suspension was seen. After `blind` of them one is let pass, or the
    /// minimum would expire.
    fn on_value(
        &mut self,
        now: Time,
        value: Span,
        noticeable: Span,
        paused_until: Time,
    ) -> Option<Suspension> {
        self.extremes.add(now, value);
        let (at, before) = self.before.replace((now, value))?;
        let (least, most) = self.extremes.both()?;
        if most.saturating_sub(least) < noticeable {
            return None;
        }
        if value > before {
            // It was switched out at about the time of the previous sample.
            if at < paused_until {
                return None;
            }
            (self.cycles, self.acted) = (self.cycles + 1, 0);
            let gain = if self.cycles == 1 { 1.0 } else { GAIN };
            self.length += (now.since(at).as_secs_f64() - self.length) * gain;
            return None;
        }
        let half = (least + most) / 2;
        if self.cycles == 0 || before <= half || value > half {
            return None;
        }
        self.acted += 1;
        if self.acted > self.blind {
            return None;
        }
        let fall = before.saturating_sub(value).as_secs_f64() / now.since(at).as_secs_f64().max(1e-6);
        let to_minimum = value.saturating_sub(least).as_secs_f64() / fall.max(1e-6);
        let duration = Span::from_secs_f64(self.length);
        Some(Suspension { from: now, until: now + Span::from_secs_f64(to_minimum) + duration, duration })
    }
}

/// Gaps in the feedback: a receiver without a processor sends none.
#[derive(Debug, Default)]
struct Spacing {
    /// Mean spacing in seconds.
    usual: f64,
    last_sample_at: Option<Time>,
    in_flight: bool,
}

impl Spacing {
    /// Returns when the gap that this feedback ends began, and its length beyond the usual spacing. Nothing
    /// was sent until `paused_until`: missing feedback during that time is no gap.
    fn gap(
        &mut self,
        sample: &FeedbackSample<'_>,
        noticeable: Span,
        paused_until: Time,
    ) -> Option<(Time, Span)> {
        let before = self.last_sample_at.replace(sample.now);
        let was_in_flight =
            std::mem::replace(&mut self.in_flight, sample.in_flight > 0 && !sample.app_limited);
        let before =
            before.filter(|&before| was_in_flight && before > paused_until + sample.rtt.smoothed())?;
        let gap = sample.now.since(before).as_secs_f64();
        if self.usual > 0.0 && gap > (GAP * self.usual).max(noticeable.as_secs_f64()) {
            return Some((before, Span::from_secs_f64(gap - self.usual)));
        }
        self.usual += (gap - self.usual) * if self.usual > 0.0 { GAIN } else { 1.0 };
        None
    }
}

/// Whether the receiving host lost any of the packets that this feedback declares lost.
fn has_host_losses(sample: &FeedbackSample<'_>) -> bool {
    let share = sample.verdict.map_or(0.0, |verdict| verdict.share(Cause::ReceiverHost));
    sample.host_lost_packets > 0 || (sample.lost_packets > 0 && share > 0.0)
}

#[derive(Debug)]
enum Sense {
    ReadDelay,
    RunDelay,
    Gaps(Spacing),
    /// With the last gap, until losses of the host that it explains are found.
    HostLosses(Spacing, Option<(Time, Span)>),
    SleepAverage(SawTooth),
}

/// The predictor: see the module documentation.
#[derive(Debug)]
pub(super) struct Predictor {
    sense: Sense,
    noticeable: Span,
    periodic: Periodic,
    /// Current suspension: its start, and its length so far.
    present: Option<(Time, Span)>,
    paused_until: Time,
}

impl Predictor {
    pub(super) fn new(parameters: &PredictorConfig) -> Self {
        let memory = parameters.memory;
        let extremes = Extremes { memory, half_ends: Time::ZERO, halves: [None; 2] };
        let sense = match parameters.predictor {
            PredictedBy::RunDelay => Sense::RunDelay,
            PredictedBy::Gaps => Sense::Gaps(Spacing::default()),
            PredictedBy::HostLosses => Sense::HostLosses(Spacing::default(), None),
            PredictedBy::SleepAverage => {
                let blind = parameters.blind;
                Sense::SleepAverage(SawTooth {
                    extremes,
                    before: None,
                    length: 0.0,
                    cycles: 0,
                    blind,
                    acted: 0,
                })
            }
            PredictedBy::ReadDelay => Sense::ReadDelay,
        };
        let periodic = Periodic {
            needed: parameters.seen,
            irregularity: parameters.irregularity,
            blind: parameters.blind,
            seen: 0,
            last: Time::ZERO,
            period: 0.0,
            deviation: 0.0,
            length: 0.0,
        };
        let noticeable = parameters.noticeable;
        Self { sense, noticeable, periodic, present: None, paused_until: Time::ZERO }
    }

    /// Records that nothing is sent until then: missing feedback meanwhile is no gap.
    pub(super) fn on_pause(&mut self, until: Time) {
        self.paused_until = until;
    }

    /// Adds a feedback and returns the next expected suspension.
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) -> Option<Suspension> {
        let (now, rtt) = (sample.now, sample.rtt.smoothed());
        match &mut self.sense {
            Sense::SleepAverage(saw_tooth) => {
                let value = sample.host?.sleep_average?;
                return saw_tooth.on_value(now, value, self.noticeable, self.paused_until);
            }
            Sense::ReadDelay => {
                if let Some(delay) = sample.read_delay {
                    self.on_delay(now, delay, rtt);
                }
            }
            Sense::RunDelay => {
                if let Some(host) = sample.host
                    && let Some(delay) = host.run_delay
                {
                    let switches = u64::from(host.involuntary_switches.unwrap_or(1).max(1));
                    self.on_delay(now, delay / switches, rtt);
                }
            }
            Sense::Gaps(spacing) => {
                if let Some((began, measured)) = spacing.gap(sample, self.noticeable, self.paused_until) {
                    self.periodic.on_suspension(began, measured);
                }
            }
            Sense::HostLosses(spacing, last) => {
                *last = spacing.gap(sample, self.noticeable, self.paused_until).or(*last);
                if let Some((began, measured)) = last.take_if(|_| has_host_losses(sample))
                    && now.since(began + measured) <= rtt * FOUND_ROUNDS
                {
                    self.periodic.on_suspension(began, measured);
                }
            }
        }
        self.periodic.next(now, rtt)
    }

    /// Adds a delay. Consecutive delays above `noticeable` belong to one suspension, as long as the longest
    /// of them. A suspension during a pause is ignored, as only its end might be seen.
    fn on_delay(&mut self, now: Time, delay: Span, rtt: Span) {
        if self.paused_until > Time::ZERO && now <= self.paused_until + rtt {
            self.present = None;
        } else if delay >= self.noticeable {
            let (began, longest) = self.present.unwrap_or((now - delay, delay));
            self.present = Some((began, longest.max(delay)));
        } else if let Some((began, measured)) = self.present.take() {
            self.periodic.on_suspension(began, measured);
        }
    }
}
