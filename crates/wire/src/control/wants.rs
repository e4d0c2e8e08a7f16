use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Whether the receiver may have something of the set already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Destination {
    /// Nothing is there: every entry is wanted whole, and no [`WantRun`] follows.
    Fresh,
    /// Something may be there: the receiver says of every entry what it wants.
    Occupied,
}

/// A stretch of a regular file's stream (its bytes without its holes), or of the file itself where holes are
/// described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// Where it begins.
    pub start: u64,
    /// Its length in bytes, not 0.
    pub len: u64,
}

impl From<Range<u64>> for Stretch {
    fn from(range: Range<u64>) -> Self {
        Self { start: range.start, len: range.end.saturating_sub(range.start) }
    }
}

impl Stretch {
    /// One behind its last byte, unless that is beyond any number.
    pub const fn end(&self) -> Option<u64> {
        self.start.checked_add(self.len)
    }

    /// Whether all stretches are not empty, lie below `limit`, and come in order without touching each other.
    pub fn in_order(stretches: &[Self], limit: u64) -> bool {
        let mut free_from = Some(0);
        stretches.iter().all(|stretch| {
            let fits = free_from.is_some_and(|from| stretch.start >= from)
                && stretch.len > 0
                && stretch.end().is_some_and(|end| end <= limit);
            // One byte between two of them, else they are one.
            free_from = stretch.end().and_then(|end| end.checked_add(1));
            fits
        })
    }
}

/// What is wanted of so many entries in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantRun {
    /// How many entries, not 0.
    pub count: u64,
    /// What is wanted of each.
    pub want: Want,
}

/// What the receiver wants of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// All of it. Also said of entries without contents.
    Whole,
    /// Nothing: it cannot be made there. The outcome, which says why, comes by itself.
    Nothing,
    /// Nothing: it is there already and counts as equal. The entry is settled by that.
    Kept,
    /// For the moment only what its groups hash to, to compare with what is there.
    Compare,
    /// What its groups hash to, and these stretches of its stream, in order.
    Rest(Vec<Stretch>),
}

/// Further stretches of an entry of which [`Want::Compare`] or [`Want::Rest`] was said: what is there has
/// turned out to be different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct More {
    /// Number of the entry.
    pub entry: u64,
    /// Stretches of its stream, in order.
    pub stretches: Vec<Stretch>,
}

/// What groups of a file's stream hash to, by the sender: chaining values of the BLAKE3 tree, or, of a file
/// that is one group, its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Number of the entry.
    pub entry: u64,
    /// Number of the first group.
    pub first: u64,
    /// One value for each group from there on.
    pub values: Vec<[u8; 32]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_must_be_in_order_apart_and_inside() {
        let s = |start, len| Stretch { start, len };
        assert!(Stretch::in_order(&[], 0));
        assert!(Stretch::in_order(&[s(0, 1), s(2, 8)], 10));
        for bad in [
            &[s(0, 0)][..],
            &[s(0, 11)],
            &[s(0, 1), s(1, 1)],
            &[s(5, 1), s(2, 1)],
            &[s(u64::MAX, 2)],
            &[s(0, u64::MAX), s(3, 1)],
        ] {
            assert!(!Stretch::in_order(bad, 10), "{bad:?}");
        }
    }
}
