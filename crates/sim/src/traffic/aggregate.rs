//! Many short flows, as cross traffic on a shared link.

use haul_base::{Bytes, Ecn, PathId, Rate, Rng, Span, Time};
use serde::{Deserialize, Serialize};

use super::Spacing;
use super::udp::default_packet;
use crate::stage::{exponential, pareto_bytes};
use crate::time_queue::TimeQueue;
use crate::world::{Arrival, Node, Outbox};

/// Flows with random (Poisson) arrivals and heavy-tailed (Pareto) sizes, each sending at its access rate. The
/// superposition of many such sources is bursty on all time scales (Willinger and others, 1997).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AggregateSpec {
    /// Long-term average in bits per second, counting whole IP packets.
    #[serde(with = "crate::text")]
    pub load: Rate,
    /// Mean size of a flow, counting whole IP packets.
    #[serde(with = "crate::text", default = "default_size")]
    pub mean_size: Bytes,
    /// Tail index of the sizes, above 1; below 2 the variance is infinite.
    #[serde(default = "default_shape")]
    pub shape: f64,
    /// Rate of each flow.
    #[serde(with = "crate::text", default = "default_access")]
    pub access: Rate,
    /// Bytes of each IP packet.
    #[serde(default = "default_packet")]
    pub packet: u32,
    /// Earliest arrival of a flow.
    #[serde(with = "crate::text", default)]
    pub start: Span,
    /// Time for which flows arrive; endless if absent.
    #[serde(with = "crate::text::optional", default, skip_serializing_if = "Option::is_none")]
    pub length: Option<Span>,
}

fn default_size() -> Bytes {
    Bytes(100_000)
}

fn default_shape() -> f64 {
    1.5
}

fn default_access() -> Rate {
    Rate::from_mbps(100)
}

/// Sends this traffic on port 0.
#[derive(Debug)]
pub struct Aggregate {
    spec: AggregateSpec,
    rng: Rng,
    /// Mean time between two flow arrivals.
    between: Span,
    spacing: Spacing,
    next_flow: Time,
    /// Remaining packets of each active flow, by the time of its next packet.
    active: TimeQueue<u64>,
    flows: u64,
}

impl Aggregate {
    /// Creates a source whose random numbers follow from `seed`.
    pub fn new(spec: AggregateSpec, seed: u64) -> Self {
        let between = spec.load.time_for(spec.mean_size.0);
        let mut aggregate = Self {
            rng: Rng::from_seed(seed),
            between,
            spacing: Spacing::new(spec.packet, spec.access),
            next_flow: Time::ZERO + spec.start,
            active: TimeQueue::default(),
            flows: 0,
            spec,
        };
        aggregate.schedule_flow();
        aggregate
    }

    /// Returns the number of flows started.
    pub fn flows(&self) -> u64 {
        self.flows
    }

    fn schedule_flow(&mut self) {
        self.next_flow += self.between.mul_f64(exponential(&mut self.rng));
    }

    fn arrivals_continue(&self, at: Time) -> bool {
        self.spec.length.is_none_or(|length| at < Time::ZERO + self.spec.start + length)
    }

    fn begin_flow(&mut self) {
        let bytes = pareto_bytes(&mut self.rng, self.spec.mean_size, self.spec.shape);
        // Rounded to packets without changing the mean.
        let packet = u64::from(self.spec.packet.max(1));
        let packets = bytes / packet + u64::from(self.rng.below(packet) < bytes % packet);
        self.flows += 1;
        if packets > 0 {
            self.active.push(self.next_flow, packets);
        }
    }
}

impl Node for Aggregate {
    fn on_arrival(&mut self, _: Time, _: &mut Arrival<'_>, _: &mut Outbox<'_>) {}

    fn on_deadline(&mut self, now: Time, out: &mut Outbox<'_>) {
        while self.next_flow <= now && self.arrivals_continue(self.next_flow) {
            self.begin_flow();
            self.schedule_flow();
        }
        while let Some((at, remaining)) = self.active.pop_due(now) {
            out.send(PathId::default(), self.spec.packet, 1, Ecn::NotEct, &[]);
            if remaining > 1 {
                self.active.push(at + self.spacing.next(), remaining - 1);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let flow = self.arrivals_continue(self.next_flow).then_some(self.next_flow);
        match (flow, self.active.next()) {
            (Some(flow), Some(packet)) => Some(flow.min(packet)),
            (flow, packet) => flow.or(packet),
        }
    }
}
