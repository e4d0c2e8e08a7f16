//! What the receiver's kernel dropped, and which losses that explains.

use std::collections::VecDeque;

use haul_base::{Span, Time};

use crate::control::{FeedbackSample, LossRun};
use crate::micro::events::DroppedGap;

/// Drops that no loss was found for in this time, or in this many round trips if that is longer, were of other packets:
/// copies, packets without data. Our choice: losses are found within two round trips.
const FORGET: Span = Span::from_millis(500);
const FORGET_ROUNDS: u64 = 4;

/// Packets of which a host says that it dropped them, and that are still to be found lost: no more than are
/// outstanding.
#[derive(Debug, Default)]
struct Dropped {
    packets: f64,
    /// When it was heard last of drops.
    told_at: Option<Time>,
}

impl Dropped {
    fn hear(&mut self, sample: &FeedbackSample<'_>, packets: f64) {
        if !self.is_recent(sample) {
            self.packets = 0.0;
        }
        if packets > 0.0 {
            let outstanding = sample.in_flight / sample.datagram.max(1) + sample.lost_packets;
            self.packets = (self.packets + packets).min(outstanding as f64);
            self.told_at = Some(sample.now);
        }
    }

    /// Whether losses that are found now can be of these packets.
    fn is_recent(&self, sample: &FeedbackSample<'_>) -> bool {
        let rounds = sample.rtt.smoothed() * FORGET_ROUNDS;
        self.told_at.is_some_and(|told_at| sample.now.since(told_at) <= FORGET.max(rounds))
    }

    /// So many of them have been named: before or after they are told of.
    fn name(&mut self, now: Time, packets: f64) {
        self.packets -= packets;
        self.told_at = Some(now);
    }

    fn claim(&mut self, lost: u64) -> u64 {
        let claimed = lost.min(self.packets.max(0.0).round() as u64);
        self.packets -= claimed as f64;
        claimed
    }
}

/// Gaps that are remembered until their losses are found. Our choice.
const GAPS: usize = 256;

/// Where the receiver says that its kernel has dropped packets, by packet number.
#[derive(Debug, Default)]
struct Named {
    gaps: VecDeque<OpenGap>,
}

/// A gap, with its packets that are still to be found lost, and those of them that the kernel has dropped.
#[derive(Clone, Copy, Debug)]
struct OpenGap {
    gap: DroppedGap,
    missing: u64,
    unclaimed: u64,
}

impl OpenGap {
    /// So many of them are found lost. Nobody knows which the kernel has dropped, and some may be found late: each part
    /// has its share.
    fn claim(&mut self, packets: u64) -> u64 {
        let of = self.missing.max(packets);
        let share = packets.saturating_mul(self.unclaimed).saturating_add(of / 2) / of.max(1);
        let claimed = share.min(self.unclaimed);
        self.unclaimed -= claimed;
        self.missing = of - packets;
        claimed
    }
}

impl Named {
    /// In a gap with fewer drops than packets the others were lost on the way, if a buffer holds one packet. If it
    /// holds several, of which only the mean is known, a gap is taken to be the kernel's from half of the mean on.
    fn add(&mut self, gap: DroppedGap, per_buffer: f64) {
        let expected = f64::from(gap.drops) * per_buffer;
        let most = if per_buffer > 1.0 && expected * 2.0 >= gap.missing as f64 {
            u64::MAX
        } else {
            expected.round() as u64
        };
        if self.gaps.len() == GAPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back(OpenGap { gap, missing: gap.missing, unclaimed: gap.missing.min(most) });
    }

    /// How many of `packets` that were lost among these numbers are of such gaps.
    fn claim(&mut self, first: u64, end: u64, packets: u64) -> u64 {
        let from = self.gaps.partition_point(|open| open.gap.end() <= first);
        let (mut left, mut claimed) = (packets, 0);
        for open in self.gaps.iter_mut().skip(from).take_while(|open| open.gap.first_pn < end) {
            let within = left.min(open.gap.end().min(end).saturating_sub(open.gap.first_pn.max(first)));
            left -= within;
            claimed += open.claim(within);
        }
        claimed
    }
}

/// Packets of a feedback's losses that the receiver's socket has dropped, and others that an outage has lost.
#[derive(Debug, Default)]
pub(super) struct Claim {
    named: Vec<u64>,
    unnamed: u64,
    /// Of each listed run, those that an outage has lost. Empty where there was none.
    in_outage: Vec<u64>,
}

impl Claim {
    pub(super) fn packets(&self) -> u64 {
        self.named.iter().sum::<u64>() + self.unnamed
    }

