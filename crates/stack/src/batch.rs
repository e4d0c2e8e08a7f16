//! A batch: up to 64 packets side by side in one buffer, as GSO and GRO move them. Events carry batches, so that
//! one virtual call serves them all.

use std::ops::Range;

use crate::attribute::{Attribute, AttributeType, Layout};

/// The most packets in one outgoing batch (`UDP_MAX_SEGMENTS` of Linux 4.18).
pub const MAX_BATCH: usize = 64;
/// Bytes of the kind and the packet number, with which every packet begins.
pub const PACKET_HEADER_LEN: usize = 7;
/// Most headers fit this.
const HEADER_ROOM: usize = 32;
/// The bit of the kind byte that tells which generation of the recipe a packet belongs to.
pub const GENERATION_BIT: u8 = 0x80;

/// What a packet is. Control kinds belong to exactly one micro-protocol each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

impl Kind {
    /// A segment of a message or an object, with all attributes of the stack.
    pub const DATA: Self = Self(1);
    /// The last segment of an object.
    pub const DATA_FIN: Self = Self(2);
    /// Opens a path, with keys and a reader of its own: no stack looks at it.
    pub const HELLO: Self = Self(4);
    /// Its answer.
    pub const HELLO_ACK: Self = Self(5);
    /// The framework's own: negotiation of a new recipe while running.
    pub const RECONFIGURE: Self = Self(0x3F);
    /// The first kind that is given to micro-protocols from outside this project.
    pub const FIRST_USER: Self = Self(0x40);

    /// Whether packets of this kind carry the stack's attributes.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::DATA | Self::DATA_FIN)
    }
}

/// One packet of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) pn: u64,
    pub(crate) start: u32,
    /// Bytes of the whole packet, the tag included while it is there.
    pub(crate) len: u16,
    pub(crate) kind: Kind,
    pub(crate) resent: bool,
}

/// Walks over the packets of a batch; see [`Batch::live`].
#[derive(Clone, Debug)]
pub struct Live(u64);

impl Live {
    /// How many there are still to come.
    pub fn count_left(&self) -> usize {
        self.0.count_ones() as usize
    }
}

impl Iterator for Live {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let i = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(i)
    }
}

/// Packets of one direction in one buffer, at most [`MAX_BATCH`].
#[derive(Debug)]
pub struct Batch<'b> {
    pub(crate) buffer: &'b mut [u8],
    pub(crate) entries: &'b mut Vec<Entry>,
    /// The packets that nobody has taken: bit `i` is packet `i`.
    live: u64,
    layout: &'b Layout,
    /// Outgoing: bytes used so far.
    used: usize,
    /// Outgoing: the last packet is shorter than the others, or larger than the path is known to carry.
    closed: bool,
    /// Outgoing: size of every packet but the last.
    stride: usize,
    /// Outgoing: largest packet, and how many.
    datagram: usize,
    limit: usize,
    next_pn: u64,
    generation: u8,
    pub(crate) violations: u32,
    pub(crate) unauthentic: u32,
}

/// How an outgoing batch begins.
pub(crate) struct Start {
    pub(crate) datagram: usize,
    pub(crate) limit: usize,
    pub(crate) next_pn: u64,
    pub(crate) generation: u8,
}

impl<'b> Batch<'b> {
    pub(crate) fn outgoing(
        buffer: &'b mut [u8],
        entries: &'b mut Vec<Entry>,
        layout: &'b Layout,
        start: &Start,
    ) -> Self {
        entries.clear();
        let (datagram, limit) = (start.datagram.min(buffer.len()), start.limit.min(MAX_BATCH));
        Self {
            buffer,
            entries,
            live: 0,
            layout,
            used: 0,
            closed: false,
            stride: 0,
            datagram,
            limit,
            next_pn: start.next_pn,
            generation: start.generation,
            violations: 0,
            unauthentic: 0,
        }
    }

    /// The packets of a received buffer, at most [`MAX_BATCH`]. What is no packet is counted and left out.
    pub(crate) fn incoming(
        buffer: &'b mut [u8],
        stride: usize,
        entries: &'b mut Vec<Entry>,
        layout: &'b Layout,
        generation: u8,
    ) -> Self {
        entries.clear();
        let mut unauthentic = 0;
        let stride = stride.max(1);
        // No more than needed: most of many thousand stacks get one packet at a time.
        entries.reserve_exact(buffer.len().div_ceil(stride).min(MAX_BATCH));
        let mut live = 0;
        for (i, packet) in buffer.chunks(stride).take(MAX_BATCH).enumerate() {
            let start = i * stride;
            let entry = Self::parse(packet, start, generation);
            unauthentic += u32::from(entry.is_none());
            // Packets of the set-up have other keys and another reader.
            let entry = entry.filter(|entry| !matches!(entry.kind, Kind::HELLO | Kind::HELLO_ACK));
            live |= u64::from(entry.is_some()) << i;
            // What is no packet keeps its place, so that packet `i` lies at `i` strides.
            let len = packet.len().min(usize::from(u16::MAX)) as u16;
            let nothing = Entry { pn: 0, start: start as u32, len, kind: Kind(0), resent: false };
            entries.push(entry.unwrap_or(nothing));
        }
        let (used, limit) = (buffer.len(), entries.len());
        Self {
            buffer,
            entries,
            live,
            layout,
            used,
            closed: true,
            stride,
            datagram: 0,
            limit,
            next_pn: 0,
            generation,
            violations: 0,
            unauthentic,
        }
    }

