//! Two ends that exchange messages over a simulated path: request and answer, or a stream.

use std::sync::Arc;

use haul_base::{Machine, Rng, Span, Time};
use haul_proto::{Open, Seal, Unauthentic, micro, presets};
use haul_sim::{Arrival, Node, NodeId, Outbox, PathSpec, UDP_OVERHEAD, World};
use haul_stack::{CompiledStack, Ends, Recipe, SendOptions, Setup, Stack};

/// Bytes of the tag, as in the real ciphers.
pub(crate) const TAG: usize = 16;

/// All-zero tag.
#[derive(Debug)]
pub(crate) struct Plain;

impl Seal for Plain {
    fn tag_len(&self) -> usize {
        TAG
    }

    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, _: usize, _: u64) {
        for packet in batch.chunks_mut(stride) {
            let at = packet.len() - TAG;
            packet[at..].fill(0);
        }
    }
}

impl Open for Plain {
    fn open(&mut self, packet: &mut [u8], header_len: usize, _: u64) -> Result<usize, Unauthentic> {
        packet.len().checked_sub(header_len + TAG).ok_or(Unauthentic)
    }
}

/// Returns the preset `name` with some parameters changed, compiled.
pub(crate) fn compiled_preset(name: &str, changes: &[(&str, &str)]) -> Arc<CompiledStack> {
    let mut recipe: Recipe = presets::preset(name).expect("it is shipped").expect("it is a recipe");
    for (key, value) in changes {
        micro::registry().set(&mut recipe, key, value).expect("a parameter of the recipe");
    }
    compiled(&recipe)
}

pub(crate) fn compiled(recipe: &Recipe) -> Arc<CompiledStack> {
    Arc::new(micro::registry()).compile(recipe, TAG).expect("the recipes here are valid")
}

pub(crate) fn stack(compiled: &Arc<CompiledStack>, initiator: bool, rtt: Span, ends: Ends) -> Stack {
    let keys: (Box<dyn Seal>, Box<dyn Open>) = (Box::new(Plain), Box::new(Plain));
    let setup =
        Setup { initiator, identity: 7, keys: Some(keys), initial_rtt: rtt, ends, ..Setup::new(Time::ZERO) };
    Stack::new(compiled.clone(), setup).expect("the set-up has all that is needed")
}

/// Role of an end.
pub(crate) enum Role {
    /// Sends a request, waits for the answer, pauses for up to the given time, and repeats.
    Client { remaining: u32, pause: Span, requested: Option<Time>, round_trips: Vec<Span>, rng: Rng },
    /// Answers every message immediately with as many bytes.
    Server,
    /// Sends messages at given times.
    Sender { readings: std::vec::IntoIter<(Time, Vec<u8>)> },
    /// Records messages and their arrival times.
    Receiver { received: Vec<(Time, u64, Vec<u8>)> },
}

impl std::fmt::Debug for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Part { .. }")
    }
}

/// A stack and its user.
#[derive(Debug)]
pub(crate) struct ExchangeNode {
    pub(crate) stack: Stack,
    pub(crate) role: Role,
    /// Next action of the user.
    next: Option<Time>,
}

/// Request and answer: the "small message of 10 bytes" (wu-h-ctp section 5.3).
const QUESTION: [u8; 10] = *b"0123456789";

impl ExchangeNode {
    pub(crate) fn new(stack: Stack, role: Role) -> Self {
        let next = match &role {
            Role::Client { .. } => Some(Time::ZERO),
            Role::Sender { readings } => readings.as_slice().first().map(|reading| reading.0),
            Role::Server | Role::Receiver { .. } => None,
        };
        Self { stack, role, next }
    }

    pub(crate) fn is_done(&self) -> bool {
        match &self.role {
            Role::Client { remaining, requested, .. } => *remaining == 0 && requested.is_none(),
            Role::Sender { readings } => readings.len() == 0,
            Role::Server | Role::Receiver { .. } => true,
        }
    }

    fn send(&mut self, now: Time, bytes: &[u8]) {
        self.stack.send(now, bytes, SendOptions::default()).expect("the queue has space");
    }

    fn act(&mut self, now: Time) {
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        self.next = None;
        match &mut self.role {
            Role::Client { remaining, requested, .. } if *remaining > 0 => {
                *remaining -= 1;
                *requested = Some(now);
                self.send(now, &QUESTION);
            }
            Role::Sender { readings } => {
                let reading = readings.next();
                self.next = readings.as_slice().first().map(|reading| reading.0);
                if let Some((_, bytes)) = reading {
                    self.send(now, &bytes);
                }
            }
            _ => {}
        }
    }

