//! Results of a run.

use haul_base::Time;
use serde::Serialize;

use super::{FlowTruth, Rates, World};
use crate::counters::PathCounters;

/// Results of one flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowSummary {
    /// Name given when the flow was added.
    pub name: String,
    /// Delivered bits per second on the wire, over the whole run.
    pub delivered_bps: u64,
    /// Counters of the flow's packets.
    pub truth: FlowTruth,
}

/// Results of one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkSummary {
    /// Name given when the link was added.
    pub name: String,
    /// Counters of the link's path.
    pub counters: PathCounters,
}

/// Results of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeSummary {
    /// Name given when the node was added.
    pub name: String,
    /// Useful bytes, if the node counts them.
    pub goodput_bytes: Option<u64>,
    /// Useful bits per second over the whole run.
    pub goodput_bps: Option<u64>,
}

/// Results of a run. The serialised form is identical, byte by byte, for equal worlds and seeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Seed of all random numbers of the run.
    pub seed: u64,
    /// Elapsed virtual time, nanoseconds.
    pub elapsed_ns: u64,
    /// All flows.
    pub flows: Vec<FlowSummary>,
    /// All links.
    pub links: Vec<LinkSummary>,
    /// All nodes.
    pub nodes: Vec<NodeSummary>,
    /// Packets sent on ports without a flow.
    pub strays: u64,
    /// Rates over time, if they were recorded.
    pub rates: Option<Rates>,
}

impl World {
    /// Returns the packet counters of a flow so far.
    pub fn truth(&self, flow: crate::FlowId) -> FlowTruth {
        self.flows.get(flow.0 as usize).map(|flow| flow.truth).unwrap_or_default()
    }

    /// Returns the longest time for which a node's process waited for a core; zero if it is on no host.
    pub fn longest_wait(&self, node: crate::NodeId) -> haul_base::Span {
        let host = self.nodes.get(node.0 as usize).and_then(|slot| slot.host);
        let host = host.and_then(|host| self.hosts.get(host.0 as usize));
        host.map(|host| host.model.longest_wait(node)).unwrap_or_default()
    }

    /// Whether every packet is accounted for: on every link, and in total, where the packets in transit
    /// of all flows equal those held by links, hosts and senders' queues.
    pub fn adds_up(&self) -> bool {
        let links = self.links.iter().map(|link| link.path.counters());
        let on_links: u64 = links.clone().map(|counters| counters.inside).sum();
        let in_hosts: u64 = self.hosts.iter().map(|host| host.model.inside()).sum();
        let under_way: u64 = self.flows.iter().map(|flow| flow.truth.under_way()).sum();
        links.into_iter().all(|counters| counters.adds_up()) && on_links + in_hosts == under_way
    }

    /// Returns the results so far.
    pub fn summary(&self) -> Summary {
        let elapsed = self.now.since(Time::ZERO);
        let bps = |bytes| haul_base::Rate::from_transfer(bytes, elapsed).as_bps();
        let flows = self.flows.iter().map(|flow| FlowSummary {
            name: flow.name.clone(),
            delivered_bps: bps(flow.truth.delivered_bytes),
            truth: flow.truth,
        });
        let links = self
            .links
            .iter()
            .map(|link| LinkSummary { name: link.name.clone(), counters: link.path.counters() });
        let nodes = self.nodes.iter().map(|slot| {
            let goodput_bytes = slot.node.goodput_bytes();
            NodeSummary { name: slot.name.clone(), goodput_bytes, goodput_bps: goodput_bytes.map(bps) }
        });
        Summary {
            seed: self.seed,
            elapsed_ns: elapsed.as_nanos(),
            flows: flows.collect(),
            links: links.collect(),
            nodes: nodes.collect(),
            strays: self.strays,
            rates: self.recorder.as_ref().map(|recorder| recorder.rates().clone()),
        }
    }
}
