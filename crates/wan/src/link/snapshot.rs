//! Counters of one direction.

use haul_sim::{DropReason, Drops, PathCounters, StageCounters, StandingQueue};
use serde::Serialize;

/// Packets through a device in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Packets; a super-packet counts as all its packets.
    pub packets: u64,
    /// Bytes including IP headers.
    pub bytes: u64,
    /// Reads or writes; a super-packet counts as one.
    pub buffers: u64,
}

impl Traffic {
    pub(crate) fn count(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
        self.buffers += 1;
    }
}

/// Counters of one direction, in packets: `sent + copies = received + drops + inside`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Packets read from the device on the sending side.
    pub sent: Traffic,
    /// Packets written to the device on the receiving side.
    pub received: Traffic,
    /// Copies made by the path.
    pub copies: u64,
    /// Packets currently on the path.
    pub inside: u64,
    /// Dropped packets by reason; `carrier` counts the emulator's own failures.
    pub drops: Drops,
    /// Packets marked "congestion experienced".
    pub marked: u64,
    /// Packets damaged and forwarded.
    pub damaged: u64,
    /// Queue in front of the bottleneck.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<StandingQueue>,
    /// Counters of each stage, in path order.
    pub stages: Vec<StageCounters>,
}

impl Snapshot {
    /// Combines the counters of the path and of its carrier; `lost` counts packets dropped outside the path.
    pub(super) fn new(
        path: PathCounters,
        sent: Traffic,
        received: Traffic,
        lost: u64,
        queue: Option<StandingQueue>,
    ) -> Self {
        let PathCounters { copies, inside, mut drops, marked, damaged, stages, .. } = path;
        drops.count(DropReason::Carrier, lost);
        Self { sent, received, copies, inside, drops, marked, damaged, queue, stages }
    }

    /// Whether every packet is accounted for.
    pub fn adds_up(&self) -> bool {
        self.sent.packets + self.copies == self.received.packets + self.drops.total() + self.inside
            && self.stages.iter().all(StageCounters::adds_up)
    }
}
