//! A receiving host: ring, softirq, socket buffers, and the tasks that compete for its core.
//!
//! A packet that arrives takes a slot of the NIC's ring (none free: [`HostDrop::NicRing`]). The softirq takes it up
//! the stack at the cost of core time, alone or merged with its neighbours, and queues it in the socket buffer (full:
//! [`HostDrop::SocketBuffer`]). The receiving task reads it when the scheduler lets it run. Nothing is lost without
//! a reason: packets in = delivered + dropped + still inside.

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

/// One packet, or several of equal size that travel as one (GSO), at a host's network card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// The caller's name for it.
    pub tag: u64,
    /// To which of the host's sockets it goes.
    pub socket: u16,
    /// Packets of one flow may be merged.
    pub flow: u32,
    /// UDP payload of all its packets.
    pub bytes: u32,
    /// How many packets.
    pub packets: u32,
}

/// Why a host lost a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HostDrop {
    /// No slot was free in the network card's ring.
    NicRing,
    /// The socket buffer was full.
    SocketBuffer,
}

/// What a network card does with an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It is in the ring; what becomes of it, [`ReceivingHost::advance`] will say.
    Accepted,
    /// It is gone.
    Dropped(HostDrop),
}

/// What has become of an arrival that was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostOutput {
    /// The receiving program has read it.
    Delivered {
        /// The packets as they arrived.
        arrival: Incoming,
        /// When the program had it in its hands.
        at: Time,
        /// When the kernel queued it.
        queued: Time,
        /// Whether it lies behind the delivery before it in one buffer (GRO).
        continues: bool,
        /// The socket's wrapping count of dropped socket buffers when it was queued; absent before the first.
        socket_drops: Option<u32>,
    },
    /// It was lost on the way.
    Dropped {
        /// The packets as they arrived.
        arrival: Incoming,
        /// When they were dropped.
        at: Time,
        /// The queue or limit that dropped them.
        reason: HostDrop,
    },
}
