//! The UDP side of a session until it has its own socket, which is opened for the client's first challenge to the
//! listener's socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use haul_base::Ecn;
use haul_udp::{Options, UdpSocket};
use haul_wire::control::ControlMessage;
use haul_wire::packet::{ControlFrame, ControlFrameKind};

use super::path_probe::{BARE, Challenges};
use crate::crypto::{FrameKeys, challenge_number};
use crate::wake::block_until;
use crate::{Control, Direction, EngineError, Monitor};

/// The UDP side of one session, as an endpoint's driver sees it.
pub(crate) struct PendingSession(Monitor<State>);

struct State {
    keys: FrameKeys,
    /// Key of this end's challenges; it never leaves this process.
    challenge_key: [u8; 32],
    /// The address of the TCP connection, which is validated by it.
    control_peer: IpAddr,
    /// Where the client is: the source of the latest authentic frame that showed it.
    source: Option<SocketAddr>,
    /// How often it has moved.
    moves: u32,
    challenges: Challenges,
    stage: Stage,
}

/// How far the session is on its way to a socket of its own.
enum Stage {
    /// The application has not accepted it yet.
    Undecided,
    Accepted(Service),
    /// Its socket, or why there is none.
    Opened(Result<Arc<UdpSocket>, EngineError>),
}

/// What an accepted session brings.
pub(crate) struct Service {
    /// Where to say that UDP passes.
    pub(crate) control: Control,
    /// Where the client reached the server.
    pub(crate) local: SocketAddr,
    /// How to open the session's socket.
    pub(crate) options: Options,
    /// Nothing from the client by then: UDP is blocked.
    pub(crate) deadline: Instant,
}

/// What became of a control frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Once the session is accepted, challenges have a response.
    Taken(Option<Vec<u8>>),
    Unauthentic,
    /// Anybody may have copied it: this challenge goes to its source.
    Challenged(Vec<u8>),
}

impl PendingSession {
    /// For the session of whoever is connected from `control_peer` over TCP; `challenge_key` is random.
    pub(super) fn new(keys: FrameKeys, control_peer: IpAddr, challenge_key: [u8; 32]) -> Self {
        let state = State {
            keys,
            challenge_key,
            control_peer: control_peer.to_canonical(),
            source: None,
            moves: 0,
            challenges: Challenges::default(),
            stage: Stage::Undecided,
        };
        Self(Monitor::new(state))
    }

    /// Takes what claims to be a control frame of this session.
    pub(super) fn on_frame(&self, frame: &ControlFrame, from: SocketAddr) -> Verdict {
        use ControlFrameKind::{Challenge, Ping, Response};
        let mut state = self.0.lock();
        if !state.keys.verifies(frame) {
            return Verdict::Unauthentic;
        }
        match (frame.kind, state.is_known(from, frame)) {
            (Challenge, true) => state.challenges.note(frame),
            (Ping | Response, true) => {}
            (Challenge | Ping, false) => return Verdict::Challenged(state.challenge(from)),
            _ => return Verdict::Unauthentic,
        }
        state.move_to(from);
        let State { keys, challenges, stage, .. } = &mut **state;
        let response = if let Stage::Opened(_) = stage { challenges.respond(keys) } else { None };
        Monitor::release(state);
        Verdict::Taken(response)
    }

    /// What authenticates this end's control frames.
    pub(crate) fn keys(&self) -> FrameKeys {
        self.0.lock().keys.clone()
    }

    /// The size of the largest challenge that has come by the listener's socket.
    pub(crate) fn largest(&self) -> u16 {
        self.0.lock().challenges.largest()
    }

    /// The session has been accepted: from now on it may have its socket.
    pub(crate) fn serve(&self, service: Service) {
        let mut state = self.0.lock();
        state.stage = Stage::Accepted(service);
        state.open_socket();
    }

    /// The session's socket, once the client's first challenge has come.
    pub(crate) fn wait_for_socket(&self, control: &Control) -> Result<Arc<UdpSocket>, EngineError> {
        let (port, deadline) = match &self.0.lock().stage {
            Stage::Opened(socket) => return socket.clone(),
            Stage::Undecided => return Err(EngineError::Closed),
            Stage::Accepted(service) => (service.local.port(), service.deadline),
        };
        let socket = block_until(Some(deadline), |context| {
            let opened = self.0.poll(context, |state| match &state.stage {
                Stage::Opened(socket) => Some(socket.clone()),
                Stage::Undecided | Stage::Accepted(_) => None,
            });
            if opened.is_ready() { opened } else { control.poll_failure(context).map(Err) }
        });
        socket.unwrap_or(Err(EngineError::UdpBlocked { port, direction: Direction::ClientToServer }))
    }
}

impl State {
    /// Whether the sender of a frame is known to be at `from`: it has been heard there before, at first shares the
    /// address of the TCP connection, or has got what was sent there (RFC 9000, sections 8 and 9).
    fn is_known(&self, from: SocketAddr, frame: &ControlFrame) -> bool {
        let was_there = match self.source {
            Some(source) => source == from,
            None => from.ip().to_canonical() == self.control_peer,
        };
        was_there || frame.kind == ControlFrameKind::Response && frame.number == self.expected_response(from)
    }

    /// What an address has to send back. Derived without state, so copies from other addresses displace nothing; it
    /// changes with each move, so that copies of earlier responses are void.
    fn expected_response(&self, from: SocketAddr) -> u32 {
        challenge_number(&self.challenge_key, &format!("{} {from}", self.moves))
    }

    /// The client is here. Its session has a socket from now on, and sends here with it.
    fn move_to(&mut self, from: SocketAddr) {
        let before = self.source.replace(from).filter(|before| *before != from);
        if let Some(before) = before {
            tracing::debug!(%before, now = %from, "the client has moved");
            self.moves = self.moves.wrapping_add(1);
            if let Stage::Opened(Ok(socket)) = &self.stage {
                // Without a way there, the session is silent and ends.
                let _ = socket.connect(from);
            }
        }
        self.open_socket();
    }

    /// A datagram no longer than the frame that it is for.
    fn challenge(&self, from: SocketAddr) -> Vec<u8> {
        self.keys.frame(ControlFrameKind::Challenge, self.expected_response(from), BARE)
    }

    /// Opens the session's socket when both the accept and the client's address are there, and answers the challenges
    /// that wait.
    fn open_socket(&mut self) {
        let (Some(source), Stage::Accepted(service)) = (self.source, &self.stage) else { return };
        let socket = UdpSocket::connected(service.local, source, &service.options)
            .map_err(|e| EngineError::system("cannot open the session's UDP socket", e));
        if let Ok(socket) = &socket {
            // If the channel has failed the session finds out by itself; the client repeats a challenge that is lost.
            let size = self.challenges.largest().max(BARE);
            let _ = service.control.send_now(&ControlMessage::UdpSeen { size });
            while let Some(response) = self.challenges.respond(&self.keys) {
                let _ = socket.send(&response, response.len(), Ecn::NotEct);
            }
        }
        self.stage = Stage::Opened(socket.map(Arc::new));
    }
}
