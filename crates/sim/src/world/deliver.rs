//! Moves packets and messages between links, hosts and nodes.

use haul_base::{CauseCounts, HostSample, PathId, Received, Span, Time};

use super::channel::ChannelId;
use super::transit_buffers::Launch;
use super::{
    Arrival, DropReason, Exit, HostExit, HostId, LAUNCHES, LinkId, MOST_BATCHES, NodeId, Outbox, Parcel,
    Place, TraceEvent, World,
};
use crate::parcel::FlowId;

/// Delay before a node is called again whose deadline is not in the future.
const SHORTEST_WAIT: Span = Span::from_nanos(100);

/// When and how packets reached a socket.
#[derive(Clone, Copy, Debug)]
struct Coming {
    arrived: Time,
    socket_drops: Option<u32>,
}

impl World {
    fn tell(&mut self, place: Place, parcel: &Parcel, exit: Exit) {
        self.tell_arrived(place, parcel, exit, self.now);
    }

    fn tell_arrived(&mut self, place: Place, parcel: &Parcel, exit: Exit, arrived: Time) {
        if let Some(trace) = &mut self.trace {
            let (payload, stride) = self.transit_buffers.payload(parcel);
            trace(&TraceEvent { at: self.now, arrived, place, parcel, exit, payload, stride });
        }
    }

    fn die(&mut self, place: Place, parcel: &Parcel, reason: DropReason) {
        self.tell(place, parcel, Exit::Dropped(reason));
        let flow = &mut self.flows[parcel.flow().0 as usize];
        flow.truth.drops.add(reason, parcel);
        if let Some(cause) = reason.cause() {
            flow.losses.add(self.now, cause, u64::from(parcel.packets()));
        }
        self.transit_buffers.finish(parcel);
    }

    /// Handles events of a link.
    pub(super) fn on_link(&mut self, id: LinkId) {
        let mut exits = std::mem::take(&mut self.exits);
        let link = &mut self.links[id.0 as usize];
        link.path.advance(self.now, &mut |at, parcel, exit| exits.push((at, *parcel, exit)));
        self.agenda.set(link.actor, link.path.next_event());
        for (_, parcel, exit) in exits.drain(..) {
            self.on_exit(id, &parcel, exit);
        }
        self.exits = exits;
    }

    fn on_exit(&mut self, link: LinkId, parcel: &Parcel, exit: Exit) {
        match exit {
            Exit::Delivered => {
                self.tell(Place::Link(link), parcel, exit);
                self.on_hop(link, *parcel);
            }
            Exit::Dropped(reason) => self.die(Place::Link(link), parcel, reason),
            Exit::Copied => {
                self.tell(Place::Link(link), parcel, exit);
                self.flows[parcel.flow().0 as usize].truth.copies += u64::from(parcel.packets());
                self.transit_buffers.copied(parcel);
            }
        }
    }

    /// Forwards a parcel that has crossed a link: to the next link, its host or its node.
    fn on_hop(&mut self, link: LinkId, parcel: Parcel) {
        let flow = &self.flows[parcel.flow().0 as usize];
        let hop = flow.links.iter().position(|l| *l == link).unwrap_or(flow.links.len());
        let (next, node) = (flow.links.get(hop + 1).copied(), flow.to);
        if let Some(next) = next {
            return self.offer(next, parcel);
        }
        match self.nodes[node.0 as usize].host {
            Some(host) => {
                let slot = &mut self.hosts[host.0 as usize];
                slot.model.on_arrival(self.now, parcel);
                self.agenda.set(slot.actor, slot.model.next_event());
            }
            None => self.arrive(&parcel, Coming { arrived: self.now, socket_drops: None }),
        }
    }

    fn offer(&mut self, link: LinkId, parcel: Parcel) {
        let slot = &mut self.links[link.0 as usize];
        slot.path.offer_batch(self.now, parcel);
        self.agenda.set(slot.actor, slot.path.next_event());
    }

