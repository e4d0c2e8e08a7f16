//! The receiving machine: takes data packets, says what arrived, delivers pieces of the object.

mod arrivals;
mod parts;
mod report;

use std::fmt;
use std::ops::Range;

use haul_base::{Deadline, DeadlineReason, Ecn, Machine, Piece, Received, Span, Time, Transmit};
use haul_wire::packet::{
    COMMON_HEADER_LEN, DATA_BODY_LEN, DataBody, FeedbackHeader, MAX_OFFSET, PART_BODY_LEN, PacketKind,
    PartBody, ProbeBody,
};

use crate::ObjectSink;
use crate::link::Link;
use arrivals::{Arrival, Arrivals};
use parts::Parts;
use report::Report;

/// A higher limit is worth a feedback packet of its own when it rose by this many bytes.
const LIMIT_STEP: u64 = 4 << 20;

/// How a receiver works.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverConfig {
    /// Longest time between two feedback packets while data arrives.
    pub feedback_interval: Span,
    /// Largest feedback datagram, UDP payload bytes.
    pub feedback_datagram: u16,
    /// Silence of the sender after which [`ReceiverEvent::Silent`] is raised.
    pub silence: Span,
}

/// What the receiver tells its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// Every byte has arrived; the object has this length.
    Complete(u64),
    /// Nothing authentic has come from the sender for the configured time.
    Silent(Span),
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Authentic data packets.
    pub packets: u64,
    /// Their UDP payload bytes.
    pub datagram_bytes: u64,
    /// Object bytes delivered.
    pub object_bytes: u64,
    /// Data packets that had arrived before.
    pub duplicates: u64,
    /// Packets that did not authenticate or made no sense.
    pub rejected: u64,
    /// Data packets marked "congestion experienced".
    pub ecn_ce: u64,
    /// Socket buffers (one or more packets) that this host's kernel dropped, as last said by the socket.
    pub socket_drops: u32,
    /// Feedback packets sent.
    pub feedback_sent: u64,
    /// Length of the object once it is known.
    pub object_len: Option<u64>,
}

/// The receiving end of one object.
pub struct Receiver {
    config: ReceiverConfig,
    link: Link,
    sink: Box<dyn ObjectSink>,
    arrivals: Arrivals,
    parts: Parts,
    report: Report,
    pieces: Vec<Piece>,
    stats: ReceiverStats,
    /// The last packet's sequence number and the object's length.
    end: Option<(u64, u64)>,
    limit: u64,
    complete: Completion,
    heard_at: Time,
    silence: Silence,
}

/// A range of a packet's payload as a range of the buffer in which the payload starts at `at`.
fn shift(range: &Range<u64>, at: usize) -> Range<usize> {
    at + range.start as usize..at + range.end as usize
}

/// A data packet, opened and parsed.
struct Data {
    pn: u64,
    fin: bool,
    /// UDP payload bytes.
    size: usize,
    body: DataBody,
    /// Where the payload lies in the batch.
    range: Range<usize>,
}

/// Whether the sender has fallen silent and the runner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    None,
    Untold,
    Told,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completion {
    No,
    /// The event is still to be polled.
    Reached,
    Told,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("stats", &self.stats).field("end", &self.end).finish_non_exhaustive()
    }
}

impl Receiver {
    /// A receiver that starts at `now`.
    pub fn new(now: Time, config: ReceiverConfig, link: Link, mut sink: Box<dyn ObjectSink>) -> Self {
        let limit = sink.limit().min(MAX_OFFSET);
        Self {
            report: Report::new(now, config.feedback_interval),
            config,
            link,
            sink,
            arrivals: Arrivals::new(),
            parts: Parts::default(),
            pieces: Vec::with_capacity(128),
            stats: ReceiverStats::default(),
            end: None,
            limit,
            complete: Completion::No,
            heard_at: now,
            silence: Silence::None,
        }
    }

    /// The counters so far.
    pub fn stats(&self) -> ReceiverStats {
        ReceiverStats { rejected: self.link.rejected(), ..self.stats }
    }

