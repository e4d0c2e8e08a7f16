//! Batches: up to 64 packets contiguous in one buffer, as GSO and GRO transfer them. Events carry batches, so
//! that one virtual call handles all packets.

mod incoming;
mod outgoing;

use std::ops::Range;

use crate::attribute::{Attribute, AttributeType, Layout, U48};
use crate::fields::Fields;
use crate::walk::{Live, Values};

/// Maximum number of packets in an outgoing batch (`UDP_MAX_SEGMENTS` of Linux 4.18).
pub const MAX_BATCH: usize = 64;
/// Length of the packet header: the kind and the packet number, in bytes.
pub const PACKET_HEADER_LEN: usize = 7;
/// Bit of the kind byte that marks the generation of the recipe that a packet belongs to.
pub const GENERATION_BIT: u8 = 0x80;

/// Packet type. Each control kind belongs to exactly one micro-protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

impl Kind {
    /// A segment of a message or an object, with all attributes of the stack.
    pub const DATA: Self = Self(1);
    /// The last segment of an object.
    pub const DATA_FIN: Self = Self(2);
    /// A control frame of the connection; stacks ignore it.
    pub const CONTROL_FRAME: Self = Self(15);
    /// The framework's own kind: negotiation of a new recipe for a running stack.
    pub const RECONFIGURE: Self = Self(0x3F);
    /// First kind assigned to micro-protocols from outside this project.
    pub const FIRST_USER: Self = Self(0x40);

    /// Whether packets of this kind carry the stack's attributes.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::DATA | Self::DATA_FIN)
    }
}

/// Packets of one direction in one buffer, at most [`MAX_BATCH`]. All have the same size, except that the
/// last may be shorter. A packet's index determines its position; its kind and packet number are read from
/// its header.
#[derive(Debug)]
pub struct Batch<'b> {
    buffer: &'b mut [u8],
    count: usize,
    /// Packets not yet taken: bit `i` stands for packet `i`.
    live: u64,
    /// Packets that carry the stack's attributes, taken or not.
    data: u64,
    /// Data packets that end an object.
    fins: u64,
    /// Outgoing: packets that repeat a segment.
    resent: u64,
    layout: &'b Layout,
    /// Total bytes of all packets.
    used: usize,
    /// Outgoing: the last packet is shorter than the others, or larger than the path is known to carry.
    closed: bool,
    /// Size of every packet but the last.
    stride: usize,
    /// Outgoing: maximum packet size. `limit` is the maximum number of packets.
    datagram: usize,
    limit: usize,
    /// Outgoing: packet number of the first packet.
    first_pn: u64,
    generation: u8,
    pub(crate) violations: u32,
    /// Kind of the last violation.
    pub(crate) violated: Option<Kind>,
    pub(crate) unauthentic: u32,
}

/// Initial values of an outgoing batch.
pub(crate) struct Start {
    pub(crate) datagram: usize,
    pub(crate) limit: usize,
    pub(crate) next_pn: u64,
    pub(crate) generation: u8,
}

impl<'b> Batch<'b> {
    pub(crate) fn outgoing(buffer: &'b mut [u8], layout: &'b Layout, start: &Start) -> Self {
        let (datagram, limit) = (start.datagram.min(buffer.len()), start.limit.min(MAX_BATCH));
        Self {
            buffer,
            count: 0,
            live: 0,
            data: 0,
            fins: 0,
            resent: 0,
            layout,
            used: 0,
            closed: false,
            stride: 0,
            datagram,
            limit,
            first_pn: start.next_pn,
            generation: start.generation,
            violations: 0,
            violated: None,
            unauthentic: 0,
        }
    }

    /// The packet format.
    pub fn layout(&self) -> &Layout {
        self.layout
    }

    /// Number of packets, including those that were taken.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the batch has no packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Indices of the packets not yet taken. The batch may be changed during the iteration.
    #[inline]
    pub fn live(&self) -> Live {
        Live(self.live)
    }

    /// As [`Batch::live`], only packets without attributes.
    pub(crate) fn live_control(&self) -> Live {
        Live(self.live & !self.data)
    }

    /// Number of data packets not yet taken.
    pub(crate) fn live_data(&self) -> usize {
        (self.live & self.data).count_ones() as usize
    }

    pub(crate) fn has_live(&self) -> bool {
        self.live != 0
    }

    /// Whether packet `i` is not yet taken.
    #[inline]
    pub fn is_live(&self, i: usize) -> bool {
        self.live >> i & 1 == 1
    }

    /// Kind of packet `i`.
    #[inline]
    pub fn kind(&self, i: usize) -> Kind {
        Kind(self.buffer[i * self.stride] & !GENERATION_BIT)
    }

    /// Packet number of packet `i`.
    ///
    /// # Panics
    /// If the packet is shorter than a header; handlers never see such packets.
    #[inline]
    pub fn pn(&self, i: usize) -> u64 {
        let at = i * self.stride + 1;
        U48::read(&self.buffer[at..at + U48::LEN])
    }

