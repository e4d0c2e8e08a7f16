//! State of the sending side that persists between calls.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use haul_base::Ecn;

use crate::capabilities::{Capabilities, Support};

/// Maximum bytes per call: 65,535 of an IP packet (RFC 791) minus 20 of IPv4 header and 8 of UDP header.
pub(crate) const MAX_CALL: usize = 65_507;

/// How a batch was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Segmented by the kernel or the network card.
    Gso,
    /// Datagram by datagram, because there was only one, or GSO is disabled or missing.
    Plain,
    /// Datagram by datagram, because the kernel rejected GSO for this call or recently.
    Fallback,
}

/// Sending state of a socket.
#[derive(Debug)]
pub(crate) struct SendState {
    pub(crate) max_segments: usize,
    pub(crate) ecn_per_call: bool,
    /// Number of further calls without GSO.
    pub(crate) without_gso: AtomicU32,
    /// The socket's ECN bits; only used if they are not set per call.
    pub(crate) socket_ecn: AtomicU8,
    /// Whether the connected peer has an IPv4 address. Asking the kernel would cost a call per batch.
    pub(crate) is_peer_v4: AtomicBool,
}

impl SendState {
    pub(crate) fn new(capabilities: &Capabilities) -> Self {
        Self {
            max_segments: capabilities.gso.max_segments,
            ecn_per_call: capabilities.ecn_send == Support::Available,
            without_gso: AtomicU32::new(0),
            socket_ecn: AtomicU8::new(Ecn::NotEct as u8),
            is_peer_v4: AtomicBool::new(true),
        }
    }

    /// Notes that the socket is connected to `peer`.
    pub(crate) fn set_peer(&self, peer: SocketAddr) {
        self.is_peer_v4.store(is_v4(peer.ip()), Ordering::Relaxed);
    }

    /// Returns how to send a batch of several datagrams.
    pub(crate) fn method(&self) -> Method {
        if self.max_segments <= 1 {
            return Method::Plain;
        }
        let count_down = |remaining: u32| remaining.checked_sub(1);
        match self.without_gso.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count_down) {
            Ok(_) => Method::Fallback,
            Err(_) => Method::Gso,
        }
    }

    /// Returns how many bytes one GSO call can take.
    pub(crate) fn gso_bytes(&self, segment_size: usize) -> usize {
        (MAX_CALL / segment_size).clamp(1, self.max_segments) * segment_size
    }
}

/// Whether packets to `ip` are IPv4 packets.
pub(crate) fn is_v4(ip: IpAddr) -> bool {
    ip.to_canonical().is_ipv4()
}
