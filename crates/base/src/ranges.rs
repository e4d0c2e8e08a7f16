//! A set of integers kept as disjoint half-open ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of `u64`, stored as sorted, disjoint, non-adjacent half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    by_start: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds every integer of `range`. Empty ranges add nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&s, &e)) = self.by_start.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.by_start.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.by_start.insert(start, end);
    }

    /// Removes every integer of `range`.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&s, &e)) = self.by_start.range(..range.end).next_back() {
            if e <= range.start {
                break;
            }
            self.by_start.remove(&s);
            if e > range.end {
                self.by_start.insert(range.end, e);
            }
            if s < range.start {
                self.by_start.insert(s, range.start);
                break;
            }
        }
    }

    /// Returns the stored range that contains `value`.
    pub fn containing(&self, value: u64) -> Option<Range<u64>> {
        let (&s, &e) = self.by_start.range(..=value).next_back()?;
        (value < e).then_some(s..e)
    }

    /// Whether every integer of `range` is in the set.
    pub fn covers(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.containing(range.start).is_some_and(|r| r.end >= range.end)
    }

    /// Whether any integer of `range` is in the set.
    pub fn intersects(&self, range: Range<u64>) -> bool {
        !range.is_empty()
            && self.by_start.range(..range.end).next_back().is_some_and(|(_, &e)| e > range.start)
    }

    /// Iterates over the ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        let ranges = self.by_start.iter().map(|(&s, &e)| s..e);
        #[cfg(test)]
        let ranges = ranges.inspect(|_| tests::VISITED.set(tests::VISITED.get() + 1));
        ranges
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Returns the number of integers in the set.
    pub fn total(&self) -> u64 {
        self.iter().map(|r| r.end - r.start).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    thread_local! {
        /// Number of ranges over which this thread has iterated.
        pub(super) static VISITED: Cell<u64> = const { Cell::new(0) };
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_of_integers(
            ops in prop::collection::vec((any::<bool>(), 0u64..200, 0u64..40), 0..60),
        ) {
            let mut set = RangeSet::new();
            let mut model = BTreeSet::new();
            for (add, start, len) in ops {
                if add {
                    set.insert(start..start + len);
                    model.extend(start..start + len);
                } else {
                    set.remove(start..start + len);
                    model.retain(|v| !(start..start + len).contains(v));
                }
                let flat: Vec<u64> = set.iter().flatten().collect();
                prop_assert_eq!(&flat, &model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.total(), model.len() as u64);
                for start in (0..240).step_by(7) {
                    let known = model.range(start..start + 5).next().is_some();
                    prop_assert_eq!(set.intersects(start..start + 5), known);
                }
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
            }
        }
    }

    #[test]
    fn only_counting_the_integers_visits_the_ranges() {
        const RANGES: u64 = 10_000;
        let mut set = RangeSet::new();
        let before = VISITED.get();
        for number in 0..RANGES {
            set.insert(2 * number..2 * number + 1);
            assert_eq!(set.len() as u64, number + 1);
            assert!(!set.is_empty() && set.covers(0..1) && !set.intersects(1..2));
        }
        assert_eq!(VISITED.get() - before, 0);
        assert_eq!((set.total(), VISITED.get() - before), (RANGES, RANGES));
    }

    #[test]
    fn covers_requires_one_contiguous_range() {
        let mut set = RangeSet::new();
        set.insert(0..10);
        set.insert(11..20);
        assert!(set.covers(2..10));
        assert!(!set.covers(2..12));
        set.insert(10..11);
        assert!(set.covers(0..20));
        assert!(set.covers(50..50));
    }
}
