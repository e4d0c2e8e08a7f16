//! Record of the segments that have arrived, by sequence number.

use std::collections::VecDeque;
use std::ops::Range;

/// Maximum distance between the oldest and the newest segment of interest. A sender's window is at most half
/// of it, so segments that fall out at the low end have arrived or were given up.
pub(crate) const SPAN: u64 = 1 << 16;

/// Whether the message of segment `sequence` is further behind `newest` than the largest window plus the
/// longest message, so that its sender can no longer retransmit any of it.
pub(super) fn is_abandoned(sequence: u64, newest: u64) -> bool {
    newest.saturating_sub(sequence) > SPAN
}

/// The segments that have arrived: a sliding window of bits that grows only as far as its gaps reach. A
/// bitmap, because every segment is looked up, and random loss makes thousands of gaps.
///
/// A shared value, so that it outlives a change of the acknowledgement. `sequenced_segment` records each
/// segment once: after those without buffer space were refused, before the others are acknowledged.
/// Acknowledgements are made from the same record. They also give up what the sender does not retransmit
/// (`below`); such a segment may still arrive, because it was overtaken or is repaired by `fec`, and is new
/// then.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "many thousand receivers have a record, few with such a long gap")]
pub(crate) struct ReceivedSet {
    /// Number of the word `first`. Everything in words below counts as received.
    base: u64,
    /// Bits of the 64 sequence numbers from `64 * base`. Without older gaps there is no more: many receivers
    /// have only this.
    first: u64,
    /// The following words, allocated by the first gap that reaches this far.
    rest: Option<Box<VecDeque<u64>>>,
    below: u64,
    next: u64,
}

impl ReceivedSet {
    /// Lowest sequence number that neither has arrived nor was given up.
    pub(crate) fn below(&self) -> u64 {
        self.below
    }

    /// One more than the highest sequence number that has arrived or was given up.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether there is no gap below the highest.
    pub(crate) fn is_whole(&self) -> bool {
        self.below == self.next
    }

    /// Records a segment. Those more than `width` below it that have not arrived count as received from now
    /// on; returns their number, or `None` if this segment had been received.
    pub(crate) fn insert(&mut self, sequence: u64, width: u64) -> Option<u64> {
        let (word, bit) = (sequence / 64, 1 << (sequence % 64));
        if self.word(word) & bit != 0 {
            return None;
        }
        // One word more, because the window moves by whole words.
        let oldest = word.saturating_sub(width.div_ceil(64));
        let passed = if oldest > self.base { self.skip_to(oldest) } else { 0 };
        match (word - self.base) as usize {
            0 => self.first |= bit,
            place => {
                let rest = self.rest.get_or_insert_default();
                if place > rest.len() {
                    rest.resize(place, 0);
                }
                rest[place - 1] |= bit;
            }
        }
        while self.first == u64::MAX {
            self.shift();
        }
        self.next = self.next.max(sequence + 1);
        let oldest = self.next.saturating_sub(SPAN).max(self.base * 64);
        if sequence == self.below || oldest > self.below {
            self.advance_to(oldest.max(self.below));
        }
        Some(passed)
    }

    /// Gives up what is missing below `floor`, because the sender does not retransmit it.
    pub(crate) fn settle_below(&mut self, floor: u64) {
        if floor > self.below {
            self.advance_to(floor);
        }
    }

    fn advance_to(&mut self, floor: u64) {
        self.next = self.next.max(floor);
        self.below = self.find(floor, false).unwrap_or(self.next);
    }

    /// The gaps below the highest, oldest first.
    pub(crate) fn holes(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = self.below;
        std::iter::from_fn(move || {
            let start = self.find(at, false)?;
            at = self.find(start, true)?;
            Some(start..at)
        })
    }