    fn receive(&mut self, now: Time) {
        while let Some((id, message)) = self.stack.recv() {
            match &mut self.role {
                Role::Client { pause, requested, round_trips, rng, .. } => {
                    round_trips
                        .push(now.since(requested.take().expect("an answer comes once, after its question")));
                    self.next = Some(now + Span::from_nanos(rng.below(pause.as_nanos() + 1)));
                }
                Role::Server => self.send(now, &message),
                Role::Receiver { received } => received.push((now, id, message.to_vec())),
                Role::Sender { .. } => {}
            }
            self.stack.recycle(message);
        }
    }

    fn drain(&mut self, now: Time, out: &mut Outbox<'_>) {
        self.receive(now);
        self.act(now);
        while out.send_with(UDP_OVERHEAD, |slot| self.stack.poll_transmit(now, slot)) {}
        while self.stack.poll_event().is_some() {}
    }
}

impl Node for ExchangeNode {
    fn on_arrival(&mut self, now: Time, arrival: &mut Arrival<'_>, out: &mut Outbox<'_>) {
        self.stack.on_receive(now, &mut arrival.batch);
        self.drain(now, out);
    }

    fn on_deadline(&mut self, now: Time, out: &mut Outbox<'_>) {
        self.stack.on_deadline(now);
        self.drain(now, out);
    }

    fn deadline(&self) -> Option<Time> {
        self.stack.deadline().map(|deadline| deadline.at).into_iter().chain(self.next).min()
    }
}

/// Both ends of an exchange.
pub(crate) struct Exchange {
    pub(crate) world: World,
    pub(crate) first: NodeId,
    pub(crate) second: NodeId,
}

impl Exchange {
    /// The first part opens the session.
    pub(crate) fn new(
        seed: u64,
        compiled: &Arc<CompiledStack>,
        rtt: Span,
        path: &PathSpec,
        parts: (Role, Role),
    ) -> Self {
        let mut world = World::new(seed);
        let forward = world.add_link("there", path).expect("a valid path");
        let back = world.add_link("back", path).expect("a valid path");
        let first =
            world.add_node("first", ExchangeNode::new(stack(compiled, true, rtt, Ends::default()), parts.0));
        let second = world
            .add_node("second", ExchangeNode::new(stack(compiled, false, rtt, Ends::default()), parts.1));
        world.connect_pair("talk", (first, second), &[forward], &[back]).expect("both nodes exist");
        Self { world, first, second }
    }

    pub(crate) fn end(&self, node: NodeId) -> &ExchangeNode {
        self.world.node::<ExchangeNode>(node).expect("an end")
    }

    /// Runs until both are done, and for `grace` more.
    pub(crate) fn run(&mut self, cap: Span, grace: Span) {
        let (first, second) = (self.first, self.second);
        let cap = Time::ZERO + cap;
        let mut at = self.world.now();
        let done = |world: &World| {
            [first, second]
                .iter()
                .all(|&node| world.node::<ExchangeNode>(node).is_some_and(ExchangeNode::is_done))
        };
        while at < cap && !done(&self.world) {
            at = (at + Span::from_secs(1)).min(cap);
            self.world.run_until(at);
        }
        self.world.run_until(at + grace);
    }
}

/// Returns the turn-around times of `count` small messages, sorted.
pub(crate) fn round_trips_of(seed: u64, count: u32, rtt: Span, path: &PathSpec) -> Vec<Span> {
    let (round_trips, rng) = (Vec::with_capacity(count as usize), Rng::from_seed(seed));
    let client = Role::Client { remaining: count, pause: rtt * 2, requested: None, round_trips, rng };
    let mut exchange = Exchange::new(seed, &compiled_preset("msg", &[]), rtt, path, (client, Role::Server));
    exchange.run(Span::from_secs(100_000), Span::ZERO);
    let Role::Client { round_trips, .. } = &exchange.end(exchange.first).role else {
        unreachable!("the first end is the client")
    };
    assert_eq!(round_trips.len(), count as usize, "a request was not answered");
    let mut round_trips = round_trips.clone();
    round_trips.sort_unstable();
    round_trips
}

/// Returns the mean turn-around documented for `positive_ack`'s policy under ideal conditions: a round trip,
/// plus, for each direction and each transmission k, the time to the next one with the probability that k
/// were lost.
pub(crate) fn ideal(rtt: Span, loss: f64) -> Span {
    let first = (rtt + Span::from_micros(500)).as_secs_f64();
    let wait = |k: i32| loss.powi(k) * first * f64::from(1 << (k - 6).clamp(0, 20));
    let one_way = rtt.as_secs_f64() / 2.0 + (1..40).map(wait).sum::<f64>();
    Span::from_secs_f64(2.0 * one_way)
}

pub(crate) fn mean(times: &[Span]) -> Span {
    times.iter().fold(Span::ZERO, |sum, &time| sum + time) / (times.len() as u64)
}

/// Returns the 99th percentile.
pub(crate) fn p99(sorted: &[Span]) -> Span {
    sorted[(sorted.len() * 99).div_ceil(100) - 1]
}
