//! The sessions that control frames can be for, and the UDP side of each until it has its own socket, which is opened
//! for the client's first challenge to the listener's socket.

use std::collections::hash_map::Entry::Vacant;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use haul_base::Ecn;
use haul_proto::connection::{BARE, Challenge, Challenges, FrameKeys, PeerAddress};
use haul_udp::{Options, UdpSocket};
use haul_wire::control::ControlMessage;
use haul_wire::packet::{ControlFrame, ControlFrameKind};

use crate::guard::lock;
use crate::wake::block_until;
use crate::{Control, Direction, EngineError, Monitor};

/// Control frames kept for sessions that may be about to exist.
const MAX_EARLY: usize = 64;

/// The sessions by their number.
#[derive(Default)]
pub(crate) struct SessionTable(Mutex<Sessions>);

#[derive(Default)]
struct Sessions {
    by_number: HashMap<u32, Weak<PendingSession>>,
    early: VecDeque<Early>,
}

/// A control frame that has overtaken the end of its session's TLS handshake, as the first usually does.
struct Early {
    frame: ControlFrame,
    source: SocketAddr,
}

impl SessionTable {
    /// Makes room for the session with these keys, of whoever is connected from `control_peer` over TCP; `None` if
    /// another one has its number (one in four thousand million). `challenge_key` is random.
    pub(crate) fn register(
        self: &Arc<Self>,
        keys: FrameKeys,
        control_peer: SocketAddr,
        challenge_key: [u8; 32],
    ) -> Option<Arc<PendingSession>> {
        let session = keys.id.identity;
        let mut sessions = lock(&self.0);
        let Vacant(place) = sessions.by_number.entry(session) else { return None };
        let pending = Arc::new(PendingSession::new(keys, control_peer, challenge_key, Arc::downgrade(self)));
        place.insert(Arc::downgrade(&pending));
        let all = std::mem::take(&mut sessions.early);
        let (mine, others) = all.into_iter().partition(|early| early.frame.id.identity == session);
        sessions.early = others;
        drop(sessions);
        for Early { frame, source } in mine {
            // A client that is to be challenged sends another one soon.
            pending.on_frame(&frame, source);
        }
        Some(pending)
    }

    /// Finds the session of a frame. If there is none the frame is kept, in the place of the oldest if there are many.
    pub(super) fn find(&self, frame: &ControlFrame, source: SocketAddr) -> Option<Arc<PendingSession>> {
        let mut sessions = lock(&self.0);
        let found = sessions.by_number.get(&frame.id.identity).and_then(Weak::upgrade);
        if found.is_some() {
            return found;
        }
        if sessions.early.len() == MAX_EARLY {
            sessions.early.pop_front();
        }
        sessions.early.push_back(Early { frame: *frame, source });
        None
    }

    /// How many sessions there are, from the end of the TLS handshake on.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).by_number.len()
    }
}

/// The UDP side of one session. It is in the table for as long as it is held.
pub(crate) struct PendingSession {
    pub(crate) session: u32,
    table: Weak<SessionTable>,
    state: Monitor<State>,
}

impl Drop for PendingSession {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            lock(&table.0).by_number.remove(&self.session);
        }
    }
}

struct State {
    keys: FrameKeys,
    /// Key of this end's challenges; it never leaves this process.
    challenge_key: [u8; 32],
    /// Where the client is. The address of its TCP connection is not validated for UDP: the port may differ.
    peer: PeerAddress,
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
    fn new(
        keys: FrameKeys,
        control_peer: SocketAddr,
        challenge_key: [u8; 32],
        table: Weak<SessionTable>,
    ) -> Self {
        let session = keys.id.identity;
        let state = Monitor::new(State {
            keys,
            challenge_key,
            peer: PeerAddress { at: control_peer, moves: None },
            challenges: Challenges::default(),
            stage: Stage::Undecided,
        });
        Self { session, table, state }
    }

    /// Takes what claims to be a control frame of this session.
    pub(super) fn on_frame(&self, frame: &ControlFrame, from: SocketAddr) -> Verdict {
        use ControlFrameKind as Kind;
        let mut state = self.state.lock();
        if !state.keys.verifies(frame) {
            return Verdict::Unauthentic;
        }
        match (frame.kind, state.is_known(from, frame)) {
            (Kind::Challenge, true) => {
                state.challenges.note(Challenge { number: frame.number, size: frame.size });
            }
            (Kind::Ping | Kind::Response, true) => {}
            (Kind::Challenge | Kind::Ping, false) => {
                return Verdict::Challenged(state.peer.challenge(&state.challenge_key, &state.keys, from));
            }
            _ => return Verdict::Unauthentic,
        }
        state.move_to(from);
        let response = if let Stage::Opened(_) = state.stage { state.respond() } else { None };
        Monitor::release(state);
        Verdict::Taken(response)
    }

