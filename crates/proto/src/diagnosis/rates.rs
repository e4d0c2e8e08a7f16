//! The rates of sending of the last seconds, and what was lost at each without a queue: a policer drops what exceeds its rate.

use std::collections::VecDeque;

use haul_base::{Cause, CauseCounts, Rate, Span, Time};
use haul_diagnosis::{RateFinding, SentStretch};

use super::kernel::Claim;
use super::losses::Losses;
use crate::control::{FeedbackSample, LossRun};

/// Stretches that are remembered: 20 s with the shortest ones. Our choice.
const REMEMBERED: usize = 1_024;
/// A stretch lasts half of a round trip, but no less and no more than this. Our choice: bursts of the pacer are 3 ms apart at
/// most.
const SHORTEST: Span = Span::from_millis(20);
const LONGEST: Span = Span::from_millis(100);
/// One that lasted this many times as long has no rate: nothing was heard, or nothing left. Our choice.
const SILENCE: u64 = 4;
/// What became of packets is known after so many round trips. Our choice.
const KNOWN_AFTER: u64 = 2;
/// Losses are tested anew after this time at the soonest: a test sorts all stretches.
const BETWEEN_TESTS: Span = Span::from_millis(100);
/// Runs of losses that may wait until it is known whether they were above a policer's rate. Our choice.
const MOST_DEFERRED: usize = 2_048;

/// A stretch, and its packets.
#[derive(Clone, Copy, Debug)]
struct Sent {
    stretch: SentStretch,
    first_pn: u64,
    end_pn: u64,
    ended: Time,
}

/// Losses that count as random for now.
#[derive(Clone, Copy, Debug)]
struct Deferred {
    run: LossRun,
    /// Their transmission window has ended.
    is_past: bool,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct SentRates {
    list: VecDeque<Sent>,
    /// When the present stretch began, and the number of its first packet.
    began: Option<(Time, u64)>,
    deferred: VecDeque<Deferred>,
    /// So many losses above a policer's rate are the medium's, and were not found yet.
    by_medium: f64,
    tested_at: Option<Time>,
    finding: RateFinding,
    /// Kept for their memory.
    tested: Vec<SentStretch>,
    order: Vec<(f64, usize)>,
}

impl SentRates {
    /// Whether the path drops what exceeds a rate.
    pub(super) fn has_onset(&self) -> bool {
        self.finding.onset.is_some()
    }

    /// Takes what has left since the feedback before. A sender that had less to send than it might has left no more than the
    /// bursts that a policer drops, so its mean rate says nothing.
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        let Some((began, first_pn)) = self.began else {
            self.began = Some((sample.now, sample.next_pn));
            return;
        };
        let shortest = (sample.rtt.smoothed() / 2).clamp(SHORTEST, LONGEST);
        let (lasted, packets) = (sample.now.since(began), sample.next_pn.saturating_sub(first_pn));
        if lasted < shortest {
            return;
        }
        self.began = Some((sample.now, sample.next_pn));
        if packets == 0 || sample.app_limited || lasted > shortest * SILENCE {
            return;
        }
        if self.list.len() == REMEMBERED {
            self.list.pop_front();
        }
        let rate = Rate::from_transfer(packets.saturating_mul(sample.datagram), lasted);
        let stretch = SentStretch { rate, packets, lost: 0, runs: 0 };
        self.list.push_back(Sent { stretch, first_pn, end_pn: sample.next_pn, ended: sample.now });
    }