    fn parse(packet: &[u8], start: usize, generation: u8) -> Option<Entry> {
        if packet.len() < PACKET_HEADER_LEN || packet[0] & GENERATION_BIT != generation {
            return None;
        }
        let mut head = [0; 8];
        head[1..].copy_from_slice(&packet[..PACKET_HEADER_LEN]);
        Some(Entry {
            pn: u64::from_be_bytes(head) & 0xFFFF_FFFF_FFFF,
            start: start as u32,
            len: packet.len().min(usize::from(u16::MAX)) as u16,
            kind: Kind(packet[0] & !GENERATION_BIT),
            resent: false,
        })
    }

    /// How the packets look.
    pub fn layout(&self) -> &Layout {
        self.layout
    }

    /// How many packets there are, those that were taken included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The numbers of the packets that nobody has taken yet. The batch may be changed during the walk.
    #[inline]
    pub fn live(&self) -> Live {
        Live(self.live)
    }

    pub(crate) fn has_live(&self) -> bool {
        self.live != 0
    }

    /// Whether nobody has taken packet `i` yet.
    pub fn is_live(&self, i: usize) -> bool {
        self.live >> i & 1 == 1
    }

    /// What packet `i` is.
    pub fn kind(&self, i: usize) -> Kind {
        self.entries[i].kind
    }

    /// The packet number of packet `i`.
    pub fn pn(&self, i: usize) -> u64 {
        self.entries[i].pn
    }

    /// Whether packet `i` repeats a segment that was sent before.
    pub fn is_resent(&self, i: usize) -> bool {
        self.entries[i].resent
    }

    /// Bytes of packet `i`: UDP payload, the tag included.
    pub fn size(&self, i: usize) -> usize {
        usize::from(self.entries[i].len)
    }

    /// Reads an attribute of data packet `i`.
    ///
    /// # Panics
    /// If the packet is too short to carry it; received packets are checked before handlers see them.
    #[inline]
    pub fn get<T: AttributeType>(&self, i: usize, attribute: Attribute<T>) -> T::Value {
        let range = attribute.range();
        let at = i * self.stride + range.start;
        T::read(&self.buffer[at..at + T::LEN])
    }

    /// Writes an attribute of data packet `i`.
    ///
    /// # Panics
    /// As [`Batch::get`].
    #[inline]
    pub fn set<T: AttributeType>(&mut self, i: usize, attribute: Attribute<T>, value: T::Value) {
        let range = attribute.range();
        let at = i * self.stride + range.start;
        T::write(value, &mut self.buffer[at..at + T::LEN]);
    }

    /// Where the payload of packet `i` lies in the buffer: behind the attributes of a data packet, behind the clear
    /// header of another.
    #[inline]
    pub fn payload_range(&self, i: usize) -> Range<usize> {
        let entry = &self.entries[i];
        let start = entry.start as usize;
        let header = self.header_len(entry.kind);
        start + header..(start + usize::from(entry.len) - self.layout.tag_len()).max(start + header)
    }

    fn header_len(&self, kind: Kind) -> usize {
        if kind.is_data() { self.layout.data_header_len() } else { self.layout.clear_len() }
    }

    /// The payload of packet `i`.
    #[inline]
    pub fn payload(&self, i: usize) -> &[u8] {
        &self.buffer[self.payload_range(i)]
    }

    /// The payload of packet `i`, to be filled or changed.
    #[inline]
    pub fn payload_mut(&mut self, i: usize) -> &mut [u8] {
        let range = self.payload_range(i);
        &mut self.buffer[range]
    }

    /// The whole packet `i`.
    pub fn packet_mut(&mut self, i: usize) -> &mut [u8] {
        let entry = &self.entries[i];
        let start = entry.start as usize;
        &mut self.buffer[start..start + usize::from(entry.len)]
    }

    /// The buffer in which the packets lie.
    pub fn buffer(&self) -> &[u8] {
        self.buffer
    }

