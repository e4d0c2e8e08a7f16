//! Validation of the peer's address, for sessions and connections. Anybody can send a copied packet from any
//! address, so an address is valid only once it has returned what was sent to it (RFC 9000, sections 8 and
//! 9). Until then a new connection sends only challenges, each in response to a packet of about its size, and
//! an established one keeps its previous address.

use std::net::SocketAddr;

use haul_wire::packet::{CONTROL_FRAME_LEN, ConnectionId, ControlFrameKind};

use super::protection::{FrameKeys, challenge_number};

/// Size of a challenge that only validates an address.
pub const BARE_FRAME_LEN: u16 = CONTROL_FRAME_LEN as u16;

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => v6.ip().to_ipv4_mapped().map_or(address, |ip| (ip, v6.port()).into()),
        SocketAddr::V4(_) => address,
    }
}

/// Address of the peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress {
    /// The validated address, or the peer's address on its TCP connection or of its first packet.
    pub at: SocketAddr,
    /// Number of address changes. `None`: the address is not validated. It is validated by a response to a
    /// challenge, by the TCP connection, or by an earlier connection.
    pub moves: Option<u32>,
}

impl PeerAddress {
    /// Returns the address if it is validated.
    pub fn validated(&self) -> Option<SocketAddr> {
        self.moves.map(|_| self.at)
    }

    /// Returns the number that an address has to return. Derived without state, so copies from other
    /// addresses displace nothing; it changes with each move, so copies of earlier responses are void.
    pub fn expected_response(&self, key: &[u8; 32], id: &ConnectionId, address: SocketAddr) -> u32 {
        let description = format!("{} {} {} {:?} {address}", id.identity, id.epoch, id.salt, self.moves);
        challenge_number(key, &description)
    }

    /// Returns the challenge for `address`: 36 bytes, where the shortest packet that triggers it has 31.
    pub fn challenge(&self, key: &[u8; 32], frames: &FrameKeys, address: SocketAddr) -> Vec<u8> {
        frames.frame(
            ControlFrameKind::Challenge,
            self.expected_response(key, &frames.id, address),
            BARE_FRAME_LEN,
        )
    }

    /// Moves the peer to `address`, which is validated.
    pub fn move_to(&mut self, address: SocketAddr) {
        if self.validated() != Some(address) {
            *self = Self { at: address, moves: Some(self.moves.unwrap_or(0).wrapping_add(1)) };
        }
    }
}
