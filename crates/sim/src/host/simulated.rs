//! The receiving host as a [`HostModel`] of the simulated world.

use std::collections::BTreeMap;

use haul_base::{HostSample, Span, Time};

use super::receiver::{HostConfig, ReceiverConfig, ReceivingHost};
use super::{Admission, HostDrop, HostOutput, Incoming};
use crate::{DropReason, FlowId, HostExit, HostModel, MAX_BATCHES, NodeId, Parcel, UDP_OVERHEAD};

impl From<HostDrop> for DropReason {
    fn from(reason: HostDrop) -> Self {
        match reason {
            HostDrop::NicRing => Self::NicRing,
            HostDrop::SocketBuffer => Self::SocketBuffer,
        }
    }
}

/// A [`ReceivingHost`] in a world. Each node placed on it gets its own task and socket.
#[derive(Debug)]
pub struct SimulatedHost {
    host: ReceivingHost,
    template: ReceiverConfig,
    /// Whether parcels enter whole or one packet at a time.
    carries_batches: bool,
    /// Whether the card merges packets, so that programs read them together.
    merges: bool,
    sockets: BTreeMap<NodeId, u16>,
    flows: BTreeMap<FlowId, u16>,
    /// Parcels inside the host by tag; free slots are `None`.
    parcels: Vec<Option<Parcel>>,
    free: Vec<u64>,
    /// Exits not yet collected by the world.
    exits: Vec<HostExit>,
}

impl SimulatedHost {
    /// Creates a host at time zero. Nodes get sockets like `template`, beside the receivers of `config`.
    pub fn new(config: &HostConfig, template: ReceiverConfig) -> Self {
        Self {
            host: ReceivingHost::new(config, Time::ZERO),
            template,
            carries_batches: config.nic.carries_batches,
            merges: config.nic.gro.is_some(),
            sockets: BTreeMap::new(),
            flows: BTreeMap::new(),
            parcels: Vec::new(),
            free: Vec::new(),
            exits: Vec::new(),
        }
    }

    /// Returns the host.
    pub fn host(&self) -> &ReceivingHost {
        &self.host
    }

    /// Returns the host mutably, to start and stop loads and traces.
    pub fn host_mut(&mut self) -> &mut ReceivingHost {
        &mut self.host
    }

    fn socket_of(&mut self, node: NodeId) -> u16 {
        let (host, template) = (&mut self.host, self.template);
        *self.sockets.entry(node).or_insert_with(|| host.add_receiver(template))
    }

    fn store(&mut self, parcel: Parcel) -> u64 {
        let tag = self.free.pop().unwrap_or_else(|| {
            self.parcels.push(None);
            self.parcels.len() as u64 - 1
        });
        self.parcels[tag as usize] = Some(parcel);
        tag
    }

    /// Advances to `now` and stores exits until they are collected.
    fn catch_up(&mut self, now: Time) {
        let (parcels, free, exits, merges) =
            (&mut self.parcels, &mut self.free, &mut self.exits, self.merges);
        let mut take = |tag: u64| {
            free.push(tag);
            parcels[tag as usize].take()
        };
        self.host.advance(now, &mut |output| match output {
            HostOutput::Delivered { arrival, queued, socket_drops, .. } => {
                let exit = |parcel| HostExit::Read { parcel, arrived: queued, socket_drops };
                if let Some(exit) = take(arrival.tag).map(exit)
                    && !(merges && exits.last_mut().is_some_and(|before| merge(before, &exit)))
                {
                    exits.push(exit);
                }
            }
            HostOutput::Dropped { arrival, reason, .. } => {
                let exit = |parcel| HostExit::Dropped { parcel, reason: reason.into() };
                exits.extend(take(arrival.tag).map(exit));
            }
        });
    }

    fn enqueue(&mut self, now: Time, socket: u16, parcel: Parcel) {
        let packets = parcel.packets();
        let bytes = (parcel.bytes() as u32).saturating_sub(packets * UDP_OVERHEAD);
        let tag = self.store(parcel);
        let incoming = Incoming { tag, socket, flow: parcel.flow().0, bytes, packets };
        if let Admission::Dropped(reason) = self.host.on_arrival(now, incoming) {
            self.free.push(tag);
            self.parcels[tag as usize] = None;
            self.exits.push(HostExit::Dropped { parcel, reason: reason.into() });
        }
    }
}

/// Adds read packets to the previous ones if both were in one merged buffer, that is, queued at the same
/// time. Only packets of one batch of the sender are rejoined.
fn merge(before: &mut HostExit, next: &HostExit) -> bool {
    let (
        HostExit::Read { parcel, arrived, socket_drops },
        HostExit::Read { parcel: more, arrived: at, socket_drops: drops },
    ) = (before, next)
    else {
        return false;
    };
    let together = if *arrived == *at && *socket_drops == *drops { parcel.joined(*more) } else { None };
    together.inspect(|together| *parcel = *together).is_some()
}

