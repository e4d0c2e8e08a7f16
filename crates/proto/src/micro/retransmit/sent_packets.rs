//! Packets that were sent and are not known to have arrived, as `sent_packets` of RFC 9002, appendix A.1: one
//! bitmap per segment of 10,000 packets (FOBS, see dickens-system-aware-fobs, section on bitmap
//! acknowledgements), and each packet's last transmission.

mod expired;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use haul_wire::packet::{SEGMENT_PACKETS, SEGMENT_WORDS};

use crate::micro::events::{LossBoundary, Statement};
use expired::{Expired, Lost, Reported};

const PACKETS: u64 = SEGMENT_PACKETS;
const WORDS: usize = SEGMENT_WORDS;

/// A packet's offset in the object and its latest transmission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Offset in the object, in bytes.
    pub(crate) offset: u64,
    /// Packet number of the latest transmission.
    pub(crate) pn: u64,
    /// Time of the latest transmission, in wrapped microseconds of the sender's clock.
    pub(crate) sent_at: u32,
    /// Payload bytes.
    pub(crate) len: u16,
    state: PacketState,
    /// Whether it is the last packet of the object.
    pub(crate) fin: bool,
}

impl Record {
    fn transmission(&self) -> Lost {
        Lost { pn: self.pn, sent_at: self.sent_at }
    }
}

/// A packet sent for the first time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New {
    /// Offset in the object, in bytes.
    pub(crate) offset: u64,
    /// Payload bytes.
    pub(crate) len: u16,
    /// Whether it is the last packet of the object.
    pub(crate) fin: bool,
    /// Packet number of the first transmission.
    pub(crate) pn: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PacketState {
    #[default]
    InFlight,
    Lost,
}

/// The packets of one segment.
#[derive(Debug)]
struct Segment {
    records: Box<[Record]>,
    acked: [u64; WORDS],
    sent: u16,
    acked_count: u16,
}

impl Segment {
    fn new() -> Self {
        let records = vec![Record::default(); PACKETS as usize].into_boxed_slice();
        Self { records, acked: [0; WORDS], sent: 0, acked_count: 0 }
    }

    fn reset(&mut self) {
        self.acked = [0; WORDS];
        self.sent = 0;
        self.acked_count = 0;
    }

    fn is_complete(&self) -> bool {
        u64::from(self.acked_count) == PACKETS
    }

    fn is_acked(&self, index: usize) -> bool {
        self.acked[index / 64] >> (index % 64) & 1 == 1
    }

    /// Returns the offset of the first packet not known to have arrived, or the end of the last one sent.
    /// Everything in the first `complete_words` words has arrived.
    fn released(&self, complete_words: usize) -> Option<u64> {
        let sent = usize::from(self.sent);
        let words = self.acked[..sent.div_ceil(64)].iter().enumerate().skip(complete_words);
        let mut holes = words.map(|(w, acked)| (w + 1, w * 64 + acked.trailing_ones() as usize));
        let first = holes.find_map(|(next, hole)| (hole < sent.min(next * 64)).then_some(hole));
        match first {
            Some(hole) => Some(self.records[hole].offset),
            None => self.records[..sent].last().map(|last| last.offset + u64::from(last.len)),
        }
    }

    /// Mask of word `w`'s packets that were sent.
    fn sent_mask(&self, w: usize) -> u64 {
        match (self.sent as usize).saturating_sub(w * 64) {
            n if n >= 64 => u64::MAX,
            n => (1u64 << n) - 1,
        }
    }
}

impl LossBoundary {
    fn is_lost(&self, record: &Record) -> bool {
        self.is_passed(record.pn, record.sent_at)
    }
}

/// Effect of a receiver's statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) acked_packets: u64,
    pub(crate) acked_bytes: u64,
    pub(crate) lost_packets: u64,
    pub(crate) lost_bytes: u64,
}

/// Packets that are neither acknowledged nor declared lost, and their payload bytes.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    packets: u64,
    bytes: u64,
}

