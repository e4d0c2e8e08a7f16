//! The losses of the present transmission window: how many each cause has, and what each packet is put down to.

use std::cmp::Reverse;

use haul_base::{Cause, CauseCounts, Verdict};

use super::kernel::Claim;
use crate::control::{LossRun, LossRuns};

/// Packets lost one behind the other, and what they are put down to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attribution {
    /// Which packets.
    pub run: LossRun,
    /// The probability of each cause, the same for each of them.
    pub causes: Verdict,
}

/// The causes of a feedback's losses that no socket has dropped.
#[derive(Debug, Default)]
pub(super) struct OtherLosses {
    /// Of packets that left when the queue was too short to drop them.
    pub(super) before_onset: CauseCounts,
    /// All others.
    pub(super) others: CauseCounts,
}

impl OtherLosses {
    pub(super) fn of(&self, cause: Cause) -> u64 {
        self.before_onset.of(cause) + self.others.of(cause)
    }

    pub(super) fn whole(&self) -> CauseCounts {
        let mut whole = self.others;
        whole.merge(&self.before_onset);
        whole
    }

    /// Attributes so many random losses to the host, which dropped them before they reached a socket.
    pub(super) fn attribute_early(&mut self, packets: u64) {
        let (from, to) = (Cause::Random, Cause::ReceiverHost);
        let moved = self.others.attribute_some(from, to, packets);
        self.before_onset.attribute_some(from, to, packets - moved);
    }
}

/// Runs that are kept of a window, at most: as many as one feedback can have, and as a signature can have lost packets.
const MOST: usize = LossRuns::MOST;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Losses {
    counts: CauseCounts,
    list: Vec<Attribution>,
    is_listed: bool,
    /// The runs of a feedback, each with its packets that were named. Kept for its memory.
    added: Vec<(LossRun, u64)>,
}

impl Losses {
    /// Keeps the runs from now on, or no longer.
    pub(super) fn list_runs(&mut self, is_listed: bool) {
        self.is_listed = is_listed;
    }

    pub(super) fn counts(&self) -> &CauseCounts {
        &self.counts
    }

    /// Gives all, and forgets it.
    pub(super) fn take(&mut self) -> (CauseCounts, Vec<Attribution>) {
        (std::mem::take(&mut self.counts), std::mem::take(&mut self.list))
    }

    /// Gives back memory that is kept for the next feedback.
    pub(super) fn release_idle(&mut self) {
        self.added = Vec::new();
    }

    /// Adds the losses of a feedback: these runs, of which the receiver's socket has dropped what is claimed and others
    /// the rest. Where it was not told which, the longest runs are the socket's: a full buffer drops neighbours.
    pub(super) fn add(
        &mut self,
        runs: &LossRuns,
        claim: &Claim,
        others: &OtherLosses,
        is_before_onset: impl Fn(&LossRun) -> bool,
    ) {
        self.counts.merge(&others.whole());
        self.counts.add(Cause::ReceiverHost, claim.packets());
        if !self.is_listed {
            return;
        }
        self.added.clear();
        self.added.extend(runs.list().iter().copied().zip(claim.named()));
        if claim.unnamed() > 0 {
            let rest = |(run, named): &(LossRun, u64)| (Reverse(run.packets - named), run.first_pn);
            self.added.sort_unstable_by_key(rest);
        }
        let mut unnamed = claim.unnamed();
        let [before_onset, at_queue] = [&others.before_onset, &others.others].map(CauseCounts::verdict);
        let room = MOST - self.list.len();
        self.list.extend(self.added.iter().take(room).map(|(run, named)| {
            let more = unnamed.min(run.packets - named);
            unnamed -= more;
            let part = (named + more) as f64 / run.packets.max(1) as f64;
            let verdict = before_onset.filter(|_| is_before_onset(run)).or(at_queue).or(before_onset);
            let mut causes = verdict.unwrap_or_default();
            for cause in Cause::ALL {
                causes.attribute(cause, Cause::ReceiverHost, part);
            }
            Attribution { run: *run, causes }
        }));
    }

    /// What one cause was said to have lost was lost to another.
    pub(super) fn attribute(&mut self, from: Cause, to: Cause) {
        self.attribute_some(from, to, u64::MAX);
    }

    /// As [`attribute`](Self::attribute), for the packets of these runs only. Sorts them.
    pub(super) fn attribute_runs(&mut self, from: Cause, to: Cause, runs: &mut [LossRun]) {
        runs.sort_unstable_by_key(|run| run.first_pn);
        self.counts.attribute_some(from, to, runs.iter().map(|run| run.packets).sum());
        let is_one =
            |one: &&mut Attribution| runs.binary_search_by_key(&one.run.first_pn, |run| run.first_pn).is_ok();
        self.list.iter_mut().filter(is_one).for_each(|one| one.causes.attribute(from, to, 1.0));
    }

    /// The same of so many of these packets; nobody knows which.
    pub(super) fn attribute_some(&mut self, from: Cause, to: Cause, packets: u64) {
        let all = self.counts.of(from);
        let moved = self.counts.attribute_some(from, to, packets);
        if moved > 0 {
            let part = moved as f64 / all as f64;
            self.list.iter_mut().for_each(|one| one.causes.attribute(from, to, part));
        }
    }
}
