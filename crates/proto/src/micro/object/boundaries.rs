//! Checks that received segments are contiguous. An object is complete only without gaps, but a sender can
//! give its sequence numbers any offsets.

use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of boundaries with one side missing: about 32 MB. A gap has two; a window of 10 million
/// segments of which one in twenty is lost has a million.
const MAX_OPEN: usize = 1 << 20;

/// A run of contiguous segments, by number, and the offsets that they cover.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) segments: Range<u64>,
    pub(super) offsets: Range<u64>,
}

/// Two consecutive segments that are not contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// Sequence number of the second segment.
    seq: u64,
    /// End of the first segment and start of the second, in either order.
    offsets: [u64; 2],
}

impl Mismatch {
    /// Describes the mismatch.
    pub(super) fn reason(&self) -> String {
        let Self { seq, offsets: [a, b] } = self;
        format!("the sender's segment {seq} does not begin where the one before it ends: offsets {a} and {b}")
    }
}

/// Offsets at which segments start and end. The first segment must start at 0, each other one where the
/// previous one ends: then they cover the object exactly once.
#[derive(Debug)]
pub(super) struct Boundaries {
    /// Number and offset of the segment after the newest one. Stored separately because most segments arrive
    /// in order.
    next: Option<(u64, u64)>,
    /// Offsets of other boundaries with one side missing, by the number of the segment that starts there.
    open: BTreeMap<u64, u64>,
    pub(super) most: usize,
}

impl Default for Boundaries {
    fn default() -> Self {
        Self { next: Some((0, 0)), open: BTreeMap::new(), most: MAX_OPEN }
    }
}

impl Boundaries {
    /// Whether no segment can be accepted that adds another boundary.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= self.most
    }

    /// Whether segment `seq` is adjacent to one that has arrived.
    pub(super) fn touches(&self, seq: u64) -> bool {
        let known = |seq| self.next.is_some_and(|(next, _)| next == seq) || self.open.contains_key(&seq);
        known(seq) || known(seq + 1)
    }

    /// Adds segments, all of them new.
    pub(super) fn join(&mut self, row: Row) -> Result<(), Mismatch> {
        let Row { segments, offsets } = row;
        match self.next.take() {
            Some((next, at)) if next == segments.start => check_equal(next, at, offsets.start)?,
            next => {
                if let Some((next, at)) = next {
                    self.record(next, at)?;
                }
                self.record(segments.start, offsets.start)?;
            }
        }
        if let Some(known) = self.open.remove(&segments.end) {
            return check_equal(segments.end, known, offsets.end);
        }
        self.next = Some((segments.end, offsets.end));
        Ok(())
    }

    /// Records one side of a boundary, and closes it if the other side is known.
    fn record(&mut self, seq: u64, offset: u64) -> Result<(), Mismatch> {
        if let Some(known) = self.open.remove(&seq) {
            return check_equal(seq, known, offset);
        }
        self.open.insert(seq, offset);
        Ok(())
    }

    /// Checks the end of the object, once all segments up to number `last` have arrived.
    pub(super) fn ends_at(&self, last: u64, len: u64) -> Result<(), Mismatch> {
        let end = self.next.filter(|&(next, _)| next == last + 1).map(|(_, at)| at);
        let end = end.or_else(|| self.open.get(&(last + 1)).copied());
        end.map_or(Ok(()), |at| check_equal(last + 1, at, len))
    }
}

fn check_equal(seq: u64, one: u64, other: u64) -> Result<(), Mismatch> {
    if one == other { Ok(()) } else { Err(Mismatch { seq, offsets: [one, other] }) }
}

#[cfg(test)]
mod tests {
    use haul_base::Rng;
    use proptest::prelude::*;

    use super::*;

    fn row(segments: Range<u64>, offsets: Range<u64>) -> Row {
        Row { segments, offsets }
    }

    /// Contiguous segments of these lengths.
    fn segments(lens: &[u64]) -> Vec<(u64, u64, u64)> {
        let mut end = 0;
        let place = |(seq, len): (usize, &u64)| {
            end += len;
            (seq as u64, end - len, end)
        };
        lens.iter().enumerate().map(place).collect()
    }

    proptest! {
        #[test]
        fn misplaced_segments_of_an_object_are_detected_in_any_order(
            lens in proptest::collection::vec(1u64..2_000, 1..60), order: u64, shifted: prop::sample::Index, by in 1u64..50,
        ) {
            let honest = segments(&lens);
            let (last, len) = (lens.len() as u64 - 1, lens.iter().sum());
            let mut rng = Rng::from_seed(order);
            let mut lying = honest.clone();
            let (_, start, end) = &mut lying[shifted.index(lens.len())];
            (*start, *end) = (*start + by, *end + by);
            for (mut all, is_honest) in [(honest, true), (lying, false)] {
                for i in (1..all.len()).rev() {
                    all.swap(i, rng.below(i as u64 + 1) as usize);
                }
                let mut boundaries = Boundaries::default();
                let results: Result<Vec<()>, _> =
                    all.iter().map(|&(seq, start, end)| boundaries.join(row(seq..seq + 1, start..end))).collect();
                let outcome = results.and_then(|_| boundaries.ends_at(last, len));
                prop_assert_eq!(outcome.is_ok(), is_honest);
                if is_honest {
                    prop_assert!(boundaries.open.len() <= 1, "{:?}", boundaries.open);
                }
            }
        }
    }

    #[test]
    fn in_order_segments_use_no_memory() {
        let mut boundaries = Boundaries::default();
        for seq in 0..1_000 {
            boundaries.join(row(seq..seq + 1, seq * 10..seq * 10 + 10)).unwrap();
            assert!(boundaries.open.is_empty());
        }
        // Several at once, after and before a gap.
        boundaries.join(row(1_100..1_200, 11_000..12_000)).unwrap();
        boundaries.join(row(1_000..1_100, 10_000..11_000)).unwrap();
        assert_eq!(boundaries.ends_at(1_199, 12_000), Ok(()));
        let mut boundaries = Boundaries::default();
        boundaries.join(row(0..1_000, 0..10_000)).unwrap();
        assert_eq!(boundaries.ends_at(999, 10_000), Ok(()));
        assert!(boundaries.ends_at(999, 10_001).is_err());
    }

    #[test]
    fn gaps_are_bounded_and_segments_that_close_one_are_accepted() {
        assert_eq!(Boundaries::default().most / 2, 524_288, "docs/security.md");
        let mut boundaries = Boundaries { most: 100, ..Boundaries::default() };
        let mut joined = Vec::new();
        for seq in (1..1_000).step_by(2) {
            if !boundaries.is_full() || boundaries.touches(seq) {
                boundaries.join(row(seq..seq + 1, seq * 10..seq * 10 + 10)).unwrap();
                joined.push(seq);
            }
        }
        assert!((100..104).contains(&boundaries.open.len()) && joined.len() < 60, "{}", joined.len());
        for seq in joined.into_iter().map(|seq| seq - 1) {
            assert!(boundaries.touches(seq));
            boundaries.join(row(seq..seq + 1, seq * 10..seq * 10 + 10)).unwrap();
        }
        assert!(boundaries.open.len() <= 1);
    }
}
