//! The sending machine: cuts the object into packets, paces them, repeats exactly what is missing.

mod feedback;
mod outstanding;
mod waiting;

use std::fmt;

use haul_base::{Bytes, Deadline, DeadlineReason, Ecn, Machine, PathId, Received, Span, Time, Transmit};
use haul_wire::packet::{
    COMMON_HEADER_LEN, DATA_BODY_LEN, DataBody, PART_BODY_LEN, PROBE_BODY_MIN, PacketKind, PartBody,
    ProbeBody,
};

use crate::control::{Limits, Permit, RateController, RateState, SentBatch};
use crate::delivery_rate::DeliveryMeter;
use crate::link::Link;
use crate::mtu::MtuSearch;
use crate::pacer::Pacer;
use crate::rtt::RttEstimator;
use haul_stack::{Available, ObjectSource};
use outstanding::Outstanding;
use waiting::Clock;

pub use waiting::{Waiting, WaitingFor};

/// How a sender works.
#[derive(Clone, Copy, Debug)]
pub struct SenderConfig {
    /// The object is cut at multiples of this size; no packet straddles a cut (FOBS: 100 MB).
    pub chunk: Bytes,
    /// Datagram size that is known to pass, UDP payload bytes.
    pub datagram: u16,
    /// Size that probably passes, because it did in the other direction: tried first.
    pub likely_datagram: u16,
    /// Largest datagram that may ever be tried.
    pub max_datagram: u16,
    /// Most datagrams in one batch.
    pub max_batch: usize,
    /// First guess of the round-trip time.
    pub initial_rtt: Span,
    /// How often the receiver reports at least.
    pub feedback_interval: Span,
    /// Lateness that the pacer makes good.
    pub pacing_debt: Span,
    /// Packets between the oldest unacknowledged one and the newest.
    pub max_outstanding: u64,
    /// Time without a sign that packets arrive after which [`SenderEvent::Silent`] is raised.
    pub silence: Span,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            chunk: Bytes(100_000_000),
            datagram: crate::mtu::BASE_DATAGRAM,
            likely_datagram: crate::mtu::BASE_DATAGRAM,
            max_datagram: 8_972,
            max_batch: 64,
            initial_rtt: Span::from_millis(100),
            feedback_interval: Span::from_millis(2),
            pacing_debt: Span::from_millis(100),
            max_outstanding: 400_000,
            silence: Span::from_secs(15),
        }
    }
}

/// What the sender tells its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderEvent {
    /// Every byte has arrived at the receiver.
    Delivered,
    /// A larger or smaller datagram size is in use now.
    PathMtu(u16),
    /// For the configured time, nothing authentic has come from the receiver, or only word that nothing arrives.
    Silent(Span),
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Data packets sent, repeated ones included.
    pub packets: u64,
    /// Of these, repeated ones.
    pub resent: u64,
    /// UDP payload bytes of data packets.
    pub datagram_bytes: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Object bytes that were sent at least once.
    pub object_sent: u64,
    /// Object bytes known to have arrived.
    pub object_acked: u64,
    /// Packets known to have arrived.
    pub acked: u64,
    /// Feedback packets processed.
    pub feedback: u64,
    /// Packets that did not authenticate or made no sense.
    pub rejected: u64,
    /// Socket buffers dropped at the receiver, as it last said.
    pub receiver_drops: u32,
    /// Duplicates at the receiver, as it last said.
    pub receiver_duplicates: u32,
    /// Packets marked "congestion experienced", as the receiver last said.
    pub ecn_ce: u32,
    /// Probe timeouts.
    pub probe_timeouts: u32,
    /// Datagram size in use, UDP payload bytes.
    pub datagram: u16,
    /// Smoothed round-trip time.
    pub rtt: Span,
    /// Smallest round-trip time.
    pub min_rtt: Span,
    /// The highest delivery rate seen over about a round trip, bits per second of UDP payload.
    pub peak_delivery_bps: u64,
    /// Where time went while nothing could be sent.
    pub waiting: Waiting,
}

