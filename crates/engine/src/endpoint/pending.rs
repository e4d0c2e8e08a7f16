//! The UDP side of a session until it has its own socket, which is opened for the client's first challenge to the
//! listener's socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_base::Ecn;
use haul_udp::{Options, UdpSocket};
use haul_wire::control::ControlMessage;
use haul_wire::packet::{ControlFrame, ControlFrameKind};

use super::path_probe::{BARE, Challenges};
use crate::crypto::{FrameKeys, challenge_number};
use crate::{Control, Direction, EngineError};

/// Longest time without a look at the control channel.
const LOOK: Duration = Duration::from_millis(50);

/// The UDP side of one session, as an endpoint's driver sees it.
pub(crate) struct PendingSession {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    keys: FrameKeys,
    /// Key of this end's challenges; it never leaves this process.
    challenge_key: [u8; 32],
    /// The address of the TCP connection, which is validated by it.
    control_peer: IpAddr,
    /// The source of the first authentic frame from a validated address. Others are ignored.
    source: Option<SocketAddr>,
    challenges: Challenges,
    stage: Stage,
}

/// How far the session is on its way to a socket of its own.
enum Stage {
    /// The application has not accepted it yet.
    Undecided,
    Accepted(Service),
    /// Its socket, or why there is none; taken once.
    Opened(Option<Box<Result<UdpSocket, EngineError>>>),
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
    /// From another address than the first.
    Foreign,
}

impl PendingSession {
    /// For the session of whoever is connected from `control_peer` over TCP; `challenge_key` is random.
    pub(super) fn new(keys: FrameKeys, control_peer: IpAddr, challenge_key: [u8; 32]) -> Self {
        let state = State {
            keys,
            challenge_key,
            control_peer: control_peer.to_canonical(),
            source: None,
            challenges: Challenges::default(),
            stage: Stage::Undecided,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what claims to be a control frame of this session.
    pub(super) fn on_frame(&self, frame: &ControlFrame, from: SocketAddr) -> Verdict {
        let mut state = self.lock();
        if state.source.is_some_and(|source| source != from) {
            return Verdict::Foreign;
        }
        if !state.keys.verifies(frame) {
            return Verdict::Unauthentic;
        }
        match (frame.kind, state.is_known(from, frame)) {
            (ControlFrameKind::Challenge, true) => state.challenges.note(frame),
            (ControlFrameKind::Challenge, false) => return Verdict::Challenged(state.challenge(from)),
            (ControlFrameKind::Response, true) => {}
            _ => return Verdict::Unauthentic,
        }
        state.source = Some(from);
        state.open_socket();
        let State { keys, challenges, stage, .. } = &mut *state;
        let response = if let Stage::Opened(_) = stage { challenges.respond(keys) } else { None };
        drop(state);
        self.changed.notify_all();
        Verdict::Taken(response)
    }

    /// The size of the largest challenge that has come by the listener's socket.
    pub(crate) fn largest(&self) -> u16 {
        self.lock().challenges.largest()
    }

    /// The session has been accepted: from now on it may have its socket.
    pub(crate) fn serve(&self, service: Service) {
        let mut state = self.lock();
        state.stage = Stage::Accepted(service);
        state.open_socket();
    }

    /// The session's socket, once the client's first challenge has come.
    pub(crate) fn wait_for_socket(&self, control: &Control) -> Result<UdpSocket, EngineError> {
        let mut state = self.lock();
        loop {
            let service = match &mut state.stage {
                Stage::Opened(socket) => {
                    return socket.take().map_or(Err(EngineError::Closed), |opened| *opened);
                }
                Stage::Undecided => return Err(EngineError::Closed),
                Stage::Accepted(service) => service,
            };
            let left = service.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let direction = Direction::ClientToServer;
                return Err(EngineError::UdpBlocked { port: service.local.port(), direction });
            }
            if let Some(error) = control.failure() {
                return Err(error);
            }
            let waited = self.changed.wait_timeout(state, left.min(LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// Whether the sender of a frame is known to be at `from`: it has been heard there before, shares the address of the
    /// TCP connection, or has got what was sent there (RFC 9000, section 8).
    fn is_known(&self, from: SocketAddr, frame: &ControlFrame) -> bool {
        let has_responded =
            || frame.kind == ControlFrameKind::Response && frame.number == self.expected_response(from);
        self.source.is_some() || from.ip().to_canonical() == self.control_peer || has_responded()
    }

    /// What an address has to send back. Derived without state, so copies from other addresses displace nothing.
    fn expected_response(&self, from: SocketAddr) -> u32 {
        challenge_number(&self.challenge_key, &from.to_string())
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
        self.stage = Stage::Opened(Some(Box::new(socket)));
    }
}
