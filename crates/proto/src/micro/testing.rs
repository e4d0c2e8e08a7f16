//! Two stacks of one recipe and a path between them, for the tests of micro-protocols.

use std::sync::{Arc, Mutex};

use haul_base::{Ecn, Machine, PathId, Piece, Received, Span, Time};
use haul_stack::{
    Available, CompiledStack, Ends, Kind, ObjectSink, ObjectSource, Open, PACKET_HEADER_LEN, Part, Recipe,
    Registry, Seal, Setup, SourceWait, Stack, StackEvent, Unauthentic,
};

use crate::micro::config::{Keep, RateControlConfig, RetransmitConfig};

/// Start time of tests. Not zero, which too often is a special value by accident.
pub(crate) const T0: Time = Time::from_nanos(5_000_000_000);

/// A tag that is a checksum over the packet and its number.
#[derive(Debug)]
struct Checksum;

const TAG: usize = 8;

fn checksum(data: &[u8], pn: u64) -> [u8; TAG] {
    let mix = |h: u64, &b: &u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    data.iter().fold(0xcbf2_9ce4_8422_2325 ^ pn, mix).to_be_bytes()
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
        if checksum(&packet[..at], pn) == packet[at..] { Ok(at - header_len) } else { Err(Unauthentic) }
    }
}

/// A set-up with keys, an identity and an initial round-trip time of 10 ms.
pub(crate) fn setup(initiator: bool) -> Setup {
    Setup {
        initiator,
        identity: 0xAB12_CD34,
        keys: Some((Box::new(Checksum), Box::new(Checksum))),
        initial_rtt: Span::from_millis(10),
        ..Setup::new(T0)
    }
}

/// A micro-protocol with these parameters.
pub(crate) fn part(name: &'static str, parameters: &[(&str, &str)]) -> Part {
    let mut recipe = Recipe::new("x").with(name);
    for (parameter, text) in parameters {
        super::registry().set(&mut recipe, &format!("{name}.{parameter}"), text).unwrap();
    }
    recipe.parts.remove(0)
}

/// Compiles the recipe with the project's registry.
pub(crate) fn compiled(recipe: &Recipe) -> Arc<CompiledStack> {
    compiled_with(super::registry(), recipe)
}

fn compiled_with(registry: Registry, recipe: &Recipe) -> Arc<CompiledStack> {
    Arc::new(registry).compile(recipe, TAG).unwrap()
}

/// A packet without attributes, with this number.
pub(crate) fn control_packet(kind: Kind, pn: u64, body: &[u8]) -> Vec<u8> {
    let mut packet = [&[kind.0], &pn.to_be_bytes()[2..], body, &[0; TAG]].concat();
    let len = packet.len();
    Checksum.seal_batch(&mut packet, len, PACKET_HEADER_LEN, pn);
    packet
}

/// Effects of a path on packets.
#[derive(Default)]
pub(crate) struct Path<'p> {
    /// Whether packet `n` of this exchange is lost.
    pub(crate) lose: Option<&'p mut dyn FnMut(usize) -> bool>,
    /// Duplicates every packet.
    pub(crate) duplicate: bool,
    /// Delivers the packets of a batch in reverse order.
    pub(crate) reverse: bool,
    /// Drops larger datagrams, if it is not 0.
    pub(crate) mtu: usize,
    /// Drops everything from `a`, or from `b`.
    pub(crate) cut: [bool; 2],
}

/// Source of an object of this many bytes, each determined by its offset. The object ends there, or the
/// source waits.
struct TestSource(u64, Option<SourceWait>);

/// The byte at this offset of every object.
pub(crate) fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

impl ObjectSource for TestSource {
    fn available(&mut self) -> Available {
        Available { upto: self.0, end: self.1.is_none() }
    }

    fn waits_for(&mut self) -> SourceWait {
        self.1.unwrap_or(SourceWait::Storage)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        (offset..).zip(into).for_each(|(at, byte)| *byte = byte_at(at));
    }

    fn release(&mut self, _: u64) {}
}

/// Received part of an object.
#[derive(Debug, Default)]
pub(crate) struct ReceivedObject {
    pub(crate) bytes: u64,
    pub(crate) complete_len: Option<u64>,
}