/// The sending end of one object.
pub struct Sender {
    config: SenderConfig,
    link: Link,
    source: Box<dyn ObjectSource>,
    /// What the source last said; asked again when that is used up.
    available: Available,
    controller: Box<dyn RateController>,
    pacer: Pacer,
    rtt: RttEstimator,
    meter: DeliveryMeter,
    mtu: MtuSearch,
    /// Packets that had arrived when the last path MTU probe left.
    acked_at_probe: u64,
    outstanding: Outstanding,
    stats: SenderStats,
    clock: Clock,
    next_offset: u64,
    fin_sent: bool,
    /// The receiver takes bytes below this offset.
    limit: u64,
    /// Packet number of the newest feedback.
    newest_feedback: Option<u64>,
    largest_acked_pn: Option<u64>,
    /// Packets below this number left while the source had nothing more.
    app_limited_below: u64,
    /// How many times the base reordering window is in force (RFC 8985 section 6.2).
    reordering_steps: u32,
    /// The packet at the front of the retransmission queue, and how much of it has left if it goes in parts.
    part_of: Option<u64>,
    part_sent: u16,
    released: u64,
    /// Since when the probe timer runs.
    timer_base: Time,
    timeouts_in_row: u32,
    /// Datagrams that may leave although the window is full.
    probe_credit: u32,
    /// When the path was last known to work in both directions.
    heard_at: Time,
    /// Packets that the receiver had got by then.
    heard_of: u64,
    silent: bool,
    delivered: bool,
    events: std::collections::VecDeque<SenderEvent>,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("stats", &self.stats)
            .field("controller", &self.controller)
            .field("in_flight", &self.outstanding.in_flight())
            .finish_non_exhaustive()
    }
}

/// Longest wait between two probes of a silent path.
const LONGEST_TIMEOUT: Span = Span::from_secs(2);

/// Probe timeouts in a row after which full-size packets are suspected to vanish (RFC 8899 section 4.3).
const BLACK_HOLE_TIMEOUTS: u32 = 3;

/// Packets sent again when the probe timer fires.
const PROBE_PACKETS: usize = 2;

/// Time between two path MTU probes is at least this.
const SHORTEST_MTU_TIMEOUT: Span = Span::from_millis(200);

/// What stands in the way of the next packet.
enum Next {
    Again { seq: u64, offset: u64, len: usize, fin: bool },
    New { offset: u64, len: usize, fin: bool },
}

impl Sender {
    /// A sender that starts at `now`.
    pub fn new(
        now: Time,
        config: SenderConfig,
        link: Link,
        source: Box<dyn ObjectSource>,
        controller: Box<dyn RateController>,
        first_limit: u64,
    ) -> Self {
        let overhead = link.overhead() + DATA_BODY_LEN;
        let mtu = MtuSearch::new(config.datagram, config.likely_datagram, config.max_datagram);
        let stats = SenderStats { datagram: mtu.current(), ..SenderStats::default() };
        Self {
            pacer: Pacer::new(config.pacing_debt),
            rtt: RttEstimator::new(config.initial_rtt),
            meter: DeliveryMeter::default(),
            mtu,
            acked_at_probe: 0,
            outstanding: Outstanding::new(overhead),
            stats,
            clock: Clock::new(now),
            available: Available { upto: 0, end: false },
            next_offset: 0,
            fin_sent: false,
            limit: first_limit,
            newest_feedback: None,
            largest_acked_pn: None,
            app_limited_below: 0,
            reordering_steps: 1,
            part_of: None,
            part_sent: 0,
            released: 0,
            timer_base: now,
            timeouts_in_row: 0,
            probe_credit: 0,
            heard_at: now,
            heard_of: 0,
            silent: false,
            delivered: false,
            events: std::collections::VecDeque::with_capacity(16),
            config,
            link,
            source,
            controller,
        }
    }

    /// The counters so far.
    pub fn stats(&self) -> SenderStats {
        SenderStats {
            rejected: self.link.rejected(),
            datagram: self.mtu.current(),
            rtt: self.rtt.smoothed(),
            min_rtt: self.rtt.min(),
            waiting: self.clock.waiting(),
            ..self.stats
        }
    }

