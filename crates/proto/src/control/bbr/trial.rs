//! Whether losses without a queue are the sender's own doing: `ProbeBW_DOWN` is a trial at nine tenths of the rate at which
//! packets arrived while others were lost. If most of the losses stop, they were: a policer or a queue of a few packets
//! drops what exceeds its rate without delay. Then that rate of arrival is the bandwidth.
//!
//! A trial follows each probe for bandwidth, and comes at once when the path begins to lose more than before.

use haul_base::Rate;

use super::cycle::Acks;
use super::loss::LossCounts;
use super::{Bbr, Phase};

/// Losses are the sender's own doing if a trial has lost less than this share of what was expected, and so many losses were, at
/// least: chance cannot explain it. Our choices.
const OWN_DOING: f64 = 0.5;
const LEAST_EXPECTED: f64 = 8.0;
/// A trial ends without a verdict after so many rounds. Our choice.
const MOST_ROUNDS: u32 = 32;

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// The loss rate that is tried, and the rate of arrival beside it.
    loss_rate: f64,
    arrived: Rate,
    first_pn: u64,
    rounds: u32,
    /// Of packets that have left in it.
    told: LossCounts,
    /// The round that ends next has left in it.
    is_next_part: bool,
}

impl Trial {
    /// Whether so many packets in it suffice for a verdict.
    fn suffices(&self, packets: u64) -> bool {
        packets as f64 * self.loss_rate >= LEAST_EXPECTED
    }

    /// Whether the losses have stopped. `None` while too little is known.
    fn verdict(&self) -> Option<bool> {
        let expected = self.told.packets as f64 * self.loss_rate;
        self.suffices(self.told.packets).then(|| (self.told.lost as f64) < expected * OWN_DOING)
    }
}

impl Bbr {
    /// `ProbeBW_DOWN` begins, and is a trial if the path loses without a queue.
    pub(super) fn begin_trial(&mut self) {
        let present = LossCounts {
            lost: self.round.lost,
            marked: 0,
            packets: self.round.acked.saturating_add(self.round.lost),
        };
        let recent = Some(self.judged.and(present)).filter(|recent| recent.exceeds(0.0));
        let loss_rate = self.loss.present().max(recent.map_or(0.0, LossCounts::loss_rate));
        let is_queued = self.round_trip.is_queued(self.serialization());
        let tells = loss_rate > 0.0 && self.arrived > Rate::ZERO && !self.app_limited && !is_queued;
        self.trial = tells.then(|| Trial {
            loss_rate,
            arrived: self.arrived,
            first_pn: self.next_pn,
            rounds: 0,
            told: LossCounts::default(),
            is_next_part: false,
        });
    }

    /// Whether `ProbeBW_DOWN` has lasted long enough for a trial's verdict.
    pub(super) fn may_end_trial(&self) -> bool {
        self.trial.is_none_or(|trial| {
            trial.loss_rate <= self.loss.threshold()
                || trial.suffices(self.next_pn.saturating_sub(trial.first_pn))
                || trial.rounds >= MOST_ROUNDS
        })
    }

    /// The bandwidth by which it paces.
    pub(super) fn paced_bandwidth(&self) -> Rate {
        let tried = self.trial.filter(|_| self.phase == Phase::Down).map(|trial| trial.arrived);
        tried.map_or(self.bandwidth(), |tried| tried.min(self.bandwidth()))
    }

    /// A round has ended in which the sender did not probe; `is_clean`: and no queue stood.
    pub(super) fn judge_losses(&mut self, judged: LossCounts, is_clean: bool) {
        let is_down = self.phase == Phase::Down;
        let is_part = self.trial.as_mut().is_some_and(|trial| {
            trial.rounds += 1;
            std::mem::replace(&mut trial.is_next_part, is_down)
        });
        if is_part && is_clean {
            self.judge_trial(judged);
        } else if self.trial.is_some() && !is_down {
            self.trial = None;
        }
        if is_clean && !is_part {
            self.judge_steady(judged);
        }
    }

    fn judge_trial(&mut self, judged: LossCounts) {
        let Some(trial) = &mut self.trial else { return };
        trial.told = trial.told.and(judged);
        let Some(is_own_doing) = trial.verdict() else { return };
        let Trial { arrived, told, .. } = *trial;
        self.trial = None;
        if is_own_doing {
            self.loss.refute(told);
            self.max_bandwidth.reset(arrived.min(self.max_bandwidth.get()));
            self.is_tried = false;
        } else {
            self.loss.confirm(told);
        }
    }

    fn judge_steady(&mut self, judged: LossCounts) {
        let is_more = self.loss.learn(judged);
        if is_more && self.phase == Phase::Cruise && !std::mem::replace(&mut self.is_tried, true) {
            self.begin_down();
            // Nothing of a probe is on its way.
            self.cycle.acks = Acks::Init;
        }
    }
}
