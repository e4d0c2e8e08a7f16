//! Moves packets and messages between links, hosts and nodes.

use haul_base::{CauseCounts, HostSample, PathId, Received, Span, Time};

use super::channel::ChannelId;
use super::transit_buffers::Launch;
use super::{
    Arrival, DropReason, Exit, HostExit, HostId, LAUNCHES, LinkId, MAX_BATCHES, NodeId, Outbox, Parcel,
    Place, TraceEvent, World,
};
use crate::parcel::FlowId;

/// Delay before a node is called again whose deadline is not in the future.
const MIN_WAIT: Span = Span::from_nanos(100);

/// When and how packets reached a socket.
#[derive(Clone, Copy, Debug)]
struct ArrivalInfo {
    arrived: Time,
    socket_drops: Option<u32>,
}

impl World {
    fn trace_exit(&mut self, place: Place, parcel: &Parcel, exit: Exit) {
        self.trace_arrival(place, parcel, exit, self.now);
    }

    fn trace_arrival(&mut self, place: Place, parcel: &Parcel, exit: Exit, arrived: Time) {
        if let Some(trace) = &mut self.trace {
            let (payload, stride) = self.transit_buffers.payload(parcel);
            trace(&TraceEvent { at: self.now, arrived, place, parcel, exit, payload, stride });
        }
    }

    fn drop_parcel(&mut self, place: Place, parcel: &Parcel, reason: DropReason) {
        self.trace_exit(place, parcel, Exit::Dropped(reason));
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
        self.event_queue.set(link.actor, link.path.next_event());
        for (_, parcel, exit) in exits.drain(..) {
            self.on_exit(id, &parcel, exit);
        }
        self.exits = exits;
    }

    fn on_exit(&mut self, link: LinkId, parcel: &Parcel, exit: Exit) {
        match exit {
            Exit::Delivered => {
                self.trace_exit(Place::Link(link), parcel, exit);
                self.on_hop(link, *parcel);
            }
            Exit::Dropped(reason) => self.drop_parcel(Place::Link(link), parcel, reason),
            Exit::Copied => {
                self.trace_exit(Place::Link(link), parcel, exit);
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
                self.event_queue.set(slot.actor, slot.model.next_event());
            }
            None => self.arrive(&parcel, ArrivalInfo { arrived: self.now, socket_drops: None }),
        }
    }

    fn offer(&mut self, link: LinkId, parcel: Parcel) {
        let slot = &mut self.links[link.0 as usize];
        slot.path.offer_batch(self.now, parcel);
        self.event_queue.set(slot.actor, slot.path.next_event());
    }

    /// Handles events of a host.
    pub(super) fn on_host(&mut self, id: HostId) {
        let mut exits = std::mem::take(&mut self.host_exits);
        let slot = &mut self.hosts[id.0 as usize];
        slot.model.advance(self.now, &mut |at, exit| exits.push((at, exit)));
        for (_, exit) in exits.drain(..) {
            match exit {
                HostExit::Read { parcel, arrived, socket_drops } => {
                    self.trace_exit(Place::Host(id), &parcel, Exit::Delivered);
                    self.arrive(&parcel, ArrivalInfo { arrived, socket_drops });
                }
                HostExit::Dropped { parcel, reason } => self.drop_parcel(Place::Host(id), &parcel, reason),
            }
        }
        self.host_exits = exits;
        for node in 0..self.nodes.len() {
            if self.nodes[node].host == Some(id) && self.nodes[node].waits_for_cpu {
                self.on_node_timer(NodeId(node as u32));
            }
        }
        let slot = &self.hosts[id.0 as usize];
        self.event_queue.set(slot.actor, slot.model.next_event());
    }

    /// Delivers the parcel to its node.
    fn arrive(&mut self, parcel: &Parcel, info: ArrivalInfo) {
        let flow = &mut self.flows[parcel.flow().0 as usize];
        flow.truth.delivered += u64::from(parcel.packets());
        flow.truth.delivered_bytes += parcel.bytes();
        let (node, port) = (flow.to, flow.port);
        self.trace_arrival(Place::Node(node), parcel, Exit::Delivered, info.arrived);
        let mut borrowed = self.transit_buffers.borrow(parcel);
        for (first, count) in parcel.runs() {
            // Damaged packets are delivered one by one.
            let (parts, each) = if borrowed.is_damaged() { (count, 1) } else { (1, count) };
            for part in 0..parts {
                let first = first + part;
                let stride = borrowed.stride;
                let salt = self.now.as_nanos() ^ (first as u64) << 56;
                let data = borrowed.run(first, each, salt);
                let wire_bytes = (first..first + each).map(|i| u64::from(parcel.bytes_of(i))).sum();
                let batch = Received {
                    stride: stride.min(data.len().max(1)),
                    data,
                    arrival: Some(info.arrived),
                    path: port,
                    ecn: parcel.ecn(),
                    socket_drops: info.socket_drops,
                };
                self.deliver(node, &mut Arrival { batch, packets: each as u32, wire_bytes });
            }
        }
        self.transit_buffers.return_buffer(parcel, borrowed);
        self.transit_buffers.finish(parcel);
    }

    /// Passes a sample of the host's load to the node at regular intervals, when its process has the CPU.
    fn sample_host(&mut self, id: NodeId) {
        let slot = &mut self.nodes[id.0 as usize];
        let Some(host) = slot.host.filter(|_| self.now >= slot.next_sample) else { return };
        if let Some(sample) = self.hosts[host.0 as usize].model.sample(id) {
            slot.next_sample = self.now + HostSample::INTERVAL;
            slot.node.on_host_sample(self.now, sample);
        }
    }

