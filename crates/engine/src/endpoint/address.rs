//! Validation of the other end's address. Anybody can send a copied packet from any address, so an address counts only
//! once it has sent back what was sent to it (RFC 9000, sections 8 and 9). Until then a new connection sends nothing
//! but challenges, each for a packet of about its size, and a running one stays at the address that it had.

use std::net::SocketAddr;

use haul_wire::packet::ControlFrameKind;

use super::connection::{Connection, Header, State};
use super::socket::EndpointSocket;
use crate::crypto::challenge_number;

impl Connection {
    pub(super) fn challenge(&self, shared: &EndpointSocket, state: &State, address: SocketAddr) {
        self.send_frame(
            shared,
            address,
            ControlFrameKind::Challenge,
            self.expected_response(shared, state, address),
        );
    }

    /// What an address has to send back. It changes with each move, so that copies of earlier responses are void.
    fn expected_response(&self, shared: &EndpointSocket, state: &State, address: SocketAddr) -> u32 {
        let id = self.id();
        let what = format!("{} {} {} {:?} {address}", id.identity, id.epoch, id.salt, state.moves);
        challenge_number(&shared.challenge_key, &what)
    }

    /// Authentic packets with the highest packet number so far have come from `from`.
    pub(super) fn on_newest_from(
        &self,
        shared: &EndpointSocket,
        state: &State,
        from: SocketAddr,
        header: Header,
    ) {
        // The initial header has been answered by a challenge already.
        let is_challenged = state.validated_peer().is_none() && header == Header::Present;
        if state.peer != from && !is_challenged {
            self.challenge(shared, state, from);
        }
    }

    /// A response has come: if it is right, the connection moves to its address.
    pub(super) fn on_response(
        &self,
        shared: &EndpointSocket,
        state: &mut State,
        from: SocketAddr,
        number: u32,
    ) {
        let is_new = state.peer != from || state.validated_peer().is_none();
        if !is_new || number != self.expected_response(shared, state, from) {
            return;
        }
        tracing::debug!(before = %state.peer, now = %from, "the other end has moved");
        let opens = state.validated_peer().is_none();
        state.peer = from;
        state.moves = Some(state.moves.unwrap_or(0).wrapping_add(1));
        if opens {
            self.send_frame(shared, from, ControlFrameKind::Opened, 0);
        }
    }
}

impl State {
    pub(super) fn validated_peer(&self) -> Option<SocketAddr> {
        self.moves.map(|_| self.peer)
    }
}
