//! A reliable channel in order between two nodes, as TCP gives it: the control channel of a session.

use haul_base::{Probability, Rng, Span, Time};

use super::ids::NodeId;
use crate::line::Line;

/// How a channel carries messages. It has no rate of its own: messages are few and short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelSpec {
    /// From one end to the other.
    pub delay: Span,
    /// Share of the messages that are lost and sent again. All that were sent behind one wait for it.
    pub loss: Probability,
    /// How much later a lost message comes, each time that it is lost.
    pub recovery: Span,
}

/// A message is lost so often in a row at most: a channel that loses everything would never carry it.
const MOST_LOST: usize = 16;

/// A channel, number so-and-so of its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelId(pub(super) u32);

/// One direction.
#[derive(Debug)]
struct Way {
    to: NodeId,
    messages: Line<Vec<u8>>,
    /// When the last one arrives.
    last: Time,
}

#[derive(Debug)]
pub(super) struct Channel {
    spec: ChannelSpec,
    rng: Rng,
    ends: [NodeId; 2],
    /// To the first end, and to the second.
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

    /// When the next message arrives.
    pub(super) fn next(&self) -> Option<Time> {
        self.ways.iter().filter_map(|way| way.messages.next()).min()
    }

    /// The next message that has come by now, to the first end or to the second.
    pub(super) fn due(&mut self, now: Time, way: usize) -> Option<(NodeId, Vec<u8>)> {
        let way = &mut self.ways[way];
        let (_, message) = way.messages.pop_due(now)?;
        Some((way.to, message))
    }
}