impl InFlight {
    fn add(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    fn remove(&mut self, packets: u64, bytes: u64) {
        self.packets = self.packets.saturating_sub(packets);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// All packets from the first not known to have arrived to the last sent.
#[derive(Debug)]
pub(crate) struct SentPackets {
    /// Number of the first segment in `segments`.
    base: u64,
    /// Number of that segment's leading words of which everything has arrived.
    complete_words: usize,
    segments: VecDeque<Segment>,
    free: Vec<Segment>,
    next_seq: u64,
    /// Sequence numbers to retransmit; may contain some acknowledged meanwhile.
    lost: VecDeque<u64>,
    /// Packets declared lost since [`SentPackets::take_losses`].
    losses: Vec<Lost>,
    /// Packets that were repeated because of silence.
    expired: Expired,
    /// Bytes of each packet besides its payload, counted as in flight.
    overhead: u64,
    in_flight: InFlight,
}

impl SentPackets {
    pub(crate) fn new(overhead: usize) -> Self {
        Self {
            base: 0,
            complete_words: 0,
            segments: VecDeque::with_capacity(64),
            free: Vec::with_capacity(64),
            next_seq: 0,
            lost: VecDeque::with_capacity(PACKETS as usize),
            losses: Vec::with_capacity(1_024),
            expired: Expired::default(),
            overhead: overhead as u64,
            in_flight: InFlight::default(),
        }
    }

    /// Sequence number of the next new packet.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// UDP payload bytes sent and neither acknowledged nor declared lost.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.bytes + self.in_flight.packets * self.overhead
    }

    /// Sets the bytes of each packet besides its payload, also for packets already in flight.
    pub(crate) fn set_overhead(&mut self, bytes: usize) {
        self.overhead = bytes as u64;
    }

    /// Number of packets from the oldest not known to have arrived to the newest, as of
    /// [`SentPackets::retire_complete`].
    pub(crate) fn span(&self) -> u64 {
        let word = self.segments.front().and_then(|segment| segment.acked.get(self.complete_words));
        let arrived =
            self.complete_words as u64 * 64 + word.map_or(0, |word| u64::from(word.trailing_ones()));
        self.next_seq - self.base * PACKETS - arrived
    }

    /// Whether everything sent has arrived.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.iter().all(|s| s.acked_count == s.sent)
    }

    /// Number of packets sent and not known to have arrived.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.segments.iter().map(|s| u64::from(s.sent - s.acked_count)).sum()
    }

    /// Offset below which everything has arrived.
    pub(crate) fn released(&self) -> Option<u64> {
        self.segments.front().and_then(|segment| segment.released(self.complete_words))
    }

    /// Whether retransmissions may be queued.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Adds a new packet, sent at `sent_at` in wrapped microseconds; its sequence number is the previous
    /// [`SentPackets::next_seq`].
    pub(crate) fn push(&mut self, New { offset, len, fin, pn }: New, sent_at: u32) {
        let record = Record { offset, pn, sent_at, len, state: PacketState::InFlight, fin };
        self.push_like(record, &[offset]);
    }

    /// Adds new packets of `len` payload bytes each, sent in one batch with consecutive packet numbers from
    /// `first_pn` on. None of them is the last of the object.
    pub(crate) fn push_row(&mut self, first_pn: u64, len: u16, offsets: &[u64], sent_at: u32) {
        let first =
            Record { offset: 0, pn: first_pn, sent_at, len, state: PacketState::InFlight, fin: false };
        self.push_like(first, offsets);
    }

    fn push_like(&mut self, mut first: Record, mut offsets: &[u64]) {
        while !offsets.is_empty() {
            let index = (self.next_seq % PACKETS) as usize;
            if index == 0 {
                let segment = self.free.pop().unwrap_or_else(Segment::new);
                self.segments.push_back(segment);
            }
            let Some(segment) = self.segments.back_mut() else { return };
            let (here, later) = offsets.split_at(offsets.len().min(PACKETS as usize - index));
            for (i, (record, &offset)) in segment.records[index..].iter_mut().zip(here).enumerate() {
                *record = Record { offset, pn: first.pn + i as u64, ..first };
            }
            let packets = here.len() as u64;
            segment.sent = (index + here.len()) as u16;
            self.next_seq += packets;
            self.in_flight.add(packets, packets * u64::from(first.len));
            first.pn += packets;
            offsets = later;
        }
    }

    /// Returns the next packet to retransmit, which stays queued until [`SentPackets::resent`].
    pub(crate) fn peek_lost(&mut self) -> Option<(u64, Record)> {
        while let Some(&seq) = self.lost.front() {
            if let Some(record) = self.unacked(seq).filter(|r| r.state == PacketState::Lost) {
                return Some((seq, *record));
            }
            self.lost.pop_front();
        }
        None
    }

