//! Record of received sequence numbers: a sliding window of bits that grows only as far as its gaps reach.

use std::collections::VecDeque;

/// State of a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Not received, and inside the window.
    New,
    /// Received, or below the window.
    Before,
    /// Above the window.
    Beyond,
}

/// A sliding window over sequence numbers. A bitmap, because every packet is looked up and random loss makes
/// thousands of gaps, in each of which a [`RangeSet`](haul_base::RangeSet) would have to search.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "many thousand receivers have a window, few with such a long gap")]
pub(crate) struct Window {
    /// Everything below was received or given up. Always a multiple of 64.
    base: u64,
    /// Bits of the 64 numbers from `base`. Without older gaps there is no more: many receivers have only
    /// this.
    first: u64,
    /// The following words, allocated by the first gap that reaches this far.
    rest: Option<Box<VecDeque<u64>>>,
    /// Maximum number of words.
    limit: usize,
}

impl Window {
    /// Creates a window of `numbers`, rounded up to whole words of 64.
    pub(crate) fn new(numbers: u64) -> Self {
        let mut window = Self { base: 0, first: 0, rest: None, limit: 1 };
        window.set_width(numbers);
        window
    }

    /// Sets another width. What a narrower window excludes at the low end is given up when the next new
    /// number arrives.
    pub(crate) fn set_width(&mut self, numbers: u64) {
        // One word more, because the base moves in whole words.
        self.limit = numbers.div_ceil(64) as usize + 1;
    }

    /// Sets at least this width.
    pub(crate) fn widen_to(&mut self, numbers: u64) {
        let limit = self.limit;
        self.set_width(numbers);
        self.limit = self.limit.max(limit);
    }

    fn word(&self, index: u64) -> Option<u64> {
        match index.checked_sub(1) {
            None => Some(self.first),
            Some(behind) => self.rest.as_ref()?.get(usize::try_from(behind).ok()?).copied(),
        }
    }

    /// Moves the window up by one word; returns the word that falls out.
    fn shift(&mut self) -> u64 {
        self.base += 64;
        let next = self.rest.as_mut().and_then(|rest| rest.pop_front());
        std::mem::replace(&mut self.first, next.unwrap_or(0))
    }

    /// Looks up `number`.
    pub(crate) fn look(&self, number: u64) -> Seen {
        let Some(distance) = number.checked_sub(self.base) else { return Seen::Before };
        let word = distance / 64;
        match self.word(word) {
            Some(bits) if bits >> (distance % 64) & 1 == 1 => Seen::Before,
            _ if word >= self.limit as u64 => Seen::Beyond,
            _ => Seen::New,
        }
    }

    /// Lowest number that was neither received nor given up.
    pub(crate) fn first_missing(&self) -> u64 {
        self.base + u64::from(self.first.trailing_ones())
    }

    /// Records that `number`, which is new, was received.
    pub(crate) fn insert(&mut self, number: u64) {
        let Some(distance) = number.checked_sub(self.base) else { return };
        let word = (distance / 64) as usize;
        if word >= self.limit {
            return;
        }
        let bit = 1 << (distance % 64);
        if word == 0 {
            self.first |= bit;
        } else {
            let rest = self.rest.get_or_insert_default();
            if word > rest.len() {
                rest.resize(word, 0);
            }
            rest[word - 1] |= bit;
        }
        while self.first == u64::MAX {
            self.shift();
        }
    }

    /// Moves the window up to include `number`; returns how many missing numbers were given up.
    pub(crate) fn slide_to(&mut self, number: u64) -> u64 {
        let Some(distance) = number.checked_sub(self.base) else { return 0 };
        let Some(words) = (distance / 64 + 1).checked_sub(self.limit as u64) else { return 0 };
        let known = words.min(1 + self.rest.as_ref().map_or(0, |rest| rest.len() as u64));
        let had: u32 = (0..known).map(|_| self.shift().count_ones()).sum();
        self.base += (words - known) * 64;
        words * 64 - u64::from(had)
    }

    /// Frees the memory of gaps that have closed.
    pub(crate) fn release_idle(&mut self) {
        self.rest.take_if(|rest| rest.is_empty());
    }

    /// Bytes of heap memory.
    #[cfg(test)]
    fn heap(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| size_of_val(&**rest) + rest.capacity() * 8)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set_without_old_numbers(
            width in 1u64..300,
            steps in prop::collection::vec((0u64..2_000, any::<bool>()), 0..300),
        ) {
            let mut window = Window::new(width);
            let mut model = BTreeSet::new();
            for (number, slide) in steps {
                let seen = window.look(number);
                let before = window.base;
                prop_assert_eq!(seen == Seen::Before, model.contains(&number) || number < before);
                if seen == Seen::Beyond {
                    prop_assert!(number >= before + width);
                    if !slide {
                        continue;
                    }
                    let missing = window.slide_to(number);
                    let lost = (before..window.base).filter(|n| !model.contains(n)).count();
                    prop_assert_eq!(missing, lost as u64);
                    // No more than necessary is given up.
                    prop_assert!(window.base + width <= number + 128);
                }
                window.insert(number);
                model.insert(number);
                prop_assert_eq!(window.look(number), Seen::Before);
                prop_assert!(window.rest.as_ref().map_or(1, |rest| rest.len() + 1) <= window.limit);
                let first = (window.base..=2_000).find(|n| !model.contains(n)).unwrap_or(window.base);
                prop_assert_eq!(window.first_missing(), first);
            }
        }
    }

    #[test]
    fn a_closed_gap_uses_no_memory_after_idling() {
        let mut window = Window::new(1 << 20);
        (1..100_000).for_each(|number| window.insert(number));
        window.release_idle();
        assert!(window.heap() > 99_000 / 8);
        window.insert(0);
        window.release_idle();
        assert_eq!((window.first_missing(), window.heap()), (100_000, 0));
    }

    #[test]
    fn in_order_numbers_use_almost_no_memory() {
        let mut window = Window::new(1 << 20);
        (0..100_000).for_each(|number| window.insert(number));
        assert_eq!(window.look(99_999), Seen::Before);
        assert_eq!(window.heap(), 0);
        assert!(window.slide_to(u64::MAX >> 16) > 1 << 40);
        assert_eq!(window.heap(), 0);
    }
}
