//! Adding packets to an outgoing batch.

use std::ops::Range;

use super::{Batch, Kind, MAX_BATCH, PACKET_HEADER_LEN};

/// Most headers fit this.
const SHORT: usize = 32;
/// Nearly all headers fit this.
const LONG: usize = 64;
/// From the first word of a packet to that of the packet behind it: the next number.
const NEXT: u64 = 1 << 8;

impl Batch<'_> {
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
        let closed = self.closed || self.count >= self.limit;
        let fits = self.used + largest <= self.buffer.len();
        if closed || !fits { None } else { largest.checked_sub(overhead) }
    }

    /// How many more packets may be added.
    pub fn packets_left(&self) -> usize {
        if self.room().is_some() { self.limit - self.count } else { 0 }
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
        (self.count == 0 && !kind.is_data() && len <= self.buffer.len()).then(|| {
            self.closed = true;
            self.append(kind, payload)
        })
    }

    fn append(&mut self, kind: Kind, payload: usize) -> usize {
        let (word, header) = (self.first_word(kind), self.header_len(kind));
        let len = header + payload + self.layout.tag_len();
        write_header(&mut self.buffer[self.used..self.used + len], word, header);
        self.note(kind, len)
    }

    /// Kind and number of the next packet. A number has no more than 48 bits; the word is one byte longer than both,
    /// and that is zero.
    #[inline]
    fn first_word(&self, kind: Kind) -> u64 {
        u64::from(kind.0 | self.generation) << 56 | self.next_pn() << 16 >> 8
    }

    /// Takes in `added` packets that were written behind the others, at least one, of which only the last may be
    /// shorter: it has `last` bytes. Gives the place of the first.
    #[inline]
    fn note_row(&mut self, kind: Kind, added: usize, len: usize, last: usize) -> usize {
        let first = self.count;
        let packets = u64::MAX >> (MAX_BATCH - added) << first;
        self.live |= packets;
        self.data |= if kind.is_data() { packets } else { 0 };
        self.fins |= if kind == Kind::DATA_FIN { packets } else { 0 };
        self.count += added;
        self.used += (added - 1) * len + last;
        if first == 0 {
            self.stride = if added > 1 { len } else { last };
        }
        self.closed |= last < self.stride;
        first
    }

    /// Takes in a packet of `len` bytes that was written behind the others; gives its place.
    fn note(&mut self, kind: Kind, len: usize) -> usize {
        self.note_row(kind, 1, len, len)
    }

    /// Adds packets with `payload` bytes as long as they fit this batch, and returns their numbers. `write` gets the
    /// payload of each and says how many bytes it has filled; one that it does not fill is the last, and if it says
    /// `None`, this packet is not added.
    #[inline]
    pub fn push_each(
        &mut self,
        kind: Kind,
        payload: usize,
        mut write: impl FnMut(&mut [u8]) -> Option<usize>,
    ) -> Range<usize> {
        let (first, header) = (self.count, self.header_len(kind));
        let overhead = header + self.layout.tag_len();
        let most = self.room_for(overhead).map_or(0, |room| self.fits(room, payload, overhead));
        let len = overhead + payload;
        let (mut added, mut last) = (0, len);
        // Kept here, not read again for each packet: a load beside what has just been stored waits for that store.
        let (mut word, mut rest) = (self.first_word(kind), &mut self.buffer[self.used..]);
        while added < most && last == len {
            let Some((packet, behind)) = rest.split_at_mut_checked(len) else { break };
            write_header(packet, word, header);
            let Some(filled) = write(&mut packet[header..header + payload]) else { break };
            added += 1;
            last = overhead + filled.min(payload);
            word += NEXT;
            rest = behind;
        }
        if added > 0 {
            self.note_row(kind, added, len, last);
        }
        first..self.count
    }

    /// How many packets of `payload` bytes fit, if `room` is what the next one may have.
    fn fits(&self, room: usize, payload: usize, overhead: usize) -> usize {
        match payload {
            _ if payload > room => 0,
            // It is shorter than those before it, and so the last.
            _ if self.count > 0 && payload < room => 1,
            _ => ((self.buffer.len() - self.used) / (payload + overhead).max(1)).min(self.limit - self.count),
        }
    }

    /// As [`Batch::push`], for a payload whose length is known only when it has been written: `write` gets `payload`
    /// bytes and says how many it has filled. If it says `None`, no packet is added.
    pub fn push_with(
        &mut self,
        kind: Kind,
        payload: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<usize> {
        let header = self.header_len(kind);
        let overhead = header + self.layout.tag_len();
        self.room_for(overhead).filter(|&room| payload <= room)?;
        let word = self.first_word(kind);
        let packet = &mut self.buffer[self.used..self.used + overhead + payload];
        write_header(packet, word, header);
        let len = write(&mut packet[header..header + payload])?;
        Some(self.note(kind, overhead + len.min(payload)))
    }

    /// As [`Batch::push`], for a segment that was sent before.
    pub fn push_again(&mut self, kind: Kind, payload: usize) -> Option<usize> {
        let i = self.push(kind, payload)?;
        self.resent |= 1 << i;
        Some(i)
    }
}

/// Writes a header of `header` bytes that begins with `word`; all of it that is not `word` is zero.
#[inline]
fn write_header(packet: &mut [u8], word: u64, header: usize) {
    // A size that is known when compiling saves a call; what lies behind the header is written later.
    if header <= SHORT
        && let Some(start) = packet.first_chunk_mut::<SHORT>()
    {
        *start = [0; SHORT];
        start[..8].copy_from_slice(&word.to_be_bytes());
    } else if header <= LONG
        && let Some(start) = packet.first_chunk_mut::<LONG>()
    {
        *start = [0; LONG];
        start[..8].copy_from_slice(&word.to_be_bytes());
    } else {
        packet[..header].fill(0);
        packet[..PACKET_HEADER_LEN].copy_from_slice(&word.to_be_bytes()[..PACKET_HEADER_LEN]);
    }
}
