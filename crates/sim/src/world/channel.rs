//! A reliable channel in order between two nodes, as TCP gives it: the control channel of a session.

use haul_base::{Probability, Rng, Span, Time};

use super::{Actor, NodeId, Outbox, World, WorldError};
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
    actor: u32,
}

impl Channel {
    fn send(&mut self, now: Time, from: NodeId, message: Vec<u8>) {
        let mut at = now + self.spec.delay;
        let lost = (0..MOST_LOST).take_while(|_| self.rng.chance(self.spec.loss.get())).count();
        at += self.spec.recovery * lost as u64;
        let way = &mut self.ways[usize::from(from == self.ends[0])];
        way.last = way.last.max(at);
        way.messages.push(way.last, message);
    }

    fn next(&self) -> Option<Time> {
        self.ways.iter().filter_map(|way| way.messages.next()).min()
    }
}

impl World {
    /// Opens a control channel between two nodes, each of which has one at most. Messages do not wait for the CPU of a
    /// host.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn open_channel(&mut self, a: NodeId, b: NodeId, spec: ChannelSpec) -> Result<(), WorldError> {
        let id = ChannelId(self.channels.len() as u32);
        self.node_slot(a)?.channel = Some(id);
        self.node_slot(b)?.channel = Some(id);
        let way = |to| Way { to, messages: Line::default(), last: Time::ZERO };
        let rng = Rng::from_seed(self.seed_for(u64::MAX - u64::from(id.0)));
        let actor = self.actor(Actor::Channel(id));
        self.channels.push(Channel { spec, rng, ends: [a, b], ways: [way(a), way(b)], actor });
        Ok(())
    }

    /// Takes what a node has for its channel.
    pub(super) fn take_messages(&mut self, node: NodeId) {
        let slot = &mut self.nodes[node.0 as usize];
        let Some(id) = slot.channel else { return };
        let channel = &mut self.channels[id.0 as usize];
        let mut message = Vec::new();
        while slot.node.poll_channel(self.now, &mut message) {
            channel.send(self.now, node, std::mem::take(&mut message));
        }
        self.agenda.set(channel.actor, channel.next());
    }

    /// Messages of a channel arrive.
    pub(super) fn on_channel(&mut self, id: ChannelId) {
        for way in 0..2 {
            while let Some((to, message)) = self.due_message(id, way) {
                let room = self.room(to);
                let slot = &mut self.nodes[to.0 as usize];
                let before = slot.node.happenings();
                let mut out = Outbox {
                    room,
                    now: self.now,
                    ahead: Span::ZERO,
                    transit_buffers: &mut self.transit_buffers,
                    launches: &mut self.launches,
                };
                slot.node.on_channel(self.now, &message, &mut out);
                self.after_node(to, before);
            }
        }
        let channel = &self.channels[id.0 as usize];
        self.agenda.set(channel.actor, channel.next());
    }

    fn due_message(&mut self, id: ChannelId, way: usize) -> Option<(NodeId, Vec<u8>)> {
        let way = &mut self.channels[id.0 as usize].ways[way];
        let (_, message) = way.messages.pop_due(self.now)?;
        Some((way.to, message))
    }
}