    /// Takes losses without a queue; those that the claim names are the host's.
    pub(super) fn lose(&mut self, sample: &FeedbackSample<'_>, claim: &Claim) {
        if claim.unnamed() > 0 {
            return;
        }
        // From the first loss on there is room for all.
        self.list.reserve(REMEMBERED - self.list.len());
        self.deferred.reserve(MOST_DEFERRED - self.deferred.len());
        for (run, named) in sample.loss.list().iter().zip(claim.named()) {
            let packets = run.packets.saturating_sub(named);
            if packets == 0 {
                continue;
            }
            if let Some(at) = self.find(run.first_pn) {
                let stretch = &mut self.list[at].stretch;
                stretch.lost = stretch.lost.saturating_add(packets).min(stretch.packets);
                stretch.runs += 1;
            }
            if self.deferred.len() == MOST_DEFERRED {
                self.deferred.pop_front();
            }
            self.deferred.push_back(Deferred { run: LossRun { packets, ..*run }, is_past: false });
        }
    }

    fn find(&self, pn: u64) -> Option<usize> {
        let at = self.list.partition_point(|sent| sent.end_pn <= pn);
        self.list.get(at).filter(|sent| sent.first_pn <= pn).map(|_| at)
    }

    /// Looks at losses that count as random again, now and then: those of the present window, and of `past` ones.
    pub(super) fn review(
        &mut self,
        sample: &FeedbackSample<'_>,
        present: &mut Losses,
        past: &mut CauseCounts,
    ) {
        let is_due = self.tested_at.is_none_or(|at| sample.now.since(at) >= BETWEEN_TESTS);
        if is_due && !self.deferred.is_empty() {
            self.tested_at = Some(sample.now);
            let known = sample.now - sample.rtt.smoothed() * KNOWN_AFTER;
            self.test(known);
            self.attribute(known, present, past);
        }
    }

    /// A window has ended.
    pub(super) fn end_window(&mut self) {
        self.deferred.iter_mut().for_each(|one| one.is_past = true);
    }

    /// Gives back memory that is kept for the next feedback.
    pub(super) fn release_idle(&mut self) {
        if self.deferred.is_empty() {
            self.deferred = VecDeque::new();
        }
        (self.tested, self.order) = (Vec::new(), Vec::new());
    }

    /// Tests the stretches that had ended at `known`.
    fn test(&mut self, known: Time) {
        self.tested.clear();
        self.tested.reserve(REMEMBERED);
        self.order.clear();
        self.order.reserve(REMEMBERED);
        self.tested.extend(self.list.iter().take_while(|sent| sent.ended <= known).map(|sent| sent.stretch));
        self.finding = RateFinding::of(&self.tested, &mut self.order);
    }

    /// Puts the losses of stretches above the policer's rate down to congestion, but for what the medium loses of them.
    fn attribute(&mut self, known: Time, present: &mut Losses, past: &mut CauseCounts) {
        let Some(onset) = self.finding.onset else { return };
        let mut exceeding = Vec::new();
        for _ in 0..self.deferred.len() {
            let Some(one) = self.deferred.pop_front() else { break };
            match self.find(one.run.first_pn).map(|at| self.list[at]) {
                Some(sent) if sent.ended > known || sent.stretch.rate < onset => self.deferred.push_back(one),
                Some(sent) if self.is_mediums(&one.run, &sent.stretch) => {}
                Some(_) if one.is_past => {
                    past.attribute_some(Cause::Random, Cause::Congestion, one.run.packets);
                }
                Some(_) => exceeding.push(one.run),
                // The stretch has not ended, or is forgotten.
                None if self.list.back().is_some_and(|last| one.run.first_pn >= last.end_pn) => {
                    self.deferred.push_back(one);
                }
                None => {}
            }
        }
        present.attribute_runs(Cause::Random, Cause::Congestion, &mut exceeding);
    }

    /// Whether these packets count as the medium's. Nobody knows which of a stretch are: as many as it loses at low rates.
    fn is_mediums(&mut self, run: &LossRun, stretch: &SentStretch) -> bool {
        let expected = self.finding.medium_rate * stretch.packets as f64;
        let packets = run.packets as f64;
        self.by_medium += packets * (expected / stretch.lost.max(1) as f64).min(1.0);
        let is_one = self.by_medium >= packets / 2.0;
        if is_one {
            self.by_medium -= packets;
        }
        is_one
    }
}
