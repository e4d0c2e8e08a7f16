//! Why packets died lately: the verdict of a diagnosis that is always right.

use std::collections::VecDeque;

use haul_base::{Cause, Span, Time, Verdict};

/// Losses count together in stretches of this length.
const STRETCH: Span = Span::from_millis(100);
/// A verdict is about so many of them, back from the newest loss: a sender finds its losses a round trip after they happen, and some
/// of them later. Our choice.
const STRETCHES: u64 = 10;

const CAUSES: [Cause; 5] =
    [Cause::ReceiverHost, Cause::Congestion, Cause::Random, Cause::Outage, Cause::Inconclusive];

/// Lost packets by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally([u64; CAUSES.len()]);

impl Tally {
    fn add(&mut self, cause: Cause, packets: u64) {
        if let Some(place) = CAUSES.iter().position(|known| *known == cause) {
            self.0[place] += packets;
        }
    }

    /// Adds what a flow has lost lately.
    pub(super) fn add_all(&mut self, losses: &RecentLosses) {
        for (_, tally) in &losses.stretches {
            self.0.iter_mut().zip(tally.0).for_each(|(sum, more)| *sum += more);
        }
    }

    /// Each cause's share; `None` if nothing was lost.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        let whole: u64 = self.0.iter().sum();
        let share = |i: usize| (CAUSES[i], self.0[i] as f64 / whole as f64);
        let shares: [_; CAUSES.len()] = std::array::from_fn(share);
        if whole > 0 { Verdict::mixed(&shares) } else { None }
    }
}

/// What a flow lost in the last second in which it lost anything.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentLosses {
    /// By the number of the stretch.
    stretches: VecDeque<(u64, Tally)>,
    is_news: bool,
}

impl RecentLosses {
    pub(super) fn add(&mut self, now: Time, cause: Cause, packets: u64) {
        let number = now.as_nanos() / STRETCH.as_nanos();
        if self.stretches.back().is_none_or(|(last, _)| *last < number) {
            self.stretches.push_back((number, Tally::default()));
            self.stretches.retain(|(old, _)| old + STRETCHES > number);
        }
        if let Some((_, tally)) = self.stretches.back_mut() {
            tally.add(cause, packets);
        }
        self.is_news = true;
    }

    /// Whether something was lost since this was asked last.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn verdict(losses: &RecentLosses) -> Option<Verdict> {
        let mut tally = Tally::default();
        tally.add_all(losses);
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
