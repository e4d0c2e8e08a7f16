//! The two ends of a simulated transfer: source, sink and keys of the machines of `haul-proto`.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use haul_base::{HostSample, Machine, Piece, Rate, Span, Time, Verdict};
use haul_proto::{Available, Link, ObjectSink, ObjectSource, Open, Seal, Unauthentic};
use haul_sim::{Arrival, Node, NodeId, Outbox, SessionNode, World};

const TAG: usize = 8;

/// Packet tag: zeros where paths do not damage packets, otherwise a checksum over the packet and its number.
#[derive(Clone, Copy, Debug)]
struct Tag {
    checked: bool,
}

impl Tag {
    fn of(self, data: &[u8], number: u64) -> [u8; TAG] {
        if !self.checked {
            return [0; TAG];
        }
        let mut hash = 0x9E37_79B9_7F4A_7C15 ^ number ^ (data.len() as u64) << 32;
        let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(29);
        let (words, rest) = data.as_chunks::<8>();
        for word in words {
            mix(u64::from_le_bytes(*word));
        }
        for byte in rest {
            mix(u64::from(*byte));
        }
        hash.to_le_bytes()
    }
}

impl Seal for Tag {
    fn tag_len(&self) -> usize {
        TAG
    }

    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, _: usize, first: u64) {
        for (packet, number) in batch.chunks_mut(stride).zip(first..) {
            if let Some((data, tag)) = packet.split_last_chunk_mut::<TAG>() {
                *tag = self.of(data, number);
            }
        }
    }
}

impl Open for Tag {
    fn open(&mut self, packet: &mut [u8], header: usize, number: u64) -> Result<usize, Unauthentic> {
        let (data, tag) = packet.split_last_chunk::<TAG>().ok_or(Unauthentic)?;
        let payload = data.len().checked_sub(header).ok_or(Unauthentic)?;
        if self.of(data, number) == *tag { Ok(payload) } else { Err(Unauthentic) }
    }
}

/// Returns the packet protection for paths with or without damage.
pub(super) fn keys(damage: bool) -> (Box<dyn Seal>, Box<dyn Open>) {
    let tag = Tag { checked: damage };
    (Box::new(tag), Box::new(tag))
}

/// As above, for a transfer.
pub(super) fn link(damage: bool) -> Link {
    let (seal, open) = keys(damage);
    Link::new(seal, open, 0)
}

/// Lead over the bytes read that a source of unknown length grants, as in `haul bench`: granted bytes are
/// still sent when the application ends or pauses.
const AHEAD: u64 = 128 << 10;

/// Maximum received bytes that the receiver's storage has not written.
pub(super) const UNWRITTEN: u64 = 1 << 20;

/// An object of known length, or until told to end. Its bytes are whatever the buffer holds.
#[derive(Debug)]
pub(super) struct Source {
    len: Option<u64>,
    read: u64,
    granted: u64,
    application: Arc<Application>,
}

/// State shared with the sending application.
#[derive(Debug, Default)]
pub(super) struct Application {
    /// Whether the application has ended.
    pub has_ended: AtomicBool,
    /// Whether the application pauses.
    pub is_paused: AtomicBool,
    /// Bytes that storage has read or written, if it takes time.
    pub stored: Option<AtomicU64>,
}

impl Application {
    /// Creates an application whose storage takes time or not.
    pub(super) fn new(takes_time: bool) -> Self {
        Self { stored: takes_time.then(AtomicU64::default), ..Self::default() }
    }

    fn stored(&self) -> Option<u64> {
        self.stored.as_ref().map(|stored| stored.load(Ordering::Relaxed))
    }
}

impl Source {
    /// Creates a source of `len` bytes, or of bytes until the application ends.
    pub(super) fn new(len: Option<u64>, application: Arc<Application>) -> Self {
        Self { len, read: 0, granted: 0, application }
    }
}

impl ObjectSource for Source {
    fn available(&mut self) -> Available {
        if let Some(len) = self.len {
            if let Some(stored) = self.application.stored().filter(|stored| *stored < len) {
                return Available { upto: stored, end: false };
            }
            return Available { upto: len, end: true };
        }
        let end = self.application.has_ended.load(Ordering::Relaxed);
        if !end && !self.application.is_paused.load(Ordering::Relaxed) {
            self.granted = self.granted.max(self.read + AHEAD);
        }
        Available { upto: self.granted, end }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        self.read = self.read.max(offset + into.len() as u64);
    }

    fn release(&mut self, _: u64) {}
}

/// Accepts everything, and stores the length of a complete object (plus one; zero before).
#[derive(Debug)]
pub(super) struct Bin {
    delivered: u64,
    complete: Arc<AtomicU64>,
    /// Storage, which may take time.
    storage: Arc<Application>,
}