/// Sink that accepts an object up to a limit.
struct TestSink(Arc<Mutex<ReceivedObject>>, u64);

impl ObjectSink for TestSink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        for Piece { range, offset } in pieces {
            assert!((*offset..).zip(&data[range.clone()]).all(|(at, byte)| *byte == byte_at(at)));
            self.0.lock().unwrap().bytes += range.len() as u64;
        }
    }

    fn limit(&mut self) -> u64 {
        self.1
    }

    fn complete(&mut self, len: u64) {
        self.0.lock().unwrap().complete_len = Some(len);
    }
}

/// A minimal recipe for an object, at `rate`; more may be added.
pub(crate) fn object_recipe(rate: &str) -> Recipe {
    let rate = rate.parse().unwrap();
    Recipe::new("object")
        .with("sequenced_segment")
        .with("object")
        .with("bitmap_ack")
        .with(RetransmitConfig { keep: Keep::Object, ..RetransmitConfig::default() })
        .with(RateControlConfig { controller: "fixed".to_owned(), rate, ..RateControlConfig::default() })
        .with("seal")
}

/// Both ends of a session.
pub(crate) struct Pair {
    pub(crate) a: Stack,
    pub(crate) b: Stack,
}

impl Pair {
    pub(crate) fn new(recipe: &Recipe) -> Self {
        let compiled = compiled(recipe);
        let make = |initiator| Stack::new(compiled.clone(), setup(initiator)).unwrap();
        Self { a: make(true), b: make(false) }
    }

    /// A pair whose recipe carries an object of `len` bytes from `a`.
    pub(crate) fn of_object(recipe: &Recipe, len: u64) -> (Self, Arc<Mutex<ReceivedObject>>) {
        Self::of_object_up_to(recipe, len, u64::MAX)
    }

    /// As `of_object_with`, but the sender's application has no more data for now, as its source waits, and
    /// has not ended the object.
    pub(crate) fn of_unfinished_object<T: Send + 'static>(
        recipe: &Recipe,
        len: u64,
        wait: SourceWait,
        supplied: T,
    ) -> (Self, Arc<Mutex<ReceivedObject>>) {
        Self::from_source(recipe, TestSource(len, Some(wait)), supplied)
    }

    /// As `of_object`, with a value provided to the sender: a control law, or a loss model.
    pub(crate) fn of_object_with<T: Send + 'static>(
        recipe: &Recipe,
        len: u64,
        supplied: T,
    ) -> (Self, Arc<Mutex<ReceivedObject>>) {
        Self::from_source(recipe, TestSource(len, None), supplied)
    }

    fn from_source<T: Send + 'static>(
        recipe: &Recipe,
        source: TestSource,
        supplied: T,
    ) -> (Self, Arc<Mutex<ReceivedObject>>) {
        let (mut pair, received) = Self::of_object(recipe, source.0);
        let ends = Ends { object_source: Some(Box::new(source)), ..Ends::default() };
        let setup = Setup { ends, ..setup(true) }.provide(supplied);
        pair.a = Stack::new(compiled(recipe), setup).unwrap();
        (pair, received)
    }

    /// As `of_object`, with a receiver that accepts no bytes from `limit` on.
    pub(crate) fn of_object_up_to(
        recipe: &Recipe,
        len: u64,
        limit: u64,
    ) -> (Self, Arc<Mutex<ReceivedObject>>) {
        Self::of_object_compiled(&compiled(recipe), len, limit)
    }

    /// As `of_object`, with micro-protocols of this registry.
    pub(crate) fn of_object_from(
        registry: Registry,
        recipe: &Recipe,
        len: u64,
    ) -> (Self, Arc<Mutex<ReceivedObject>>) {
        Self::of_object_compiled(&compiled_with(registry, recipe), len, u64::MAX)
    }

    fn of_object_compiled(
        compiled: &Arc<CompiledStack>,
        len: u64,
        limit: u64,
    ) -> (Self, Arc<Mutex<ReceivedObject>>) {
        let received = Arc::new(Mutex::new(ReceivedObject::default()));
        let make =
            |initiator, ends| Stack::new(compiled.clone(), Setup { ends, ..setup(initiator) }).unwrap();
        let sending_ends = Ends { object_source: Some(Box::new(TestSource(len, None))), ..Ends::default() };
        let receiving_ends =
            Ends { object_sink: Some(Box::new(TestSink(received.clone(), limit))), ..Ends::default() };
        (Self { a: make(true, sending_ends), b: make(false, receiving_ends) }, received)
    }

    /// As `of_object`, with datagrams of this size, which the path carries.
    pub(crate) fn of_object_in(
        recipe: &Recipe,
        len: u64,
        datagram: u16,
    ) -> (Self, Arc<Mutex<ReceivedObject>>) {
        let (mut pair, received) = Self::of_object(recipe, len);
        let ends = Ends { object_source: Some(Box::new(TestSource(len, None))), ..Ends::default() };
        let setup =
            Setup { ends, datagram, likely_datagram: datagram, max_datagram: datagram, ..setup(true) };
        pair.a = Stack::new(compiled(recipe), setup).unwrap();
        (pair, received)
    }

    /// Transfers everything that both ends send at `now`; returns the number of batches.
    pub(crate) fn exchange(&mut self, now: Time, path: &mut Path<'_>) -> usize {
        let (mut batches, mut packets) = (0, 0);
        loop {
            let carried = carry(now, (0, &mut self.a), &mut self.b, path, &mut packets)
                + carry(now, (1, &mut self.b), &mut self.a, path, &mut packets);
            if carried == 0 {
                return batches;
            }
            batches += carried;
        }
    }

    /// Runs both ends' timers up to `until`, and transfers what they send.
    pub(crate) fn run_until(&mut self, until: Time, path: &mut Path<'_>) {
        loop {
            let next = [self.a.deadline(), self.b.deadline()].into_iter().flatten().map(|d| d.at).min();
            let Some(at) = next.filter(|&at| at <= until) else { return };
            self.a.on_deadline(at);
            self.b.on_deadline(at);
            self.exchange(at, path);
        }
    }

    /// Takes the messages that `b` has received.
    pub(crate) fn received_by_b(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::iter::from_fn(|| self.b.recv()).map(|(id, message)| (id, message.to_vec())).collect()
    }
}

