//! A batch: up to 64 packets side by side in one buffer, as GSO and GRO move them. Events carry batches, so that
//! one virtual call serves them all.

use std::ops::Range;

use crate::attribute::{Attribute, AttributeType, Layout};

/// The most packets in one outgoing batch (`UDP_MAX_SEGMENTS` of Linux 4.18).
pub const MAX_BATCH: usize = 64;
/// Bytes of the kind and the packet number, with which every packet begins.
pub const PACKET_HEADER_LEN: usize = 7;
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
    /// The framework's own: negotiation of a new recipe while running.
    pub const RECONFIGURE: Self = Self(0x3F);
    /// The first kind that is given to micro-protocols from outside this project.
    pub const FIRST_USER: Self = Self(0x40);

    /// Whether packets of this kind carry the stack's attributes.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::DATA | Self::DATA_FIN)
    }
}

/// What has become of a packet in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Live,
    /// Dealt with: later handlers do not see it.
    Taken,
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
    pub(crate) state: State,
}

/// Walks over the packets of a batch; see [`Batch::live`].
#[derive(Clone, Debug)]
pub struct Live(u64);

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
    layout: &'b Layout,
    /// Outgoing: bytes used so far.
    used: usize,
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
            layout,
            used: 0,
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
        for (i, packet) in buffer.chunks(stride).take(MAX_BATCH).enumerate() {
            let entry = Self::parse(packet, i * stride, generation);
            match entry {
                Some(entry) => entries.push(entry),
                None => unauthentic += 1,
            }
        }
        let (used, limit) = (buffer.len(), entries.len());
        Self {
            buffer,
            entries,
            layout,
            used,
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
        let mut pn = [0; 8];
        pn[2..].copy_from_slice(&packet[1..PACKET_HEADER_LEN]);
        Some(Entry {
            pn: u64::from_be_bytes(pn),
            start: start as u32,
            len: packet.len().min(usize::from(u16::MAX)) as u16,
            kind: Kind(packet[0] & !GENERATION_BIT),
            resent: false,
            state: State::Live,
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
    pub fn live(&self) -> Live {
        let bit = |(i, entry): (usize, &Entry)| u64::from(entry.state == State::Live) << i;
        Live(self.entries.iter().enumerate().map(bit).fold(0, |a, b| a | b))
    }

    /// Whether nobody has taken packet `i` yet.
    pub fn is_live(&self, i: usize) -> bool {
        self.entries[i].state == State::Live
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
        let at = self.entries[i].start as usize;
        let range = attribute.range();
        T::read(&self.buffer[at + range.start..at + range.end])
    }

    /// Writes an attribute of data packet `i`.
    ///
    /// # Panics
    /// As [`Batch::get`].
    #[inline]
    pub fn set<T: AttributeType>(&mut self, i: usize, attribute: Attribute<T>, value: T::Value) {
        let at = self.entries[i].start as usize;
        let range = attribute.range();
        T::write(value, &mut self.buffer[at + range.start..at + range.end]);
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
        self.entries[i].state = State::Taken;
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
        let closed = !self.used.is_multiple_of(self.stride.max(1)) || self.entries.len() >= self.limit;
        let fits = self.used + largest <= self.buffer.len();
        if closed || !fits { None } else { largest.checked_sub(overhead) }
    }

    /// How many more packets may be added.
    pub fn packets_left(&self) -> usize {
        if self.room().is_some() { self.limit - self.entries.len() } else { 0 }
    }

    /// Adds a packet with `payload` bytes and returns its number; its attributes are zero. `None` if it does not fit
    /// this batch: all packets of one have the same size, but that the last may be shorter.
    pub fn push(&mut self, kind: Kind, payload: usize) -> Option<usize> {
        let room = if kind.is_data() { self.room() } else { self.control_room() };
        room.filter(|&room| payload <= room)?;
        let header = self.header_len(kind);
        let (start, len) = (self.used, header + payload + self.layout.tag_len());
        let head = &mut self.buffer[start..start + header];
        head.fill(0);
        head[0] = kind.0 | self.generation;
        head[1..PACKET_HEADER_LEN].copy_from_slice(&self.next_pn.to_be_bytes()[2..]);
        self.entries.push(Entry {
            pn: self.next_pn,
            start: start as u32,
            len: len as u16,
            kind,
            resent: false,
            state: State::Live,
        });
        self.next_pn += 1;
        self.used += len;
        if self.stride == 0 {
            self.stride = len;
        }
        Some(self.entries.len() - 1)
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
        let start = self.used + self.header_len(kind);
        let len = write(&mut self.buffer[start..start + payload])?;
        self.push(kind, len.min(payload))
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
