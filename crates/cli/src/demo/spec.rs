//! What kind of path the demo emulates, the stages that it is made of, and what happened to its packets.

use std::fmt;

use haul_base::{Bytes, Probability, Rate, Span};
use haul_sim::{BottleneckSpec, DropReason, Limit, QueueSpec, StageSpec};
use haul_wan::{Relayed, Snapshot};
use serde::Serialize;

/// The least number of packets that the bottleneck's queue holds.
const MIN_QUEUE_PACKETS: u64 = 64;

/// What kind of path; both directions are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PathSpec {
    /// Round-trip time without queueing, half of it in each direction.
    pub rtt: Span,
    /// Rate of the bottleneck in each direction, counting IP packets.
    pub rate: Rate,
    /// Share of the packets that get lost at random, in each direction.
    pub loss: Probability,
    pub mtu: u16,
    pub seed: u64,
}

impl PathSpec {
    /// What the bottleneck's queue holds: one bandwidth-delay product, and at least 64 packets.
    pub(crate) fn queue(&self) -> Bytes {
        let least = MIN_QUEUE_PACKETS * u64::from(self.mtu);
        Bytes(self.rate.bytes_in(self.rtt).max(least))
    }

    /// One direction, in the order in which a packet meets the stages. A packet that is lost at random has used its
    /// time at the bottleneck.
    pub(crate) fn stages(&self) -> haul_sim::PathSpec {
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

/// What one direction has done: with datagrams through a relay, with all packets between namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DirectionCounts {
    pub offered: u64,
    pub delivered: u64,
    /// Bytes that came out: payload through a relay, IP packets between namespaces.
    #[serde(skip)]
    pub delivered_bytes: u64,
    pub queue_full: u64,
    pub random: u64,
    pub too_large: u64,
    /// Dropped because the emulation itself had no room or could not pass them on. On a machine that keeps up
    /// these are none.
    pub relay: u64,
    /// Socket buffers (each up to 44 packets) that the kernel dropped because the relay came too late.
    pub overrun: u64,
}

impl DirectionCounts {
    /// Of a direction between namespaces; `device` is what the kernel dropped before the emulator had it.
    pub(super) fn of(way: &Snapshot, device: u64) -> Self {
        let (sent, received, mut drops) = (way.sent, way.received, way.drops);
        drops.count(DropReason::Carrier, device);
        Relayed { sent, received, drops, overrun: 0 }.into()
    }
}

impl From<Relayed> for DirectionCounts {
    fn from(Relayed { sent, received, drops, overrun }: Relayed) -> Self {
        Self {
            offered: sent.packets,
            delivered: received.packets,
            delivered_bytes: received.bytes,
            queue_full: drops.of(DropReason::QueueFull),
            random: drops.of(DropReason::Random),
            too_large: drops.of(DropReason::TooLarge),
            relay: drops.of(DropReason::Carrier),
            overrun,
        }
    }
}

impl fmt::Display for DirectionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offered, queue_full, random, too_large, relay, overrun, .. } = self;
        write!(f, "{offered} packets, lost {random} at random, {queue_full} at the full queue")?;
        for (number, why) in
            [(too_large, "too large"), (relay, "in the emulation"), (overrun, "buffers overrun")]
        {
            if *number > 0 {
                write!(f, ", {number} {why}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_holds_one_bandwidth_delay_product_and_some_packets_at_least() {
        let spec = |rtt_ms, mbps| {
            let (rtt, rate) = (Span::from_millis(rtt_ms), Rate::from_mbps(mbps));
            PathSpec { rtt, rate, loss: Probability::ZERO, mtu: 1_500, seed: 1 }
        };
        assert_eq!(spec(100, 120).queue(), Bytes(1_500_000));
        assert_eq!(spec(0, 1_000).queue(), Bytes(96_000));
    }
}