impl HostModel for SimulatedHost {
    fn open(&mut self, flow: FlowId, node: NodeId) {
        let socket = self.socket_of(node);
        self.flows.insert(flow, socket);
    }

    fn on_arrival(&mut self, now: Time, parcel: Parcel) {
        self.catch_up(now);
        let Some(&socket) = self.flows.get(&parcel.flow()) else {
            self.exits.push(HostExit::Dropped { parcel, reason: DropReason::NoReceiver });
            return;
        };
        if self.carries_batches {
            self.enqueue(now, socket, parcel);
        } else {
            for index in parcel.indices() {
                self.enqueue(now, socket, parcel.only(1 << index));
            }
        }
    }

    fn may_run(&mut self, now: Time, node: NodeId) -> bool {
        self.catch_up(now);
        let socket = self.socket_of(node);
        self.host.may_run(socket)
    }

    fn on_sent(&mut self, now: Time, node: NodeId, packets: u64) {
        self.catch_up(now);
        let socket = self.socket_of(node);
        self.host.on_sent(socket, packets);
    }

    fn max_batches(&self) -> usize {
        if self.template.per_sent > Span::ZERO { 1 } else { MAX_BATCHES }
    }

    fn next_event(&self) -> Option<Time> {
        if self.exits.is_empty() { self.host.next_event() } else { Some(self.host.cpu().now()) }
    }

    fn advance(&mut self, now: Time, sink: &mut dyn FnMut(Time, HostExit)) {
        self.catch_up(now);
        self.exits.drain(..).for_each(|exit| sink(now, exit));
    }

    fn sample(&self, node: NodeId) -> Option<HostSample> {
        self.sockets.get(&node).map(|&socket| self.host.sample(socket))
    }

    fn longest_wait(&self, node: NodeId) -> Span {
        let cpu = self.host.cpu();
        let of_task = |task| cpu.scheduler().ledger().longest_wait(task, cpu.now());
        self.sockets.get(&node).map_or(Span::ZERO, |&socket| of_task(self.host.task(socket)))
    }

    fn runnable_time(&self) -> Span {
        let cpu = self.host.cpu();
        cpu.scheduler().ledger().runnable_time(cpu.now())
    }

    fn inside(&self) -> u64 {
        let exits = self.exits.iter().map(|exit| match exit {
            HostExit::Read { parcel, .. } | HostExit::Dropped { parcel, .. } => u64::from(parcel.packets()),
        });
        self.host.inside() + exits.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Ecn;

    use super::super::nic::{Gro, NicConfig};
    use super::super::scheduler::{FairConfig, SchedulerKind};
    use super::*;
    use crate::PacketInfo;

    /// Reads of a batch of 8 packets that arrives in two parts, 5 and 3, with one packet missing.
    fn read(gro: Option<Gro>) -> Vec<(u32, u64)> {
        let nic = NicConfig { gro, ..NicConfig::default() };
        let scheduler = SchedulerKind::Fair(FairConfig::default());
        let config = HostConfig { scheduler, nic, receivers: Vec::new(), loads: Vec::new(), seed: 1 };
        let mut host = SimulatedHost::new(&config, ReceiverConfig::default());
        host.open(FlowId(0), NodeId(0));
        let first = PacketInfo { id: 3, flow: FlowId(0), bytes: 1_500, ecn: Ecn::NotEct };
        let batch = Parcel::batch(first, 8, 1_500).unwrap();
        host.on_arrival(Time::ZERO, batch.first(5));
        let late = Time::ZERO + Span::from_millis(1);
        let mut exits = Vec::new();
        let mut take = |_, exit: HostExit| {
            if let HostExit::Read { parcel, .. } = exit {
                exits.push((parcel.packets(), parcel.present()));
            }
        };
        host.advance(late, &mut take);
        host.on_arrival(late, batch.without(0b11111).without(0b1000_0000));
        host.advance(late + Span::from_millis(1), &mut take);
        assert_eq!(host.inside(), 0);
        exits
    }

    #[test]
    fn merged_packets_are_read_one_merge_at_a_time() {
        let single: Vec<(u32, u64)> = (0..7).map(|n| (1, 1 << n)).collect();
        assert_eq!(read(None), single);
        // The first packet is passed up singly: the softirq takes it before the others are in the ring.
        let merged = read(Some(Gro::default()));
        assert_eq!(merged.iter().map(|(packets, _)| packets).sum::<u32>(), 7);
        assert!(merged.len() <= 4, "{merged:?}");
        assert!(merged.iter().all(|(_, present)| present.trailing_zeros() >= 5 || *present < 1 << 5));
        // With at most two packets per buffer.
        let pairs = read(Some(Gro { packets: 2, bytes: 65_507 }));
        assert!(pairs.iter().all(|(packets, _)| *packets <= 2) && pairs.len() < 7, "{pairs:?}");
    }
}
