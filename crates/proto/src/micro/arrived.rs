//! Record of the segments that have arrived, by sequence number, from which acknowledgements are made. A
//! shared value, so that it outlives a change from one kind of acknowledgement to another.

use std::ops::Range;

#[cfg(not(test))]
use haul_base::RangeSet;

#[cfg(test)]
use super::counted_ranges::RangeSet;

/// Maximum distance between the oldest and the newest segment of interest. A sender's window is at most half
/// of it, so segments that fall out at the low end have arrived or were given up.
pub(crate) const SPAN: u64 = 1 << 16;
/// Maximum number of ranges recorded above the first gap. A segment that would start another one is not
/// recorded, so its sender retransmits it later.
const MAX_RANGES: usize = 1_024;

/// Whether the message of segment `sequence` is further behind `newest` than the largest window plus the
/// longest message, so that its sender can no longer retransmit any of it.
pub(super) fn is_abandoned(sequence: u64, newest: u64) -> bool {
    newest.saturating_sub(sequence) > SPAN
}

/// Sequence numbers that have arrived or were given up: everything below `below` and in `beyond`. Stored as
/// ranges, because acknowledgements consist of ranges, and most of many thousand receivers have none; a
/// [`Window`](super::window::Window) detects duplicates in constant time however many gaps there are.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    below: u64,
    beyond: RangeSet,
    next: u64,
}

impl Arrived {
    /// Lowest sequence number that has not arrived.
    pub(crate) fn below(&self) -> u64 {
        self.below
    }

    /// One more than the highest sequence number that has arrived.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether there is no gap below the highest.
    pub(crate) fn is_whole(&self) -> bool {
        self.below == self.next
    }

    /// Ranges that have arrived above the first gap.
    pub(crate) fn beyond(&self) -> &RangeSet {
        &self.beyond
    }

    /// Records a segment; returns whether it is new.
    pub(crate) fn insert(&mut self, sequence: u64) -> bool {
        if sequence < self.below || self.beyond.containing(sequence).is_some() {
            return false;
        }
        if sequence == self.below && self.beyond.is_empty() {
            self.below += 1;
            self.next = self.below;
            return true;
        }
        let begins_another = sequence != self.below
            && self.beyond.containing(sequence + 1).is_none()
            && (sequence == 0 || self.beyond.containing(sequence - 1).is_none());
        if begins_another && self.beyond.len() >= MAX_RANGES {
            return false;
        }
        self.next = self.next.max(sequence + 1);
        self.beyond.insert(sequence..sequence + 1);
        self.settle_below(self.next.saturating_sub(SPAN));
        true
    }

    /// Gives up what is missing below `floor`, because the sender does not retransmit it.
    pub(crate) fn settle_below(&mut self, floor: u64) {
        let below = self.below.max(floor);
        let below = self.beyond.containing(below).map_or(below, |range| range.end);
        if below > self.below {
            self.beyond.remove(self.below..below);
            self.below = below;
            self.next = self.next.max(below);
            if self.beyond.is_empty() {
                // An empty tree keeps its root; with many thousand receivers that adds up.
                self.beyond = RangeSet::new();
            }
        }
    }

    /// The gaps below the highest, oldest first.
    pub(crate) fn holes(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let starts = std::iter::once(self.below).chain(self.beyond.iter().map(|range| range.end));
        let ends = self.beyond.iter().map(|range| range.start);
        starts.zip(ends).map(|(start, end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::micro::counted_ranges::steps;

    /// Records every second segment above a gap; returns the steps of the range set.
    fn steps_of_gaps(gaps: u64) -> u64 {
        let (mut arrived, before) = (Arrived::default(), steps());
        (1..=gaps).for_each(|n| assert!(arrived.insert(2 * n)));
        steps() - before
    }

    #[test]
    fn recording_a_segment_takes_no_more_work_with_more_gaps() {
        let [few, many] = [100, 1_000].map(steps_of_gaps);
        assert!(few >= 100, "the range set does not count its work: {few} steps");
        assert!(many <= 11 * few, "{few} steps with 100 gaps, {many} with 1,000");
    }

    #[test]
    fn segments_below_the_senders_window_are_settled() {
        let mut arrived = Arrived::default();
        arrived.insert(5);
        assert_eq!((arrived.below(), arrived.next()), (0, 6));
        arrived.insert(SPAN + 2);
        assert_eq!(arrived.below(), 3);
        arrived.insert(SPAN + 4);
        assert_eq!((arrived.below(), arrived.is_whole()), (6, false));
    }

    #[test]
    fn an_adversarial_pattern_uses_bounded_memory() {
        let mut arrived = Arrived::default();
        let taken = (1..30_000).filter(|n| arrived.insert(2 * n)).count();
        assert_eq!((taken, arrived.beyond().iter().count()), (MAX_RANGES, MAX_RANGES));
        assert!(arrived.insert(0) && arrived.insert(1) && arrived.insert(3));
    }

    proptest! {
        #[test]
        fn arrived_behaves_like_a_set(numbers in prop::collection::vec(0_u64..60, 0..100)) {
            let (mut arrived, mut model) = (Arrived::default(), BTreeSet::new());
            for number in numbers {
                prop_assert_eq!(arrived.insert(number), model.insert(number));
                let below = (0..=60).find(|n| !model.contains(n)).unwrap();
                prop_assert_eq!(arrived.below(), below);
                prop_assert_eq!(arrived.next(), model.last().unwrap() + 1);
                let missing: Vec<u64> = arrived.holes().flatten().collect();
                let expected: Vec<u64> = (0..arrived.next()).filter(|n| !model.contains(n)).collect();
                prop_assert_eq!(missing, expected);
            }
        }
    }
}