    /// The size of the largest challenge that has come by the listener's socket.
    pub(crate) fn largest(&self) -> u16 {
        self.state.lock().challenges.largest
    }

    /// The session has been accepted: from now on it may have its socket.
    pub(crate) fn serve(&self, service: Service) {
        let mut state = self.state.lock();
        state.stage = Stage::Accepted(service);
        state.open_socket();
    }

    /// The session's socket, once the client's first challenge has come.
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
            if opened.is_ready() { opened } else { control.poll_failure(context).map(Err) }
        });
        socket.unwrap_or(Err(EngineError::UdpBlocked { port, direction: Direction::ClientToServer }))
    }
}

impl State {
    /// Whether the sender of a frame is known to be at `from`: it has been heard there before, at first shares the
    /// address of the TCP connection, or has got what was sent there (RFC 9000, sections 8 and 9).
    fn is_known(&self, from: SocketAddr, frame: &ControlFrame) -> bool {
        let was_there = match self.peer.validated() {
            Some(peer) => peer == from,
            None => from.ip().to_canonical() == self.peer.at.ip().to_canonical(),
        };
        let expected = || self.peer.expected_response(&self.challenge_key, &self.keys.id, from);
        was_there || frame.kind == ControlFrameKind::Response && frame.number == expected()
    }

    /// The client is here. Its session has a socket from now on, and sends here with it.
    fn move_to(&mut self, from: SocketAddr) {
        if let (true, Stage::Opened(Ok(socket))) = (self.peer.at != from, &self.stage) {
            // Without a way there, the session is silent and ends.
            let _ = socket.connect(from);
        }
        self.peer.move_to(from);
        self.open_socket();
    }

    /// The response to the next challenge that waits.
    fn respond(&mut self) -> Option<Vec<u8>> {
        let Challenge { number, size } = self.challenges.poll_transmit()?;
        Some(self.keys.frame(ControlFrameKind::Response, number, size))
    }

    /// Opens the session's socket when both the accept and the client's address are there, and answers the challenges
    /// that wait.
    fn open_socket(&mut self) {
        let (Some(source), Stage::Accepted(service)) = (self.peer.validated(), &self.stage) else { return };
        let socket = UdpSocket::connected(service.local, source, &service.options)
            .map_err(|e| EngineError::system("cannot open the session's UDP socket", e));
        if let Ok(socket) = &socket {
            // If the channel has failed the session finds out by itself; the client repeats a challenge that is lost.
            let size = self.challenges.largest.max(BARE);
            let _ = service.control.send_now(&ControlMessage::UdpSeen { size });
            while let Some(response) = self.respond() {
                let _ = socket.send(&response, response.len(), Ecn::NotEct);
            }
        }
        self.stage = Stage::Opened(socket.map(Arc::new));
    }
}

#[cfg(test)]
mod tests {
    use haul_proto::connection::{PathProbe, ResumptionSecret};
    use haul_base::Time;
    use haul_wire::packet::ConnectionId;

    use super::*;
    use crate::Role;

    const CLIENT: &str = "192.0.2.7:5000";
    const ELSEWHERE: &str = "198.51.100.9:7";

    fn register(table: &Arc<SessionTable>, session: u32) -> Option<Arc<PendingSession>> {
        let client: SocketAddr = CLIENT.parse().unwrap();
        table.register(keys(session, Role::Server), client, [6; 32])
    }

    fn keys(session: u32, role: Role) -> FrameKeys {
        FrameKeys::new(&ResumptionSecret([1; 32].into()), ConnectionId::of_session(session), role)
    }

    fn probe() -> PathProbe {
        PathProbe::new(Time::ZERO, CLIENT.parse::<SocketAddr>().unwrap().ip(), 7)
    }

    fn next(session: u32, probe: &mut PathProbe) -> Option<ControlFrame> {
        let Challenge { number, size } = probe.poll_transmit()?;
        let packet = keys(session, Role::Client).frame(ControlFrameKind::Challenge, number, size);
        Some(ControlFrame::parse(&packet).unwrap())
    }

