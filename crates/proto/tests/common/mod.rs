//! A seeded lossy channel in virtual time between a sender and a receiver machine.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};

use haul_base::{Ecn, Machine, PathId, Piece, RangeSet, Rate, Received, Rng, Span, Time, Transmit};
use haul_proto::{
    Available, ControllerConfig, Link, ObjectSink, ObjectSource, Open, Receiver, ReceiverConfig,
    ReceiverEvent, Seal, Sender, SenderConfig, SenderEvent, Unauthentic, build_controller,
};

/// A tag that is a checksum over the packet and its number: catches every corruption of the channel.
#[derive(Debug)]
pub(crate) struct Checksum;

const TAG: usize = 8;

fn checksum(data: &[u8], pn: u64) -> [u8; TAG] {
    let hash = data
        .iter()
        .fold(0xcbf2_9ce4_8422_2325 ^ pn, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    hash.to_be_bytes()
}

impl Seal for Checksum {
    fn tag_len(&self) -> usize {
        TAG
    }

    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, _: usize, first_pn: u64) {
        for (i, packet) in batch.chunks_mut(stride).enumerate() {
            let at = packet.len() - TAG;
            let tag = checksum(&packet[..at], first_pn + i as u64);
            packet[at..].copy_from_slice(&tag);
        }
    }
}

impl Open for Checksum {
    fn open(&mut self, packet: &mut [u8], header_len: usize, pn: u64) -> Result<usize, Unauthentic> {
        let at = packet.len().checked_sub(TAG).filter(|&at| at >= header_len).ok_or(Unauthentic)?;
        if checksum(&packet[..at], pn) != packet[at..] {
            return Err(Unauthentic);
        }
        Ok(at - header_len)
    }
}

pub(crate) fn link() -> Link {
    Link::new(Box::new(Checksum), Box::new(Checksum), 0)
}

/// The byte of the test object at `offset`.
pub(crate) fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// A sink whose contents the test can read.
pub(crate) struct Shared(pub Arc<Mutex<SinkState>>);

#[derive(Debug, Default)]
pub(crate) struct SinkState {
    pub(crate) ranges: RangeSet,
    pub(crate) delivered: u64,
    pub(crate) wrong: u64,
    pub(crate) complete: Option<u64>,
    pub(crate) limit: u64,
}

pub(crate) struct PatternSource {
    pub(crate) len: u64,
    pub(crate) released: Arc<Mutex<u64>>,
}

impl ObjectSource for PatternSource {
    fn available(&mut self) -> Available {
        Available { upto: self.len, end: true }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        assert!(offset >= *self.released.lock().unwrap(), "read below what was released");
        assert!(offset + into.len() as u64 <= self.len);
        for (i, byte) in into.iter_mut().enumerate() {
            *byte = byte_at(offset + i as u64);
        }
    }

    fn release(&mut self, offset: u64) {
        let mut released = self.released.lock().unwrap();
        assert!(offset >= *released);
        *released = offset;
    }
}

impl ObjectSink for Shared {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        let mut sink_state = self.0.lock().unwrap();
        for piece in pieces {
            let bytes = &data[piece.range.clone()];
            sink_state.wrong +=
                bytes.iter().enumerate().filter(|&(i, &b)| b != byte_at(piece.offset + i as u64)).count()
                    as u64;
            let before = sink_state.ranges.total();
            sink_state.ranges.insert(piece.offset..piece.offset + bytes.len() as u64);
            assert_eq!(sink_state.ranges.total() - before, bytes.len() as u64, "bytes delivered twice");
            sink_state.delivered += bytes.len() as u64;
        }
    }

    fn limit(&mut self) -> u64 {
        self.0.lock().unwrap().limit
    }

    fn takes_any_order(&self) -> bool {
        true
    }

    fn complete(&mut self, len: u64) {
        let mut sink_state = self.0.lock().unwrap();
        assert_eq!(sink_state.complete.replace(len), None, "completed twice");
    }
}

/// Behaviour of a channel in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub(crate) delay: Span,
    pub(crate) rate: Rate,
    /// Maximum queueing delay at the bottleneck.
    pub(crate) queue: Span,
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    pub(crate) reorder: f64,
    pub(crate) corrupt: f64,
    pub(crate) truncate: f64,
    /// Larger datagrams are lost.
    pub(crate) mtu: usize,
}

