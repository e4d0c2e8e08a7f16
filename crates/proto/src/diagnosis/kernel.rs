//! Drops counted by the receiver's kernel, and the losses that they explain.

use std::collections::VecDeque;

use haul_base::{Span, Time};

use crate::control::{FeedbackSample, LossRun};
use crate::micro::events::DroppedGap;

/// Drops for which no loss was found within this time, or this many round trips if longer, were of other
/// packets: duplicates, or packets without data. Our choice: losses are found within two round trips.
const UNMATCHED_TIMEOUT: Span = Span::from_millis(500);
const FORGET_ROUNDS: u64 = 4;

/// Packets that a host reports as dropped and that are not found lost yet: at most as many as are
/// outstanding.
#[derive(Debug, Default)]
struct Dropped {
    packets: f64,
    /// When drops were last reported.
    reported_at: Option<Time>,
}

impl Dropped {
    fn on_feedback(&mut self, sample: &FeedbackSample<'_>, packets: f64) {
        if !self.is_recent(sample) {
            self.packets = 0.0;
        }
        if packets > 0.0 {
            let outstanding = sample.in_flight / sample.datagram.max(1) + sample.lost_packets;
            self.packets = (self.packets + packets).min(outstanding as f64);
            self.reported_at = Some(sample.now);
        }
    }

    /// Whether losses found now can be of these packets.
    fn is_recent(&self, sample: &FeedbackSample<'_>) -> bool {
        let rounds = sample.rtt.smoothed() * FORGET_ROUNDS;
        self.reported_at
            .is_some_and(|reported_at| sample.now.since(reported_at) <= UNMATCHED_TIMEOUT.max(rounds))
    }

    /// Subtracts drops that were reported by packet number, before or after they were counted.
    fn name(&mut self, now: Time, packets: f64) {
        self.packets -= packets;
        self.reported_at = Some(now);
    }

    fn claim(&mut self, lost: u64) -> u64 {
        let claimed = lost.min(self.packets.max(0.0).round() as u64);
        self.packets -= claimed as f64;
        claimed
    }
}

/// Maximum number of gaps remembered until their losses are found. Our choice.
const GAPS: usize = 256;

/// Gaps reported by the receiver in which its kernel dropped packets, by packet number.
#[derive(Debug, Default)]
struct Named {
    gaps: VecDeque<OpenGap>,
}

/// A gap, with its packets not found lost yet, and those of them that the kernel has dropped.
#[derive(Clone, Copy, Debug)]
struct OpenGap {
    gap: DroppedGap,
    missing: u64,
    unclaimed: u64,
}

impl OpenGap {
    /// Attributes losses in the gap. It is unknown which of its packets the kernel dropped, and some may be
    /// found late: each part gets a proportional share.
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
    /// Adds a gap. If a socket buffer holds one packet and there are fewer drops than missing packets, the
    /// others were lost on the path. If it holds several, of which only the mean is known, a gap counts as
    /// the kernel's if the expected packets are at least half of it.
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

    /// Returns how many of `packets` lost in this range belong to such gaps.
    fn claim(&mut self, first: u64, end: u64, packets: u64) -> u64 {
        let from = self.gaps.partition_point(|open| open.gap.end() <= first);
        let (mut remaining, mut claimed) = (packets, 0);
        for open in self.gaps.iter_mut().skip(from).take_while(|open| open.gap.first_pn < end) {
            let within = remaining.min(open.gap.end().min(end).saturating_sub(open.gap.first_pn.max(first)));
            remaining -= within;
            claimed += open.claim(within);
        }
        claimed
    }
}

/// Losses of a feedback that the receiver's socket has dropped, and those of an outage.
#[derive(Debug, Default)]
pub(super) struct Claim {
    named: Vec<u64>,
    unnamed: u64,
    /// Losses due to an outage, per listed run. Empty if there are none.
    in_outage: Vec<u64>,
}

impl Claim {
    pub(super) fn packets(&self) -> u64 {
        self.named.iter().sum::<u64>() + self.unnamed
    }