    /// Passes a verdict to the node if more of its packets have been dropped.
    fn report_verdict(&mut self, id: NodeId) {
        let (slot, flows) = (&mut self.nodes[id.0 as usize], &mut self.flows);
        let mut take_changed = |flow: &FlowId| flows[flow.0 as usize].losses.take_changed();
        if !slot.ports.iter().fold(false, |has_changed, (_, flow)| take_changed(flow) || has_changed) {
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

    fn deliver(&mut self, id: NodeId, arrival: &mut Arrival<'_>) {
        self.sample_host(id);
        self.report_verdict(id);
        let max_batches = self.max_batches(id);
        let slot = &mut self.nodes[id.0 as usize];
        let before = slot.node.event_count();
        let mut out = Outbox {
            max_batches,
            now: self.now,
            ahead: Span::ZERO,
            transit_buffers: &mut self.transit_buffers,
            launches: &mut self.launches,
        };
        slot.node.on_arrival(self.now, arrival, &mut out);
        self.on_node_changed(id, before);
    }

    /// Handles an expired deadline of a node.
    pub(super) fn on_node_timer(&mut self, id: NodeId) {
        let slot = &mut self.nodes[id.0 as usize];
        if let Some(host) = slot.host
            && !self.hosts[host.0 as usize].model.may_run(self.now, id)
        {
            slot.waits_for_cpu = true;
            self.event_queue.set(slot.actor, None);
            let host = &self.hosts[host.0 as usize];
            self.event_queue.set(host.actor, host.model.next_event());
            return;
        }
        slot.waits_for_cpu = false;
        self.sample_host(id);
        let max_batches = self.max_batches(id);
        let slot = &mut self.nodes[id.0 as usize];
        let before = slot.node.event_count();
        let mut out = Outbox {
            max_batches,
            now: self.now,
            ahead: Span::ZERO,
            transit_buffers: &mut self.transit_buffers,
            launches: &mut self.launches,
        };
        slot.node.on_deadline(self.now, &mut out);
        self.on_node_changed(id, before);
    }

    pub(super) fn on_node_changed(&mut self, id: NodeId, event_count_before: u64) {
        self.take_messages(id);
        let slot = &self.nodes[id.0 as usize];
        if !slot.waits_for_cpu {
            // A node may request the current time; virtual time still has to advance.
            let at = slot.node.deadline().map(|at| if at <= self.now { self.now + MIN_WAIT } else { at });
            self.event_queue.set(slot.actor, at);
        }
        self.event_count += u64::from(slot.node.event_count() != event_count_before);
        if self.launches.is_empty() {
            return;
        }
        self.charge(id);
        let mut launches = std::mem::take(&mut self.launches);
        for launch in launches.drain(..) {
            if launch.at > self.now {
                self.later_packets += u64::from(launch.parcel.packets());
                self.later.push(launch.at, (id, launch));
                self.event_queue.set(LAUNCHES, self.later.next());
            } else {
                self.launch(id, &launch);
            }
        }
        self.launches = launches;
    }

    /// Returns the number of batches that a node may send at once.
    pub(super) fn max_batches(&self, id: NodeId) -> usize {
        let host = self.nodes[id.0 as usize].host;
        host.map_or(MAX_BATCHES, |host| self.hosts[host.0 as usize].model.max_batches())
    }

    /// Charges the node's process for the packets that it sends.
    fn charge(&mut self, id: NodeId) {
        let Some(host) = self.nodes[id.0 as usize].host.filter(|_| self.max_batches(id) < MAX_BATCHES) else {
            return;
        };
        let packets = self.launches.iter().map(|launch| u64::from(launch.parcel.packets())).sum();
        let slot = &mut self.hosts[host.0 as usize];
        slot.model.on_sent(self.now, id, packets);
        self.event_queue.set(slot.actor, slot.model.next_event());
    }

    pub(super) fn on_scheduled(&mut self) {
        while let Some((_, (node, launch))) = self.later.pop_due(self.now) {
            self.later_packets -= u64::from(launch.parcel.packets());
            self.launch(node, &launch);
        }
        self.event_queue.set(LAUNCHES, self.later.next());
    }

    fn flow_of(&self, node: NodeId, port: PathId) -> Option<FlowId> {
        let ports = &self.nodes[node.0 as usize].ports;
        ports.iter().find(|(open_port, _)| *open_port == port).map(|(_, flow)| *flow)
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
        self.trace_exit(Place::Source(node), &parcel, Exit::Delivered);
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
        self.event_queue.set(channel.actor, channel.next());
    }

    /// Delivers due messages of a channel.
    pub(super) fn on_channel(&mut self, id: ChannelId) {
        for way in 0..2 {
            while let Some((to, message)) = self.channels[id.0 as usize].due(self.now, way) {
                let max_batches = self.max_batches(to);
                let slot = &mut self.nodes[to.0 as usize];
                let before = slot.node.event_count();
                let mut out = Outbox {
                    max_batches,
                    now: self.now,
                    ahead: Span::ZERO,
                    transit_buffers: &mut self.transit_buffers,
                    launches: &mut self.launches,
                };
                slot.node.on_channel(self.now, &message, &mut out);
                self.on_node_changed(to, before);
            }
        }
        let channel = &self.channels[id.0 as usize];
        self.event_queue.set(channel.actor, channel.next());
    }
}
