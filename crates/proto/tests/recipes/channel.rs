//! Two stacks and a path between them in virtual time, with all faults determined by a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use haul_base::{Ecn, Machine, PathId, Received, Rng, Span, Time};
use haul_stack::{
    Coalesced, CompiledStack, Ends, Open, Recipe, Seal, SendOptions, Setup, Stack, StackEvent, Unauthentic,
};

pub(crate) const TAG: usize = 8;
/// Time after which timestamps in packets wrap.
pub(crate) const WRAP: Span = Span::from_micros(1 << 32);

/// A tag that is a checksum over the packet and its number.
#[derive(Debug)]
pub(crate) struct Checksum;

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

/// Probabilities of what happens to a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Impairments {
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    /// Packets take 10 ms plus an individual random delay of up to this.
    pub(crate) spread: Span,
    /// Probability of a flipped bit; only for recipes that detect it.
    pub(crate) damage: f64,
    /// Datagrams larger than this are lost, if it is not 0.
    pub(crate) mtu: usize,
}

/// A message to be sent: time, sending end, content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub(crate) at: Time,
    pub(crate) end: usize,
    pub(crate) body: Vec<u8>,
}

/// A change of the recipe: time, end, and how to make the new recipe from the current one.
pub(crate) struct Change {
    pub(crate) at: Time,
    pub(crate) end: usize,
    pub(crate) to: Box<dyn Fn(&Recipe) -> Recipe>,
}

impl Change {
    /// A change to `recipe`, whatever the current one is.
    pub(crate) fn to(at: Time, end: usize, recipe: Recipe) -> Self {
        Self { at, end, to: Box::new(move |_| recipe.clone()) }
    }
}

/// Times when nothing crosses the path, an end does not run, or its socket accepts nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interruptions {
    /// Nothing sent during this time arrives.
    pub(crate) outage: Range<Time>,
    /// Times when each end is stopped. Packets that arrive meanwhile are queued.
    pub(crate) stopped: [Range<Time>; 2],
    /// Times when no packet of each end can be sent.
    pub(crate) choked: [Range<Time>; 2],
}

