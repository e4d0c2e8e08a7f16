//! What became of packets, and why they died lately: the verdict of a diagnosis that is always right.

use std::collections::VecDeque;

use haul_base::{Cause, CauseCounts, Span, Time};
use serde::Serialize;

use crate::counters::Drops;

/// Losses count together in stretches of this length.
const STRETCH: Span = Span::from_millis(100);
/// A verdict is about so many of them, back from the newest loss: a sender finds its losses a round trip after they
/// happen, and some of them later. Our choice.
const STRETCHES: u64 = 10;

/// What became of the packets of one flow:
/// `offered + copies = delivered + drops + under way`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowTruth {
    /// Packets that were sent.
    pub offered: u64,
    /// Their bytes on the wire.
    pub offered_bytes: u64,
    /// Packets that reached the machine, copies included.
    pub delivered: u64,
    /// Their bytes on the wire.
    pub delivered_bytes: u64,
    /// Copies made on the way.
    pub copies: u64,
    /// Packets that died, by reason.
    pub drops: Drops,
}

impl FlowTruth {
    /// Packets that are under way.
    pub fn under_way(&self) -> u64 {
        self.offered + self.copies - self.delivered - self.drops.total()
    }
}

/// What a flow lost in the last second in which it lost anything.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentLosses {
    /// By the number of the stretch.
    stretches: VecDeque<(u64, CauseCounts)>,
    is_news: bool,
}

impl RecentLosses {
    pub(super) fn add(&mut self, now: Time, cause: Cause, packets: u64) {
        let number = now.as_nanos() / STRETCH.as_nanos();
        if self.stretches.back().is_none_or(|(last, _)| *last < number) {
            self.stretches.push_back((number, CauseCounts::default()));
            self.stretches.retain(|(old, _)| old + STRETCHES > number);
        }
        if let Some((_, tally)) = self.stretches.back_mut() {
            tally.add(cause, packets);
        }
        self.is_news = true;
    }

    /// All of it, added to `sum`.
    pub(super) fn add_to(&self, sum: &mut CauseCounts) {
        self.stretches.iter().for_each(|(_, tally)| sum.merge(tally));
    }

    /// Whether something was lost since this was asked last.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
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
        assert_eq!((verdict(&losses), losses.take_news()), (None, false));
        losses.add(at(5), Cause::Congestion, 30);
        losses.add(at(150), Cause::ReceiverHost, 60);
        losses.add(at(950), Cause::Random, 10);
        assert!(losses.take_news() && !losses.take_news());
        let shares = [(Cause::Congestion, 0.3), (Cause::ReceiverHost, 0.6), (Cause::Random, 0.1)];
        assert_eq!(verdict(&losses), Verdict::mixed(&shares));
        // The first stretch is a second old.
        losses.add(at(1_050), Cause::ReceiverHost, 30);
        assert_eq!(verdict(&losses), Verdict::mixed(&[(Cause::ReceiverHost, 0.9), (Cause::Random, 0.1)]));
        // However long ago: what was lost last is what the sender finds.
        losses.add(at(60_000), Cause::Outage, 1);
        assert_eq!(verdict(&losses), Some(Verdict::of(Cause::Outage)));
        assert_eq!(losses.stretches.len(), 1);
    }
}
