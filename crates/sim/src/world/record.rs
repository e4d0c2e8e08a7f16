//! Recorded rates over time.

use std::collections::BTreeMap;

use haul_base::{Span, Time};
use serde::Serialize;

use super::ids::NodeId;
use super::slots::{Flow, HostSlot, Link, NodeSlot};
use crate::counters::Drops;

/// Rates per interval of a run. The outer lists are in the order in which flows, links and nodes were
/// added; each inner list has one number per interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rates {
    /// Length of an interval, nanoseconds.
    pub interval_ns: u64,
    /// Bits per second on the wire delivered by each flow.
    pub delivered_bps: Vec<Vec<u64>>,
    /// Dropped packets of each flow.
    pub dropped: Vec<Vec<u64>>,
    /// Dropped packets of each flow by reason, for the reasons that occurred.
    pub dropped_by: Vec<BTreeMap<&'static str, Vec<u64>>>,
    /// Goodput of each node, bits per second; empty lists for nodes that do not count it.
    pub goodput_bps: Vec<Vec<u64>>,
    /// Rate of each node's control law at the end of the interval, bits per second; empty lists without a
    /// law.
    pub law_bps: Vec<Vec<u64>>,
    /// Share of the interval for which each node's process was ready without a core, thousandths; empty
    /// lists for nodes without a host.
    pub waited: Vec<Vec<u64>>,
    /// Sleep average of each node's process at the end of the interval, microseconds; empty lists without
    /// one.
    pub sleep_average_us: Vec<Vec<u64>>,
    /// Fill level of the socket buffer of each node's process at the end of the interval, thousandths;
    /// empty lists for nodes without a host.
    pub socket_fill: Vec<Vec<u64>>,
    /// Mean length of each host's run queue, including the running task, thousandths.
    pub host_load: Vec<Vec<u64>>,
    /// Bytes queued at each link's first bottleneck at the end of the interval.
    pub queue_bytes: Vec<Vec<u64>>,
}

/// Takes samples at a regular interval.
#[derive(Debug)]
pub(super) struct Recorder {
    interval: Span,
    due: Time,
    rates: Rates,
    /// Totals at the last sample.
    delivered: Vec<u64>,
    dropped: Vec<u64>,
    dropped_by: Vec<Drops>,
    goodput: Vec<u64>,
    runnable_ns: Vec<u64>,
    waited_ns: Vec<u64>,
}

/// The parts of a world that are sampled.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) now: Time,
    pub(super) flows: &'a [Flow],
    pub(super) links: &'a [Link],
    pub(super) nodes: &'a [NodeSlot],
    pub(super) hosts: &'a [HostSlot],
}

/// Returns how much `total` has grown since the last sample.
fn growth(before: &mut Vec<u64>, index: usize, total: u64) -> u64 {
    if before.len() <= index {
        before.resize(index + 1, 0);
    }
    total - std::mem::replace(&mut before[index], total)
}

/// Appends to the list at `index`. A new list is filled with zeros for earlier samples.
fn record_value(lists: &mut Vec<Vec<u64>>, index: usize, samples: usize, value: u64) {
    if lists.len() <= index {
        lists.resize(index + 1, Vec::new());
    }
    lists[index].resize(samples, 0);
    lists[index].push(value);
}

impl Recorder {
    pub(super) fn new(now: Time, interval: Span) -> Self {
        let interval = interval.max(Span::from_micros(1));
        let rates = Rates { interval_ns: interval.as_nanos(), ..Rates::default() };
        Self {
            interval,
            due: now + interval,
            rates,
            delivered: Vec::new(),
            dropped: Vec::new(),
            dropped_by: Vec::new(),
            goodput: Vec::new(),
            runnable_ns: Vec::new(),
            waited_ns: Vec::new(),
        }
    }

    pub(super) fn due(&self) -> Time {
        self.due
    }

    pub(super) fn rates(&self) -> &Rates {
        &self.rates
    }