impl Interruptions {
    /// Cuts that begin within the first two seconds, half of them at once, and last at most `longest`, most
    /// of them much shorter.
    pub(crate) fn any(seed: u64, longest: Span) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0xC075);
        let mut cut = || {
            let latest = if rng.chance(0.5) { 20_000_000 } else { 2_000_000_000 };
            let from = Time::from_nanos(rng.below(latest));
            let most = longest / [1, 30, 1_000][rng.below(3) as usize];
            from..from + Span::from_nanos(rng.below(most.as_nanos()))
        };
        Self { outage: cut(), stopped: [cut(), cut()], choked: [cut(), cut()] }
    }

    /// Returns when an end acts on an event due at `at`.
    fn wake_time(&self, end: usize, at: Time) -> Time {
        let stopped = &self.stopped[end];
        if stopped.contains(&at) { stopped.end } else { at }
    }

    /// Returns the ends of cuts after which an end may have something to send.
    fn ends_after(&self, now: Time) -> impl Iterator<Item = Time> {
        let cuts = self.stopped.iter().chain(&self.choked);
        cuts.map(|cut| cut.end).filter(move |&end| end > now)
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct InTransit {
    at: Time,
    number: u64,
    to: usize,
    data: Vec<u8>,
}

pub(crate) struct Run {
    pub(crate) ends: [Stack; 2],
    /// Messages received by each end: number and bytes, in order.
    pub(crate) got: [Vec<(u64, Vec<u8>)>; 2],
    /// Messages sent by each end, by number.
    pub(crate) sent: [Vec<(u64, Vec<u8>)>; 2],
    /// Hash over every packet that crossed, and its time.
    pub(crate) trace: u64,
    /// Events emitted by each end.
    pub(crate) events: [Vec<StackEvent>; 2],
    /// Changes of the recipe still to be started.
    pub(crate) changes: Vec<Change>,
    /// Number of changes started by each end.
    pub(crate) begun: [usize; 2],
    pub(crate) cuts: Interruptions,
    /// Offset of each end's clock from the path's.
    clocks: [Span; 2],
    in_transit: BinaryHeap<Reverse<InTransit>>,
    impairments: Impairments,
    rng: Rng,
    number: u64,
}

/// Initial clocks of the ends: shortly before or after 32-bit microseconds wrap or are half through.
fn clocks(seed: u64) -> [Span; 2] {
    let mut rng = Rng::from_seed(seed ^ 0xC10C);
    let mut clock = || WRAP / 2 * rng.below(8) + Span::from_millis(rng.below(1_000));
    [clock(), clock()].map(|clock| clock.saturating_sub(Span::from_millis(rng.below(3_000))))
}

impl Run {
    pub(crate) fn new(compiled: &Arc<CompiledStack>, impairments: Impairments, seed: u64) -> Self {
        Self::with_ends(compiled, impairments, seed, [Ends::default(), Ends::default()])
    }

    pub(crate) fn with_ends(
        compiled: &Arc<CompiledStack>,
        impairments: Impairments,
        seed: u64,
        ends: [Ends; 2],
    ) -> Self {
        let clocks = clocks(seed);
        let make = |initiator, ends| {
            let setup = Setup {
                initiator,
                identity: 77,
                keys: Some((Box::new(Checksum), Box::new(Checksum))),
                initial_rtt: Span::from_millis(40),
                ends,
                ..Setup::new(Time::ZERO + clocks[usize::from(!initiator)])
            };
            Stack::new(compiled.clone(), setup).unwrap()
        };
        let [first, second] = ends;
        Self {
            ends: [make(true, first), make(false, second)],
            got: [Vec::new(), Vec::new()],
            sent: [Vec::new(), Vec::new()],
            trace: 0,
            events: [Vec::new(), Vec::new()],
            changes: Vec::new(),
            begun: [0; 2],
            cuts: Interruptions::default(),
            clocks,
            in_transit: BinaryHeap::new(),
            impairments,
            rng: Rng::from_seed(seed),
            number: 0,
        }
    }

    /// Runs until nothing can happen any more, or until `cap`.
    pub(crate) fn run(&mut self, orders: Vec<Order>, cap: Time) {
        self.run_until(orders, cap, |_| false);
    }

    /// As [`Run::run`], or until it is `done`.
    pub(crate) fn run_until(&mut self, mut orders: Vec<Order>, cap: Time, done: impl Fn(&Self) -> bool) {
        for order in &mut orders {
            order.at = self.cuts.wake_time(order.end, order.at);
        }
        orders.sort();
        for change in &mut self.changes {
            change.at = self.cuts.wake_time(change.end, change.at);
        }
        self.changes.sort_by_key(|change| Reverse(change.at));
        let mut orders = orders.into_iter().peekable();
        let (mut steps, mut now) = (0u32, Time::ZERO);
        loop {
            let next = (0..2).filter_map(|end| self.due(end, now)).chain(self.cuts.ends_after(now));
            let next = next.chain(self.in_transit.peek().map(|packet| packet.0.at));
            let next = next.chain(orders.peek().map(|order| order.at));
            let next = next.chain(self.changes.last().map(|change| change.at)).min();
            now = match next {
                Some(at) if at <= cap && !done(self) => at,
                _ => return,
            };
            steps += 1;
            assert!(steps < 400_000, "it never becomes idle; now {now:?}");
            while let Some(order) = orders.next_if(|order| order.at <= now) {
                self.send(now, order);
            }
            while self.changes.last().is_some_and(|change| change.at <= now) {
                if let Some(change) = self.changes.pop() {
                    self.change(now, &change);
                }
            }
            while self.in_transit.peek().is_some_and(|packet| packet.0.at <= now) {
                if let Some(Reverse(packet)) = self.in_transit.pop() {
                    self.arrive(now, packet);
                }
            }
            for end in 0..2 {
                if self.cuts.wake_time(end, now) > now {
                    continue;
                }
                let local = now + self.clocks[end];
                if self.ends[end].deadline().is_some_and(|d| d.at <= local) {
                    self.ends[end].on_deadline(local);
                }
                self.drain(now, end);
            }
        }
    }

    /// Returns when an end's deadline is handled, maybe already at `now` while nothing could be sent.
    fn due(&self, end: usize, now: Time) -> Option<Time> {
        let at = self.cuts.wake_time(end, (self.ends[end].deadline()?.at - self.clocks[end]).max(now));
        let choked = &self.cuts.choked[end];
        Some(if at <= now && choked.contains(&now) { self.cuts.wake_time(end, choked.end) } else { at })
    }

    fn send(&mut self, now: Time, order: Order) {
        if let Ok(id) =
            self.ends[order.end].send(now + self.clocks[order.end], &order.body, SendOptions::default())
        {
            self.sent[order.end].push((id, order.body));
        }
    }

    fn change(&mut self, now: Time, change: &Change) {
        let stack = &mut self.ends[change.end];
        let recipe = (change.to)(stack.recipe());
        if stack.reconfigure(now + self.clocks[change.end], &recipe).is_ok() {
            self.begun[change.end] += 1;
        }
    }

    fn arrive(&mut self, now: Time, mut packet: InTransit) {
        let stride = packet.data.len();
        let mut received = Received {
            data: &mut packet.data,
            stride,
            arrival: None,
            path: PathId::default(),
            ecn: Ecn::NotEct,
            socket_drops: None,
        };
        self.ends[packet.to].on_receive(now + self.clocks[packet.to], &mut received);
        self.drain(now, packet.to);
    }

    fn drain(&mut self, now: Time, end: usize) {
        let local = now + self.clocks[end];
        let mut slot = vec![0xAA; 65_536];
        let mut batches = 0;
        while !self.cuts.choked[end].contains(&now) {
            // One end sends as sessions do, the other as connections do.
            let sent = match end {
                0 => self.ends[end].poll_transmit(local, &mut slot),
                _ => self.ends[end].poll_transmit_coalesced(local, &mut slot).map(Coalesced::batch),
            };
            let Some(sent) = sent else { break };
            batches += 1;
            assert!(batches < 10_000, "an end never stops sending at {now:?}");
            for packet in slot[..sent.len].chunks(sent.segment_size) {
                self.launch(now, 1 - end, packet);
            }
        }
        let events = std::iter::from_fn(|| self.ends[end].poll_event());
        self.events[end].extend(events.filter(|event| *event != StackEvent::Message));
        while let Some((id, body)) = self.ends[end].recv() {
            self.got[end].push((id, body.to_vec()));
            self.ends[end].recycle(body);
        }
    }

    fn launch(&mut self, now: Time, to: usize, packet: &[u8]) {
        let mix = |h: u64, &b: &u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        self.trace = packet.iter().fold(self.trace ^ now.as_nanos(), mix);
        let Impairments { loss, duplicate, spread, damage, mtu } = self.impairments;
        if mtu > 0 && packet.len() > mtu {
            return;
        }
        let lost = self.rng.chance(loss) || self.cuts.outage.contains(&now);
        let copies = if lost { 0 } else { 1 + u64::from(self.rng.chance(duplicate)) };
        for _ in 0..copies {
            let mut data = packet.to_vec();
            if self.rng.chance(damage) {
                let bit = self.rng.below(data.len() as u64 * 8);
                data[bit as usize / 8] ^= 1 << (bit % 8);
            }
            let late = Span::from_nanos(self.rng.below(spread.as_nanos() + 1));
            self.number += 1;
            let at = self.cuts.wake_time(to, now + Span::from_millis(10) + late);
            self.in_transit.push(Reverse(InTransit { at, number: self.number, to, data }));
        }
    }
}