    /// Handles events of a host.
    pub(super) fn on_host(&mut self, id: HostId) {
        let mut exits = std::mem::take(&mut self.host_exits);
        let slot = &mut self.hosts[id.0 as usize];
        slot.model.advance(self.now, &mut |at, exit| exits.push((at, exit)));
        for (_, exit) in exits.drain(..) {
            match exit {
                HostExit::Read { parcel, arrived, socket_drops } => {
                    self.tell(Place::Host(id), &parcel, Exit::Delivered);
                    self.arrive(&parcel, Coming { arrived, socket_drops });
                }
                HostExit::Dropped { parcel, reason } => self.die(Place::Host(id), &parcel, reason),
            }
        }
        self.host_exits = exits;
        for node in 0..self.nodes.len() {
            if self.nodes[node].host == Some(id) && self.nodes[node].waits_for_cpu {
                self.on_node_timer(NodeId(node as u32));
            }
        }
        let slot = &self.hosts[id.0 as usize];
        self.agenda.set(slot.actor, slot.model.next_event());
    }

    /// Delivers the parcel to its node.
    fn arrive(&mut self, parcel: &Parcel, coming: Coming) {
        let flow = &mut self.flows[parcel.flow().0 as usize];
        flow.truth.delivered += u64::from(parcel.packets());
        flow.truth.delivered_bytes += parcel.bytes();
        let (node, port) = (flow.to, flow.port);
        self.tell_arrived(Place::Node(node), parcel, Exit::Delivered, coming.arrived);
        let mut lent = self.transit_buffers.lend(parcel);
        for (first, count) in parcel.runs() {
            // Damaged packets are delivered one by one.
            let (parts, each) = if lent.is_damaged() { (count, 1) } else { (1, count) };
            for part in 0..parts {
                let first = first + part;
                let stride = lent.stride;
                let salt = self.now.as_nanos() ^ (first as u64) << 56;
                let data = lent.run(first, each, salt);
                let wire_bytes = (first..first + each).map(|i| u64::from(parcel.bytes_of(i))).sum();
                let batch = Received {
                    stride: stride.min(data.len().max(1)),
                    data,
                    arrival: Some(coming.arrived),
                    path: port,
                    ecn: parcel.ecn(),
                    socket_drops: coming.socket_drops,
                };
                self.hand_over(node, &mut Arrival { batch, packets: each as u32, wire_bytes });
            }
        }
        self.transit_buffers.give_back(parcel, lent);
        self.transit_buffers.finish(parcel);
    }

    /// Passes a sample of the host's load to the node at regular intervals, when its process has the CPU.
    fn look_at_host(&mut self, id: NodeId) {
        let slot = &mut self.nodes[id.0 as usize];
        let Some(host) = slot.host.filter(|_| self.now >= slot.looks_at) else { return };
        if let Some(sample) = self.hosts[host.0 as usize].model.sample(id) {
            slot.looks_at = self.now + HostSample::INTERVAL;
            slot.node.on_host_sample(self.now, sample);
        }
    }

    /// Passes a verdict to the node if more of its packets have been dropped.
    fn tell_verdict(&mut self, id: NodeId) {
        let (slot, flows) = (&mut self.nodes[id.0 as usize], &mut self.flows);
        let mut take_news = |flow: &FlowId| flows[flow.0 as usize].losses.take_news();
        if !slot.ports.iter().fold(false, |news, (_, flow)| take_news(flow) || news) {
            return;
        }
        let mut tally = CauseCounts::default();
        for (_, flow) in &slot.ports {
            self.flows[flow.0 as usize].losses.add_to(&mut tally);
        }
        if let Some(verdict) = tally.verdict() {
            slot.node.on_verdict(self.now, verdict);
        }
    }

    fn hand_over(&mut self, id: NodeId, arrival: &mut Arrival<'_>) {
        self.look_at_host(id);
        self.tell_verdict(id);
        let room = self.room(id);
        let slot = &mut self.nodes[id.0 as usize];
        let before = slot.node.happenings();
        let mut out = Outbox {
            room,
            now: self.now,
            ahead: Span::ZERO,
            transit_buffers: &mut self.transit_buffers,
            launches: &mut self.launches,
        };
        slot.node.on_arrival(self.now, arrival, &mut out);
        self.after_node(id, before);
    }