    /// Whether the whole object has arrived.
    pub fn is_complete(&self) -> bool {
        self.complete != Completion::No
    }

    fn on_packet(&mut self, now: Time, packet: &mut [u8], at: usize) {
        let size = packet.len();
        let Some(opened) = self.link.open(packet) else {
            return;
        };
        self.heard_at = now;
        self.silence = Silence::None;
        match opened.kind {
            PacketKind::Data | PacketKind::DataFin => match DataBody::parse(opened.kind, opened.body) {
                Ok(data) => {
                    let start = at + COMMON_HEADER_LEN + DATA_BODY_LEN;
                    let range = start..start + opened.body.len() - DATA_BODY_LEN;
                    let fin = opened.kind == PacketKind::DataFin;
                    self.on_data(now, Data { pn: opened.pn, fin, size, body: data, range });
                }
                Err(_) => self.link.reject(),
            },
            PacketKind::DataPart => match PartBody::parse(opened.body) {
                Ok(part) => {
                    let start = at + COMMON_HEADER_LEN + PART_BODY_LEN;
                    let range = start..start + opened.body.len() - PART_BODY_LEN;
                    self.on_part(now, opened.pn, part, range, size);
                }
                Err(_) => self.link.reject(),
            },
            PacketKind::Probe => match ProbeBody::parse(opened.body) {
                Ok(probe) if usize::from(probe.size) == size => self.report.on_probe(probe.size),
                _ => self.link.reject(),
            },
            PacketKind::Feedback | PacketKind::Hello | PacketKind::HelloAck => self.link.reject(),
        }
    }

    fn on_data(&mut self, now: Time, data: Data) {
        let DataBody { seq, offset, timestamp } = data.body;
        let len = data.range.len() as u64;
        if !self.is_welcome(seq, offset + len, data.fin) {
            self.link.reject();
            return;
        }
        let arrival = self.arrivals.insert(seq);
        if arrival == Arrival::TooFar {
            self.link.reject();
            return;
        }
        self.count(now, data.pn, timestamp, data.size, arrival);
        if arrival == Arrival::Duplicate {
            return;
        }
        if data.fin {
            self.note_end(seq, offset + len);
        }
        match self.parts.take_missing(seq, len) {
            None => self.push_piece(offset, data.range),
            Some(missing) => {
                for gap in missing {
                    self.push_piece(offset + gap.start, shift(&gap, data.range.start));
                }
            }
        }
    }

    /// A part of a packet: its bytes are delivered at once, the packet counts when all of them are here.
    fn on_part(&mut self, now: Time, pn: u64, part: PartBody, range: Range<usize>, size: usize) {
        let PartBody { seq, offset, timestamp, skip, whole, fin } = part;
        let end = offset + u64::from(whole);
        if !self.is_welcome(seq, end, fin) {
            self.link.reject();
            return;
        }
        if self.arrivals.contains(seq) {
            self.count(now, pn, timestamp, size, Arrival::Duplicate);
            return;
        }
        let skip = u64::from(skip);
        let Some(fresh) = self.parts.insert(seq, skip..skip + range.len() as u64) else {
            self.link.reject();
            return;
        };
        for gap in fresh {
            let here = gap.start - skip..gap.end - skip;
            self.push_piece(offset + gap.start, shift(&here, range.start));
        }
        let mut arrival = Arrival::New { gap: false };
        if self.parts.take_complete(seq, u64::from(whole)) {
            arrival = self.arrivals.insert(seq);
            if fin {
                self.note_end(seq, end);
            }
        }
        self.count(now, pn, timestamp, size, arrival);
    }

    fn count(&mut self, now: Time, pn: u64, timestamp: u32, size: usize, arrival: Arrival) {
        self.stats.packets += 1;
        self.stats.datagram_bytes += size as u64;
        self.stats.duplicates += u64::from(arrival == Arrival::Duplicate);
        self.report.on_data(now, pn, timestamp, arrival == Arrival::New { gap: true });
    }

    fn push_piece(&mut self, offset: u64, range: Range<usize>) {
        if !range.is_empty() {
            self.stats.object_bytes += range.len() as u64;
            self.pieces.push(Piece { offset, range });
        }
    }

