//! True fate of packets and causes of recent losses: a diagnosis that is always right.

use std::collections::VecDeque;

use haul_base::{Cause, CauseCounts, Span, Time};
use serde::Serialize;

use crate::counters::Drops;

/// Losses are counted in stretches of this length.
const INTERVAL: Span = Span::from_millis(100);
/// Number of stretches that a verdict covers, back from the newest loss: a sender detects a loss a round
/// trip after it happens, or later. Our choice.
const MAX_INTERVALS: u64 = 10;

/// Counters of one flow's packets: `offered + copies = delivered + drops + under way`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowTruth {
    /// Packets sent.
    pub offered: u64,
    /// Bytes on the wire of `offered`.
    pub offered_bytes: u64,
    /// Packets delivered to the machine, including copies.
    pub delivered: u64,
    /// Bytes on the wire of `delivered`.
    pub delivered_bytes: u64,
    /// Copies made on the path.
    pub copies: u64,
    /// Dropped packets, by reason.
    pub drops: Drops,
}

impl FlowTruth {
    /// Returns the number of packets in transit.
    pub fn under_way(&self) -> u64 {
        self.offered + self.copies - self.delivered - self.drops.total()
    }
}

/// Losses of a flow in the last second in which there were any.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentLosses {
    /// Counts by stretch number.
    intervals: VecDeque<(u64, CauseCounts)>,
    is_changed: bool,
}

impl RecentLosses {
    pub(super) fn add(&mut self, now: Time, cause: Cause, packets: u64) {
        let number = now.as_nanos() / INTERVAL.as_nanos();
        if self.intervals.back().is_none_or(|(last, _)| *last < number) {
            self.intervals.push_back((number, CauseCounts::default()));
            self.intervals.retain(|(old, _)| old + MAX_INTERVALS > number);
        }
        if let Some((_, tally)) = self.intervals.back_mut() {
            tally.add(cause, packets);
        }
        self.is_changed = true;
    }

    /// Adds all counts to `sum`.
    pub(super) fn add_to(&self, sum: &mut CauseCounts) {
        self.intervals.iter().for_each(|(_, tally)| sum.merge(tally));
    }

    /// Whether there were losses since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Verdict;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn verdict(losses: &RecentLosses) -> Option<Verdict> {
        let mut tally = CauseCounts::default();
        losses.add_to(&mut tally);
        tally.verdict()
    }

    #[test]
    fn shares_are_those_of_the_last_second_with_losses() {
        let mut losses = RecentLosses::default();
        assert_eq!((verdict(&losses), losses.take_changed()), (None, false));
        losses.add(at(5), Cause::Congestion, 30);
        losses.add(at(150), Cause::ReceiverHost, 60);
        losses.add(at(950), Cause::Random, 10);
        assert!(losses.take_changed() && !losses.take_changed());
        let shares = [(Cause::Congestion, 0.3), (Cause::ReceiverHost, 0.6), (Cause::Random, 0.1)];
        assert_eq!(verdict(&losses), Verdict::mixed(&shares));
        // The first stretch is one second old.
        losses.add(at(1_050), Cause::ReceiverHost, 30);
        assert_eq!(verdict(&losses), Verdict::mixed(&[(Cause::ReceiverHost, 0.9), (Cause::Random, 0.1)]));
        // Even a long time later: the sender detects the most recent losses.
        losses.add(at(60_000), Cause::Outage, 1);
        assert_eq!(verdict(&losses), Some(Verdict::of(Cause::Outage)));
        assert_eq!(losses.intervals.len(), 1);
    }
}