    /// Returns the losses named by the receiver, per listed run.
    pub(super) fn named(&self) -> impl Iterator<Item = u64> + '_ {
        self.named.iter().copied().chain(std::iter::repeat(0))
    }

    /// Attributes the packets of this run to an outage, except those named by the receiver.
    pub(super) fn mark_outage(&mut self, at: usize, run: &LossRun) {
        if self.in_outage.len() <= at {
            self.in_outage.resize(at + 1, 0);
        }
        self.in_outage[at] = run.packets - self.named.get(at).copied().unwrap_or(0);
    }

    /// Returns the losses due to an outage, per listed run.
    pub(super) fn in_outage(&self) -> impl Iterator<Item = u64> + '_ {
        self.in_outage.iter().copied().chain(std::iter::repeat(0))
    }

    /// Returns the total of losses due to outages.
    pub(super) fn in_outages(&self) -> u64 {
        self.in_outage.iter().sum()
    }

    /// Returns the losses with a known cause, per listed run.
    pub(super) fn explained(&self) -> impl Iterator<Item = u64> + '_ {
        self.named().zip(self.in_outage()).map(|(named, in_outage)| named + in_outage)
    }

    /// Returns the number of dropped packets that were not identified.
    pub(super) fn unnamed(&self) -> u64 {
        self.unnamed
    }

    pub(super) fn clear(&mut self) {
        self.named.clear();
        self.in_outage.clear();
        self.unnamed = 0;
    }
}

/// Counters of the receiving host. Its kernel counts socket buffers of one or more packets each; a dropped
/// one is assumed to hold the average number of those read, at least one. Drops at its network interface and
/// in its backlog are counted in packets, and are weaker evidence: they may be of other traffic.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    socket: Dropped,
    named: Named,
    early: Dropped,
    per_buffer: f64,
    /// Whether it has reported drops before the socket, even if only that there were none.
    reports_early_drops: bool,
    /// Whether the hypervisor took the receiver's processor in this transmission window.
    was_stolen_from: bool,
}

impl Kernel {
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        if let Some(run) = sample.gro_run {
            self.per_buffer = run;
        }
        self.socket.on_feedback(sample, sample.socket_drops as f64 * self.per_buffer.max(1.0));
        let host = sample.host.unwrap_or_default();
        self.reports_early_drops |= host.early_drops.is_some();
        self.was_stolen_from |= host.steal.is_some_and(|steal| steal > Span::ZERO);
        self.early.on_feedback(sample, f64::from(host.early_drops.unwrap_or(0)));
    }

    /// Ends a transmission window. Returns whether all drops of the host were counted: before the socket and
    /// at it. Drops while the hypervisor deschedules the host are counted nowhere.
    pub(super) fn end_window(&mut self) -> bool {
        let was_stolen_from = std::mem::take(&mut self.was_stolen_from);
        self.reports_early_drops && self.per_buffer > 0.0 && !was_stolen_from
    }

    /// Whether a dropped buffer can hold several packets.
    pub(super) fn counts_groups(&self) -> bool {
        self.per_buffer > 1.0
    }

    /// Whether losses found now can be of packets dropped by a socket.
    pub(super) fn has_dropped_recently(&self, sample: &FeedbackSample<'_>) -> bool {
        self.socket.is_recent(sample)
    }

    pub(super) fn on_gap(&mut self, now: Time, gap: DroppedGap) {
        let per_buffer = self.per_buffer.max(1.0);
        self.named.add(gap, per_buffer);
        self.socket.name(now, f64::from(gap.drops) * per_buffer);
    }

    /// Determines which of a feedback's losses were dropped by a socket; `into` is empty.
    pub(super) fn claim(&mut self, sample: &FeedbackSample<'_>, into: &mut Claim) {
        let mut remaining = sample.lost_packets;
        into.named.extend(sample.loss.list().iter().map(|run| {
            let named =
                self.named.claim(run.first_pn, run.first_pn + run.packets, run.packets.min(remaining));
            remaining -= named;
            named
        }));
        into.unnamed = self.socket.claim(remaining);
    }

    /// Returns how many otherwise unexplained losses may have been dropped before any socket.
    pub(super) fn claim_early(&mut self, unexplained: u64) -> u64 {
        self.early.claim(unexplained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_gap_gets_its_share_of_the_drops() {
        let mut named = Named::default();
        named.add(DroppedGap { first_pn: 100, packets: 577, missing: 577, drops: 573 }, 1.0);
        // The retransmission of two packets between the others is found lost after them.
        let claimed = [(100, 448), (550, 127), (548, 2)].map(|(pn, lost)| named.claim(pn, pn + lost, lost));
        assert_eq!(claimed, [445, 126, 2]);
        assert_eq!(named.claim(100, 677, 577), 0, "there are no more");
    }
}