impl Channel {
    pub(crate) fn clean(delay: Span, rate: Rate) -> Self {
        let queue = Span::from_millis(50);
        Self {
            delay,
            rate,
            queue,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            truncate: 0.0,
            mtu: 1_472,
        }
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct InTransit {
    at: Time,
    id: u64,
    to_receiver: bool,
    data: Vec<u8>,
}

pub(crate) struct Outcome {
    pub(crate) elapsed: Span,
    pub(crate) delivered_at: Option<Time>,
    pub(crate) complete_at: Option<Time>,
    pub(crate) sent_wire: u64,
    pub(crate) dropped: u64,
    pub(crate) events: Vec<String>,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) sink_state: Arc<Mutex<SinkState>>,
    pub(crate) forward: Channel,
    pub(crate) back: Channel,
    /// From that time on larger datagrams are lost in both directions.
    pub(crate) shrink: Option<(Time, usize)>,
    /// During this time every packet is dropped in both directions.
    pub(crate) outage: Option<(Time, Time)>,
    /// The sink's limit grows by this much every 10 ms from the start; `None`: no limit.
    pub(crate) drain: Option<u64>,
    rng: Rng,
    in_transit: BinaryHeap<Reverse<InTransit>>,
    free_at: [Time; 2],
    ids: u64,
    pub(crate) out: Outcome,
}

impl World {
    pub(crate) fn new(
        seed: u64,
        len: u64,
        controller: &str,
        ceiling: Option<Rate>,
        forward: Channel,
        back: Channel,
    ) -> Self {
        Self::with_drain(seed, len, controller, ceiling, (forward, back), None)
    }

    /// As `new`; with `drain` the sink accepts that much every 10 ms, else everything at once.
    pub(crate) fn with_drain(
        seed: u64,
        len: u64,
        controller: &str,
        ceiling: Option<Rate>,
        (forward, back): (Channel, Channel),
        drain: Option<u64>,
    ) -> Self {
        println!("seed {seed}");
        let now = Time::ZERO;
        let first_limit = drain.unwrap_or(u64::MAX >> 16);
        let sink_state = Arc::new(Mutex::new(SinkState { limit: u64::MAX, ..SinkState::default() }));
        let rtt = forward.delay + back.delay;
        let interval = Span::from_millis(2);
        let config = ControllerConfig { ceiling, initial_rtt: rtt, feedback_interval: interval };
        let controller = build_controller(controller, &config).unwrap();
        let source = Box::new(PatternSource { len, released: Arc::default() });
        let sender_config =
            SenderConfig { initial_rtt: rtt, feedback_interval: interval, ..SenderConfig::default() };
        let receiver_config = ReceiverConfig {
            feedback_interval: interval,
            feedback_datagram: 1_200,
            silence: Span::from_secs(15),
        };
        Self {
            now,
            sender: Sender::new(now, &sender_config, link(), source, controller, first_limit),
            receiver: Receiver::new(now, receiver_config, link(), Box::new(Shared(sink_state.clone()))),
            sink_state,
            forward,
            back,
            shrink: None,
            outage: None,
            drain,
            rng: Rng::from_seed(seed),
            in_transit: BinaryHeap::new(),
            free_at: [now; 2],
            ids: 0,
            out: Outcome {
                elapsed: Span::ZERO,
                delivered_at: None,
                complete_at: None,
                sent_wire: 0,
                dropped: 0,
                events: Vec::new(),
            },
        }
    }

    /// Runs until both sides are done or `cap` has passed.
    pub(crate) fn run(&mut self, cap: Span) -> &Outcome {
        let end = Time::ZERO + cap;
        while self.now < end && (self.out.delivered_at.is_none() || self.out.complete_at.is_none()) {
            self.step();
        }
        self.out.elapsed = self.now.since(Time::ZERO);
        &self.out
    }

