//! What one direction has done so far.

use haul_sim::{DropReason, Drops, PathCounters, StageCounters, StandingQueue};
use serde::Serialize;

/// Packets through a device, in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Packets, each of a super-packet counted.
    pub packets: u64,
    /// Their bytes with IP headers.
    pub bytes: u64,
    /// Reads or writes: a super-packet is one.
    pub buffers: u64,
}

impl Traffic {
    pub(crate) fn count(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
        self.buffers += 1;
    }
}

/// The truth about one direction, in packets: `sent + copies = received + drops + inside`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// What came out of the device on the sending side.
    pub sent: Traffic,
    /// What went into the device on the receiving side.
    pub received: Traffic,
    /// Copies that the path made.
    pub copies: u64,
    /// Packets on the path.
    pub inside: u64,
    /// Packets that died, by reason; `carrier` is the emulator's own fault.
    pub drops: Drops,
    /// Packets marked "congestion experienced".
    pub marked: u64,
    /// Packets that were damaged and went on.
    pub damaged: u64,
    /// What waits in front of the bottleneck.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<StandingQueue>,
    /// The same for every stage, in the order of the path.
    pub stages: Vec<StageCounters>,
}

impl Snapshot {
    /// Puts together what the path and what carries it have counted; `lost` are packets that died outside of the
    /// path.
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