    fn note_end(&mut self, seq: u64, end: u64) {
        self.end = Some((seq, end));
        self.stats.object_len = Some(end);
    }

    /// Whether a packet is below the granted limit and agrees with what is known of the object's end.
    fn is_welcome(&self, seq: u64, end: u64, fin: bool) -> bool {
        end <= self.limit
            && match self.end {
                Some((last, len)) => seq <= last && end <= len && (!fin || (seq, end) == (last, len)),
                None => !fin || seq + 1 >= self.arrivals.highest(),
            }
    }

    fn deliver(&mut self, data: &[u8]) {
        if !self.pieces.is_empty() {
            self.sink.deliver(data, &self.pieces);
            self.pieces.clear();
        }
        if let Some((last, len)) = self.end
            && self.complete == Completion::No
            && self.arrivals.complete_below() > last
        {
            self.complete = Completion::Reached;
            self.sink.complete(len);
            self.report.on_complete();
        }
    }

    /// The limit rises in steps, so that a slow sink does not cause a packet per write.
    fn limit_rose(&mut self) -> bool {
        self.sink.limit().saturating_sub(self.limit) >= LIMIT_STEP
    }
}

impl Machine for Receiver {
    type Event = ReceiverEvent;

    fn on_receive(&mut self, now: Time, batch: &mut Received<'_>) {
        if let Some(drops) = batch.socket_drops {
            self.stats.socket_drops = drops;
        }
        let before = self.stats.packets;
        let stride = batch.stride.max(1);
        let mut at = 0;
        while at < batch.data.len() {
            let end = (at + stride).min(batch.data.len());
            self.on_packet(now, &mut batch.data[at..end], at);
            at = end;
        }
        if batch.ecn == Ecn::Ce {
            self.stats.ecn_ce += self.stats.packets - before;
        }
        self.deliver(batch.data);
    }

    fn on_deadline(&mut self, now: Time) {
        if self.silence == Silence::None && now.since(self.heard_at) >= self.config.silence {
            self.silence = Silence::Untold;
        }
        if self.limit_rose() {
            self.report.on_limit();
        }
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        if !self.report.start(now, &mut self.arrivals) {
            return None;
        }
        self.limit = self.sink.limit().min(MAX_OFFSET);
        let size = usize::from(self.config.feedback_datagram).min(slot.len());
        let header = FeedbackHeader {
            packets: self.stats.packets,
            bytes: self.stats.datagram_bytes,
            duplicates: self.stats.duplicates as u32,
            ecn_ce: self.stats.ecn_ce as u32,
            socket_drops: self.stats.socket_drops,
            rejected: self.link.rejected() as u32,
            limit: self.limit,
            complete_below: self.arrivals.complete_below(),
            highest: self.arrivals.highest(),
            ..self.report.header(now)
        };
        let tag = self.link.overhead() - COMMON_HEADER_LEN;
        let pn = self.link.begin(PacketKind::Feedback, slot);
        let body = &mut slot[COMMON_HEADER_LEN..size - tag];
        let len = self.report.write(body, &header, &self.arrivals) + COMMON_HEADER_LEN + tag;
        self.stats.feedback_sent += 1;
        Some(self.link.finish_single(now, slot, len, pn))
    }

    fn poll_event(&mut self) -> Option<ReceiverEvent> {
        if self.complete == Completion::Reached {
            self.complete = Completion::Told;
            return self.stats.object_len.map(ReceiverEvent::Complete);
        }
        if self.silence == Silence::Untold {
            self.silence = Silence::Told;
            return Some(ReceiverEvent::Silent(self.config.silence));
        }
        None
    }

    fn deadline(&self) -> Option<Deadline> {
        let feedback = Deadline { at: self.report.due(), reason: DeadlineReason::Feedback };
        let silence = (self.silence == Silence::None)
            .then(|| Deadline { at: self.heard_at + self.config.silence, reason: DeadlineReason::Silence });
        Deadline::earlier(Some(feedback), silence)
    }
}
