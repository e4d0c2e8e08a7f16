//! Two stacks of one recipe and a path between them, for the tests of micro-protocols.

use std::sync::Arc;

use haul_base::{Ecn, Machine, PathId, Received, Span, Time};
use haul_stack::{Blueprint, Open, Recipe, Seal, Setup, Stack, StackEvent, Unauthentic};

/// When tests begin: not at zero, which is a special value by accident too often.
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

/// A set-up with keys, an identity and a guess of 10 ms.
pub(crate) fn setup(initiator: bool) -> Setup {
    Setup {
        initiator,
        identity: 0xAB12_CD34,
        keys: Some((Box::new(Checksum), Box::new(Checksum))),
        initial_rtt: Span::from_millis(10),
        ..Setup::new(T0)
    }
}

/// The recipe, checked against the project's registry.
pub(crate) fn blueprint(recipe: &Recipe) -> Arc<Blueprint> {
    Arc::new(super::registry()).compile(recipe, TAG).unwrap()
}

/// What a path does to the packets that cross it.
#[derive(Default)]
pub(crate) struct Path<'p> {
    /// Whether packet `n` of this exchange is lost.
    pub(crate) lose: Option<&'p mut dyn FnMut(usize) -> bool>,
    /// Every packet comes twice.
    pub(crate) duplicate: bool,
    /// The packets of a batch come in reverse order.
    pub(crate) reverse: bool,
}

/// Both ends of a session.
pub(crate) struct Pair {
    pub(crate) a: Stack,
    pub(crate) b: Stack,
}

impl Pair {
    pub(crate) fn new(recipe: &Recipe) -> Self {
        let blueprint = blueprint(recipe);
        let make = |initiator| Stack::new(blueprint.clone(), setup(initiator)).unwrap();
        Self { a: make(true), b: make(false) }
    }

    /// Carries all that both have to say at `now`; returns the number of batches.
    pub(crate) fn exchange(&mut self, now: Time, path: &mut Path<'_>) -> usize {
        let (mut batches, mut packets) = (0, 0);
        loop {
            let carried = carry(now, &mut self.a, &mut self.b, path, &mut packets)
                + carry(now, &mut self.b, &mut self.a, path, &mut packets);
            if carried == 0 {
                return batches;
            }
            batches += carried;
        }
    }

    /// Runs the timers of both up to `until`, and carries what they say.
    pub(crate) fn run_until(&mut self, until: Time, path: &mut Path<'_>) {
        loop {
            let next = [self.a.deadline(), self.b.deadline()].into_iter().flatten().map(|d| d.at).min();
            let Some(at) = next.filter(|&at| at <= until) else { return };
            self.a.on_deadline(at);
            self.b.on_deadline(at);
            self.exchange(at, path);
        }
    }

    /// The messages that `b` has for its user.
    pub(crate) fn received_by_b(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::iter::from_fn(|| self.b.recv()).map(|(id, message)| (id, message.to_vec())).collect()
    }
}

/// Hands `data` to a stack.
pub(crate) fn receive(stack: &mut Stack, now: Time, data: &mut [u8], stride: usize) {
    let (path, ecn) = (PathId::default(), Ecn::NotEct);
    stack.on_receive(now, &mut Received { data, stride, arrival: None, path, ecn, socket_drops: None });
}

fn carry(now: Time, from: &mut Stack, to: &mut Stack, path: &mut Path<'_>, packets: &mut usize) -> usize {
    let mut slot = vec![0xAA; 65_536];
    let mut batches = 0;
    while let Some(sent) = from.poll_transmit(now, &mut slot) {
        batches += 1;
        let mut crossing: Vec<Vec<u8>> = Vec::new();
        for packet in slot[..sent.len].chunks(sent.segment_size) {
            let lost = path.lose.as_mut().is_some_and(|lose| lose(*packets));
            *packets += 1;
            let copies = if lost { 0 } else { 1 + usize::from(path.duplicate) };
            crossing.extend(std::iter::repeat_n(packet.to_vec(), copies));
        }
        if path.reverse {
            crossing.reverse();
        }
        // Side by side again where they have the same size, as a kernel does it.
        for run in crossing.chunk_by(|a, b| a.len() == b.len()) {
            receive(to, now, &mut run.concat(), run[0].len());
        }
    }
    batches
}

/// A counter of a micro-protocol.
pub(crate) fn statistic(stack: &Stack, protocol: &str, name: &str) -> u64 {
    let mut found = None;
    stack.statistics(|of, key, value| {
        if of == protocol && key == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("{protocol} counts no {name}"))
}

/// All events that wait.
pub(crate) fn events(stack: &mut Stack) -> Vec<StackEvent> {
    std::iter::from_fn(|| stack.poll_event()).collect()
}
