//! Ranges of sequence numbers in packets: `(gap u16 | length u16) ...`, big-endian, upwards from a given
//! number.

use std::ops::Range;

/// Bytes of a range.
pub(super) const LEN: usize = 4;
/// Maximum number of ranges in one packet.
pub(super) const MAX_RANGES: usize = 64;
/// Bytes of that many ranges.
pub(super) const MAX_BYTES: usize = MAX_RANGES * LEN;

/// The parsed ranges of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ranges<'b> {
    from: u64,
    bytes: &'b [[u8; LEN]],
}

impl<'b> Ranges<'b> {
    /// Parses ranges above `from`; `None` if the bytes are invalid.
    pub(super) fn read(from: u64, bytes: &'b [u8]) -> Option<Self> {
        let (bytes, rest) = bytes.as_chunks();
        rest.is_empty().then_some(Self { from, bytes })
    }

    /// The ranges, lowest first.
    pub(super) fn iter(self) -> impl Iterator<Item = Range<u64>> {
        let mut at = self.from;
        self.bytes.iter().map(move |&[gap, gap_low, len, len_low]| {
            let start = at + u64::from(u16::from_be_bytes([gap, gap_low]));
            at = start + u64::from(u16::from_be_bytes([len, len_low]));
            start..at
        })
    }

    /// End of the last range; `from` if there is none.
    pub(super) fn end(self) -> u64 {
        self.iter().last().map_or(self.from, |last| last.end)
    }

    /// Whether there are no ranges.
    pub(super) fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the maximum number of ranges is present, so that more may exist.
    pub(super) fn is_full(self) -> bool {
        self.bytes.len() >= MAX_RANGES
    }
}

/// Writes ranges above `from`, lowest first, as many as fit. A range that is too long is written as several
/// adjacent ones, a gap that is too long as several gaps with empty ranges between them. Returns the number
/// of bytes used.
pub(super) fn write(from: u64, ranges: impl Iterator<Item = Range<u64>>, into: &mut [u8]) -> usize {
    let above = ranges.scan(from, |at, range| {
        let from = std::mem::replace(at, range.end);
        Some(pieces(from, range))
    });
    let mut used = 0;
    for (place, (gap, len)) in into.as_chunks_mut::<LEN>().0.iter_mut().zip(above.flatten()) {
        place[..2].copy_from_slice(&gap.to_be_bytes());
        place[2..].copy_from_slice(&len.to_be_bytes());
        used += LEN;
    }
    used
}

/// Splits a range above `from` into gaps and lengths that fit the format.
fn pieces(from: u64, range: Range<u64>) -> impl Iterator<Item = (u16, u16)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let saturated = |distance: u64| u16::try_from(distance).unwrap_or(u16::MAX);
        if at >= range.end {
            return None;
        }
        let gap = saturated(range.start.saturating_sub(at));
        at += u64::from(gap);
        let len = if at < range.start { 0 } else { saturated(range.end - at) };
        at += u64::from(len);
        Some((gap, len))
    })
}

#[cfg(test)]
mod tests {
    use haul_base::RangeSet;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_of_any_length_round_trip(
            from in 0u64..1 << 40,
            pieces in prop::collection::vec((0u64..90_000, 1u64..200_000), 0..9),
        ) {
            let (mut at, mut ranges) = (from, Vec::new());
            for (gap, len) in pieces {
                ranges.push(at + gap..at + gap + len);
                at += gap + len;
            }
            let mut bytes = [0; MAX_BYTES];
            let used = write(from, ranges.iter().cloned(), &mut bytes);
            let read = Ranges::read(from, &bytes[..used]).unwrap();
            prop_assert_eq!(read.end(), ranges.last().map_or(from, |last| last.end));
            prop_assert_eq!((read.is_empty(), read.is_full()), (ranges.is_empty(), false));
            let of = |ranges: &mut dyn Iterator<Item = Range<u64>>| {
                let mut set = RangeSet::new();
                ranges.for_each(|range| set.insert(range));
                set
            };
            prop_assert_eq!(of(&mut read.iter()), of(&mut ranges.into_iter()));
        }

        #[test]
        fn no_more_ranges_are_written_than_fit(count in 0u64..200, far in 65_536u64..1 << 40) {
            let starts = (0..count).map(|n| 2 * n + 1).chain([far + 2 * count]);
            let mut bytes = [0; MAX_BYTES];
            let used = write(0, starts.map(|start| start..start + 1), &mut bytes);
            let read = Ranges::read(0, &bytes[..used]).unwrap();
            let named: Vec<u64> = read.iter().flatten().collect();
            let is_complete = named.last() == Some(&(far + 2 * count));
            prop_assert_eq!(named.len() as u64, count.min(MAX_RANGES as u64) + u64::from(is_complete));
            // An incomplete list is recognisable as such.
            prop_assert!(is_complete || read.is_full());
        }

        #[test]
        fn any_bytes_are_read_or_refused(from in 0u64..1 << 48, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let read = Ranges::read(from, &bytes);
            prop_assert_eq!(read.is_some(), bytes.len().is_multiple_of(LEN));
            let mut last = from;
            for range in read.into_iter().flat_map(Ranges::iter) {
                prop_assert!(last <= range.start && range.start <= range.end);
                last = range.end;
            }
        }
    }
}