    /// Whether packet `i` repeats a segment.
    #[inline]
    pub fn is_resent(&self, i: usize) -> bool {
        self.resent >> i & 1 == 1
    }

    /// Outgoing: packets that carry new segments.
    #[inline]
    pub fn fresh(&self) -> Live {
        Live(self.live & !self.resent)
    }

    /// Whether all packets are data packets, none is taken, none repeats a segment and none ends an object.
    /// All but the last then have the same size and consecutive packet numbers. This holds for nearly all
    /// batches.
    #[inline]
    pub fn is_row(&self) -> bool {
        let row = self.live & self.data & !self.fins & !self.resent;
        self.count > 0 && row.count_ones() as usize == self.count
    }

    /// Number of packets that repeat a segment.
    pub fn count_resent(&self) -> usize {
        self.resent.count_ones() as usize
    }

    /// Size of packet `i`: UDP payload, including the tag.
    #[inline]
    pub fn size(&self, i: usize) -> usize {
        debug_assert!(i < self.count, "packet {i} of {}", self.count);
        self.used.saturating_sub(i * self.stride).min(self.stride)
    }

    /// Size of the shortest packet, including those that were taken.
    #[inline]
    pub fn shortest(&self) -> usize {
        self.count.checked_sub(1).map_or(0, |last| self.size(last))
    }

    /// Total bytes of the packets not yet taken.
    pub fn live_bytes(&self) -> usize {
        let Some(last) = self.count.checked_sub(1) else { return 0 };
        let full = (self.live & !(1 << last)).count_ones() as usize * self.stride;
        full + if self.is_live(last) { self.size(last) } else { 0 }
    }

    /// Reads an attribute of data packet `i`.
    ///
    /// # Panics
    /// If the packet is too short for the attribute. Received packets are checked before handlers see them.
    #[inline]
    pub fn get<T: AttributeType>(&self, i: usize, attribute: Attribute<T>) -> T::Value {
        let at = i * self.stride + attribute.range().start;
        T::read(&self.buffer[at..at + T::LEN])
    }