    /// The controller's state, for progress and traces.
    pub fn rate_state(&self) -> RateState {
        self.controller.state()
    }

    /// UDP payload bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.outstanding.in_flight()
    }

    /// Whether every byte has arrived.
    pub fn is_delivered(&self) -> bool {
        self.delivered
    }

    /// Datagrams of this size are known to pass (the HELLO exchange has shown it).
    pub fn on_size_passed(&mut self, now: Time, size: u16) {
        self.mtu.on_passed(now, size);
    }

    /// The socket refused a datagram of this size as too large for the local interface.
    pub fn on_too_large(&mut self, now: Time, size: usize) {
        self.mtu.on_refused(now, size as u16);
    }

    fn overhead(&self) -> usize {
        self.link.overhead() + DATA_BODY_LEN
    }

    fn mtu_timeout(&self) -> Span {
        self.rtt.probe_timeout(self.config.feedback_interval).max(SHORTEST_MTU_TIMEOUT)
    }

    fn poll_mtu_probe(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        if self.delivered || now < self.mtu.deadline() {
            return None;
        }
        let timeout = self.mtu_timeout();
        let alive = self.stats.acked > self.acked_at_probe;
        let size = usize::from(self.mtu.poll_probe(now, timeout, alive)?);
        self.acked_at_probe = self.stats.acked;
        let tag = self.link.overhead() - COMMON_HEADER_LEN;
        let packet = slot.get_mut(..size)?;
        debug_assert!(size > COMMON_HEADER_LEN + PROBE_BODY_MIN + tag);
        let pn = self.link.begin(PacketKind::Probe, packet);
        ProbeBody { size: size as u16 }.write(&mut packet[COMMON_HEADER_LEN..size - tag]);
        Some(self.link.finish_single(now, packet, size, pn))
    }

    /// How many datagrams of `size` may leave now, and why not if none may.
    fn allowance(&mut self, now: Time, limits: Limits, size: u64, slot: u64) -> Result<u64, WaitingFor> {
        let batch = (limits.burst / size).min(slot / size).min(self.config.max_batch as u64).max(1);
        if self.probe_credit > 0 {
            return Ok(batch.min(u64::from(self.probe_credit)));
        }
        if self.pacer.release_at() > now {
            return Err(WaitingFor::Pacer);
        }
        let room = limits.window.map_or(u64::MAX, |w| w.saturating_sub(self.outstanding.in_flight()));
        match room / size {
            0 => Err(WaitingFor::Window),
            packets => Ok(batch.min(packets)),
        }
    }

    /// Decides on the next packet: first what is missing, then what is new.
    fn next(&mut self, payload_max: usize) -> Result<Next, WaitingFor> {
        if let Some((seq, record)) = self.outstanding.peek_lost() {
            if self.part_of != Some(seq) {
                self.part_of = Some(seq);
                self.part_sent = 0;
            }
            let (offset, len, fin) = (record.offset, usize::from(record.len), record.fin);
            return Ok(Next::Again { seq, offset, len, fin });
        }
        if self.fin_sent {
            return Err(WaitingFor::Acknowledgement);
        }
        if self.outstanding.span() >= self.config.max_outstanding {
            return Err(WaitingFor::Window);
        }
        let offset = self.next_offset;
        let chunk = self.config.chunk.0.max(1);
        let cut = (offset / chunk + 1) * chunk;
        let wanted = (offset + payload_max as u64).min(cut);
        if wanted >= self.available.upto && !self.available.end {
            self.available = self.source.available();
        }
        let available = self.available;
        let end = wanted.min(available.upto);
        let fin = available.end && end == available.upto;
        if end > self.limit {
            return Err(WaitingFor::Receiver);
        }
        // A short packet only where the object or a chunk ends, or where the source cannot wait.
        if !fin && end < wanted && (end == offset || !self.source.is_urgent()) {
            return Err(WaitingFor::Source);
        }
        Ok(Next::New { offset, len: (end - offset) as usize, fin })
    }

    /// Writes the next packet to the start of `slot`; `stride` is the size that the batch prescribes.
    fn write_packet(
        &mut self,
        now: Time,
        slot: &mut [u8],
        stride: Option<usize>,
        payload_max: usize,
    ) -> Result<Option<usize>, WaitingFor> {
        let next = self.next(payload_max)?;
        let (Next::Again { offset, len, fin, .. } | Next::New { offset, len, fin }) = next;
        if let Next::Again { seq, .. } = next
            && len > payload_max
        {
            return Ok(self.write_part(now, slot, stride, payload_max, seq));
        }
        let total = self.overhead() + len;
        if stride.is_some_and(|s| total > s) || total > slot.len() {
            return Ok(None);
        }
        let kind = if fin { PacketKind::DataFin } else { PacketKind::Data };
        let pn = self.link.begin(kind, slot);
        let timestamp = now.as_wrapped_micros();
        let seq = match next {
            Next::Again { seq, .. } => {
                self.outstanding.resent(pn, timestamp);
                self.stats.resent += 1;
                seq
            }
            Next::New { .. } => {
                let seq = self.outstanding.next_seq();
                self.outstanding.push(offset, len as u16, fin, pn, timestamp);
                self.next_offset = offset + len as u64;
                self.fin_sent = fin;
                self.stats.object_sent = self.next_offset;
                seq
            }
        };
        let body = &mut slot[COMMON_HEADER_LEN..];
        DataBody { seq, offset, timestamp }.write(body);
        self.source.read(offset, &mut body[DATA_BODY_LEN..DATA_BODY_LEN + len]);
        Ok(Some(total))
    }

    /// Writes the next part of a lost packet that no longer fits the path.
    fn write_part(
        &mut self,
        now: Time,
        slot: &mut [u8],
        stride: Option<usize>,
        payload_max: usize,
        seq: u64,
    ) -> Option<usize> {
        let (_, record) = self.outstanding.peek_lost()?;
        let room = payload_max - (PART_BODY_LEN - DATA_BODY_LEN);
        let skip = self.part_sent;
        let len = room.min(usize::from(record.len - skip));
        let total = self.link.overhead() + PART_BODY_LEN + len;
        if stride.is_some_and(|s| total > s) || total > slot.len() {
            return None;
        }
        let pn = self.link.begin(PacketKind::DataPart, slot);
        let timestamp = now.as_wrapped_micros();
        let body = &mut slot[COMMON_HEADER_LEN..];
        let (offset, whole, fin) = (record.offset, record.len, record.fin);
        PartBody { seq, offset, timestamp, skip, whole, fin }.write(body);
        self.source.read(offset + u64::from(skip), &mut body[PART_BODY_LEN..PART_BODY_LEN + len]);
        self.part_sent += len as u16;
        if self.part_sent == whole {
            self.part_of = None;
            self.outstanding.resent(pn, timestamp);
            self.stats.resent += 1;
        }
        Some(total)
    }

    /// Fills `slot` with up to `count` datagrams of one size (the last may be shorter); returns how many, the
    /// bytes used and the size.
    fn fill(
        &mut self,
        now: Time,
        slot: &mut [u8],
        count: u64,
        payload_max: usize,
    ) -> Result<(u64, usize, usize), WaitingFor> {
        let (mut packets, mut len, mut stride) = (0, 0, None);
        while packets < count {
            let written = match self.write_packet(now, &mut slot[len..], stride, payload_max) {
                Err(reason) if packets == 0 => return Err(reason),
                Err(_) | Ok(None) => break,
                Ok(Some(written)) => written,
            };
            packets += 1;
            len += written;
            if written < *stride.get_or_insert(written) {
                break;
            }
        }
        Ok((packets, len, stride.unwrap_or(len)))
    }

    fn poll_data(&mut self, now: Time, slot: &mut [u8]) -> Result<Transmit, WaitingFor> {
        if self.delivered {
            return Err(WaitingFor::Acknowledgement);
        }
        let Permit::Go(limits) = self.controller.permit() else {
            return Err(WaitingFor::Window);
        };
        let size = usize::from(self.mtu.current());
        let count = self.allowance(now, limits, size as u64, slot.len() as u64)?;
        let was_idle = self.outstanding.in_flight() == 0;
        let first_pn = self.link.next_pn();
        let (packets, len, stride) = self.fill(now, slot, count, size - self.overhead())?;
        self.link.seal(&mut slot[..len], stride, first_pn);
        self.probe_credit = self.probe_credit.saturating_sub(packets as u32);
        self.pacer.on_sent(now, len as u64, limits.rate);
        if was_idle {
            self.timer_base = now;
        }
        self.stats.packets += packets;
        self.stats.datagram_bytes += len as u64;
        let in_flight = self.outstanding.in_flight();
        self.controller.on_sent(&SentBatch { now, bytes: len as u64, in_flight });
        let (ecn, path) = (Ecn::NotEct, PathId::default());
        Ok(Transmit { len, segment_size: stride, ecn, path, release: now })
    }

    fn on_waiting(&mut self, now: Time, reason: WaitingFor) {
        match reason {
            WaitingFor::Source | WaitingFor::Receiver => {
                self.app_limited_below = self.link.next_pn();
                self.pacer.on_idle(now);
            }
            WaitingFor::Window | WaitingFor::Acknowledgement => self.pacer.on_idle(now),
            WaitingFor::Pacer => {}
        }
        self.clock.wait(now, reason);
    }

    fn probe_deadline(&self) -> Option<Time> {
        if self.delivered || (self.outstanding.is_empty() && !self.outstanding.has_lost()) {
            return None;
        }
        let timeout = self.rtt.probe_timeout(self.config.feedback_interval);
        let backed_off = timeout * (1 << self.timeouts_in_row.min(10));
        Some(self.timer_base + backed_off.min(LONGEST_TIMEOUT.max(timeout)))
    }

    fn on_probe_timeout(&mut self, now: Time) {
        self.timer_base = now;
        self.timeouts_in_row += 1;
        self.stats.probe_timeouts += 1;
        self.outstanding.expire_oldest(PROBE_PACKETS);
        self.probe_credit = PROBE_PACKETS as u32;
        if self.timeouts_in_row == BLACK_HOLE_TIMEOUTS && self.mtu.current() > crate::mtu::BASE_DATAGRAM {
            self.mtu.on_black_hole(now);
            self.events.push_back(SenderEvent::PathMtu(self.mtu.current()));
        }
        self.controller.on_silence(now, self.timeouts_in_row);
    }
}

