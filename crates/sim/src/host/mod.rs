//! A receiving host: ring, softirq, socket buffers, and the tasks that compete for its core.
//!
//! An arriving packet occupies a slot of the NIC's ring (none free: [`HostDrop::NicRing`]). The softirq
//! passes it up the stack at a cost of core time, singly or merged with its neighbours, and queues it in the
//! socket buffer (full: [`HostDrop::SocketBuffer`]). The receiving task reads it when the scheduler runs the
//! task. Every loss has a reason: packets in = delivered + dropped + still inside.

mod cpu;
mod load;
mod nic;
mod receiver;
pub mod scheduler;
mod simulated;
mod socket;

use haul_base::Time;

pub use cpu::Cpu;
pub use load::{Load, LoadId, LoadSet};
pub use nic::{Gro, Nic, NicConfig};
pub use receiver::{HostConfig, HostCounters, ReceiverConfig, ReceivingHost};
pub use simulated::SimulatedHost;
pub use socket::{AdmitRule, Skb, SkbLayout, SocketBuffer, SocketConfig};

/// One packet, or several of equal size that travel as one (GSO), arriving at a host's network card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// Identifier chosen by the caller.
    pub tag: u64,
    /// Index of the destination socket.
    pub socket: u16,
    /// Flow of the packets. Packets of one flow may be merged.
    pub flow: u32,
    /// UDP payload of all packets, bytes.
    pub bytes: u32,
    /// Number of packets.
    pub packets: u32,
}

/// Reason for a drop in a host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HostDrop {
    /// The network card's ring had no free slot.
    NicRing,
    /// The socket buffer was full.
    SocketBuffer,
}

/// Result of an arrival at the network card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The packets are in the ring; [`ReceivingHost::advance`] reports their fate.
    Accepted,
    /// The packets were dropped.
    Dropped(HostDrop),
}

/// Fate of an accepted arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostOutput {
    /// The receiving program has read the packets.
    Delivered {
        /// The packets as they arrived.
        arrival: Incoming,
        /// When the program finished reading them.
        at: Time,
        /// When the kernel queued them.
        queued: Time,
        /// Whether they follow the previous delivery in the same buffer (GRO).
        continues: bool,
        /// The socket's wrapping count of dropped socket buffers when queued; `None` before the first drop.
        socket_drops: Option<u32>,
    },
    /// The packets were dropped after being accepted.
    Dropped {
        /// The packets as they arrived.
        arrival: Incoming,
        /// When they were dropped.
        at: Time,
        /// The queue or limit that dropped them.
        reason: HostDrop,
    },
}
