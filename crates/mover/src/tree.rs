//! Digest of a file, computed from groups of its stream in any order.
//!
//! A stream is divided into groups of 2^n bytes; each is a subtree of the BLAKE3 tree (BLAKE3 paper, section
//! 2.4). The chaining values can be computed in any order and merge to the standard BLAKE3 hash of the whole
//! stream.

use std::ops::Range;

use blake3::Hasher;
use blake3::hazmat::{HasherExt as _, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

/// Size of a group in bytes, unless there would be more than [`MAX_GROUPS`].
const GROUP: u64 = 1 << 20;

/// Maximum number of groups of a file: 2 MiB of values.
const MAX_GROUPS: u64 = 1 << 16;

/// A chaining value; for a file of one group, its hash.
pub(crate) type Value = [u8; 32];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    len: u64,
    size: u64,
}

impl Groups {
    pub(crate) fn of(len: u64) -> Self {
        let size = len.div_ceil(MAX_GROUPS).next_power_of_two().max(GROUP);
        Self { len, size }
    }

    /// Returns the number of groups; 0 for an empty stream.
    pub(crate) fn count(self) -> u32 {
        self.len.div_ceil(self.size) as u32
    }

    pub(crate) fn range(self, group: u32) -> Range<u64> {
        let start = u64::from(group) * self.size;
        start..(start + self.size).min(self.len)
    }

    pub(crate) fn at(self, offset: u64) -> u32 {
        (offset / self.size) as u32
    }

    pub(crate) fn touched(self, range: &Range<u64>) -> Range<u32> {
        if range.is_empty() { 0..0 } else { self.at(range.start)..self.at(range.end - 1) + 1 }
    }

    /// Returns the groups that overlap any of `ranges`, which are in order; each group once.
    pub(crate) fn touched_by(self, ranges: impl Iterator<Item = Range<u64>>) -> impl Iterator<Item = u32> {
        ranges
            .scan(0, move |next, range| {
                let touched = self.touched(&range);
                let new = touched.start.max(*next)..touched.end;
                *next = (*next).max(touched.end);
                Some(new)
            })
            .flatten()
    }

    /// Returns the groups completed by writing `range`, where `around` is the written range around it.
    pub(crate) fn completed(self, range: &Range<u64>, around: &Range<u64>) -> Range<u32> {
        let (touched, complete) = (self.touched(range), self.within(around));
        touched.start.max(complete.start)..touched.end.min(complete.end)
    }

    fn within(self, range: &Range<u64>) -> Range<u32> {
        let first = range.start.div_ceil(self.size) as u32;
        let end = if range.end == self.len { self.count() } else { self.at(range.end) };
        first..end.max(first)
    }

    pub(crate) fn hasher(self, group: u32) -> Hasher {
        let mut hasher = Hasher::new();
        if self.count() > 1 {
            hasher.set_input_offset(self.range(group).start);
        }
        hasher
    }

    /// Returns the value of a group whose bytes were fed to `hasher`, which is from [`Groups::hasher`].
    pub(crate) fn value(self, hasher: &Hasher) -> Value {
        if self.count() > 1 { hasher.finalize_non_root() } else { *hasher.finalize().as_bytes() }
    }
}

/// The known values of a stream's groups.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) groups: Groups,
    values: Vec<Option<Value>>,
    missing: u32,
}

impl Tree {
    pub(crate) fn new(groups: Groups) -> Self {
        let missing = groups.count();
        Self { groups, values: vec![None; missing as usize], missing }
    }

    pub(crate) fn set(&mut self, group: u32, value: Value) {
        if self.values[group as usize].replace(value).is_none() {
            self.missing -= 1;
        }
    }

    pub(crate) fn get(&self, group: u32) -> Option<Value> {
        self.values.get(group as usize).copied().flatten()
    }

    pub(crate) fn clear(&mut self, group: u32) {
        if self.values[group as usize].take().is_some() {
            self.missing += 1;
        }
    }

    /// Returns the hash of the whole stream, once all values are known.
    pub(crate) fn root(&self) -> Option<Value> {
        match self.values.as_slice() {
            [] => Some(*blake3::hash(b"").as_bytes()),
            [one] => *one,
            _ if self.missing > 0 => None,
            all => {
                let (left, right) = self.halves(all, self.groups.len)?;
                Some(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
            }
        }
    }

    /// Returns the values of both children of the node above `values`, which cover `len` bytes.
    fn halves(&self, values: &[Option<Value>], len: u64) -> Option<(Value, Value)> {
        let left_len = left_subtree_len(len);
        let (left, right) = values.split_at((left_len / self.groups.size) as usize);
        Some((self.merged(left, left_len)?, self.merged(right, len - left_len)?))
    }

    fn merged(&self, values: &[Option<Value>], len: u64) -> Option<Value> {
        if let [one] = values {
            return *one;
        }
        let (left, right) = self.halves(values, len)?;
        Some(merge_subtrees_non_root(&left, &right, Mode::Hash))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use haul_base::RangeSet;
    use proptest::prelude::*;

    use super::*;

    fn stream(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 257) as u8).collect()
    }