    /// Packet `i` is dealt with; later handlers do not see it.
    pub fn take(&mut self, i: usize) {
        self.live &= !(1 << i);
    }

    /// Packet `i` is authentic and impossible: the peer does not keep to the recipe. Too many of these end the session.
    pub fn reject(&mut self, i: usize) {
        self.take(i);
        self.violations += 1;
    }

    /// Packet `i` is not from the peer.
    pub fn reject_unauthentic(&mut self, i: usize) {
        self.take(i);
        self.unauthentic += 1;
    }

    /// Payload bytes that the next data packet may have; `None` when the batch is full.
    pub fn room(&self) -> Option<usize> {
        self.room_for(self.layout.data_overhead())
    }

    /// Payload bytes that the largest data packet may have, whatever the batch holds already.
    pub fn full_room(&self) -> usize {
        self.datagram.saturating_sub(self.layout.data_overhead())
    }

    /// Body bytes that a control packet may have; `None` when the batch is full.
    pub fn control_room(&self) -> Option<usize> {
        self.room_for(self.layout.clear_len() + self.layout.tag_len())
    }

    fn room_for(&self, overhead: usize) -> Option<usize> {
        let largest = if self.stride == 0 { self.datagram } else { self.stride };
        let closed = self.closed || self.entries.len() >= self.limit;
        let fits = self.used + largest <= self.buffer.len();
        if closed || !fits { None } else { largest.checked_sub(overhead) }
    }

    /// How many more packets may be added.
    pub fn packets_left(&self) -> usize {
        if self.room().is_some() { self.limit - self.entries.len() } else { 0 }
    }

    /// Adds a packet with `payload` bytes and returns its number; its attributes are zero. `None` if it does not fit
    /// this batch: all packets of one have the same size, but that the last may be shorter.
    #[inline]
    pub fn push(&mut self, kind: Kind, payload: usize) -> Option<usize> {
        let room = if kind.is_data() { self.room() } else { self.control_room() };
        room.filter(|&room| payload <= room)?;
        Some(self.append(kind, payload))
    }

    /// As [`Batch::push`], for a control packet that is to find out whether the path carries its size: alone in its
    /// batch, and larger than the largest packet that is known to pass. `None` if the buffer is too small for it.
    pub fn push_probe(&mut self, kind: Kind, payload: usize) -> Option<usize> {
        let len = self.header_len(kind) + payload + self.layout.tag_len();
        (self.entries.is_empty() && !kind.is_data() && len <= self.buffer.len()).then(|| {
            self.closed = true;
            self.append(kind, payload)
        })
    }

    fn append(&mut self, kind: Kind, payload: usize) -> usize {
        let header = self.header_len(kind);
        let (start, len) = (self.used, header + payload + self.layout.tag_len());
        // A size that is known when compiling saves the call; what lies behind the header is written later.
        if header <= HEADER_ROOM && len >= HEADER_ROOM {
            self.buffer[start..start + HEADER_ROOM].copy_from_slice(&[0; HEADER_ROOM]);
        } else {
            self.buffer[start..start + header].fill(0);
        }
        let head = &mut self.buffer[start..start + header];
        head[0] = kind.0 | self.generation;
        head[1..PACKET_HEADER_LEN].copy_from_slice(&self.next_pn.to_be_bytes()[2..]);
        self.entries.push(Entry {
            pn: self.next_pn,
            start: start as u32,
            len: len as u16,
            kind,
            resent: false,
        });
        let i = self.entries.len() - 1;
        self.live |= 1 << i;
        self.next_pn += 1;
        self.used += len;
        if self.stride == 0 {
            self.stride = len;
        }
        self.closed |= len < self.stride;
        i
    }