    fn bps(&self, bytes: u64) -> u64 {
        haul_base::Rate::from_transfer(bytes, self.interval).as_bps()
    }

    pub(super) fn sample(&mut self, world: Parts<'_>) {
        let samples = self.rates.queue_bytes.first().map_or(0, Vec::len);
        self.sample_flows(world, samples);
        self.sample_nodes(world, samples);
        self.sample_processes(world, samples);
        for (index, host) in world.hosts.iter().enumerate() {
            let grown = growth(&mut self.runnable_ns, index, host.model.runnable_time().as_nanos());
            record_value(&mut self.rates.host_load, index, samples, grown * 1_000 / self.interval.as_nanos());
        }
        for (index, link) in world.links.iter().enumerate() {
            let queue = link.path.standing_queue(world.now).map_or(0, |queue| queue.bytes);
            record_value(&mut self.rates.queue_bytes, index, samples, queue);
        }
        self.due += self.interval;
    }

    fn sample_flows(&mut self, world: Parts<'_>, samples: usize) {
        for (index, flow) in world.flows.iter().enumerate() {
            let bytes = growth(&mut self.delivered, index, flow.truth.delivered_bytes);
            let bps = self.bps(bytes);
            record_value(&mut self.rates.delivered_bps, index, samples, bps);
            let dropped = growth(&mut self.dropped, index, flow.truth.drops.total());
            record_value(&mut self.rates.dropped, index, samples, dropped);
            self.add_reasons(index, samples, flow.truth.drops);
        }
    }

    fn add_reasons(&mut self, flow: usize, samples: usize, drops: Drops) {
        self.rates.dropped_by.resize(self.rates.dropped.len(), BTreeMap::new());
        self.dropped_by.resize(self.rates.dropped.len(), Drops::default());
        let before = std::mem::replace(&mut self.dropped_by[flow], drops);
        for (reason, total) in drops.iter().filter(|(_, total)| *total > 0) {
            let list = self.rates.dropped_by[flow].entry(reason.name()).or_default();
            list.resize(samples, 0);
            list.push(total - before.of(reason));
        }
    }

    fn sample_nodes(&mut self, world: Parts<'_>, samples: usize) {
        for lists in [&mut self.rates.goodput_bps, &mut self.rates.law_bps] {
            lists.resize(world.nodes.len(), Vec::new());
        }
        for (index, slot) in world.nodes.iter().enumerate() {
            if let Some(total) = slot.node.goodput_bytes() {
                let bytes = growth(&mut self.goodput, index, total);
                let bps = self.bps(bytes);
                record_value(&mut self.rates.goodput_bps, index, samples, bps);
            }
            if let Some(rate) = slot.node.law_rate() {
                record_value(&mut self.rates.law_bps, index, samples, rate.as_bps());
            }
        }
    }

    fn sample_processes(&mut self, world: Parts<'_>, samples: usize) {
        let Rates { waited, sleep_average_us, socket_fill, .. } = &mut self.rates;
        for lists in [waited, sleep_average_us, socket_fill] {
            lists.resize(world.nodes.len(), Vec::new());
        }
        for (index, slot) in world.nodes.iter().enumerate() {
            let host = slot.host.and_then(|host| world.hosts.get(host.0 as usize));
            let Some(sample) = host.and_then(|host| host.model.sample(NodeId(index as u32))) else {
                continue;
            };
            if let Some(run_delay) = sample.run_delay {
                let grown = growth(&mut self.waited_ns, index, run_delay.as_nanos());
                record_value(
                    &mut self.rates.waited,
                    index,
                    samples,
                    grown * 1_000 / self.interval.as_nanos(),
                );
            }
            if let Some(fill) = sample.socket_fill {
                record_value(&mut self.rates.socket_fill, index, samples, u64::from(fill));
            }
            if let Some(sleep) = sample.sleep_average {
                record_value(&mut self.rates.sleep_average_us, index, samples, sleep.as_nanos() / 1_000);
            }
        }
    }
}
