//! Stretches of sequence numbers in packets: `(gap u16 | length u16) ...`, big-endian, from a number upwards.

use std::ops::Range;

/// Bytes of a stretch.
pub(super) const LEN: usize = 4;
/// Stretches in one packet.
pub(super) const MOST: usize = 64;
/// Bytes of so many.
pub(super) const MOST_BYTES: usize = MOST * LEN;

/// The stretches of a packet, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretches<'b> {
    from: u64,
    bytes: &'b [[u8; LEN]],
}

impl<'b> Stretches<'b> {
    /// Those above `from`; `None` if these are other bytes.
    pub(super) fn read(from: u64, bytes: &'b [u8]) -> Option<Self> {
        let (bytes, rest) = bytes.as_chunks();
        rest.is_empty().then_some(Self { from, bytes })
    }

    /// Each, the lowest first.
    pub(super) fn iter(self) -> impl Iterator<Item = Range<u64>> {
        let mut at = self.from;
        self.bytes.iter().map(move |&[gap, gap_low, len, len_low]| {
            let start = at + u64::from(u16::from_be_bytes([gap, gap_low]));
            at = start + u64::from(u16::from_be_bytes([len, len_low]));
            start..at
        })
    }

    /// The end of the last, or where they would begin.
    pub(super) fn end(self) -> u64 {
        self.iter().last().map_or(self.from, |last| last.end)
    }

    /// Whether there are none.
    pub(super) fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether there are as many as can be said, so that there may be more.
    pub(super) fn is_full(self) -> bool {
        self.bytes.len() >= MOST
    }
}

/// Writes stretches above `from`, the lowest first: as many as can be said and have room. One that is too long is cut,
/// and is the last. Gives the bytes used.
pub(super) fn write(from: u64, stretches: impl Iterator<Item = Range<u64>>, into: &mut [u8]) -> usize {
    let (mut at, mut used) = (from, 0);
    for (stretch, place) in stretches.zip(into.as_chunks_mut::<LEN>().0) {
        let Ok(gap) = u16::try_from(stretch.start - at) else { break };
        let len = u16::try_from(stretch.end - stretch.start).unwrap_or(u16::MAX);
        place[..2].copy_from_slice(&gap.to_be_bytes());
        place[2..].copy_from_slice(&len.to_be_bytes());
        used += LEN;
        at = stretch.start + u64::from(len);
        if at < stretch.end {
            break;
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stretches_survive_up_to_one_that_is_too_long(
            from in 0u64..1 << 40,
            pieces in prop::collection::vec((0u64..50, 1u64..90_000), 0..9),
        ) {
            let (mut at, mut stretches) = (from, Vec::new());
            for (gap, len) in pieces {
                stretches.push(at + gap..at + gap + len);
                at += gap + len;
            }
            let mut bytes = [0; MOST_BYTES];
            let used = write(from, stretches.iter().cloned(), &mut bytes);
            if let Some(long) = stretches.iter().position(|s| s.end - s.start > u64::from(u16::MAX)) {
                stretches.truncate(long + 1);
                stretches[long].end = stretches[long].start + u64::from(u16::MAX);
            }
            let read = Stretches::read(from, &bytes[..used]).unwrap();
            prop_assert_eq!(read.end(), stretches.last().map_or(from, |last| last.end));
            prop_assert_eq!((read.is_empty(), read.is_full()), (stretches.is_empty(), false));
            prop_assert_eq!(read.iter().collect::<Vec<_>>(), stretches);
        }

        #[test]
        fn no_more_are_written_than_can_be_said(count in 0u64..200, far in 65_536u64..1 << 40) {
            let starts = (0..count).map(|n| 2 * n + 1).chain([far + 2 * count]);
            let mut bytes = [0; MOST_BYTES];
            let used = write(0, starts.map(|start| start..start + 1), &mut bytes);
            let read = Stretches::read(0, &bytes[..used]).unwrap();
            prop_assert_eq!(read.iter().count() as u64, count.min(MOST as u64));
            prop_assert_eq!(read.is_full(), count >= MOST as u64);
        }

        #[test]
        fn any_bytes_are_read_or_refused(from in 0u64..1 << 48, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let read = Stretches::read(from, &bytes);
            prop_assert_eq!(read.is_some(), bytes.len().is_multiple_of(LEN));
            let mut last = from;
            for stretch in read.into_iter().flat_map(Stretches::iter) {
                prop_assert!(last <= stretch.start && stretch.start <= stretch.end);
                last = stretch.end;
            }
        }
    }
}
