//! Mapping between offsets in a file and in its stream, which omits the holes; and units of file I/O.

use std::ops::Range;

use derive_more::Deref;
use haul_base::Bytes;
use haul_wire::control::ByteRange;

/// Ranges of a sequence, concatenated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConcatenatedRanges {
    /// Start of each range in the concatenation, and in the original.
    pub(crate) parts: Vec<(u64, u64)>,
    pub(crate) len: u64,
}

impl ConcatenatedRanges {
    /// Concatenates ranges, which are in order and not empty.
    pub(crate) fn new(ranges: impl Iterator<Item = Range<u64>>) -> Self {
        let mut len = 0;
        let part = |range: Range<u64>| {
            let at = len;
            len += range.end - range.start;
            (at, range.start)
        };
        let mut parts: Vec<_> = ranges.map(part).collect();
        parts.shrink_to_fit();
        Self { parts, len }
    }

    /// Returns the original offset of the byte at `offset`, and how many bytes are contiguous from there.
    /// Without parts the mapping is the identity.
    pub(crate) fn locate(&self, offset: u64) -> (u64, u64) {
        let next = self.parts.partition_point(|&(start, _)| start <= offset);
        let Some(&(start, source_start)) = next.checked_sub(1).and_then(|index| self.parts.get(index)) else {
            return (offset, self.len.saturating_sub(offset));
        };
        (source_start + (offset - start), self.end(next - 1) - offset)
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + Clone {
        (0..self.parts.len()).map(|index| self.range(index))
    }

    /// Returns the ranges that end after the original `offset`.
    pub(crate) fn ranges_after(&self, offset: u64) -> impl Iterator<Item = Range<u64>> {
        let first_after = self.parts.partition_point(|&(_, source_start)| source_start <= offset);
        let first = first_after.checked_sub(1).filter(|&before| self.range(before).end > offset);
        (first.unwrap_or(first_after)..self.parts.len()).map(|index| self.range(index))
    }

    fn range(&self, index: usize) -> Range<u64> {
        let (start, source_start) = self.parts[index];
        source_start..source_start + (self.end(index) - start)
    }

    fn end(&self, index: usize) -> u64 {
        self.parts.get(index + 1).map_or(self.len, |&(start, _)| start)
    }
}

/// Returns the ranges of a file of `size` bytes between `ranges`, which are in order.
fn gaps(ranges: impl Iterator<Item = Range<u64>> + Clone, size: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = std::iter::once(0).chain(ranges.clone().map(|range| range.end));
    let ends = ranges.map(|range| range.start).chain([size]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty())
}

/// A file's size and data ranges, whose concatenation is its stream. Without holes there are no parts.
#[derive(Clone, Debug, PartialEq, Eq, Deref)]
pub(crate) struct Shape {
    pub(crate) size: u64,
    #[deref]
    pub(crate) data: ConcatenatedRanges,
}

impl Shape {
    /// Creates the shape of a file of `size` bytes with these holes, which are in order and within the file.
    pub(crate) fn new(size: u64, holes: &[ByteRange]) -> Self {
        if holes.is_empty() {
            return Self { size, data: ConcatenatedRanges { parts: Vec::new(), len: size } };
        }
        let holes = holes.iter().map(|hole| hole.start..hole.start + hole.len);
        Self { size, data: ConcatenatedRanges::new(gaps(holes, size)) }
    }

    /// Returns its memory in an [`Arc`](std::sync::Arc), in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.parts.capacity() * size_of::<(u64, u64)>() + size_of::<Self>() + 2 * size_of::<usize>()) as u64
    }

    pub(crate) fn is_sparse(&self) -> bool {
        self.len != self.size
    }

    /// Returns the holes: offset in the file, and length.
    pub(crate) fn holes(&self) -> Vec<(u64, u64)> {
        if !self.is_sparse() {
            return Vec::new();
        }
        gaps(self.ranges(), self.size).map(|hole| (hole.start, hole.end - hole.start)).collect()
    }

    /// Returns a hash that differs for files of the same size with different holes; zeros without holes.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        if !self.is_sparse() {
            return [0; 32];
        }
        let mut hasher = blake3::Hasher::new();
        for (stream, file) in &self.parts {
            hasher.update(&stream.to_le_bytes()).update(&file.to_le_bytes());
        }
        *hasher.update(&self.len.to_le_bytes()).finalize().as_bytes()
    }

    /// Returns the pieces of the file (offset, length) that make up a range of the stream, in order.
    pub(crate) fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (file, len) = self.locate(at);
            let len = len.min(range.end - at);
            at += len;
            (len > 0).then_some((file, len))
        })
    }

    /// Splits bytes at `offset` of the stream into pieces that are contiguous in the file: offset there, bytes.
    pub(crate) fn split<'b>(&self, offset: u64, bytes: &'b [u8]) -> impl Iterator<Item = (u64, &'b [u8])> {
        let mut rest = bytes;
        let pieces = self.pieces(offset..offset + bytes.len() as u64);
        pieces.map_while(move |(at, len)| Some((at, rest.split_off(..len as usize)?)))
    }
}