    /// As [`Batch::push`], for a payload whose length is known only when it has been written: `write` gets `payload`
    /// bytes and says how many it has filled. If it says `None`, no packet is added.
    pub fn push_with(
        &mut self,
        kind: Kind,
        payload: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<usize> {
        let room = if kind.is_data() { self.room() } else { self.control_room() };
        room.filter(|&room| payload <= room)?;
        let before = (self.used, self.stride, self.closed);
        let i = self.append(kind, payload);
        let range = self.payload_range(i);
        if let Some(len) = write(&mut self.buffer[range]) {
            self.shorten(i, payload - len.min(payload));
            return Some(i);
        }
        self.entries.pop();
        self.live &= !(1 << i);
        self.next_pn -= 1;
        (self.used, self.stride, self.closed) = before;
        None
    }

    /// Takes `bytes` off the end of the last packet.
    fn shorten(&mut self, i: usize, bytes: usize) {
        let len = self.entries[i].len - bytes as u16;
        self.entries[i].len = len;
        self.used -= bytes;
        if i == 0 {
            self.stride = usize::from(len);
        }
        self.closed |= usize::from(len) < self.stride;
    }

    /// As [`Batch::push`], for a segment that was sent before.
    pub fn push_again(&mut self, kind: Kind, payload: usize) -> Option<usize> {
        let i = self.push(kind, payload)?;
        self.entries[i].resent = true;
        Some(i)
    }

    /// Whether this batch carries data packets.
    pub fn is_data(&self) -> bool {
        self.entries.first().is_some_and(|entry| entry.kind.is_data())
    }

    /// Outgoing: bytes of all packets.
    pub fn bytes(&self) -> usize {
        self.used
    }

    /// Outgoing: size of every packet but the last.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Outgoing: the packets' bytes and their distance, for whoever seals them.
    pub fn sealable(&mut self) -> (&mut [u8], usize, u64) {
        let first = self.entries.first().map_or(0, |entry| entry.pn);
        (&mut self.buffer[..self.used], self.stride, first)
    }

    pub(crate) fn next_pn(&self) -> u64 {
        self.next_pn
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
    fn a_shorter_packet_ends_a_batch_and_a_longer_one_does_not_fit_it() {
        let (mut buffer, mut entries, layout) = (vec![9; 65_507], Vec::new(), layout(0, 4, 0));
        let start = Start { datagram: 1_200, limit: 64, next_pn: 5, generation: 0 };
        let mut batch = Batch::outgoing(&mut buffer, &mut entries, &layout, &start);
        assert_eq!(batch.push(Kind::DATA, 100), Some(0));
        assert_eq!((batch.push(Kind::DATA, 101), batch.room()), (None, Some(100)));
        assert_eq!(batch.push_again(Kind::DATA, 99), Some(1));
        assert_eq!((batch.push(Kind::DATA, 1), batch.room(), batch.packets_left()), (None, None, 0));
        assert_eq!(
            (batch.pn(1), batch.is_resent(0), batch.is_resent(1), batch.stride()),
            (6, false, true, 111)
        );
        assert_eq!(batch.get(0, Attribute::<u32>::at(7)), 0, "attributes begin as zero");
    }

    #[test]
    fn what_was_taken_is_not_seen_again() {
        let (mut buffer, mut entries, layout) = (vec![0; 7 * 4], Vec::new(), layout(0, 0, 0));
        let mut batch = Batch::incoming(&mut buffer, 7, &mut entries, &layout, 0);
        batch.take(1);
        batch.reject(3);
        assert_eq!((batch.live().collect::<Vec<_>>(), batch.violations), (vec![0, 2], 1));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            sizes in prop::collection::vec(0usize..1_400, 1..80),
            clear in 0u16..8, sealed in 0u16..40, tag in 0u16..17, generation in any::<bool>(),
        ) {
            let layout = layout(clear, sealed, tag);
            let generation = if generation { GENERATION_BIT } else { 0 };
            let (mut buffer, mut entries) = (vec![0xAA; 65_507], Vec::new());
            let start = Start { datagram: 1_400, limit: 64, next_pn: 77, generation };
            let mut batch = Batch::outgoing(&mut buffer, &mut entries, &layout, &start);
            let mut written = Vec::new();
            for (n, &size) in sizes.iter().enumerate() {
                if let Some(i) = batch.push(Kind::DATA, size) {
                    batch.payload_mut(i).fill(n as u8);
                    written.push((n as u8, size));
                }
            }
            let (used, stride) = (batch.bytes(), batch.stride());
            prop_assert!(written.len() <= MAX_BATCH && written.len() == batch.len());
            let mut entries = Vec::new();
            let read = Batch::incoming(&mut buffer[..used], stride, &mut entries, &layout, generation);
            prop_assert_eq!(read.len(), written.len());
            for (i, (n, size)) in written.into_iter().enumerate() {
                prop_assert_eq!(read.payload(i), vec![n; size]);
                prop_assert_eq!((read.pn(i), read.kind(i)), (77 + i as u64, Kind::DATA));
            }
        }

        #[test]
        fn any_bytes_make_a_batch(
            mut bytes in prop::collection::vec(any::<u8>(), 0..600), stride in 0usize..100, tag in 0u16..20,
        ) {
            let (mut entries, layout) = (Vec::new(), layout(4, 9, tag));
            let mut batch = Batch::incoming(&mut bytes, stride, &mut entries, &layout, 0);
            for i in batch.live() {
                let long = batch.kind(i).is_data() && batch.size(i) >= batch.layout().data_overhead();
                prop_assert!(!long || batch.payload(i).len() + batch.layout().data_overhead() == batch.size(i));
                batch.packet_mut(i)[0] = 1;
            }
        }
    }
}
