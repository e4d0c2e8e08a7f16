//! Reliable ordered channel between two nodes, as TCP provides it: the control channel of a session.

use haul_base::{Probability, Rng, Span, Time};

use super::ids::NodeId;
use crate::line::Line;

/// Properties of a channel. It has no rate limit: messages are few and short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelSpec {
    /// One-way delay.
    pub delay: Span,
    /// Probability that a message is lost and retransmitted. Later messages wait for it.
    pub loss: Probability,
    /// Additional delay for each loss of a message.
    pub recovery: Span,
}

/// Maximum consecutive losses of a message: otherwise a channel with a loss of 100 % would never deliver it.
const MOST_LOST: usize = 16;

/// Index of a channel in its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelId(pub(super) u32);

/// One direction.
#[derive(Debug)]
struct Way {
    to: NodeId,
    messages: Line<Vec<u8>>,
    /// Arrival time of the last message.
    last: Time,
}

#[derive(Debug)]
pub(super) struct Channel {
    spec: ChannelSpec,
    rng: Rng,
    ends: [NodeId; 2],
    /// Messages towards the first end and towards the second.
    ways: [Way; 2],
    pub(super) actor: u32,
}

impl Channel {
    pub(super) fn new(spec: ChannelSpec, rng: Rng, ends: [NodeId; 2], actor: u32) -> Self {
        let way = |to| Way { to, messages: Line::default(), last: Time::ZERO };
        Self { spec, rng, ends, ways: ends.map(way), actor }
    }

    pub(super) fn send(&mut self, now: Time, from: NodeId, message: Vec<u8>) {
        let mut at = now + self.spec.delay;
        let lost = (0..MOST_LOST).take_while(|_| self.rng.chance(self.spec.loss.get())).count();
        at += self.spec.recovery * lost as u64;
        let way = &mut self.ways[usize::from(from == self.ends[0])];
        way.last = way.last.max(at);
        way.messages.push(way.last, message);
    }

    /// Returns when the next message arrives.
    pub(super) fn next(&self) -> Option<Time> {
        self.ways.iter().filter_map(|way| way.messages.next()).min()
    }

    /// Removes and returns the next message due at `now` in direction `way` (0: to the first end).
    pub(super) fn due(&mut self, now: Time, way: usize) -> Option<(NodeId, Vec<u8>)> {
        let way = &mut self.ways[way];
        let (_, message) = way.messages.pop_due(now)?;
        Some((way.to, message))
    }
}
