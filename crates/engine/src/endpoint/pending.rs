//! The UDP side of sessions: the client's socket and probe, and the server's sessions by the number in their
//! control frames. A server's socket is opened when the first challenge arrives at the listener's socket.

use std::collections::HashMap;
use std::collections::hash_map::Entry::Vacant;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use haul_base::Ecn;
use haul_proto::connection::{self, BARE_FRAME_LEN, Challenge, EarlyFrames, FrameKeys, PathProbe, Verdict};
use haul_udp::{Options, SendError, UdpSocket};
use haul_wire::control::ControlMessage;
use haul_wire::packet::{ControlFrame, ControlFrameKind};

use crate::wake::{block_until, lock};
use crate::{Control, Direction, EngineError, Monitor};

/// Sessions by number.
#[derive(Default)]
pub(crate) struct SessionTable(Mutex<Sessions>);

#[derive(Default)]
struct Sessions {
    by_number: HashMap<u32, Weak<PendingSession>>,
    early: EarlyFrames,
}

impl SessionTable {
    /// Registers a session with these keys, whose client is connected from `control_peer` over TCP; `None` if
    /// its number is taken (probability about 2^-32). `challenge_key` must be random.
    pub(crate) fn register(
        self: &Arc<Self>,
        keys: FrameKeys,
        control_peer: SocketAddr,
        challenge_key: [u8; 32],
    ) -> Option<Arc<PendingSession>> {
        let session = keys.id.identity;
        let mut sessions = lock(&self.0);
        let Vacant(place) = sessions.by_number.entry(session) else { return None };
        let machine = connection::PendingSession::new(keys, control_peer, challenge_key);
        let state = Monitor::new(PendingState { machine, stage: Stage::Undecided });
        let pending = Arc::new(PendingSession { session, table: Arc::downgrade(self), state });
        place.insert(Arc::downgrade(&pending));
        let early = sessions.early.take(session);
        drop(sessions);
        for (frame, source) in early {
            // The client will repeat a frame whose source must be validated first.
            pending.on_frame(&frame, source);
        }
        Some(pending)
    }

    /// Finds the session of a frame. If there is none yet, keeps the frame for a while.
    pub(super) fn find(&self, frame: &ControlFrame, source: SocketAddr) -> Option<Arc<PendingSession>> {
        let mut sessions = lock(&self.0);
        let found = sessions.by_number.get(&frame.id.identity).and_then(Weak::upgrade);
        if found.is_none() {
            sessions.early.keep(frame, source);
        }
        found
    }

    /// Returns the number of sessions, counted from the end of the TLS handshake.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).by_number.len()
    }
}

/// The UDP state of a session. Dropping it removes it from the table.
pub(crate) struct PendingSession {
    pub(crate) session: u32,
    table: Weak<SessionTable>,
    state: Monitor<PendingState>,
}

impl Drop for PendingSession {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            lock(&table.0).by_number.remove(&self.session);
        }
    }
}

struct PendingState {
    machine: connection::PendingSession,
    stage: Stage,
}

/// Progress towards a socket for this session.
enum Stage {
    /// The application has not accepted the session yet.
    Undecided,
    Accepted(Service),
    /// Its socket, or why it could not be opened.
    Opened(Result<Arc<UdpSocket>, EngineError>),
}

/// What an accepted session needs to open its socket.
pub(crate) struct Service {
    /// Channel on which to report that UDP works.
    pub(crate) control: Control,
    /// Local address to which the client connected.
    pub(crate) local: SocketAddr,
    /// Options of the session's socket.
    pub(crate) options: Options,
    /// UDP counts as blocked if no challenge arrives by then.
    pub(crate) deadline: Instant,
}

impl PendingSession {
    /// Handles a purported control frame of this session. Returns the verdict and, once the session has its
    /// socket, the response to a challenge.
    pub(super) fn on_frame(&self, frame: &ControlFrame, from: SocketAddr) -> (Verdict, Option<Vec<u8>>) {
        let mut state = self.state.lock();
        let before = state.machine.peer();
        let verdict = state.machine.on_frame(frame, from);
        if verdict != Verdict::Consumed {
            return (verdict, None);
        }
        if let (true, Stage::Opened(Ok(socket))) = (before != Some(from), &state.stage) {
            // The client's address changed. If connecting fails, the session goes silent and times out.
            let _ = socket.connect(from);
        }
        state.open_socket();
        let response = if let Stage::Opened(_) = state.stage { state.machine.poll_response() } else { None };
        Monitor::release(state);
        (verdict, response)
    }

    /// Returns the size of the largest challenge received on the listener's socket.
    pub(crate) fn largest(&self) -> u16 {
        self.state.lock().machine.largest()
    }

