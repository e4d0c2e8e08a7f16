//! Small urgent messages from a program that also sends bulk data as fast as possible.

use std::sync::Arc;

use haul_base::{Machine, Rng, Span, Time};
use haul_proto::presets;
use haul_sim::{Arrival, Node, Outbox, PathSpec, StageSpec, UDP_OVERHEAD, World};
use haul_stack::{Ends, Recipe, SendOptions, Stack};

use super::exchange::{ExchangeNode, Role, compiled, stack};

/// Bytes of an urgent message.
const URGENT: usize = 100;
/// Queued bulk bytes.
pub(crate) const QUEUE: usize = 256 * 1_024;
/// Rate of UDP payload.
pub(crate) const RATE: &str = "20Mbit";
/// Mean interval between urgent messages; each is uniform between 0.5 and 1.5 times this.
const SPACING: Span = Span::from_millis(13);
const DELAY: Span = Span::from_millis(10);

/// `viz` at [`RATE`], optionally with `priority`, and without the micro-protocol that paces packets.
pub(crate) fn recipe(priority: bool, pacing: bool) -> Recipe {
    let mut recipe: Recipe = presets::preset("viz").expect("it is shipped").expect("it is a recipe");
    haul_proto::micro::registry()
        .set(&mut recipe, "fixed_rate.rate", RATE)
        .expect("a parameter of the recipe");
    let recipe = if pacing { recipe } else { recipe.without("pacing") };
    if priority { recipe.with("priority") } else { recipe }
}

#[derive(Debug)]
struct MixedSender {
    stack: Stack,
    /// Urgent messages: next send time, and the send time of each by its number in the stack.
    due: Option<Time>,
    remaining: u32,
    sent: Vec<(u64, Time)>,
    rng: Rng,
    bulk: Vec<u8>,
}

impl MixedSender {
    fn drain(&mut self, now: Time, out: &mut Outbox<'_>) {
        if self.due.is_some_and(|due| due <= now) {
            let options = SendOptions { priority: 0, ..SendOptions::default() };
            let id = self.stack.send(now, &[1; URGENT], options).expect("the queue has space");
            self.sent.push((id, now));
            self.remaining -= 1;
            let pause = SPACING / 2 + Span::from_nanos(self.rng.below(SPACING.as_nanos()));
            self.due = (self.remaining > 0).then_some(now + pause);
        }
        loop {
            while self.remaining > 0 && self.stack.queued_bytes() < QUEUE {
                let options = SendOptions { priority: 1, ..SendOptions::default() };
                self.stack.send(now, &self.bulk, options).expect("the queue has space");
            }
            if !out.send_with(UDP_OVERHEAD, |slot| self.stack.poll_transmit(now, slot)) {
                break;
            }
        }
        while self.stack.poll_event().is_some() {}
    }
}

impl Node for MixedSender {
    fn on_arrival(&mut self, now: Time, arrival: &mut Arrival<'_>, out: &mut Outbox<'_>) {
        self.stack.on_receive(now, &mut arrival.batch);
        self.drain(now, out);
    }

    fn on_deadline(&mut self, now: Time, out: &mut Outbox<'_>) {
        self.stack.on_deadline(now);
        self.drain(now, out);
    }

    fn deadline(&self) -> Option<Time> {
        self.stack.deadline().map(|deadline| deadline.at).into_iter().chain(self.due).min()
    }
}

/// Returns the delay that the sender and its queue add to each of `count` urgent messages, sorted; bulk is
/// sent in messages of `bulk` bytes.
pub(crate) fn waits(seed: u64, recipe: &Recipe, bulk: usize, count: u32) -> Vec<Span> {
    let mut world = World::new(seed);
    let path = PathSpec { stages: vec![StageSpec::Delay(DELAY)] };
    let forward = world.add_link("there", &path).expect("a valid path");
    let back = world.add_link("back", &path).expect("a valid path");
    let compiled = compiled(recipe);
    let end = |initiator| stack(&Arc::clone(&compiled), initiator, DELAY * 2, Ends::default());
    let bulk_sender = MixedSender {
        stack: end(true),
        due: Some(Time::ZERO + Span::from_millis(500)),
        remaining: count,
        sent: Vec::new(),
        rng: Rng::from_seed(seed),
        bulk: vec![2; bulk],
    };
    let first = world.add_node("first", bulk_sender);
    let second =
        world.add_node("second", ExchangeNode::new(end(false), Role::Receiver { received: Vec::new() }));
    world.connect_pair("crowd", (first, second), &[forward], &[back]).expect("both nodes exist");
    world.run_until(Time::ZERO + SPACING * (u64::from(count) + 200));
    let sent = &world.node::<MixedSender>(first).expect("a sender").sent;
    let Role::Receiver { received } = &world.node::<ExchangeNode>(second).expect("an end").role else {
        unreachable!("the second end receives")
    };
    let urgent = received.iter().filter(|(_, _, message)| message.len() == URGENT);
    let sent_at = |id| sent[sent.binary_search_by_key(&id, |sent| sent.0).expect("it was sent")].1;
    let mut waits: Vec<Span> = urgent.map(|&(at, id, _)| at.since(sent_at(id) + DELAY)).collect();
    assert_eq!(waits.len(), count as usize, "an urgent message did not arrive");
    waits.sort_unstable();
    waits
}
