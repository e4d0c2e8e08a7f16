//! Control frames of a connection: opened, close, keep-alive and address validation.

use std::net::SocketAddr;

use haul_base::{Span, Time};
use haul_proto::connection::{BARE, Due, Ending};
use haul_wire::control::{Fault, FaultCode};
use haul_wire::packet::{CloseReason, ControlFrame, ControlFrameKind};

use super::connection::{Connection, Header, State};
use super::socket::EndpointSocket;
use crate::{Direction, EngineError};

impl Connection {
    pub(super) fn send_frame(
        &self,
        shared: &EndpointSocket,
        to: SocketAddr,
        kind: ControlFrameKind,
        number: u32,
    ) {
        shared.send(&self.keys.frames().frame(kind, number, BARE), to);
    }

    /// An authentic control frame of this connection has come.
    pub(super) fn on_frame(
        &self,
        shared: &EndpointSocket,
        now: Time,
        frame: &ControlFrame,
        from: SocketAddr,
    ) {
        let mut state = self.lock();
        let peer = state.peer.at;
        match frame.kind {
            // It has no number of its own, so only the first counts: later ones may be copies.
            ControlFrameKind::Opened if state.lifecycle.is_unconfirmed() => {
                // The stack's own measurement is better.
                if let Some(waited) = state.lifecycle.header_age(now).filter(|_| state.authentic() == 0) {
                    state.on_answered(now, waited);
                }
                state.on_authentic(now);
            }
            ControlFrameKind::Close | ControlFrameKind::Forget => {
                self.send_frame(shared, peer, ControlFrameKind::Closed, 0);
                // The last message of a control channel says why.
                let is_told = frame.number == CloseReason::Graceful as u32 || frame.id.has_control_channel();
                state.end(if is_told { EngineError::Closed } else { aborted_by_peer() });
            }
            ControlFrameKind::Closed => state.end(EngineError::Closed),
            ControlFrameKind::Ping => self.send_frame(shared, peer, ControlFrameKind::Pong, frame.number),
            ControlFrameKind::Challenge => {
                let response = self.keys.frames().frame(ControlFrameKind::Response, frame.number, frame.size);
                shared.send(&response, peer);
            }
            ControlFrameKind::Response => self.on_response(shared, &mut state, from, frame.number),
            ControlFrameKind::Pong if state.lifecycle.is_answered_by(frame.number) => state.on_authentic(now),
            ControlFrameKind::Opened | ControlFrameKind::Pong => {}
        }
        self.settle(shared, &mut state, now);
        Connection::release(state);
    }

    /// Sends the control frames and bare initial headers that are due.
    pub(super) fn send_due_frames(&self, shared: &EndpointSocket, state: &mut State, now: Time) {
        let (peer, rtt) = (state.peer, state.stack.path().rtt);
        while let Some(due) = state.lifecycle.poll_due(now, rtt) {
            if let Due::Header | Due::Frame { opens: true, .. } = due {
                shared.send(&self.keys.frames().initial_header(), peer.at);
            }
            match (due, peer.validated()) {
                (Due::Frame { kind, number, .. }, Some(peer)) => self.send_frame(shared, peer, kind, number),
                (Due::End(ending), _) => state.end(ended_by(ending, peer.at)),
                _ => {}
            }
        }
    }

    pub(super) fn challenge(&self, shared: &EndpointSocket, state: &State, address: SocketAddr) {
        let frames = self.keys.frames();
        shared.send(&state.peer.challenge(&shared.challenge_key, &frames, address), address);
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
        let is_challenged = state.peer.validated().is_none() && header == Header::Present;
        if state.peer.at != from && !is_challenged {
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
        let opens = state.peer.validated().is_none();
        let expected = || state.peer.expected_response(&shared.challenge_key, &self.id(), from);
        if state.peer.validated() == Some(from) || number != expected() {
            return;
        }
        state.peer.move_to(from);
        if opens {
            self.send_frame(shared, from, ControlFrameKind::Opened, 0);
        }
    }
}

impl State {
    pub(super) fn ended(&self) -> Option<EngineError> {
        self.lifecycle.is_ended().then(|| self.lifecycle.failure().cloned().unwrap_or(EngineError::Closed))
    }

    /// Ends the connection; the first reason counts.
    pub(super) fn end(&mut self, error: EngineError) {
        self.lifecycle.end(if let EngineError::Closed = error { None } else { Some(error) });
    }

    /// Ends the connection: for so long nothing of the other end has come.
    pub(super) fn end_silent(&mut self, span: Span) {
        self.end(EngineError::Silent(span.as_secs_f64()));
    }

    pub(super) fn start_close(&mut self, now: Time, kind: ControlFrameKind, reason: CloseReason) {
        match self.peer.validated() {
            Some(_) => self.lifecycle.start_close(now, kind, reason),
            None => self.end(EngineError::Closed),
        }
    }
}

/// The error of a connection that time has ended; a server at `peer` may never have answered.
fn ended_by(ending: Ending, peer: SocketAddr) -> EngineError {
    match ending {
        Ending::Closed => EngineError::Closed,
        Ending::Silent(span) => EngineError::Silent(span.as_secs_f64()),
        Ending::Unanswered => {
            EngineError::UdpBlocked { port: peer.port(), direction: Direction::ClientToServer }
        }
    }
}

fn aborted_by_peer() -> EngineError {
    let message = "the other side has broken off";
    EngineError::Peer(Fault::new(FaultCode::PeerStopped, message, "run it again on both sides"))
}
