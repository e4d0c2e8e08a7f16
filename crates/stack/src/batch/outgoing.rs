//! Adding packets to an outgoing batch.

use std::ops::Range;

use super::{Batch, Kind, MAX_BATCH, PACKET_HEADER_LEN};

/// Most headers fit in this many bytes.
const SHORT: usize = 32;
/// Nearly all headers fit in this many bytes.
const LONG: usize = 64;
/// Increment of a packet's first word to the next packet number.
const NEXT: u64 = 1 << 8;

impl Batch<'_> {
    /// Payload bytes available to the next data packet; `None` when the batch is full.
    pub fn space(&self) -> Option<usize> {
        self.space_for(self.layout.data_overhead())
    }

    /// Payload bytes of the largest data packet, whatever the batch already holds.
    pub fn max_space(&self) -> usize {
        self.datagram.saturating_sub(self.layout.data_overhead())
    }

    /// Body bytes available to a control packet; `None` when the batch is full.
    pub fn control_space(&self) -> Option<usize> {
        self.space_for(self.layout.clear_len() + self.layout.tag_len())
    }

    fn space_for(&self, overhead: usize) -> Option<usize> {
        let largest = if self.stride == 0 { self.datagram } else { self.stride };
        let closed = self.closed || self.count >= self.limit;
        let fits = self.used + largest <= self.buffer.len();
        if closed || !fits { None } else { largest.checked_sub(overhead) }
    }

    /// Number of packets that can still be added.
    pub fn remaining_packets(&self) -> usize {
        if self.space().is_some() { self.limit - self.count } else { 0 }
    }

    /// Adds a packet with `payload` bytes and returns its index; its attributes are zero. `None` if it does
    /// not fit the batch: all packets have the same size, except that the last may be shorter.
    #[inline]
    pub fn push(&mut self, kind: Kind, payload: usize) -> Option<usize> {
        let room = if kind.is_data() { self.space() } else { self.control_space() };
        room.filter(|&room| payload <= room)?;
        Some(self.append(kind, payload))
    }

    /// As [`Batch::push`], for a control packet that probes whether the path carries its size: alone in its
    /// batch, and larger than the largest packet known to pass. `None` if the buffer is too small.
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

    /// Kind and packet number of the next packet as a word. A packet number has at most 48 bits, so the
    /// word's last byte is zero.
    #[inline]
    fn first_word(&self, kind: Kind) -> u64 {
        u64::from(kind.0 | self.generation) << 56 | self.next_pn() << 16 >> 8
    }

    /// Records `added` packets, at least one, written after the others. Only the last may be shorter: it has
    /// `last` bytes. Returns the index of the first.
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

    /// Records a packet of `len` bytes written after the others; returns its index.
    fn note(&mut self, kind: Kind, len: usize) -> usize {
        self.note_row(kind, 1, len, len)
    }

    /// Adds packets with `payload` bytes while they fit the batch, and returns their indices. `write` gets
    /// the payload of each packet and returns the number of bytes it has filled. A packet that is not full is
    /// the last; if `write` returns `None`, its packet is not added.
    #[inline]
    pub fn push_each(
        &mut self,
        kind: Kind,
        payload: usize,
        mut write: impl FnMut(&mut [u8]) -> Option<usize>,
    ) -> Range<usize> {
        let (first, header) = (self.count, self.header_len(kind));
        let overhead = header + self.layout.tag_len();
        let most = self.space_for(overhead).map_or(0, |room| self.fits(room, payload, overhead));
        let len = overhead + payload;
        let (mut added, mut last) = (0, len);
        // Kept in locals: reloading right after a store to the same place would wait for that store.
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

    /// Number of packets of `payload` bytes that fit, if the next one may have `room` bytes.
    fn fits(&self, room: usize, payload: usize, overhead: usize) -> usize {
        match payload {
            _ if payload > room => 0,
            // The packet is shorter than those before it, so it is the last.
            _ if self.count > 0 && payload < room => 1,
            _ => ((self.buffer.len() - self.used) / (payload + overhead).max(1)).min(self.limit - self.count),
        }
    }

    /// As [`Batch::push`], for a payload whose length is known only after writing: `write` gets `payload`
    /// bytes and returns the number it has filled. If it returns `None`, no packet is added.
    pub fn push_with(
        &mut self,
        kind: Kind,
        payload: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<usize> {
        let header = self.header_len(kind);
        let overhead = header + self.layout.tag_len();
        self.space_for(overhead).filter(|&room| payload <= room)?;
        let word = self.first_word(kind);
        let packet = &mut self.buffer[self.used..self.used + overhead + payload];
        write_header(packet, word, header);
        let len = write(&mut packet[header..header + payload])?;
        Some(self.note(kind, overhead + len.min(payload)))
    }

    /// As [`Batch::push`], for a segment sent before.
    pub fn push_again(&mut self, kind: Kind, payload: usize) -> Option<usize> {
        let i = self.push(kind, payload)?;
        self.resent |= 1 << i;
        Some(i)
    }
}

/// Writes a header of `header` bytes that starts with `word`; the rest of it is zero.
#[inline]
fn write_header(packet: &mut [u8], word: u64, header: usize) {
    // A size known at compile time avoids a call. Bytes after the header are written later.
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