impl Machine for Sender {
    type Event = SenderEvent;

    fn on_receive(&mut self, now: Time, batch: &mut Received<'_>) {
        let stride = batch.stride.max(1);
        for packet in batch.data.chunks_mut(stride) {
            self.on_packet(now, packet);
        }
    }

    fn on_deadline(&mut self, now: Time) {
        if self.probe_deadline().is_some_and(|at| at <= now) {
            self.on_probe_timeout(now);
        }
        if !self.silent && !self.delivered && now.since(self.heard_at) >= self.config.silence {
            self.silent = true;
            self.events.push_back(SenderEvent::Silent(self.config.silence));
        }
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        if let Some(transmit) = self.poll_mtu_probe(now, slot) {
            return Some(transmit);
        }
        match self.poll_data(now, slot) {
            Ok(transmit) => {
                self.clock.busy(now);
                Some(transmit)
            }
            Err(reason) => {
                self.on_waiting(now, reason);
                None
            }
        }
    }

    fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    fn deadline(&self) -> Option<Deadline> {
        if self.delivered {
            return None;
        }
        let pacing = (self.clock.reason() == Some(WaitingFor::Pacer))
            .then(|| Deadline { at: self.pacer.release_at(), reason: DeadlineReason::Pacing });
        let probe = self.probe_deadline().map(|at| Deadline { at, reason: DeadlineReason::ProbeTimeout });
        let mtu = Some(Deadline { at: self.mtu.deadline(), reason: DeadlineReason::PathMtu });
        let silence = (!self.silent)
            .then(|| Deadline { at: self.heard_at + self.config.silence, reason: DeadlineReason::Silence });
        [pacing, probe, mtu, silence].into_iter().fold(None, Deadline::earlier)
    }
}
