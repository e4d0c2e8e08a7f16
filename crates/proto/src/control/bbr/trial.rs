//! Trial whether losses without a queue are caused by the sender's rate. A policer or a queue of a few
//! packets drops the excess over its rate without delay. So `ProbeBW_DOWN` is a trial at 0.9 times the rate
//! at which packets arrived while others were lost. If most of the losses stop, the sender's rate caused
//! them, and that rate of arrival is the bandwidth. Losses of a round in which even a short queue was never
//! empty do not count: capacity that falls for a while fills one, and is no policer.
//!
//! A trial starts at once when the path begins to lose more than an earlier trial has shown, and after each
//! bandwidth probe while the path is assumed to have losses of its own. Its losses are identified by packet
//! number, as losses of earlier packets are still detected during it.

use haul_base::{Rate, Span};

use super::Bbr;
use super::loss::LossCounts;
use super::phase::Phase;
use super::state::{Acks, Trial};
use crate::control::{FeedbackSample, LossRuns};

/// The sender's rate caused the losses if a trial has lost less than this share of the expected packets, with
/// at least this many runs of losses expected: then chance cannot explain it. Our choices.
const SELF_INFLICTED_SHARE: f64 = 0.5;
const MIN_EXPECTED: f64 = 8.0;
/// Time after a trial's finding for which a policer is assumed: it lets a burst pass at times, which is no
/// new path. Our choice.
const POLICED_DURATION: Span = Span::from_secs(30);

impl Trial {
    /// Whether this many packets suffice for a verdict.
    fn is_sufficient(&self, packets: u64) -> bool {
        packets as f64 * self.loss_rate >= MIN_EXPECTED * self.mean_run
    }

    fn on_feedback(&mut self, loss: &LossRuns) {
        for run in loss.list() {
            let end = self.part_before(run.first_pn.saturating_add(run.packets));
            let packets = end.saturating_sub(run.first_pn.max(self.first_pn));
            let part = LossCounts { lost: packets, runs: u64::from(packets > 0), ..LossCounts::default() };
            self.lost = self.lost.and(part);
        }
    }

    /// Ends a round: the outcome of the packets sent before it began is known. Returns the losses, and
    /// whether they are those of the whole trial.
    fn on_round(&mut self, next_pn: u64) -> (LossCounts, bool) {
        let known = std::mem::replace(&mut self.round_pn, next_pn);
        let packets = self.part_before(known).saturating_sub(self.first_pn);
        let is_over = self.end_pn.is_some_and(|end_pn| known >= end_pn);
        (LossCounts { packets, ..self.lost }, is_over)
    }

    /// Limits `pn` to the end of the trial.
    fn part_before(&self, pn: u64) -> u64 {
        self.end_pn.map_or(pn, |end_pn| pn.min(end_pn))
    }
}

impl Bbr {
    /// Begins `ProbeBW_DOWN`, as a trial if the losses without a queue are high enough.
    pub(super) fn begin_trial(&mut self) {
        self.policer.steady_pn = self.next_pn;
        let (loss_rate, mean_run) = self.loss.present();
        let is_queued = self.round_trip.is_queued(self.serialization());
        let should_try = loss_rate > self.loss.threshold() && !self.app_limited && !is_queued;
        self.policer.trial =
            self.policer.steady_arrival_rate.filter(|_| should_try).map(|arrival_rate| Trial {
                loss_rate,
                mean_run,
                arrival_rate,
                first_pn: self.next_pn,
                end_pn: None,
                lost: LossCounts::default(),
                round_pn: self.next_pn,
            });
    }

    /// Returns the losses of a feedback among packets sent since the last probe.
    pub(super) fn steady_losses(&self, sample: &FeedbackSample<'_>) -> LossCounts {
        let runs = sample.loss.list().iter().filter(|run| run.first_pn >= self.policer.steady_pn);
        let lost = runs.clone().map(|run| run.packets).sum::<u64>().min(sample.lost_packets);
        LossCounts { lost, runs: runs.count() as u64, ..LossCounts::default() }
    }

    /// Returns the bandwidth for pacing: during a trial the rate of arrival; behind a policer, what a burst
    /// lets pass does not speed up a probe.
    pub(super) fn paced_bandwidth(&self) -> Rate {
        let most = match self.phase {
            Phase::Down => self.policer.trial.map(|trial| trial.arrival_rate),
            Phase::Up if self.is_policed() => Some(self.cycle.before),
            _ => None,
        };
        most.map_or(self.bandwidth(), |most| most.min(self.bandwidth()))
    }

    /// Whether a recent trial has shown a policer.
    pub(super) fn is_policed(&self) -> bool {
        self.pauses.feedback_at < self.policer.policed_until
    }

    /// Adds the losses of a feedback to the trial.
    pub(super) fn watch_trial(&mut self, sample: &FeedbackSample<'_>) {
        let Some(trial) = &mut self.policer.trial else { return };
        if self.phase != Phase::Down {
            trial.end_pn.get_or_insert(self.next_pn);
        }
        if sample.lost_packets > 0 {
            trial.on_feedback(sample.loss);
        }
    }

    /// Judges a round without probing; `is_clean`: no queue stood, either.
    pub(super) fn check_losses(&mut self, steady: LossCounts, is_clean: bool) {
        let next_pn = self.next_pn;
        match &mut self.policer.trial {
            Some(trial) => {
                let (counts, is_over) = trial.on_round(next_pn);
                if is_clean && trial.is_sufficient(counts.packets) {
                    self.end_trial(counts);
                } else if is_over {
                    self.policer.trial = None;
                }
            }
            None if is_clean => self.check_steady_losses(steady),
            None => {}
        }
    }

    fn end_trial(&mut self, counts: LossCounts) {
        let Some(Trial { loss_rate, arrival_rate, .. }) = self.policer.trial.take() else { return };
        if (counts.lost as f64) < counts.packets as f64 * loss_rate * SELF_INFLICTED_SHARE {
            self.loss.refute(counts);
            self.max_bandwidth.reset(arrival_rate.min(self.max_bandwidth.get()));
            self.policer.policed_until = self.pauses.feedback_at + POLICED_DURATION;
        } else {
            self.loss.confirm(counts);
        }
    }

    fn check_steady_losses(&mut self, steady: LossCounts) {
        let has_increased = self.loss.learn(steady);
        if has_increased || self.phase == Phase::Cruise {
            self.policer.steady_arrival_rate = self.policer.arrival_rate;
        }
        if has_increased && !self.app_limited && matches!(self.phase, Phase::Down | Phase::Cruise) {
            self.begin_down();
            // Nothing of a probe is in flight.
            self.cycle.acks = Acks::Init;
        }
    }
}