impl Bin {
    /// Creates a sink that stores the object's length in `complete` when it is complete.
    pub(super) fn new(complete: Arc<AtomicU64>, storage: Arc<Application>) -> Self {
        Self { delivered: 0, complete, storage }
    }
}

impl ObjectSink for Bin {
    fn deliver(&mut self, _: &[u8], pieces: &[Piece]) {
        self.delivered += pieces.iter().map(|piece| piece.range.len() as u64).sum::<u64>();
    }

    fn limit(&mut self) -> u64 {
        self.storage.stored().map_or(u64::MAX >> 16, |stored| stored + UNWRITTEN)
    }

    fn complete(&mut self, len: u64) {
        // Complete means that every byte was delivered once.
        if self.delivered == len {
            self.complete.store(len + 1, Ordering::Relaxed);
        }
    }
}

/// A machine with a start time and a clock that may jump.
#[derive(Debug)]
pub(crate) struct ClockedNode<M: Machine> {
    start: Time,
    node: SessionNode<M>,
    /// Lead of its clock over the world's, from times of its own clock on.
    jumps: Vec<(Time, Span)>,
}

impl<M: Machine> ClockedNode<M> {
    /// Starts `node` at `start`.
    pub(crate) fn new(start: Time, node: SessionNode<M>) -> Self {
        Self { start, node, jumps: Vec::new() }
    }

    pub(crate) fn machine(&self) -> &M {
        self.node.machine()
    }

    /// Returns the machine mutably, for changes from outside the world.
    pub(super) fn machine_mut(&mut self) -> &mut M {
        self.node.machine_mut()
    }

    /// Returns its events with the times of its own clock.
    pub(super) fn events(&self) -> &[(Time, M::Event)] {
        self.node.events()
    }

    /// Converts a time of its clock to the world's time.
    pub(super) fn world_time(&self, local: Time) -> Time {
        let jump = self.jumps.iter().rev().find(|(from, _)| *from <= local);
        jump.map_or(local, |(_, ahead)| local - *ahead)
    }

    /// Moves its clock forward.
    pub(super) fn jump(&mut self, now: Time, by: Span) {
        let ahead = self.ahead() + by;
        self.jumps.push((now + ahead, ahead));
    }

    fn ahead(&self) -> Span {
        self.jumps.last().map_or(Span::ZERO, |(_, ahead)| *ahead)
    }
}
/// Returns the node if it runs a machine of type `M`.
pub(super) fn node<M>(world: &World, id: NodeId) -> Option<&ClockedNode<M>>
where
    M: Machine + Debug + Send + 'static,
    M::Event: Debug + Send,
{
    world.node::<ClockedNode<M>>(id)
}

impl<M> Node for ClockedNode<M>
where
    M: Machine + Debug + Send + 'static,
    M::Event: Debug + Send,
{
    fn on_arrival(&mut self, now: Time, arrival: &mut Arrival<'_>, out: &mut Outbox<'_>) {
        if now >= self.start {
            let ahead = self.ahead();
            arrival.batch.arrival = arrival.batch.arrival.map(|at| at + ahead);
            out.set_ahead(ahead);
            self.node.on_arrival(now + ahead, arrival, out);
        }
    }

    fn on_deadline(&mut self, now: Time, out: &mut Outbox<'_>) {
        if now >= self.start {
            out.set_ahead(self.ahead());
            self.node.on_deadline(now + self.ahead(), out);
        }
    }

    fn on_channel(&mut self, now: Time, message: &[u8], out: &mut Outbox<'_>) {
        if now >= self.start {
            out.set_ahead(self.ahead());
            self.node.on_channel(now + self.ahead(), message, out);
        }
    }

    fn poll_channel(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        now >= self.start && self.node.poll_channel(now + self.ahead(), out)
    }

    fn deadline(&self) -> Option<Time> {
        self.node.deadline().map(|at| (at - self.ahead()).max(self.start))
    }

    fn on_host_sample(&mut self, now: Time, host: HostSample) {
        if now >= self.start {
            self.node.on_host_sample(now + self.ahead(), host);
        }
    }

    fn on_verdict(&mut self, now: Time, verdict: Verdict) {
        if now >= self.start {
            self.node.on_verdict(now + self.ahead(), verdict);
        }
    }

    fn law_rate(&self) -> Option<Rate> {
        self.node.law_rate()
    }

    fn goodput_bytes(&self) -> Option<u64> {
        self.node.goodput_bytes()
    }

    fn event_count(&self) -> u64 {
        self.node.event_count()
    }
}