    /// Accepts the session: its socket may be opened from now on.
    pub(crate) fn serve(&self, service: Service) {
        let mut state = self.state.lock();
        state.stage = Stage::Accepted(service);
        state.open_socket();
    }

    /// Returns the session's socket; waits for the client's first challenge.
    pub(crate) fn wait_for_socket(&self, control: &Control) -> Result<Arc<UdpSocket>, EngineError> {
        let (port, deadline) = match &self.state.lock().stage {
            Stage::Opened(socket) => return socket.clone(),
            Stage::Undecided => return Err(EngineError::Closed),
            Stage::Accepted(service) => (service.local.port(), service.deadline),
        };
        let socket = block_until(Some(deadline), |context| {
            let opened = self.state.poll(context, |state| match &state.stage {
                Stage::Opened(socket) => Some(socket.clone()),
                Stage::Undecided | Stage::Accepted(_) => None,
            });
            if opened.is_ready() { opened } else { control.poll_ended(context).map(Err) }
        });
        socket.unwrap_or(Err(EngineError::UdpBlocked { port, direction: Direction::ClientToServer }))
    }
}

impl PendingState {
    /// Opens the socket once the session is accepted and the client's address known; answers pending
    /// challenges.
    fn open_socket(&mut self) {
        let (Some(source), Stage::Accepted(service)) = (self.machine.peer(), &self.stage) else { return };
        let socket = UdpSocket::connected(service.local, source, &service.options)
            .map_err(|e| EngineError::system("cannot open the session's UDP socket", e));
        if let Ok(socket) = &socket {
            // Best effort: a failed channel ends the session, and the client repeats unanswered challenges.
            let size = self.machine.largest().max(BARE_FRAME_LEN);
            let _ = service.control.send_now(&ControlMessage::UdpSeen { size });
            while let Some(response) = self.machine.poll_response() {
                let _ = socket.send(&response, response.len(), Ecn::NotEct);
            }
        }
        self.stage = Stage::Opened(socket.map(Arc::new));
    }
}

/// The UDP state of a session, by role.
pub(crate) enum UdpSide {
    Client(Arc<UdpSocket>, Box<PathProbe>),
    /// Kept so that late challenges still find the session.
    Server(Arc<PendingSession>),
}

impl UdpSide {
    pub(crate) fn largest(&self) -> u16 {
        match self {
            Self::Client(..) => 0,
            Self::Server(pending) => pending.largest(),
        }
    }

    /// Returns the socket connected to the peer's UDP address. The client's exists already, as data may
    /// follow unanswered challenges. The server waits for the client's first challenge.
    pub(crate) fn socket(&self, control: &Control) -> Result<Arc<UdpSocket>, EngineError> {
        match self {
            Self::Client(socket, _) => Ok(socket.clone()),
            Self::Server(pending) => pending.wait_for_socket(control),
        }
    }
}

/// Sends the pending probes. Those that the system rejects are retried in the next round.
pub(crate) fn send_probes(socket: &UdpSocket, probe: &mut PathProbe, frames: impl Fn() -> FrameKeys) {
    while let Some(Challenge { number, size }) = probe.poll_transmit() {
        let packet = frames().frame(ControlFrameKind::Challenge, number, size);
        if let Err(SendError::TooLarge) = socket.send(&packet, packet.len(), Ecn::NotEct) {
            probe.on_too_large(packet.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_proto::connection::ResumptionSecret;
    use haul_wire::packet::{ConnectionId, ControlFrameKind};

    use super::*;
    use crate::Role;

    fn keys(session: u32, role: Role) -> FrameKeys {
        FrameKeys::new(&ResumptionSecret([1; 32].into()), ConnectionId::of_session(session), role)
    }

    fn register(table: &Arc<SessionTable>, session: u32) -> Option<Arc<PendingSession>> {
        table.register(keys(session, Role::Server), ([192, 0, 2, 7], 5000).into(), [6; 32])
    }

    fn challenge(session: u32) -> ControlFrame {
        let packet = keys(session, Role::Client).frame(ControlFrameKind::Challenge, 7, 1200);
        ControlFrame::parse(&packet).unwrap()
    }

    #[test]
    fn a_challenge_that_overtakes_the_handshake_is_delivered_later() {
        let table = Arc::new(SessionTable::default());
        let source: SocketAddr = ([192, 0, 2, 7], 5000).into();
        assert!(table.find(&challenge(5), source).is_none());
        assert!(table.find(&ControlFrame { number: 99, ..challenge(6) }, source).is_none());
        let session = register(&table, 5).unwrap();
        assert_eq!(session.largest(), 1200);
        assert!(table.find(&challenge(5), source).is_some());
        assert!(register(&table, 5).is_none());
        assert_eq!(register(&table, 6).unwrap().largest(), 0, "a forged one counts for nothing");
        drop(session);
        assert_eq!(table.len(), 0);
    }
}