    /// Handles an expired deadline of a node.
    pub(super) fn on_node_timer(&mut self, id: NodeId) {
        let slot = &mut self.nodes[id.0 as usize];
        if let Some(host) = slot.host
            && !self.hosts[host.0 as usize].model.may_run(self.now, id)
        {
            slot.waits_for_cpu = true;
            self.agenda.set(slot.actor, None);
            let host = &self.hosts[host.0 as usize];
            self.agenda.set(host.actor, host.model.next_event());
            return;
        }
        slot.waits_for_cpu = false;
        self.look_at_host(id);
        let room = self.room(id);
        let slot = &mut self.nodes[id.0 as usize];
        let before = slot.node.happenings();
        let mut out = Outbox {
            room,
            now: self.now,
            ahead: Span::ZERO,
            transit_buffers: &mut self.transit_buffers,
            launches: &mut self.launches,
        };
        slot.node.on_deadline(self.now, &mut out);
        self.after_node(id, before);
    }

    pub(super) fn after_node(&mut self, id: NodeId, happenings_before: u64) {
        self.take_messages(id);
        let slot = &self.nodes[id.0 as usize];
        if !slot.waits_for_cpu {
            // A node may request the current time; virtual time still has to advance.
            let at =
                slot.node.deadline().map(|at| if at <= self.now { self.now + SHORTEST_WAIT } else { at });
            self.agenda.set(slot.actor, at);
        }
        self.happenings += u64::from(slot.node.happenings() != happenings_before);
        if self.launches.is_empty() {
            return;
        }
        self.charge(id);
        let mut launches = std::mem::take(&mut self.launches);
        for launch in launches.drain(..) {
            if launch.at > self.now {
                self.later_packets += u64::from(launch.parcel.packets());
                self.later.push(launch.at, (id, launch));
                self.agenda.set(LAUNCHES, self.later.next());
            } else {
                self.launch(id, &launch);
            }
        }
        self.launches = launches;
    }

    /// Returns the number of batches that a node may send at once.
    pub(super) fn room(&self, id: NodeId) -> usize {
        let host = self.nodes[id.0 as usize].host;
        host.map_or(MOST_BATCHES, |host| self.hosts[host.0 as usize].model.batches_at_once())
    }

    /// Charges the node's process for the packets that it sends.
    fn charge(&mut self, id: NodeId) {
        let Some(host) = self.nodes[id.0 as usize].host.filter(|_| self.room(id) < MOST_BATCHES) else {
            return;
        };
        let packets = self.launches.iter().map(|launch| u64::from(launch.parcel.packets())).sum();
        let slot = &mut self.hosts[host.0 as usize];
        slot.model.on_sent(self.now, id, packets);
        self.agenda.set(slot.actor, slot.model.next_event());
    }

    pub(super) fn on_later(&mut self) {
        while let Some((_, (node, launch))) = self.later.pop_due(self.now) {
            self.later_packets -= u64::from(launch.parcel.packets());
            self.launch(node, &launch);
        }
        self.agenda.set(LAUNCHES, self.later.next());
    }

    fn flow_of(&self, node: NodeId, port: PathId) -> Option<FlowId> {
        let ports = &self.nodes[node.0 as usize].ports;
        ports.iter().find(|(own, _)| *own == port).map(|(_, flow)| *flow)
    }

    fn launch(&mut self, node: NodeId, launch: &Launch) {
        debug_assert_eq!(u64::from(launch.buffer), launch.parcel.id());
        let Some(id) = self.flow_of(node, launch.port) else {
            self.strays += u64::from(launch.parcel.packets());
            return self.transit_buffers.finish(&launch.parcel);
        };
        let flow = &mut self.flows[id.0 as usize];
        flow.truth.offered += u64::from(launch.parcel.packets());
        flow.truth.offered_bytes += launch.parcel.bytes();
        let (first, parcel) = (flow.links[0], launch.parcel.of_flow(id));
        self.tell(Place::Source(node), &parcel, Exit::Delivered);
        self.offer(first, parcel);
    }

    /// Sends a node's pending messages on its channel.
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

    /// Delivers due messages of a channel.
    pub(super) fn on_channel(&mut self, id: ChannelId) {
        for way in 0..2 {
            while let Some((to, message)) = self.channels[id.0 as usize].due(self.now, way) {
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
}