    /// Of each listed run, those that the receiver has named.
    pub(super) fn named(&self) -> impl Iterator<Item = u64> + '_ {
        self.named.iter().copied().chain(std::iter::repeat(0))
    }

    /// An outage has lost the packets of this run, but for those that the receiver has named.
    pub(super) fn mark_outage(&mut self, at: usize, run: &LossRun) {
        if self.in_outage.len() <= at {
            self.in_outage.resize(at + 1, 0);
        }
        self.in_outage[at] = run.packets - self.named.get(at).copied().unwrap_or(0);
    }

    /// Of each listed run, those that an outage has lost.
    pub(super) fn in_outage(&self) -> impl Iterator<Item = u64> + '_ {
        self.in_outage.iter().copied().chain(std::iter::repeat(0))
    }

    /// All that an outage has lost.
    pub(super) fn in_outages(&self) -> u64 {
        self.in_outage.iter().sum()
    }

    /// Of each listed run, those whose cause is known.
    pub(super) fn explained(&self) -> impl Iterator<Item = u64> + '_ {
        self.named().zip(self.in_outage()).map(|(named, in_outage)| named + in_outage)
    }

    /// Those of which it is not known which they are.
    pub(super) fn unnamed(&self) -> u64 {
        self.unnamed
    }

    pub(super) fn clear(&mut self) {
        self.named.clear();
        self.in_outage.clear();
        self.unnamed = 0;
    }
}

/// What the receiving host counts. Its kernel counts socket buffers, each of one or more packets; one that was dropped
/// has as many as those that were read have on average, and at least one. Drops at its network interface and in its
/// backlog are counted in packets, and are weaker evidence: they need not be this session's.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    socket: Dropped,
    named: Named,
    early: Dropped,
    per_buffer: f64,
    /// It has told how much was dropped before a socket saw it, if only that nothing was.
    counts_early: bool,
    /// In this transmission window the hypervisor took the receiver's processor.
    was_stolen_from: bool,
}

impl Kernel {
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        if let Some(run) = sample.gro_run {
            self.per_buffer = run;
        }
        self.socket.hear(sample, sample.socket_drops as f64 * self.per_buffer.max(1.0));
        let host = sample.host.unwrap_or_default();
        self.counts_early |= host.early_drops.is_some();
        self.was_stolen_from |= host.steal.is_some_and(|steal| steal > Span::ZERO);
        self.early.hear(sample, f64::from(host.early_drops.unwrap_or(0)));
    }

    /// A transmission window has ended. Whether what its host dropped in it was counted: before the socket and at it. A
    /// hypervisor that lets a host wait drops what nobody counts.
    pub(super) fn end_window(&mut self) -> bool {
        let was_stolen_from = std::mem::take(&mut self.was_stolen_from);
        self.counts_early && self.per_buffer > 0.0 && !was_stolen_from
    }

    /// Whether a dropped buffer can hold several packets.
    pub(super) fn counts_groups(&self) -> bool {
        self.per_buffer > 1.0
    }

    /// Whether losses that are found now can be of packets that a socket has dropped.
    pub(super) fn has_dropped_lately(&self, sample: &FeedbackSample<'_>) -> bool {
        self.socket.is_recent(sample)
    }

    pub(super) fn on_gap(&mut self, now: Time, gap: DroppedGap) {
        let per_buffer = self.per_buffer.max(1.0);
        self.named.add(gap, per_buffer);
        self.socket.name(now, f64::from(gap.drops) * per_buffer);
    }

    /// Which of a feedback's losses were packets that a socket has dropped; `into` is empty.
    pub(super) fn claim(&mut self, sample: &FeedbackSample<'_>, into: &mut Claim) {
        let mut left = sample.lost_packets;
        into.named.extend(sample.loss.list().iter().map(|run| {
            let named = self.named.claim(run.first_pn, run.first_pn + run.packets, run.packets.min(left));
            left -= named;
            named
        }));
        into.unnamed = self.socket.claim(left);
    }

    /// How many of so many losses that nothing else explains may have been dropped before any socket saw them.
    pub(super) fn claim_early(&mut self, unexplained: u64) -> u64 {
        self.early.claim(unexplained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_gap_has_its_share_of_the_drops_also_one_that_is_found_late() {
        let mut named = Named::default();
        named.add(DroppedGap { first_pn: 100, packets: 577, missing: 577, drops: 573 }, 1.0);
        // The repetition of two packets between the others is found lost behind them.
        let claimed = [(100, 448), (550, 127), (548, 2)].map(|(pn, lost)| named.claim(pn, pn + lost, lost));
        assert_eq!(claimed, [445, 126, 2]);
        assert_eq!(named.claim(100, 677, 577), 0, "there are no more");
    }
}
