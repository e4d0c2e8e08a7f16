//! Received batches: skips malformed packets, rejects packets that are too short or not authentic.

use super::{Batch, GENERATION_BIT, Kind, MAX_BATCH, PACKET_HEADER_LEN};
use crate::attribute::{AttributeType, Layout, U48};

impl<'b> Batch<'b> {
    /// Creates a batch from a received buffer, at most [`MAX_BATCH`] packets. Malformed packets are counted
    /// and skipped.
    pub(crate) fn incoming(buffer: &'b mut [u8], stride: usize, layout: &'b Layout, generation: u8) -> Self {
        let stride = stride.max(1);
        let (mut live, mut data, mut fins, mut strange) = (0, 0, 0, 0);
        let packets = buffer.chunks(stride).take(MAX_BATCH);
        let count = packets.len();
        for (i, packet) in packets.enumerate() {
            let bit = 1 << i;
            if packet.len() < PACKET_HEADER_LEN || packet[0] & GENERATION_BIT != generation {
                strange |= bit;
                continue;
            }
            let kind = Kind(packet[0] & !GENERATION_BIT);
            if kind.is_data() {
                data |= bit;
                fins |= if kind == Kind::DATA_FIN { bit } else { 0 };
            }
            if kind != Kind::CONTROL_FRAME {
                live |= bit;
            }
        }
        let (used, unauthentic) = (buffer.len().min(count * stride), u64::count_ones(strange));
        Self {
            buffer,
            count,
            live,
            data,
            fins,
            resent: 0,
            layout,
            used,
            closed: true,
            stride,
            datagram: 0,
            limit: count,
            first_pn: 0,
            generation,
            violations: 0,
            violated: None,
            unauthentic,
        }
    }

    /// Rejects packets that are too short for the headers and tag of their kind.
    pub(crate) fn reject_short(&mut self) {
        let Some(last) = self.count.checked_sub(1) else { return };
        let tag = self.layout.tag_len();
        for (kind, least) in
            [(self.data, self.layout.data_header_len() + tag), (!self.data, self.layout.clear_len() + tag)]
        {
            let short = match () {
                () if self.stride < least => self.live & kind,
                () if self.size(last) < least => self.live & kind & 1 << last,
                () => 0,
            };
            self.live &= !short;
            self.violations += short.count_ones();
        }
    }

    /// Opens the packets not yet taken: `open` gets each packet with its number and returns whether it is
    /// authentic. A packet shorter than `least` bytes is not. Returns the number of packets that are not
    /// authentic.
    #[inline]
    pub fn open_each(&mut self, least: usize, mut open: impl FnMut(&mut [u8], u64) -> bool) -> u64 {
        let least = least.max(PACKET_HEADER_LEN);
        let mut strange = 0;
        for (i, packet) in self.buffer[..self.used].chunks_mut(self.stride.max(1)).enumerate() {
            let bit = self.live & 1 << i;
            if bit != 0 {
                let whole = packet.len() >= least;
                strange |= if whole && open(packet, U48::read(&packet[1..][..U48::LEN])) { 0 } else { bit };
            }
        }
        self.live &= !strange;
        self.unauthentic += strange.count_ones();
        u64::from(strange.count_ones())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Start;
    use super::*;

    fn layout(clear: u16, sealed: u16, tag: u16) -> Layout {
        let clear_len = PACKET_HEADER_LEN as u16 + clear;
        Layout { clear_len, data_len: clear_len + sealed, tag_len: tag, attributes: Vec::new() }
    }

    proptest! {
        #[test]
        fn any_bytes_make_a_batch(
            mut bytes in prop::collection::vec(any::<u8>(), 0..600), stride in 0usize..100, tag in 0u16..20,
        ) {
            let layout = layout(4, 9, tag);
            let mut batch = Batch::incoming(&mut bytes, stride, &layout, 0);
            for i in batch.live() {
                let long = batch.kind(i).is_data() && batch.size(i) >= batch.layout().data_overhead();
                prop_assert!(!long || batch.payload(i).len() + batch.layout().data_overhead() == batch.size(i));
                batch.packet_mut(i)[0] = 1;
            }
        }

        #[test]
        fn opened_packets_are_complete_and_numbered(
            count in 1usize..64, last in 0usize..20, taken: u64, refused: u64, first_pn in 0u64..1 << 47,
        ) {
            let layout = layout(1, 2, 3);
            let mut buffer = vec![0; 65_507];
            let start = Start { datagram: 40, limit: 64, next_pn: first_pn, generation: 0 };
            let mut batch = Batch::outgoing(&mut buffer, &layout, &start);
            prop_assert!(!batch.is_row());
            for _ in 0..count {
                batch.push(Kind::DATA, 20);
            }
            prop_assert!(batch.is_row());
            let (used, stride) = ((count - 1) * batch.stride() + last, batch.stride());
            let mut batch = Batch::incoming(&mut buffer[..used], stride, &layout, 0);
            let packets = batch.len();
            for i in (0..packets).filter(|i| taken >> i & 1 == 1) {
                batch.take(i);
            }
            let (before, strange) = (batch.live().collect::<Vec<_>>(), batch.unauthentic);
            let mut seen = Vec::new();
            let failed = batch.open_each(11, |packet, pn| {
                assert!(packet.len() >= 11);
                seen.push((pn - first_pn) as usize);
                refused >> (pn - first_pn) & 1 == 0
            });
            let whole: Vec<usize> = before.iter().copied().filter(|&i| batch.size(i) >= 11).collect();
            prop_assert_eq!(&seen, &whole);
            let left: Vec<usize> = whole.into_iter().filter(|i| refused >> i & 1 == 0).collect();
            prop_assert_eq!(batch.live().collect::<Vec<_>>(), &left[..]);
            prop_assert_eq!(failed as usize, before.len() - left.len());
            prop_assert_eq!(u64::from(batch.unauthentic - strange), failed);
            prop_assert_eq!(batch.is_row(), left.len() == packets && packets > 0);
        }
    }
}
