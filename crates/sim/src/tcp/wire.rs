//! Wire format of segments and acknowledgements, big-endian.
//!
//! ```text
//! data: 1 u8 | 0 u8, u16, u32 | segment u64 | 0 u64 | payload
//! ack:  2 u8 | blocks u8 | 0 u16, u32 | next segment expected u64 | 0 u64 | blocks: (start u32, end u32), from next
//! ```

use std::ops::Range;

/// Header bytes of a segment or acknowledgement.
pub const HEADER: usize = 24;
/// Maximum SACK blocks beside timestamps (RFC 2018).
pub const ACK_BLOCKS: usize = 3;

const DATA: u8 = 1;
const ACK: u8 = 2;

/// Contents of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ack {
    /// First missing segment.
    pub(super) next: u64,
    blocks: [(u32, u32); ACK_BLOCKS],
    count: u8,
}

impl Ack {
    pub(super) fn new(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// Adds a block if there is space and it is above `next` and within range.
    pub(super) fn push(&mut self, block: Range<u64>) {
        let relative = |segment: u64| u32::try_from(segment.checked_sub(self.next)?).ok();
        let (Some(start), Some(end)) = (relative(block.start), relative(block.end)) else { return };
        if let Some(free) = self.blocks.get_mut(usize::from(self.count)) {
            *free = (start, end);
            self.count += 1;
        }
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let blocks = &self.blocks[..usize::from(self.count)];
        blocks.iter().map(|&(start, end)| self.next + u64::from(start)..self.next + u64::from(end))
    }

    /// Writes the acknowledgement. Returns `None` if the slot is too short.
    pub(super) fn write(&self, slot: &mut [u8]) -> Option<usize> {
        let len = HEADER + 8 * usize::from(self.count);
        let out = slot.get_mut(..len)?;
        out.fill(0);
        out[0] = ACK;
        out[1] = self.count;
        out[8..16].copy_from_slice(&self.next.to_be_bytes());
        for (field, (start, end)) in out[HEADER..].chunks_exact_mut(8).zip(self.blocks) {
            field[..4].copy_from_slice(&start.to_be_bytes());
            field[4..].copy_from_slice(&end.to_be_bytes());
        }
        Some(len)
    }

    /// Parses an acknowledgement. Returns `None` for anything else.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let (header, blocks) = data.split_at_checked(HEADER)?;
        if header[0] != ACK
            || usize::from(header[1]) > ACK_BLOCKS
            || blocks.len() != 8 * usize::from(header[1])
        {
            return None;
        }
        let mut ack = Self::new(word(&header[8..16])?);
        ack.next.checked_add(u64::from(u32::MAX))?;
        for block in blocks.chunks_exact(8) {
            let (start, end) = ((word(block)? >> 32) as u32, word(block)? as u32);
            if start >= end {
                return None;
            }
            ack.push(ack.next + u64::from(start)..ack.next + u64::from(end));
        }
        Some(ack)
    }
}

fn word(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.first_chunk::<8>().copied()?))
}

/// Writes the header of a segment.
pub(super) fn write_data(slot: &mut [u8], segment: u64) {
    slot[..HEADER].fill(0);
    slot[0] = DATA;
    slot[8..16].copy_from_slice(&segment.to_be_bytes());
}

/// Parses a segment's number. Returns `None` for anything else.
pub(super) fn read_data(data: &[u8]) -> Option<u64> {
    let header = data.get(..HEADER).filter(|header| header[0] == DATA)?;
    word(&header[8..16]).filter(|&segment| segment < u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn acknowledgements_round_trip(next in 0u64..1 << 60, starts in prop::collection::vec((1u64..1 << 30, 1u64..1 << 20), 0..=3)) {
            let mut ack = Ack::new(next);
            for (start, len) in starts {
                ack.push(next + start..next + start + len);
            }
            let mut slot = [0xff; HEADER + 8 * ACK_BLOCKS];
            let len = ack.write(&mut slot).unwrap();
            prop_assert_eq!(Ack::read(&slot[..len]), Some(ack));
            prop_assert_eq!(read_data(&slot[..len]), None);
        }

        #[test]
        fn reading_any_bytes_is_harmless(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (Ack::read(&bytes), read_data(&bytes));
        }
    }

    #[test]
    fn segments_round_trip() {
        let mut slot = [0xff; 1_472];
        write_data(&mut slot, 0x1234_5678_9abc);
        assert_eq!(read_data(&slot), Some(0x1234_5678_9abc));
        assert_eq!(Ack::read(&slot), None);
    }
}