    fn step(&mut self) {
        if let Some(per_tick) = self.drain {
            let ticks = self.now.as_nanos() / 10_000_000;
            self.sink_state.lock().unwrap().limit = per_tick.saturating_mul(ticks + 1);
        }
        let mut slot = vec![0; 65_536];
        while let Some(t) = self.sender.poll_transmit(self.now, &mut slot) {
            self.launch(true, &slot, t);
        }
        while let Some(t) = self.receiver.poll_transmit(self.now, &mut slot) {
            self.launch(false, &slot, t);
        }
        while let Some(event) = self.sender.poll_event() {
            if event == SenderEvent::Delivered {
                self.out.delivered_at = Some(self.now);
            }
            self.out.events.push(format!("{event:?}"));
        }
        while let Some(event) = self.receiver.poll_event() {
            if matches!(event, ReceiverEvent::Complete(_)) {
                self.out.complete_at = Some(self.now);
            }
            self.out.events.push(format!("{event:?}"));
        }
        self.advance();
    }

    fn advance(&mut self) {
        let deadlines = [self.sender.deadline(), self.receiver.deadline()];
        let next_arrival = self.in_transit.peek().map(|f| f.0.at);
        let drain_tick = self.drain.map(|_| self.now + Span::from_millis(10));
        let next = deadlines.into_iter().flatten().map(|d| d.at).chain(next_arrival).chain(drain_tick).min();
        // A machine may have a deadline in the present; time must still advance.
        self.now = next.unwrap_or(self.now).max(self.now + Span::from_nanos(100));
        self.sender.on_deadline(self.now);
        self.receiver.on_deadline(self.now);
        while self.in_transit.peek().is_some_and(|f| f.0.at <= self.now) {
            let Some(Reverse(mut packet)) = self.in_transit.pop() else {
                break;
            };
            let stride = packet.data.len();
            let mut batch = Received {
                data: &mut packet.data,
                stride,
                arrival: Some(packet.at),
                path: PathId::default(),
                ecn: Ecn::NotEct,
                socket_drops: None,
            };
            if packet.to_receiver {
                self.receiver.on_receive(self.now, &mut batch);
            } else {
                self.sender.on_receive(self.now, &mut batch);
            }
        }
    }

    fn launch(&mut self, forward: bool, slot: &[u8], transmit: Transmit) {
        for packet in slot[..transmit.len].chunks(transmit.segment_size) {
            self.launch_one(forward, packet);
        }
    }

    fn launch_one(&mut self, forward: bool, packet: &[u8]) {
        let channel = if forward { self.forward } else { self.back };
        self.out.sent_wire += packet.len() as u64;
        let direction = usize::from(forward);
        let start = self.free_at[direction].max(self.now);
        let out = self.outage.is_some_and(|(from, to)| self.now >= from && self.now < to);
        if out
            || packet.len() > channel.mtu
            || self.shrink.is_some_and(|(from, mtu)| self.now >= from && packet.len() > mtu)
            || start.since(self.now) > channel.queue
            || self.rng.chance(channel.loss)
        {
            self.out.dropped += 1;
            return;
        }
        self.free_at[direction] = start + channel.rate.time_for(packet.len() as u64);
        let mut data = packet.to_vec();
        if self.rng.chance(channel.corrupt) {
            let at = self.rng.below(data.len() as u64) as usize;
            data[at] ^= 1 << self.rng.below(8);
        }
        if self.rng.chance(channel.truncate) {
            let len = self.rng.below(data.len() as u64) as usize;
            data.truncate(len.max(1));
        }
        let mut at = self.free_at[direction] + channel.delay;
        if self.rng.chance(channel.reorder) {
            at += Span::from_micros(self.rng.below(5_000));
        }
        let copies = 1 + usize::from(self.rng.chance(channel.duplicate));
        for _ in 0..copies {
            self.ids += 1;
            self.in_transit.push(Reverse(InTransit {
                at,
                id: self.ids,
                to_receiver: forward,
                data: data.clone(),
            }));
        }
    }

    /// Panics unless the object arrived complete, once and correct.
    pub(crate) fn assert_complete(&self, len: u64) {
        let sink_state = self.sink_state.lock().unwrap();
        assert_eq!(sink_state.complete, Some(len), "events {:?}, sender {:?}", self.out.events, self.sender);
        assert_eq!(sink_state.wrong, 0);
        assert_eq!(sink_state.delivered, len);
        assert!(self.out.delivered_at.is_some(), "the sender does not know: {:?}", self.sender);
    }
}
