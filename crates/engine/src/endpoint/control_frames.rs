//! Control frames of a connection: opened, close, keep-alive and address validation.

use std::net::SocketAddr;

use crate::error::CloseReason;
use haul_base::{Span, Time};
use haul_wire::control::{Fault, FaultCode};
use haul_wire::packet::{ControlFrame, ControlFrameKind};

use super::connection::{Connection, Header, State};
use super::path_probe::BARE;
use super::phase::{Closing, KeepAlive, Phase};
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
            ControlFrameKind::Opened => match &state.phase {
                Phase::Opening(opening) => {
                    // The stack's own measurement is better.
                    if let Some(waited) = opening.waited(now).filter(|_| state.authentic() == 0) {
                        state.on_answered(now, waited);
                    }
                    state.on_authentic(now);
                }
                Phase::Closing(closing) if closing.opens() => state.on_authentic(now),
                _ => {}
            },
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
            ControlFrameKind::Pong => {
                let asked = |alive: &KeepAlive| alive.unanswered > 0 && alive.number == frame.number;
                if state.keep_alive.as_deref().is_some_and(asked) {
                    state.on_authentic(now);
                }
            }
        }
        self.settle(shared, &mut state, now);
        Connection::release(state);
    }

    /// Sends the control frames and bare initial headers that are due.
    pub(super) fn send_due_frames(&self, shared: &EndpointSocket, state: &mut State, now: Time) {
        let (peer, rtt) = (state.peer.at, state.stack.path().rtt);
        match &mut state.phase {
            Phase::Opening(opening) if opening.until <= now => state.end(no_answer(peer)),
            Phase::Opening(opening) if opening.next <= now => {
                opening.on_bare(now);
                shared.send(&self.keys.frames().initial_header(), peer);
            }
            Phase::Closing(closing) if closing.next <= now => {
                let (kind, reason, opens) = (closing.kind, closing.reason, closing.opens());
                match (closing.next_attempt(now, rtt), opens) {
                    (true, true) => {
                        shared.send(&self.keys.frames().initial_header(), peer);
                        self.send_frame(shared, peer, kind, reason as u32);
                    }
                    (true, false) => self.send_frame(shared, peer, kind, reason as u32),
                    (false, true) => state.end(no_answer(peer)),
                    (false, false) => state.end(EngineError::Closed),
                }
            }
            _ => {}
        }
        self.keep_alive(shared, state, now);
    }

    fn keep_alive(&self, shared: &EndpointSocket, state: &mut State, now: Time) {
        let rtt = state.stack.path().rtt;
        let Some(alive) = state.keep_alive.as_mut().filter(|alive| alive.next <= now) else { return };
        if alive.unanswered == KeepAlive::MOST {
            return state.end_silent(now.since(state.heard));
        }
        alive.on_ping(now, rtt);
        let number = alive.number;
        if let Some(peer) = state.peer.validated() {
            self.send_frame(shared, peer, ControlFrameKind::Ping, number);
        }
    }
}

impl Connection {
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
        match &self.phase {
            Phase::Ended(failure) => Some(failure.as_deref().cloned().unwrap_or(EngineError::Closed)),
            _ => None,
        }
    }

    /// This end has closed, or the connection has ended.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing(_) | Phase::Ended(_))
    }

    /// The other end has not shown yet that it knows the connection.
    pub(super) fn is_unconfirmed(&self) -> bool {
        match &self.phase {
            Phase::Opening(_) => true,
            Phase::Closing(closing) => closing.opens(),
            Phase::Running | Phase::Ended(_) => false,
        }
    }

    /// Ends the connection; the first reason counts.
    pub(super) fn end(&mut self, error: EngineError) {
        if !matches!(self.phase, Phase::Ended(_)) {
            let failure = if let EngineError::Closed = error { None } else { Some(Box::new(error)) };
            self.phase = Phase::Ended(failure);
        }
    }

    /// Ends the connection: for so long nothing of the other end has come.
    pub(super) fn end_silent(&mut self, span: Span) {
        self.end(EngineError::Silent(span.as_secs_f64()));
    }

    pub(super) fn start_close(&mut self, now: Time, kind: ControlFrameKind, reason: CloseReason) {
        if self.peer.validated().is_none() {
            return self.end(EngineError::Closed);
        }
        let opening = match &self.phase {
            Phase::Opening(opening) => Some(opening.until),
            Phase::Running => None,
            Phase::Closing(_) | Phase::Ended(_) => return,
        };
        self.phase = Phase::Closing(Box::new(Closing::new(now, kind, reason, opening)));
    }
}

/// The error of a connection that the server has never answered.
fn no_answer(peer: SocketAddr) -> EngineError {
    EngineError::UdpBlocked { port: peer.port(), direction: Direction::ClientToServer }
}

fn aborted_by_peer() -> EngineError {
    let message = "the other side has broken off";
    EngineError::Peer(Fault::new(FaultCode::PeerStopped, message, "run it again on both sides"))
}