    /// Reads one or several attributes of every packet not yet taken; cheaper than reading them one by one.
    ///
    /// # Panics
    /// During the iteration, as [`Batch::get`].
    #[inline]
    pub fn values<F: Fields>(&self, fields: F) -> Values<'_, F> {
        Values::new(self.buffer, fields, self.stride, self.live)
    }

    /// As [`Batch::values`], preceded by the packet number.
    ///
    /// # Panics
    /// During the iteration, as [`Batch::get`].
    #[inline]
    pub fn numbered<F: Fields>(&self, fields: F) -> Values<'_, (Attribute<U48>, F)> {
        self.values((Attribute::at(1), fields))
    }

    /// Writes an attribute of data packet `i`.
    ///
    /// # Panics
    /// As [`Batch::get`].
    #[inline]
    pub fn set<T: AttributeType>(&mut self, i: usize, attribute: Attribute<T>, value: T::Value) {
        let at = i * self.stride + attribute.range().start;
        T::write(value, &mut self.buffer[at..at + T::LEN]);
    }

    /// Writes one or several attributes of each of `packets`; cheaper than writing them one by one.
    ///
    /// # Panics
    /// As [`Batch::get`].
    #[inline]
    pub fn set_each<F: Fields>(
        &mut self,
        packets: Range<usize>,
        fields: F,
        mut values: impl FnMut(usize) -> F::Values,
    ) {
        let end = fields.end();
        // A `u32`, half the width of an address, so that the sum cannot overflow and needs no check.
        let mut at = (packets.start * self.stride) as u32;
        for i in packets {
            let from = at as usize;
            fields.write(values(i), &mut self.buffer[from..from + end]);
            at = at.wrapping_add(self.stride as u32);
        }
    }

    /// Sets an attribute to the same value in every packet.
    ///
    /// # Panics
    /// As [`Batch::get`].
    #[inline]
    pub fn set_all<T: AttributeType>(&mut self, attribute: Attribute<T>, value: T::Value) {
        self.set_each(0..self.count, attribute, |_| value);
    }

    /// Position of packet `i`'s payload in the buffer: after the attributes of a data packet, after the clear
    /// header of any other packet.
    #[inline]
    pub fn payload_range(&self, i: usize) -> Range<usize> {
        let start = i * self.stride;
        let header =
            if self.data >> i & 1 == 1 { self.layout.data_header_len() } else { self.layout.clear_len() };
        start + header..(start + self.size(i) - self.layout.tag_len()).max(start + header)
    }

    #[inline]
    fn header_len(&self, kind: Kind) -> usize {
        if kind.is_data() { self.layout.data_header_len() } else { self.layout.clear_len() }
    }

    /// The payload of packet `i`.
    #[inline]
    pub fn payload(&self, i: usize) -> &[u8] {
        &self.buffer[self.payload_range(i)]
    }

    /// Mutable payload of packet `i`.
    #[inline]
    pub fn payload_mut(&mut self, i: usize) -> &mut [u8] {
        let range = self.payload_range(i);
        &mut self.buffer[range]
    }

    /// The whole of packet `i`.
    #[inline]
    pub fn packet_mut(&mut self, i: usize) -> &mut [u8] {
        let (start, len) = (i * self.stride, self.size(i));
        &mut self.buffer[start..start + len]
    }

    /// The buffer that holds the packets.
    pub fn buffer(&self) -> &[u8] {
        self.buffer
    }

    /// Marks packet `i` as handled; later handlers do not see it.
    pub fn take(&mut self, i: usize) {
        self.live &= !(1 << i);
    }

    /// Rejects packet `i`, which is authentic but invalid: the peer violates the recipe. Too many of these
    /// end the session.
    pub fn reject(&mut self, i: usize) {
        self.take(i);
        self.violations += 1;
        self.violated = Some(self.kind(i));
    }

    /// Rejects packet `i` as not authentic.
    pub fn reject_unauthentic(&mut self, i: usize) {
        self.take(i);
        self.unauthentic += 1;
    }

    /// Whether the batch carries data packets.
    pub fn is_data(&self) -> bool {
        self.data & 1 == 1
    }

    /// Outgoing: total bytes of all packets.
    pub fn bytes(&self) -> usize {
        self.used
    }

    /// Outgoing: size of every packet but the last.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Outgoing: the packets' bytes, their stride and the first packet number, for sealing.
    pub fn sealable(&mut self) -> (&mut [u8], usize, u64) {
        (&mut self.buffer[..self.used], self.stride, self.first_pn)
    }

    #[inline]
    pub(crate) fn next_pn(&self) -> u64 {
        self.first_pn + self.count as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(clear: u16, sealed: u16, tag: u16) -> Layout {
        let clear_len = PACKET_HEADER_LEN as u16 + clear;
        Layout { clear_len, data_len: clear_len + sealed, tag_len: tag, attributes: Vec::new() }
    }

    #[test]
    fn a_shorter_packet_ends_a_batch_and_a_longer_one_does_not_fit() {
        let (mut buffer, layout) = (vec![9; 65_507], layout(0, 4, 0));
        let start = Start { datagram: 1_200, limit: 64, next_pn: 5, generation: 0 };
        let mut batch = Batch::outgoing(&mut buffer, &layout, &start);
        assert_eq!(batch.push(Kind::DATA, 100), Some(0));
        assert_eq!((batch.push(Kind::DATA, 101), batch.space()), (None, Some(100)));
        assert_eq!(batch.push_again(Kind::DATA, 99), Some(1));
        assert_eq!((batch.push(Kind::DATA, 1), batch.space(), batch.remaining_packets()), (None, None, 0));
        assert_eq!(
            (batch.pn(1), batch.is_resent(0), batch.is_resent(1), batch.stride()),
            (6, false, true, 111)
        );
        assert_eq!(batch.get(0, Attribute::<u32>::at(7)), 0, "attributes begin as zero");
    }

    #[test]
    fn removed_packets_are_not_visited_again() {
        let (mut buffer, layout) = (vec![0; 7 * 4], layout(0, 0, 0));
        let mut batch = Batch::incoming(&mut buffer, 7, &layout, 0);
        batch.take(1);
        batch.reject(3);
        assert_eq!((batch.live().collect::<Vec<_>>(), batch.violations), (vec![0, 2], 1));
    }

    #[test]
    fn a_run_without_remaining_packets_has_no_values() {
        let (mut buffer, layout) = (vec![0; 7], layout(0, 8, 0));
        let mut batch = Batch::incoming(&mut buffer, 7, &layout, 0);
        batch.take(0);
        assert_eq!(batch.values(Attribute::<u32>::at(11)).count(), 0);
    }

    proptest! {
        #[test]
        fn written_values_are_read(
            sizes in prop::collection::vec(0usize..1_400, 1..80),
            clear in 0u16..8, sealed in 0u16..40, tag in 0u16..17, generation in any::<bool>(),
        ) {
            let layout = layout(clear, sealed, tag);
            let generation = if generation { GENERATION_BIT } else { 0 };
            let mut buffer = vec![0xAA; 65_507];
            let start = Start { datagram: 1_400, limit: 64, next_pn: 77, generation };
            let mut batch = Batch::outgoing(&mut buffer, &layout, &start);
            let mut written = Vec::new();
            for (n, &size) in sizes.iter().enumerate() {
                if let Some(i) = batch.push(Kind::DATA, size) {
                    batch.payload_mut(i).fill(n as u8);
                    written.push((n as u8, size));
                }
            }
            let (used, stride) = (batch.bytes(), batch.stride());
            prop_assert!(written.len() <= MAX_BATCH && written.len() == batch.len());
            let read = Batch::incoming(&mut buffer[..used], stride, &layout, generation);
            prop_assert_eq!(read.len(), written.len());
            for (i, (n, size)) in written.into_iter().enumerate() {
                prop_assert_eq!(read.payload(i), vec![n; size]);
                prop_assert_eq!((read.pn(i), read.kind(i)), (77 + i as u64, Kind::DATA));
            }
        }
    }
}
