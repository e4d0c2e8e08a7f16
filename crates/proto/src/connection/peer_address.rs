//! Validation of the other end's address, for sessions and connections alike. Anybody can send a copied packet from any
//! address, so an address counts only once it has sent back what was sent to it (RFC 9000, sections 8 and 9). Until
//! then a new connection sends nothing but challenges, each for a packet of about its size, and a running one stays at
//! the address that it had.

use std::net::SocketAddr;

use haul_wire::packet::{CONTROL_FRAME_LEN, ConnectionId, ControlFrameKind};

use super::protection::{FrameKeys, challenge_number};

/// The size of a challenge that asks for an address only.
pub const BARE: u16 = CONTROL_FRAME_LEN as u16;

/// An address of IPv4 as such, also where a socket for both families has it as one of IPv6.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => v6.ip().to_ipv4_mapped().map_or(address, |ip| (ip, v6.port()).into()),
        SocketAddr::V4(_) => address,
    }
}

/// Where the other end is.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress {
    /// The validated address, or the one that the other end has by its TCP connection or its first packet.
    pub at: SocketAddr,
    /// How often it has moved. `None`: the address is not validated. It is once the other end has answered a challenge
    /// there, or as that of its TCP connection or of an earlier connection.
    pub moves: Option<u32>,
}

impl PeerAddress {
    /// Where it is, if that is validated.
    pub fn validated(&self) -> Option<SocketAddr> {
        self.moves.map(|_| self.at)
    }

    /// What an address has to send back. Derived without state, so copies from other addresses displace nothing; it
    /// changes with each move, so that copies of earlier responses are void.
    pub fn expected_response(&self, key: &[u8; 32], id: &ConnectionId, address: SocketAddr) -> u32 {
        let what = format!("{} {} {} {:?} {address}", id.identity, id.epoch, id.salt, self.moves);
        challenge_number(key, &what)
    }

    /// What asks `address` for that: a datagram no longer than the shortest that it is for.
    pub fn challenge(&self, key: &[u8; 32], frames: &FrameKeys, address: SocketAddr) -> Vec<u8> {
        frames.frame(ControlFrameKind::Challenge, self.expected_response(key, &frames.id, address), BARE)
    }

    /// The other end has shown itself at `address`.
    pub fn move_to(&mut self, address: SocketAddr) {
        if self.validated() != Some(address) {
            *self = Self { at: address, moves: Some(self.moves.unwrap_or(0).wrapping_add(1)) };
        }
    }
}
