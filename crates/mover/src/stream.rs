//! Between the bytes of a file and its stream, which leaves out the holes.

use std::ops::Range;

use haul_wire::control::Stretch;

/// The data of a file: which of its bytes are its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) size: u64,
    /// Stretches with data: where each begins in the stream, and in the file. Empty: no holes.
    pub(crate) data: Vec<(u64, u64)>,
    pub(crate) len: u64,
}

impl Shape {
    /// Of a file of `size` bytes with these holes, which are in order and inside of it.
    pub(crate) fn new(size: u64, holes: &[Stretch]) -> Self {
        let mut data = Vec::with_capacity(if holes.is_empty() { 0 } else { holes.len() + 1 });
        let (mut at, mut len) = (0, 0);
        for hole in holes {
            if hole.start > at {
                data.push((len, at));
                len += hole.start - at;
            }
            at = hole.start + hole.len;
        }
        if holes.is_empty() {
            return Self { size, data, len: size };
        }
        if at < size {
            data.push((len, at));
            len += size - at;
        }
        Self { size, data, len }
    }

    /// Bytes of memory that one with so many holes takes, in an [`Arc`](std::sync::Arc).
    pub(crate) fn bytes_with(holes: usize) -> u64 {
        let of_data = if holes == 0 { 0 } else { (holes + 1) * size_of::<(u64, u64)>() };
        (of_data + size_of::<Self>() + 2 * size_of::<usize>()) as u64
    }

    pub(crate) fn is_sparse(&self) -> bool {
        self.len != self.size
    }

    /// The holes: where each begins in the file, and its length.
    pub(crate) fn holes(&self) -> Vec<(u64, u64)> {
        if !self.is_sparse() {
            return Vec::new();
        }
        let (mut holes, mut at) = (Vec::new(), 0);
        for (start, len) in self.pieces(0..self.len).chain([(self.size, 0)]) {
            if start > at {
                holes.push((at, start - at));
            }
            at = start + len;
        }
        holes
    }

    /// Tells files of the same size with different holes apart; zeros without holes.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        if !self.is_sparse() {
            return [0; 32];
        }
        let mut hasher = blake3::Hasher::new();
        for (stream, file) in &self.data {
            hasher.update(&stream.to_le_bytes()).update(&file.to_le_bytes());
        }
        *hasher.update(&self.len.to_le_bytes()).finalize().as_bytes()
    }

    /// Where the byte of the stream at `offset` lies in the file, and how many bytes follow there at once.
    pub(crate) fn locate(&self, offset: u64) -> (u64, u64) {
        let next = self.data.partition_point(|&(start, _)| start <= offset);
        let Some(&(start, file)) = next.checked_sub(1).and_then(|index| self.data.get(index)) else {
            return (offset, self.len.saturating_sub(offset));
        };
        let end = self.data.get(next).map_or(self.len, |&(start, _)| start);
        (file + (offset - start), end - offset)
    }

    /// The pieces of the file that a part of the stream is, in order.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: u64, holes: &[(u64, u64)]) -> Shape {
        let holes: Vec<Stretch> = holes.iter().map(|&(start, len)| Stretch { start, len }).collect();
        Shape::new(size, &holes)
    }

    #[test]
    fn a_file_without_holes_is_its_stream() {
        let whole = shape(10, &[]);
        assert_eq!((whole.len, whole.is_sparse()), (10, false));
        assert_eq!(whole.pieces(2..10).collect::<Vec<_>>(), [(2, 8)]);
        assert_eq!(whole.holes(), []);
    }

    #[test]
    fn holes_are_left_out() {
        let holed = shape(100, &[(0, 10), (20, 30), (90, 10)]);
        assert_eq!((holed.len, holed.size, holed.is_sparse()), (50, 100, true));
        assert_eq!(holed.pieces(0..50).collect::<Vec<_>>(), [(10, 10), (50, 40)]);
        assert_eq!(holed.pieces(9..12).collect::<Vec<_>>(), [(19, 1), (50, 2)]);
        assert_eq!(holed.locate(10), (50, 40));
        assert_eq!(holed.holes(), [(0, 10), (20, 30), (90, 10)]);
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