/// Maximum size of one read or write: the chunk of the paper.
const MAX_UNIT: u64 = 100_000_000;

/// Units in memory on each side: one being sent or filled, and one being read or written.
const UNITS_IN_MEMORY: u64 = 2;

/// Division of the object into I/O units, as in FOBS (dickens-system-aware-fobs, section 2.1): its chunks;
/// larger ones in equal parts of at most 100 MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    chunk: u64,
    unit: u64,
}

impl Units {
    pub(crate) fn new(Bytes(chunk): Bytes) -> Self {
        let chunk = chunk.max(1);
        Self { chunk, unit: chunk.div_ceil(chunk.div_ceil(MAX_UNIT)) }
    }

    /// Returns the size of the largest unit in bytes.
    pub(crate) fn longest(self) -> usize {
        self.unit as usize
    }

    /// Returns the memory needed on one side, in bytes.
    pub(crate) fn memory(self) -> u64 {
        UNITS_IN_MEMORY * self.unit
    }

    /// Returns the range of the unit that contains `offset` of the object.
    pub(crate) fn around(self, offset: u64) -> Range<u64> {
        let chunk = offset / self.chunk * self.chunk;
        let start = chunk + (offset - chunk) / self.unit * self.unit;
        start..start.saturating_add(self.unit).min(chunk.saturating_add(self.chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: u64, holes: &[(u64, u64)]) -> Shape {
        let holes: Vec<ByteRange> = holes.iter().map(|&(start, len)| ByteRange { start, len }).collect();
        Shape::new(size, &holes)
    }

    #[test]
    fn the_stream_of_a_file_without_holes_is_the_whole_file() {
        let dense = shape(10, &[]);
        assert_eq!((dense.len, dense.is_sparse()), (10, false));
        assert_eq!(dense.pieces(2..10).collect::<Vec<_>>(), [(2, 8)]);
        assert_eq!(dense.holes(), []);
    }

    #[test]
    fn holes_are_left_out_of_the_stream() {
        let sparse = shape(100, &[(0, 10), (20, 30), (90, 10)]);
        assert_eq!((sparse.len, sparse.size, sparse.is_sparse()), (50, 100, true));
        assert_eq!(sparse.pieces(0..50).collect::<Vec<_>>(), [(10, 10), (50, 40)]);
        assert_eq!(sparse.pieces(9..12).collect::<Vec<_>>(), [(19, 1), (50, 2)]);
        assert_eq!(sparse.locate(10), (50, 40));
        assert_eq!(sparse.holes(), [(0, 10), (20, 30), (90, 10)]);
        assert_eq!(shape(100, &[(20, 30)]).holes(), [(20, 30)]);
    }

    #[test]
    fn a_file_may_be_one_hole() {
        let hole = shape(1 << 40, &[(0, 1 << 40)]);
        assert_eq!((hole.len, hole.is_sparse()), (0, true));
        assert_eq!(hole.pieces(0..0).count(), 0);
        assert_eq!(hole.holes(), [(0, 1 << 40)]);
    }
}

#[cfg(test)]
mod units_tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_chunk_of_100_mb_is_one_unit_and_larger_ones_split_equally() {
        let units = |chunk| Units::new(Bytes(chunk));
        assert_eq!(units(100_000_000).around(250_000_000), 200_000_000..300_000_000);
        assert_eq!(units(150_000_000).around(80_000_000), 75_000_000..150_000_000);
        assert_eq!(units(150_000_000).around(150_000_000), 150_000_000..225_000_000);
        assert_eq!(units(1_000).around(999), 0..1_000);
    }

    proptest! {
        #[test]
        fn units_are_adjacent_and_do_not_cross_chunks(chunk in 1u64..1 << 40, offset in 0u64..1 << 46) {
            let units = Units::new(Bytes(chunk));
            let unit = units.around(offset);
            prop_assert!(unit.contains(&offset) && unit.end - unit.start <= MAX_UNIT.min(chunk));
            prop_assert_eq!(units.around(unit.end - 1), unit.clone());
            prop_assert_eq!(units.around(unit.end).start, unit.end);
            prop_assert_eq!((unit.end - 1) / chunk, offset / chunk);
        }
    }
}
