//! Packets that arrive in parts, because the path's MTU shrank after they were first sent. Rare, so plain
//! collections serve.

use std::collections::BTreeMap;
use std::ops::Range;

use haul_base::RangeSet;

/// Packets of which only parts have arrived; more than a window of the old size can hold is refused.
const MAX_OPEN: usize = 400_000;

/// Which bytes of incomplete packets are here.
#[derive(Debug, Default)]
pub(super) struct Parts {
    open: BTreeMap<u64, RangeSet>,
}

impl Parts {
    /// Whether there are none, as nearly always.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Notes that bytes `range` of packet `seq` arrived, and returns those of them that are new; `None` if there
    /// are too many open packets.
    pub(super) fn insert(&mut self, seq: u64, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&seq) {
            return None;
        }
        let have = self.open.entry(seq).or_default();
        let fresh = gaps(have, range.clone());
        have.insert(range);
        Some(fresh)
    }

    /// Whether all `whole` bytes of packet `seq` are here; then it is forgotten.
    pub(super) fn take_complete(&mut self, seq: u64, whole: u64) -> bool {
        let complete = self.open.get(&seq).is_some_and(|have| have.covers(0..whole));
        if complete {
            self.open.remove(&seq);
        }
        complete
    }

    /// The packet of number `seq` has arrived whole: which of its bytes `0..whole` are new. It is forgotten.
    pub(super) fn take_missing(&mut self, seq: u64, whole: u64) -> Option<Vec<Range<u64>>> {
        self.open.remove(&seq).map(|have| gaps(&have, 0..whole))
    }
}

/// The parts of `range` that are not in `have`.
fn gaps(have: &RangeSet, range: Range<u64>) -> Vec<Range<u64>> {
    let mut missing = RangeSet::new();
    missing.insert(range);
    for held in have.iter() {
        missing.remove(held);
    }
    missing.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(parts: &mut Parts, range: Range<u64>) -> Vec<(u64, u64)> {
        let fresh = parts.insert(5, range).unwrap();
        fresh.into_iter().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn overlapping_parts_count_once_and_complete_the_packet() {
        let mut parts = Parts::default();
        assert_eq!(fresh(&mut parts, 0..100), [(0, 100)]);
        assert_eq!(fresh(&mut parts, 50..150), [(100, 150)]);
        assert!(!parts.take_complete(5, 200));
        assert_eq!(fresh(&mut parts, 0..200), [(150, 200)]);
        assert!(parts.take_complete(5, 200));
        assert!(!parts.take_complete(5, 200));
    }

    #[test]
    fn the_whole_packet_brings_what_its_parts_have_not() {
        let mut parts = Parts::default();
        assert_eq!(parts.take_missing(5, 200), None);
        parts.insert(5, 40..60);
        assert_eq!(parts.take_missing(6, 200), None);
        assert_eq!(parts.take_missing(5, 200), Some(vec![0..40, 60..200]));
        assert_eq!(parts.take_missing(5, 200), None);
    }
}
