//! Reliable ordered channel between two nodes, as TCP provides it: the control channel of a session.

use haul_base::{Probability, Rng, Span, Time};

use super::ids::NodeId;
use crate::time_queue::TimeQueue;

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
const MAX_CONSECUTIVE_LOSSES: usize = 16;

/// Index of a channel in its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelId(pub(super) u32);

/// One direction.
#[derive(Debug)]
struct ChannelDirection {
    to: NodeId,
    messages: TimeQueue<Vec<u8>>,
    /// Arrival time of the last message.
    last: Time,
}

#[derive(Debug)]
pub(super) struct Channel {
    spec: ChannelSpec,
    rng: Rng,
    ends: [NodeId; 2],
    /// Messages towards the first end and towards the second.
    directions: [ChannelDirection; 2],
    pub(super) actor: u32,
}

impl Channel {
    pub(super) fn new(spec: ChannelSpec, rng: Rng, ends: [NodeId; 2], actor: u32) -> Self {
        let direction = |to| ChannelDirection { to, messages: TimeQueue::default(), last: Time::ZERO };
        Self { spec, rng, ends, directions: ends.map(direction), actor }
    }

    pub(super) fn send(&mut self, now: Time, from: NodeId, message: Vec<u8>) {
        let mut at = now + self.spec.delay;
        let lost = (0..MAX_CONSECUTIVE_LOSSES).take_while(|_| self.rng.chance(self.spec.loss.get())).count();
        at += self.spec.recovery * lost as u64;
        let direction = &mut self.directions[usize::from(from == self.ends[0])];
        direction.last = direction.last.max(at);
        direction.messages.push(direction.last, message);
    }

    /// Returns when the next message arrives.
    pub(super) fn next(&self) -> Option<Time> {
        self.directions.iter().filter_map(|direction| direction.messages.next()).min()
    }

    /// Removes and returns the next message due at `now` in direction `direction` (0: to the first end).
    pub(super) fn due(&mut self, now: Time, direction: usize) -> Option<(NodeId, Vec<u8>)> {
        let direction = &mut self.directions[direction];
        let (_, message) = direction.messages.pop_due(now)?;
        Some((direction.to, message))
    }
}
