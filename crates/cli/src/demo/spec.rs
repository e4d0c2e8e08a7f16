//! What kind of path the demo emulates, and the stages that it is made of.

use haul_base::{Bytes, Probability, Rate, Span};
use haul_sim::{BottleneckSpec, Limit, QueueSpec, StageSpec};

/// The least number of packets that the bottleneck's queue holds.
const MIN_QUEUE_PACKETS: u64 = 64;

/// What kind of path; both directions are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathSpec {
    /// Round-trip time without queueing, half of it in each direction.
    pub rtt: Span,
    /// Rate of the bottleneck in each direction, counting IP packets.
    pub rate: Rate,
    /// Share of the packets that get lost at random, in each direction.
    pub loss: Probability,
    /// Longest IP packet that passes.
    pub mtu: u16,
    /// Seed of the losses.
    pub seed: u64,
}

impl PathSpec {
    /// What the bottleneck's queue holds: one bandwidth-delay product, and at least 64 packets.
    pub fn queue(&self) -> Bytes {
        let least = MIN_QUEUE_PACKETS * u64::from(self.mtu);
        Bytes(self.rate.bytes_in(self.rtt).max(least))
    }

    /// One direction, in the order in which a packet meets the stages. A packet that is lost at random has used its
    /// time at the bottleneck.
    pub fn stages(&self) -> haul_sim::PathSpec {
        let queue = QueueSpec::TailDrop(Limit::Bytes(self.queue()));
        haul_sim::PathSpec {
            stages: vec![
                StageSpec::Mtu(self.mtu.into()),
                StageSpec::Bottleneck(BottleneckSpec { rate: self.rate, queue }),
                StageSpec::Loss(self.loss),
                StageSpec::Delay(self.rtt / 2),
            ],
        }
    }
}
