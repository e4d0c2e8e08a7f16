//! Losses of the current transmission window: their counts by cause, and the attribution of each packet.

use std::cmp::Reverse;

use haul_base::{Cause, CauseCounts, Verdict};

use super::kernel::Claim;
use crate::control::{LossRun, LossRuns};

/// A run of lost packets and its diagnosed cause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attribution {
    /// The run of lost packets.
    pub run: LossRun,
    /// Probability of each cause, the same for each packet.
    pub causes: Verdict,
}

/// Causes of a feedback's losses that no socket has dropped.
#[derive(Debug, Default)]
pub(super) struct OtherLosses {
    /// Packets sent during an outage.
    pub(super) in_outage: CauseCounts,
    /// Packets sent when the queue was too short to drop them.
    pub(super) before_onset: CauseCounts,
    /// All others.
    pub(super) others: CauseCounts,
}

impl OtherLosses {
    pub(super) fn of(&self, cause: Cause) -> u64 {
        self.in_outage.of(cause) + self.before_onset.of(cause) + self.others.of(cause)
    }

    pub(super) fn total(&self) -> CauseCounts {
        let mut total = self.others;
        total.merge(&self.before_onset);
        total.merge(&self.in_outage);
        total
    }

    /// Attributes random losses to the host, which dropped them before they reached a socket.
    pub(super) fn attribute_early(&mut self, packets: u64) {
        let (from, to) = (Cause::Random, Cause::ReceiverHost);
        let moved = self.others.attribute_some(from, to, packets);
        self.before_onset.attribute_some(from, to, packets - moved);
    }
}

/// A range of packets, and the share of its losses with another cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) first_pn: u64,
    /// Packet number after the last.
    pub(super) end_pn: u64,
    /// Losses with the other cause.
    pub(super) packets: u64,
    /// Their share, 0 to 1.
    pub(super) part: f64,
}

/// A run of a feedback, with its packets named by the receiver and those lost in an outage.
#[derive(Clone, Copy, Debug)]
struct Added {
    run: LossRun,
    named: u64,
    in_outage: u64,
}

impl Added {
    fn unnamed(&self) -> u64 {
        self.run.packets - self.named
    }
}

/// Maximum number of runs kept of a window: as in one feedback, and as lost packets in a signature.
const MAX_RUNS: usize = LossRuns::MAX_RUNS;

/// Losses that are not re-examined: their counts by cause, and the number of their runs.
#[derive(Debug, Default)]
struct Settled {
    counts: CauseCounts,
    runs: usize,
}

/// Losses: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Losses {
    counts: CauseCounts,
    list: Vec<Attribution>,
    is_listed: bool,
    settled: Settled,
    /// The runs of a feedback. Kept for its memory.
    added: Vec<Added>,
}

impl Losses {
    /// Sets whether runs are kept from now on.
    pub(super) fn list_runs(&mut self, is_listed: bool) {
        self.is_listed = is_listed;
    }

    pub(super) fn counts(&self) -> &CauseCounts {
        &self.counts
    }

    /// Removes and returns everything.
    pub(super) fn take(&mut self) -> (CauseCounts, Vec<Attribution>) {
        self.settled = Settled::default();
        (std::mem::take(&mut self.counts), std::mem::take(&mut self.list))
    }

    /// Releases memory kept for the next feedback.
    pub(super) fn release_idle(&mut self) {
        self.added = Vec::new();
    }

    /// Adds the losses of a feedback: the claimed ones were dropped by the receiver's socket, the rest is in
    /// `others`. Where the socket's packets were not identified, its longest runs are assumed: a full buffer
    /// drops neighbours.
    pub(super) fn add(
        &mut self,
        runs: &LossRuns,
        claim: &Claim,
        others: &OtherLosses,
        is_before_onset: impl Fn(&LossRun) -> bool,
    ) {
        self.counts.merge(&others.total());
        self.counts.add(Cause::ReceiverHost, claim.packets());
        if !self.is_listed {
            return;
        }
        self.added.clear();
        let causes = claim.named().zip(claim.in_outage());
        let runs = runs.list().iter().zip(causes);
        self.added.extend(runs.map(|(run, (named, in_outage))| Added { run: *run, named, in_outage }));
        if claim.unnamed() > 0 {
            self.added.sort_unstable_by_key(|added| (Reverse(added.unnamed()), added.run.first_pn));
        }
        let mut unnamed = claim.unnamed();
        let [in_outage, before_onset, at_queue] =
            [&others.in_outage, &others.before_onset, &others.others].map(CauseCounts::verdict);
        let room = MAX_RUNS - self.list.len();
        self.list.extend(self.added.iter().take(room).map(|added| {
            let (run, more) = (&added.run, unnamed.min(added.unnamed()));
            unnamed -= more;
            let part = (added.named + more) as f64 / run.packets.max(1) as f64;
            let without = || before_onset.filter(|_| is_before_onset(run)).or(at_queue).or(before_onset);
            let verdict = in_outage.filter(|_| added.in_outage > 0).or_else(without);
            let mut causes = verdict.unwrap_or_default();
            for cause in Cause::ALL {
                causes.attribute(cause, Cause::ReceiverHost, part);
            }
            Attribution { run: added.run, causes }
        }));
    }

    /// Returns the losses of a cause since [`settle`](Self::settle).
    pub(super) fn unsettled(&self, cause: Cause) -> u64 {
        self.counts.of(cause).saturating_sub(self.settled.counts.of(cause))
    }

    /// Marks everything so far as settled.
    pub(super) fn settle(&mut self) {
        self.settled = Settled { counts: self.counts, runs: self.list.len() };
    }

    /// Moves all losses of one cause to another.
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

    /// As [`attribute`](Self::attribute), for shares of the packets of ranges, which are in order.
    pub(super) fn attribute_shares(&mut self, from: Cause, to: Cause, shares: &[Share]) {
        self.counts.attribute_some(from, to, shares.iter().map(|share| share.packets).sum());
        for one in &mut self.list {
            let pn = one.run.first_pn;
            let share = shares.get(shares.partition_point(|share| share.end_pn <= pn));
            if let Some(share) = share.filter(|share| share.first_pn <= pn) {
                one.causes.attribute(from, to, share.part);
            }
        }
    }

    /// As [`attribute`](Self::attribute), for this many unidentified packets.
    pub(super) fn attribute_some(&mut self, from: Cause, to: Cause, packets: u64) {
        self.attribute_of((self.counts.of(from), 0), from, to, packets);
    }

    /// As [`attribute_some`](Self::attribute_some), of those that are not settled.
    pub(super) fn attribute_unsettled(&mut self, from: Cause, to: Cause, packets: u64) {
        self.attribute_of((self.unsettled(from), self.settled.runs), from, to, packets);
    }

    /// As [`attribute_some`](Self::attribute_some), of `all` packets, whose runs start at index `place`.
    fn attribute_of(&mut self, (all, place): (u64, usize), from: Cause, to: Cause, packets: u64) {
        let moved = self.counts.attribute_some(from, to, packets.min(all));
        if moved > 0 {
            let part = moved as f64 / all as f64;
            self.list.iter_mut().skip(place).for_each(|one| one.causes.attribute(from, to, part));
        }
    }
}