    fn challenge(session: u32) -> ControlFrame {
        next(session, &mut probe()).unwrap()
    }

    #[test]
    fn a_challenge_that_overtakes_the_handshake_finds_its_session_later() {
        let table = Arc::new(SessionTable::default());
        let source = CLIENT.parse().unwrap();
        assert!(table.find(&challenge(5), source).is_none());
        assert!(table.find(&challenge(6), source).is_none());
        let session = register(&table, 5).unwrap();
        assert_eq!(session.largest(), 1200);
        assert!(table.find(&challenge(5), source).is_some());
        assert!(register(&table, 5).is_none());
        drop(session);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn strangers_can_fill_neither_memory_nor_a_session() {
        let table = Arc::new(SessionTable::default());
        let source = CLIENT.parse().unwrap();
        let forged = |session| ControlFrame { number: 99, ..challenge(session) };
        for number in 0..1000 {
            table.find(&forged(number % 7), source);
        }
        assert_eq!(lock(&table.0).early.len(), 64, "docs/security.md");
        let early = || lock(&table.0).early.iter().map(|early| early.frame.id.identity).collect::<Vec<_>>();
        let before = early();
        let session = register(&table, 5).unwrap();
        assert_eq!(session.largest(), 0);
        assert_eq!(early(), before.into_iter().filter(|number| *number != 5).collect::<Vec<_>>());
        assert!(table.find(&forged(9), source).is_none() && early().last() == Some(&9));
    }

    /// One datagram with the address of a victim would have all data of a download sent there.
    #[test]
    fn a_copy_from_elsewhere_gets_a_challenge_of_its_size_at_most_and_changes_nothing() {
        let table = Arc::new(SessionTable::default());
        let session = register(&table, 5).unwrap();
        let (client, elsewhere) = (CLIENT.parse().unwrap(), ELSEWHERE.parse().unwrap());
        let copy = challenge(5);
        match session.on_frame(&copy, elsewhere) {
            Verdict::Challenged(challenge) => {
                assert!(challenge.len() <= copy.size.into(), "{}", challenge.len());
            }
            verdict => panic!("{verdict:?}"),
        }
        assert_eq!(session.on_frame(&challenge(5), client), Verdict::Taken(None));
        assert_eq!(session.largest(), 1200);
        // What the client answers from its own address moves nothing either.
        let Verdict::Challenged(challenge) = session.on_frame(&copy, elsewhere) else {
            panic!("it may be the client, behind another NAT");
        };
        let number = ControlFrame::parse(&challenge).unwrap().number;
        let response = keys(5, Role::Client).frame(ControlFrameKind::Response, number, copy.size);
        let response = ControlFrame::parse(&response).unwrap();
        assert_eq!(session.on_frame(&response, client), Verdict::Taken(None));
        assert!(matches!(session.on_frame(&copy, elsewhere), Verdict::Challenged(_)));
    }

    /// The UDP packets of a client may have another address than its TCP connection.
    #[test]
    fn a_client_that_answers_the_challenge_is_where_it_says() {
        let table = Arc::new(SessionTable::default());
        let session = register(&table, 5).unwrap();
        let elsewhere: SocketAddr = ELSEWHERE.parse().unwrap();
        let mut probe = probe();
        let mut challenges = Vec::new();
        while let Some(frame) = next(5, &mut probe) {
            match session.on_frame(&frame, elsewhere) {
                Verdict::Challenged(challenge) => challenges.push(challenge),
                verdict => panic!("{verdict:?}"),
            }
        }
        let challenge = ControlFrame::parse(&challenges[0]).unwrap();
        assert!(
            keys(5, Role::Client).verifies(&challenge) && !probe.on_frame(challenge.kind, challenge.size)
        );
        let response =
            keys(5, Role::Client).frame(ControlFrameKind::Response, challenge.number, challenge.size);
        let response = ControlFrame::parse(&response).unwrap();
        // What was for this address is of no use at another one.
        let other = "198.51.100.10:7".parse().unwrap();
        assert_eq!(session.on_frame(&response, other), Verdict::Unauthentic);
        assert_eq!(session.on_frame(&response, elsewhere), Verdict::Taken(None));
        // The client asks again at once, and is not challenged again.
        let again = next(5, &mut probe).unwrap();
        assert_eq!(session.on_frame(&again, elsewhere), Verdict::Taken(None));
    }
}