    /// The ranges that have arrived above the first gap, newest first.
    pub(crate) fn newest_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut changes = self.changes(self.next);
        std::iter::from_fn(move || {
            let end = changes.next()?;
            Some(changes.next()?..end)
        })
    }

    /// The range above the first gap that contains `sequence`, if it has arrived.
    pub(crate) fn range_around(&self, sequence: u64) -> Option<Range<u64>> {
        let has_arrived = self.word(sequence / 64) >> (sequence % 64) & 1 == 1;
        let start = self.changes(sequence).next().filter(|_| has_arrived)?;
        Some(start..self.find(sequence, false).unwrap_or(self.next))
    }

    /// Frees the memory of gaps that have closed. What was given up does not arrive after idling: it counts
    /// as received from now on. Returns the number of these segments.
    pub(crate) fn release_idle(&mut self) -> u64 {
        let passed = self.skip_to(self.below / 64);
        let given_up = ((1 << (self.below % 64)) - 1) & !self.first;
        self.first |= given_up;
        self.rest.take_if(|rest| rest.is_empty());
        passed + u64::from(given_up.count_ones())
    }

    fn word(&self, number: u64) -> u64 {
        #[cfg(test)]
        super::counted_ranges::count();
        match number.checked_sub(self.base) {
            None => u64::MAX,
            Some(0) => self.first,
            Some(place) => {
                let rest = self.rest.as_ref().and_then(|rest| rest.get(usize::try_from(place - 1).ok()?));
                rest.copied().unwrap_or(0)
            }
        }
    }

    /// Moves the window up by one word; returns the word that falls out.
    fn shift(&mut self) -> u64 {
        self.base += 1;
        let next = self.rest.as_mut().and_then(|rest| rest.pop_front());
        std::mem::replace(&mut self.first, next.unwrap_or(0))
    }

    /// Moves the window up to start with this word; returns how many missing numbers fall out.
    fn skip_to(&mut self, word: u64) -> u64 {
        let words = word.saturating_sub(self.base);
        let known = words.min(1 + self.rest.as_ref().map_or(0, |rest| rest.len() as u64));
        let had: u32 = (0..known).map(|_| self.shift().count_ones()).sum();
        self.base += words - known;
        words * 64 - u64::from(had)
    }

    /// The words with a bit for each number that has arrived, or for each that has not.
    fn bits(&self, word: u64, arrived: bool) -> u64 {
        if arrived { self.word(word) } else { !self.word(word) }
    }

    /// Lowest number from `from` on and below the highest that has arrived, or has not.
    fn find(&self, from: u64, arrived: bool) -> Option<u64> {
        let mut at = from;
        while at < self.next {
            let bits = self.bits(at / 64, arrived) >> (at % 64);
            if bits != 0 {
                return Some(at + u64::from(bits.trailing_zeros())).filter(|&found| found < self.next);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// The numbers up to `from` and above the first gap that start a range or a gap, highest first.
    fn changes(&self, from: u64) -> impl Iterator<Item = u64> + '_ {
        let mut word = from / 64;
        let mut changed = self.changed(word) & u64::MAX >> (63 - from % 64);
        std::iter::from_fn(move || {
            while changed == 0 && word > self.below / 64 {
                word -= 1;
                changed = self.changed(word);
            }
            let bit = changed.checked_ilog2()?;
            changed ^= 1 << bit;
            Some(word * 64 + u64::from(bit)).filter(|&found| found > self.below)
        })
    }

    /// The bits of a word that differ from those of the number before.
    fn changed(&self, word: u64) -> u64 {
        let bits = self.word(word);
        bits ^ (bits << 1 | word.checked_sub(1).map_or(0, |before| self.word(before) >> 63))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::micro::counted_ranges::steps;

    fn heap(set: &ReceivedSet) -> usize {
        set.rest.as_ref().map_or(0, |rest| size_of_val(&**rest) + rest.capacity() * 8)
    }

    /// Records every second segment above a gap.
    fn with_gaps(gaps: u64) -> ReceivedSet {
        let mut set = ReceivedSet::default();
        (1..=gaps).for_each(|n| assert_eq!(set.insert(2 * n, SPAN), Some(0)));
        set
    }

    #[test]
    fn recording_a_segment_takes_no_more_work_with_more_gaps() {
        let [few, many] = [100, 10_000].map(|gaps| {
            let before = steps();
            with_gaps(gaps);
            steps() - before
        });
        assert!(few >= 100, "the set does not count its work: {few} steps");
        assert!(many <= 101 * few, "{few} steps with 100 gaps, {many} with 10,000");
    }

    #[test]
    fn ranges_are_found_in_one_pass_of_the_words() {
        let set = with_gaps(SPAN / 2 - 1);
        let most = 3 * SPAN + 3 * SPAN / 64;
        for found in [&mut set.holes() as &mut dyn Iterator<Item = _>, &mut set.newest_ranges()] {
            let before = steps();
            assert_eq!(found.count() as u64, SPAN / 2 - 1);
            assert!(steps() - before <= most, "{} steps", steps() - before);
        }
        let mut far = ReceivedSet::default();
        far.insert(SPAN - 1, SPAN);
        let before = steps();
        assert_eq!(far.newest_ranges().chain(far.range_around(SPAN - 1)).count(), 2);
        assert!(far.holes().eq(std::iter::once(0..SPAN - 1)));
        assert!(steps() - before <= 3 * SPAN / 64 + 16, "{} steps", steps() - before);
    }

    #[test]
    fn segments_below_the_senders_window_are_settled() {
        let mut set = ReceivedSet::default();
        set.insert(5, SPAN);
        assert_eq!((set.below(), set.next()), (0, 6));
        set.insert(SPAN + 2, SPAN);
        assert_eq!(set.below(), 3);
        set.insert(SPAN + 4, SPAN);
        assert_eq!((set.below(), set.is_whole()), (6, false));
    }

    #[test]
    fn an_adversarial_pattern_uses_bounded_memory_and_work() {
        let (mut set, mut most) = (ReceivedSet::default(), 0);
        for n in 1..100_000 {
            let before = steps();
            set.insert(n * if n % 3 == 0 { SPAN * SPAN } else { 2 }, SPAN);
            most = most.max(steps() - before);
            assert!(heap(&set) <= 4 * SPAN as usize / 8, "{}", heap(&set));
        }
        assert!(most <= 2 * SPAN / 64 + 8, "{most} steps");
    }

    #[test]
    fn a_late_segment_is_new_even_if_it_was_given_up() {
        let mut set = ReceivedSet::default();
        set.insert(9, SPAN);
        set.settle_below(7);
        assert_eq!((set.below(), set.insert(3, SPAN), set.insert(3, SPAN)), (7, Some(0), None));
        assert_eq!(set.release_idle(), 6);
        assert_eq!((set.below(), set.insert(4, SPAN), set.insert(7, SPAN)), (7, None, Some(0)));
    }

    #[test]
    fn a_closed_gap_uses_no_memory_after_idling() {
        let mut set = ReceivedSet::default();
        (1..60_000).for_each(|number| assert!(set.insert(number, 1 << 20).is_some()));
        set.release_idle();
        assert!(heap(&set) > 59_000 / 8);
        set.insert(0, 1 << 20);
        set.release_idle();
        assert_eq!((set.below(), heap(&set)), (60_000, 0));
    }

    #[test]
    fn in_order_numbers_use_no_memory() {
        let mut set = ReceivedSet::default();
        (0..100_000).for_each(|number| assert_eq!(set.insert(number, 1 << 20), Some(0)));
        assert_eq!((set.insert(99_999, 1 << 20), heap(&set)), (None, 0));
        assert!(set.insert(1 << 47, 64).unwrap() > 1 << 40);
        assert_eq!((set.insert((1 << 47) - 64, 64), set.insert((1 << 47) - 200, 64)), (Some(0), None));
        set.settle_below((1 << 48) - 1);
        set.release_idle();
        assert_eq!((set.below(), heap(&set)), ((1 << 48) - 1, 0));
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_without_old_numbers(
            width in 1u64..300,
            steps in prop::collection::vec((0u64..2_000, 0u32..20), 0..300),
        ) {
            let (mut set, mut model, mut floor) = (ReceivedSet::default(), BTreeSet::new(), 0);
            for (number, step) in steps {
                let before = 64 * set.base;
                match step {
                    0 => {
                        set.settle_below(number);
                        floor = floor.max(number);
                    }
                    1 => {
                        let missing = (before..set.below()).filter(|n| !model.contains(n)).count();
                        prop_assert_eq!(set.release_idle(), missing as u64);
                        model.extend(0..set.below());
                    }
                    _ => {
                        let is_new = number >= before && !model.contains(&number);
                        let passed = set.insert(number, width);
                        prop_assert_eq!(passed.is_some(), is_new);
                        model.insert(number);
                        let lost = (before..64 * set.base).filter(|n| !model.contains(n)).count();
                        prop_assert_eq!(passed.unwrap_or(0), lost as u64);
                        // No more than necessary is given up.
                        let full = (before..64 * set.base).all(|n| model.contains(&n));
                        prop_assert!(full || 64 * set.base + width <= number + 64);
                        prop_assert!(number < 64 * set.base + width.next_multiple_of(64) + 64);
                    }
                }
                let from = floor.max(64 * set.base);
                let below = (from..from + 2_100).find(|n| !model.contains(n)).unwrap();
                let next = model.last().map_or(0, |last| last + 1).max(below);
                prop_assert_eq!((set.below(), set.next(), set.is_whole()), (below, next, below == next));
                let [missing, arrived]: [Vec<u64>; 2] =
                    [false, true].map(|has| (below..next).filter(|n| model.contains(n) == has).collect());
                prop_assert_eq!(set.holes().flatten().collect::<Vec<_>>(), &missing[..]);
                let ranges: Vec<_> = set.newest_ranges().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[1].end < pair[0].start));
                for range in &ranges {
                    prop_assert!([range.start, range.end - 1].into_iter().all(|n| set.range_around(n).as_ref() == Some(range)));
                }
                prop_assert_eq!(ranges.into_iter().rev().flatten().collect::<Vec<_>>(), arrived);
                let others = missing.into_iter().chain([number.min(below.saturating_sub(1)), next]);
                prop_assert!(others.into_iter().all(|n| set.range_around(n).is_none()));
            }
        }
    }
}
