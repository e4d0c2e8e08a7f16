//! What the bytes of the object are: stretches of files, in the order in which they were wanted.

use std::ops::Range;

use crate::budget::{make_room, of_vec};

/// A stretch of a file's stream in the object; it ends where the next begins.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Where it begins in the object.
    at: u64,
    /// Where it begins in the stream.
    start: u64,
    entry: u32,
}

/// A piece of a file's stream: part of a range of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FilePiece {
    pub(crate) entry: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Layout {
    extents: Vec<Extent>,
    len: u64,
}

impl Layout {
    pub(crate) fn held(&self) -> u64 {
        of_vec(&self.extents)
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Appends bytes of an entry's stream. False: the object would be longer than `most`.
    pub(crate) fn append(&mut self, entry: u32, range: &Range<u64>, most: u64) -> bool {
        let len = range.end.saturating_sub(range.start);
        let Some(end) = self.len.checked_add(len).filter(|&end| end <= most) else {
            return false;
        };
        let continues =
            |last: &Extent| last.entry == entry && last.start + (self.len - last.at) == range.start;
        if len > 0 && !self.extents.last().is_some_and(continues) {
            make_room(&mut self.extents, 1);
            self.extents.push(Extent { at: self.len, start: range.start, entry });
        }
        self.len = end;
        true
    }

    /// Up to where the object has only bytes of entries below `entry`. `seen` remembers how far that was found
    /// out, for entries that only grow.
    pub(crate) fn len_below(&self, entry: u32, seen: &mut usize) -> u64 {
        while self.extents.get(*seen).is_some_and(|extent| extent.entry < entry) {
            *seen += 1;
        }
        self.extents.get(*seen).map_or(self.len, |extent| extent.at)
    }

    /// What bytes `[offset, offset + len)` of the object are, in order; they must lie below its length.
    pub(crate) fn pieces(&self, offset: u64, len: u64) -> Vec<FilePiece> {
        let (mut at, end) = (offset, (offset + len).min(self.len));
        let mut pieces = Vec::with_capacity(1);
        let first = self.extents.partition_point(|extent| extent.at <= offset).saturating_sub(1);
        for (index, extent) in self.extents.iter().enumerate().skip(first) {
            if at >= end {
                break;
            }
            let extent_end = self.extents.get(index + 1).map_or(self.len, |next| next.at);
            let len = extent_end.min(end) - at;
            pieces.push(FilePiece { entry: extent.entry, offset: extent.start + (at - extent.at), len });
            at += len;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(entry: u32, offset: u64, len: u64) -> FilePiece {
        FilePiece { entry, offset, len }
    }

    #[test]
    fn the_object_is_what_was_appended() {
        let mut layout = Layout::default();
        for (entry, range) in [(0, 0..10), (1, 0..0), (2, 5..8), (2, 8..9), (2, 20..30), (0, 3..4)] {
            assert!(layout.append(entry, &range, 1000));
        }
        assert_eq!(layout.len(), 25);
        let all = [piece(0, 0, 10), piece(2, 5, 4), piece(2, 20, 10), piece(0, 3, 1)];
        assert_eq!(layout.pieces(0, 25), all);
        assert_eq!(layout.pieces(9, 3), [piece(0, 9, 1), piece(2, 5, 2)]);
        assert_eq!(layout.pieces(14, 10), [piece(2, 20, 10)]);
        assert_eq!(layout.pieces(24, 1), [piece(0, 3, 1)]);
        assert_eq!(layout.pieces(0, 0), []);
    }

    #[test]
    fn bytes_of_known_entries_are_told_from_the_rest() {
        let mut layout = Layout::default();
        let mut seen = 0;
        assert_eq!(layout.len_below(1, &mut seen), 0);
        for entry in [0, 1, 2, 0] {
            layout.append(entry, &(0..10), 100);
        }
        let below: Vec<u64> = (0..4).map(|entry| layout.len_below(entry, &mut seen)).collect();
        assert_eq!(below, [0, 10, 20, 40]);
    }

    #[test]
    fn it_ends_before_it_is_too_long() {
        let mut layout = Layout::default();
        assert!(layout.append(0, &(0..10), 10));
        assert!(!layout.append(1, &(0..1), 10));
        assert!(layout.append(1, &(0..0), 10));
        assert_eq!(layout.len(), 10);
    }
}
