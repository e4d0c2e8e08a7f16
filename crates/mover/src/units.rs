//! Units of file I/O: files are read and written one chunk of the object at a time, as in FOBS
//! (dickens-system-aware-fobs, section 2.1).

use std::ops::Range;

use haul_base::Bytes;

/// Maximum size of one read or write: the chunk of the paper.
const MOST: u64 = 100_000_000;

/// Units in memory on each side: one being sent or filled, and one being read or written.
const IN_MEMORY: u64 = 2;

/// Division of the object into I/O units: its chunks; larger ones in equal parts of at most 100 MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    chunk: u64,
    unit: u64,
}

impl Units {
    pub(crate) fn new(Bytes(chunk): Bytes) -> Self {
        let chunk = chunk.max(1);
        Self { chunk, unit: chunk.div_ceil(chunk.div_ceil(MOST)) }
    }

    /// Returns the size of the largest unit in bytes.
    pub(crate) fn longest(self) -> usize {
        self.unit as usize
    }

    /// Returns the memory needed on one side, in bytes.
    pub(crate) fn memory(self) -> u64 {
        IN_MEMORY * self.unit
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_chunk_of_the_paper_is_one_unit_and_more_is_cut_into_equal_ones() {
        let units = |chunk| Units::new(Bytes(chunk));
        assert_eq!(units(100_000_000).around(250_000_000), 200_000_000..300_000_000);
        assert_eq!(units(150_000_000).around(80_000_000), 75_000_000..150_000_000);
        assert_eq!(units(150_000_000).around(150_000_000), 150_000_000..225_000_000);
        assert_eq!(units(1_000).around(999), 0..1_000);
    }

    proptest! {
        #[test]
        fn units_follow_each_other_and_end_with_each_chunk(chunk in 1u64..1 << 40, offset in 0u64..1 << 46) {
            let units = Units::new(Bytes(chunk));
            let unit = units.around(offset);
            prop_assert!(unit.contains(&offset) && unit.end - unit.start <= MOST.min(chunk));
            prop_assert_eq!(units.around(unit.end - 1), unit.clone());
            prop_assert_eq!(units.around(unit.end).start, unit.end);
            prop_assert_eq!((unit.end - 1) / chunk, offset / chunk);
        }
    }
}