/// Passes `data` to a stack.
pub(crate) fn receive(stack: &mut Stack, now: Time, data: &mut [u8], stride: usize) {
    let (path, ecn) = (PathId::default(), Ecn::NotEct);
    stack.on_receive(now, &mut Received { data, stride, arrival: None, path, ecn, socket_drops: None });
}

fn carry(
    now: Time,
    (end, from): (usize, &mut Stack),
    to: &mut Stack,
    path: &mut Path<'_>,
    packets: &mut usize,
) -> usize {
    let mut slot = vec![0xAA; 65_536];
    let mut batches = 0;
    while let Some(sent) = from.poll_transmit(now, &mut slot) {
        batches += 1;
        let mut crossing: Vec<Vec<u8>> = Vec::new();
        for packet in slot[..sent.len].chunks(sent.segment_size) {
            let lost = path.lose.as_mut().is_some_and(|lose| lose(*packets))
                || path.cut[end]
                || path.mtu > 0 && packet.len() > path.mtu;
            *packets += 1;
            let copies = if lost { 0 } else { 1 + usize::from(path.duplicate) };
            crossing.extend(std::iter::repeat_n(packet.to_vec(), copies));
        }
        if path.reverse {
            crossing.reverse();
        }
        // Coalesces packets of equal size again, as a kernel does.
        for run in crossing.chunk_by(|a, b| a.len() == b.len()) {
            receive(to, now, &mut run.concat(), run[0].len());
        }
    }
    batches
}

/// Returns a micro-protocol's counters.
pub(crate) fn stats<T: Copy + 'static>(stack: &Stack) -> T {
    let mut found = None;
    stack.statistics(|_, stats| found = found.or(stats.of().copied()));
    found.expect("a micro-protocol that counts it")
}

/// Takes all pending events.
pub(crate) fn events(stack: &mut Stack) -> Vec<StackEvent> {
    std::iter::from_fn(|| stack.poll_event()).collect()
}