    fn root_of(data: &[u8], order: impl Fn(&mut Vec<u32>)) -> Value {
        let groups = Groups::of(data.len() as u64);
        let mut tree = Tree::new(groups);
        let mut numbers: Vec<u32> = (0..groups.count()).collect();
        order(&mut numbers);
        for group in numbers {
            assert!(tree.root().is_none());
            let range = groups.range(group);
            let mut hasher = groups.hasher(group);
            hasher.update(&data[range.start as usize..range.end as usize]);
            tree.set(group, groups.value(&hasher));
        }
        tree.root().unwrap()
    }

    #[test]
    fn groups_added_in_any_order_give_the_hash_of_the_file() {
        let mib = 1 << 20;
        for len in [0, 1, mib - 1, mib, mib + 1, 2 * mib, 3 * mib + 5, 7 * mib, 8 * mib + 1] {
            let data = stream(len);
            let expected = *blake3::hash(&data).as_bytes();
            assert_eq!(root_of(&data, |_| {}), expected, "{len}");
            assert_eq!(root_of(&data, |order| order.reverse()), expected, "{len}");
        }
    }

    #[test]
    fn a_cleared_group_is_missing_again() {
        let mut tree = Tree::new(Groups::of(2 << 20));
        tree.set(0, [1; 32]);
        tree.set(0, [2; 32]);
        tree.set(1, [3; 32]);
        assert!(tree.root().is_some());
        tree.clear(0);
        tree.clear(0);
        assert_eq!((tree.root(), tree.get(0), tree.get(1)), (None, None, Some([3; 32])));
        tree.set(0, [2; 32]);
        assert!(tree.root().is_some());
    }

    #[test]
    fn large_files_have_large_groups() {
        assert_eq!(Groups::of(0).count(), 0);
        assert_eq!(Groups::of(1 << 36).count(), 1 << 16);
        assert_eq!(Groups::of((1 << 36) + 1).size, 2 << 20);
        assert!(Groups::of((1 << 48) - 1).count() <= 1 << 16);
    }

    proptest! {
        #[test]
        fn each_group_is_completed_once_by_its_last_byte(
            len in 1..5_000_000_u64,
            cuts in prop::collection::vec(any::<u64>(), 0..20),
            seed in any::<u64>(),
        ) {
            let groups = Groups::of(len);
            let cuts: BTreeSet<u64> = cuts.into_iter().map(|cut| cut % len).chain([0, len]).collect();
            let mut ranges: Vec<_> = cuts.iter().zip(cuts.iter().skip(1)).map(|(&from, &to)| from..to).collect();
            let mut rng = haul_base::Rng::from_seed(seed);
            let (mut written, mut completed) = (RangeSet::new(), Vec::new());
            while !ranges.is_empty() {
                let range = ranges.swap_remove(rng.below(ranges.len() as u64) as usize);
                written.insert(range.clone());
                let around = written.iter().find(|around| around.start <= range.start && range.end <= around.end);
                completed.extend(groups.completed(&range, &around.unwrap()));
                prop_assert!(completed.iter().all(|&group| written.covers(groups.range(group))));
            }
            completed.sort_unstable();
            prop_assert_eq!(completed, (0..groups.count()).collect::<Vec<_>>());
        }

        #[test]
        fn touched_and_within_match_their_definitions(len in 1..20_000_000u64, a in any::<u64>(), b in any::<u64>()) {
            let groups = Groups::of(len);
            let range = (a % len).min(b % (len + 1))..(a % len).max(b % (len + 1));
            let touched = groups.touched(&range);
            let within = groups.within(&range);
            for group in 0..groups.count() {
                let bytes = groups.range(group);
                let meets = bytes.start < range.end && range.start < bytes.end && !range.is_empty();
                prop_assert_eq!(touched.contains(&group), meets);
                let inside = range.start <= bytes.start && bytes.end <= range.end;
                prop_assert_eq!(within.contains(&group), inside);
            }
        }
    }
}
