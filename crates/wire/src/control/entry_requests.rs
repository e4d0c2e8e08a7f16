use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Whether the destination may contain parts of the set already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Destination {
    /// It is empty: every entry is sent whole, and no [`RequestRun`] follows.
    Fresh,
    /// It may not be empty: the receiver requests every entry.
    Occupied,
}

/// A range of a regular file's stream (its contents without holes), or of the file itself when describing
/// holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Length in bytes, not 0.
    pub len: u64,
}

impl From<Range<u64>> for ByteRange {
    fn from(range: Range<u64>) -> Self {
        Self { start: range.start, len: range.end.saturating_sub(range.start) }
    }
}

impl ByteRange {
    /// Returns the offset after the last byte; `None` on overflow.
    pub const fn end(&self) -> Option<u64> {
        self.start.checked_add(self.len)
    }

    /// Whether the ranges are not empty, end at or below `limit`, and are in order without touching each
    /// other.
    pub fn in_order(ranges: &[Self], limit: u64) -> bool {
        let mut free_from = Some(0);
        ranges.iter().all(|range| {
            let fits = free_from.is_some_and(|from| range.start >= from)
                && range.len > 0
                && range.end().is_some_and(|end| end <= limit);
            // Adjacent ranges must be merged, so there is at least one byte between two.
            free_from = range.end().and_then(|end| end.checked_add(1));
            fits
        })
    }
}

/// Request for a number of consecutive entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRun {
    /// Number of entries, not 0.
    pub count: u64,
    /// Request for each of them.
    pub request: EntryRequest,
}

/// Which data of an entry the receiver requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryRequest {
    /// All of it. Also used for entries without contents.
    All,
    /// None: the entry cannot be created. Its outcome, with the reason, follows separately.
    Nothing,
    /// None: the entry exists already and counts as equal, which is its final outcome.
    Kept,
    /// For now only hashes of its groups, to compare with the existing data.
    Compare,
    /// Hashes of its groups, and these ranges of its stream, in order.
    Ranges(Vec<ByteRange>),
}

/// Request for further ranges of an entry after [`EntryRequest::Compare`] or [`EntryRequest::Ranges`]: the
/// existing data is different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct More {
    /// Number of the entry.
    pub entry: u64,
    /// Ranges of its stream, in order.
    pub ranges: Vec<ByteRange>,
}

/// Hashes of groups of a file's stream, by the sender: chaining values of the BLAKE3 tree, or, if the file is
/// a single group, its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Number of the entry.
    pub entry: u64,
    /// Number of the first group.
    pub first: u64,
    /// One value for each consecutive group.
    pub values: Vec<[u8; 32]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_must_be_ordered_separate_and_inside() {
        let s = |start, len| ByteRange { start, len };
        assert!(ByteRange::in_order(&[], 0));
        assert!(ByteRange::in_order(&[s(0, 1), s(2, 8)], 10));
        for bad in [
            &[s(0, 0)][..],
            &[s(0, 11)],
            &[s(0, 1), s(1, 1)],
            &[s(5, 1), s(2, 1)],
            &[s(u64::MAX, 2)],
            &[s(0, u64::MAX), s(3, 1)],
        ] {
            assert!(!ByteRange::in_order(bad, 10), "{bad:?}");
        }
    }
}