    /// Records that the packet at the front of the queue was retransmitted.
    pub(crate) fn resent(&mut self, pn: u64, sent_at: u32) {
        let Some(seq) = self.lost.pop_front() else { return };
        self.expired.on_resent(seq, Lost { pn, sent_at });
        if let Some(record) = self.unacked_mut(seq) {
            record.pn = pn;
            record.sent_at = sent_at;
            record.state = PacketState::InFlight;
            let bytes = u64::from(record.len);
            self.in_flight.add(1, bytes);
        }
    }

    /// Takes the losses that reports have shown since the last call.
    pub(crate) fn take_losses(&mut self) -> impl Iterator<Item = Lost> + '_ {
        self.losses.drain(..)
    }

    /// Repeats the `count` oldest unacknowledged packets. Later reports show whether they were lost
    /// ([`SentPackets::settle_expired`]).
    pub(crate) fn expire_oldest(&mut self, count: usize) -> u64 {
        let mut found = 0;
        for seq in self.base * PACKETS..self.next_seq {
            if found == count {
                break;
            }
            if let Some(record) = self.unacked(seq).copied() {
                found += 1;
                if record.state == PacketState::InFlight {
                    self.expired.add(seq, record.transmission(), record.len);
                }
            }
            self.declare_lost(seq);
        }
        found as u64
    }

    /// Counts those of the repeated packets that a report shows to have been lost. `duplicates`: packets that
    /// the peer has received again since the previous report.
    pub(crate) fn settle_expired(&mut self, rule: &LossBoundary, duplicates: u64, change: &mut Change) {
        if self.expired.is_empty() {
            return;
        }
        let (mut expired, mut losses) = (std::mem::take(&mut self.expired), std::mem::take(&mut self.losses));
        let state_of = |seq| match self.unacked(seq) {
            Some(_) => Reported::Missing,
            None if seq < self.next_seq => Reported::Arrived,
            None => Reported::NeverSent,
        };
        expired.settle(rule, duplicates, state_of, |lost, len| {
            change.lost_packets += 1;
            change.lost_bytes += u64::from(len);
            losses.push(lost);
        });
        (self.expired, self.losses) = (expired, losses);
    }

    /// Records that every packet below `seq` has arrived.
    pub(crate) fn on_complete_below(&mut self, seq: u64, change: &mut Change) {
        let seq = seq.min(self.next_seq);
        while self.base * PACKETS < seq && !self.segments.is_empty() {
            let upto = (seq - self.base * PACKETS).min(PACKETS);
            self.ack_below(upto as usize, change);
            if upto < PACKETS {
                break;
            }
            self.retire();
        }
    }

    /// Applies a receiver's statement about up to 64 packets. Missing packets that are older than `rule`
    /// allows are queued for retransmission.
    pub(crate) fn on_statement(&mut self, statement: &Statement, rule: &LossBoundary, change: &mut Change) {
        let (mut first, mut received, mut known) = (statement.first, statement.received, statement.known);
        let slot = (first / PACKETS).checked_sub(self.base).map(|slot| slot as usize);
        let index = (first % PACKETS) as usize;
        if index.is_multiple_of(64)
            && let Some(segment) = slot.and_then(|slot| self.segments.get(slot))
            && segment.acked[index / 64] == u64::MAX
        {
            // Nothing new, as in most words of most reports.
            return;
        }
        // Words of bitmaps are aligned with the words here: one iteration. Others take one for each word they
        // touch.
        while known != 0 {
            let (segment, index) = (first / PACKETS, first % PACKETS);
            let shift = (index % 64) as u32;
            self.on_word(segment, (index / 64) as usize, (received << shift, known << shift), rule, change);
            let done = (64 - shift).min((PACKETS - index) as u32);
            first += u64::from(done);
            (received, known) =
                (received.checked_shr(done).unwrap_or(0), known.checked_shr(done).unwrap_or(0));
        }
    }

    /// Applies a statement about packets of one word of a segment: which have arrived, and which it covers.
    #[inline]
    fn on_word(
        &mut self,
        segment: u64,
        word: usize,
        (received, known): (u64, u64),
        rule: &LossBoundary,
        change: &mut Change,
    ) {
        let slot = segment.checked_sub(self.base).and_then(|slot| usize::try_from(slot).ok());
        let Some((slot, state)) = slot.and_then(|slot| Some((slot, self.segments.get(slot)?))) else {
            return;
        };
        if word >= WORDS {
            return;
        }
        let sent = state.sent_mask(word) & known;
        let missing = sent & !received & !state.acked[word];
        if received & sent & !state.acked[word] != 0 {
            self.ack_word(slot, word, received & sent, change);
        }
        if missing != 0 {
            self.examine(segment, word, missing, rule, change);
        }
    }

    /// Records that nothing at or above `highest` has arrived.
    pub(crate) fn on_missing_from(&mut self, highest: u64, rule: &LossBoundary, change: &mut Change) {
        for seq in highest.max(self.base * PACKETS)..self.next_seq {
            let Some(record) = self.unacked(seq) else { continue };
            if record.state == PacketState::InFlight && !rule.is_lost(record) {
                // Later packets were sent later still; resent ones are even newer.
                break;
            }
            self.mark_lost(seq, rule, change);
        }
    }

    /// Returns complete segments at the front to the pool, and finds the oldest outstanding packet.
    pub(crate) fn retire_complete(&mut self) {
        while self.segments.front().is_some_and(Segment::is_complete) {
            self.retire();
        }
        let Some(first) = self.segments.front() else { return };
        let arrived = first.acked[self.complete_words..].iter().take_while(|word| **word == u64::MAX).count();
        self.complete_words += arrived;
    }

    fn retire(&mut self) {
        self.complete_words = 0;
        if let Some(mut segment) = self.segments.pop_front() {
            segment.reset();
            self.free.push(segment);
            self.base += 1;
        }
    }

    fn examine(&mut self, segment: u64, word: usize, missing: u64, rule: &LossBoundary, change: &mut Change) {
        let mut bits = missing;
        while bits != 0 {
            let seq = segment * PACKETS + word as u64 * 64 + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            self.mark_lost(seq, rule, change);
        }
    }

    fn mark_lost(&mut self, seq: u64, rule: &LossBoundary, change: &mut Change) {
        let Some(record) = self.unacked(seq) else { return };
        if record.state == PacketState::InFlight && rule.is_lost(record) {
            change.lost_packets += 1;
            change.lost_bytes += u64::from(record.len);
            let lost = record.transmission();
            self.losses.push(lost);
            self.declare_lost(seq);
        }
    }

    fn declare_lost(&mut self, seq: u64) {
        let Some(record) = self.unacked_mut(seq).filter(|r| r.state == PacketState::InFlight) else {
            return;
        };
        record.state = PacketState::Lost;
        let bytes = u64::from(record.len);
        self.in_flight.remove(1, bytes);
        self.lost.push_back(seq);
    }

    /// Records that the oldest segment's packets below its `upto`-th have arrived.
    fn ack_below(&mut self, upto: usize, change: &mut Change) {
        for word in self.complete_words..upto.div_ceil(64) {
            let bits = (upto - word * 64).min(64);
            let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
            let sent = self.segments[0].sent_mask(word);
            self.ack_word(0, word, mask & sent, change);
        }
    }

    fn ack_word(&mut self, slot: usize, word: usize, received: u64, change: &mut Change) {
        let segment = &mut self.segments[slot];
        let fresh = received & !segment.acked[word];
        if fresh == 0 {
            return;
        }
        segment.acked[word] |= fresh;
        segment.acked_count += fresh.count_ones() as u16;
        change.acked_packets += u64::from(fresh.count_ones());
        let records = &segment.records[word * 64..];
        let (mut acked, mut bytes, mut packets) = (0, 0, 0);
        let mut at = 0;
        // Processes whole runs of consecutive packets, which most are.
        while at < 64 && fresh >> at != 0 {
            at += (fresh >> at).trailing_zeros();
            let run = (fresh >> at).trailing_ones();
            for record in &records[at as usize..(at + run) as usize] {
                let is_in_flight = record.state == PacketState::InFlight;
                acked += u64::from(record.len);
                bytes += if is_in_flight { u64::from(record.len) } else { 0 };
                packets += u64::from(is_in_flight);
            }
            at += run;
        }
        change.acked_bytes += acked;
        self.in_flight.remove(packets, bytes);
    }

    fn unacked(&self, seq: u64) -> Option<&Record> {
        let slot = (seq / PACKETS).checked_sub(self.base)?;
        let segment = self.segments.get(slot as usize)?;
        let index = (seq % PACKETS) as usize;
        (index < segment.sent as usize && !segment.is_acked(index)).then(|| &segment.records[index])
    }

    fn unacked_mut(&mut self, seq: u64) -> Option<&mut Record> {
        let slot = (seq / PACKETS).checked_sub(self.base)?;
        let segment = self.segments.get_mut(slot as usize)?;
        let index = (seq % PACKETS) as usize;
        (index < segment.sent as usize && !segment.is_acked(index)).then(|| &mut segment.records[index])
    }
}
