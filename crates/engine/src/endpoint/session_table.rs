//! The sessions that control frames can be for.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use haul_wire::packet::ControlFrame;

use super::pending::PendingSession;
use crate::crypto::FrameKeys;
use crate::guard::lock;

/// Control frames kept for sessions that may be about to exist.
const MAX_EARLY: usize = 64;

/// The sessions by their number.
#[derive(Default)]
pub(crate) struct SessionTable {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<u32, Arc<PendingSession>>,
    early: VecDeque<Early>,
}

/// A control frame that has overtaken the end of its session's TLS handshake, as the first usually does.
struct Early {
    frame: ControlFrame,
    source: SocketAddr,
}

impl SessionTable {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Makes room for the session with these keys, of whoever is connected from `control_peer` over TCP; `None` if
    /// another one has its number (one in four thousand million). `challenge_key` is random.
    pub(crate) fn register(
        self: &Arc<Self>,
        keys: FrameKeys,
        control_peer: IpAddr,
        challenge_key: [u8; 32],
    ) -> Option<Registration> {
        let session = keys.id().identity;
        let pending = Arc::new(PendingSession::new(keys, control_peer, challenge_key));
        let mut state = self.lock();
        if state.sessions.contains_key(&session) {
            return None;
        }
        state.sessions.insert(session, pending.clone());
        let all = std::mem::take(&mut state.early);
        let (mine, others) = all.into_iter().partition(|early| early.frame.id.identity == session);
        state.early = others;
        drop(state);
        for Early { frame, source } in mine {
            // A client that is to be challenged sends another one soon.
            pending.on_frame(&frame, source);
        }
        Some(Registration { session, pending, table: Arc::downgrade(self) })
    }

    /// Finds the session of a frame. If there is none and `expecting` says that there may soon be, the frame is kept,
    /// in the place of the oldest if there are many.
    pub(super) fn find(
        &self,
        frame: &ControlFrame,
        expecting: bool,
        source: SocketAddr,
    ) -> Option<Arc<PendingSession>> {
        let mut state = self.lock();
        let found = state.sessions.get(&frame.id.identity).cloned();
        if found.is_some() {
            return found;
        }
        if !expecting {
            state.early.clear();
            return None;
        }
        if state.early.len() == MAX_EARLY {
            state.early.pop_front();
        }
        state.early.push_back(Early { frame: *frame, source });
        None
    }

    /// How many sessions there are, from the end of the TLS handshake on.
    pub(crate) fn len(&self) -> usize {
        self.lock().sessions.len()
    }
}

/// A session's place in the table, for as long as it is held.
pub(crate) struct Registration {
    session: u32,
    pending: Arc<PendingSession>,
    table: Weak<SessionTable>,
}

impl Registration {
    pub(crate) fn session(&self) -> u32 {
        self.session
    }

    pub(crate) fn pending(&self) -> &PendingSession {
        &self.pending
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.lock().sessions.remove(&self.session);
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Time;
    use haul_wire::packet::{ConnectionId, ControlFrameKind};

    use super::super::path_probe::PathProbe;
    use super::super::pending::Verdict;
    use super::*;
    use crate::Role;
    use crate::crypto::ResumptionSecret;

    const CLIENT: &str = "192.0.2.7:5000";
    const ELSEWHERE: &str = "198.51.100.9:7";

    fn register(table: &Arc<SessionTable>, session: u32) -> Option<Registration> {
        let client: SocketAddr = CLIENT.parse().unwrap();
        table.register(keys(session, Role::Server), client.ip(), [6; 32])
    }

    fn keys(session: u32, role: Role) -> FrameKeys {
        FrameKeys::new(&ResumptionSecret([1; 32].into()), ConnectionId::of_session(session), role)
    }

    fn probe(session: u32) -> PathProbe {
        PathProbe::new(Time::ZERO, keys(session, Role::Client), CLIENT.parse().unwrap(), 7)
    }

    fn next(probe: &mut PathProbe) -> Option<ControlFrame> {
        probe.poll_transmit(Time::ZERO).map(|packet| ControlFrame::parse(&packet).unwrap())
    }

    fn challenge(session: u32) -> ControlFrame {
        next(&mut probe(session)).unwrap()
    }

    #[test]
    fn a_challenge_that_overtakes_the_handshake_finds_its_session_later() {
        let table = Arc::new(SessionTable::default());
        let source = CLIENT.parse().unwrap();
        assert!(table.find(&challenge(5), true, source).is_none());
        assert!(table.find(&challenge(6), true, source).is_none());
        let registration = register(&table, 5).unwrap();
        assert_eq!(registration.pending().largest(), 1200);
        assert!(table.find(&challenge(5), false, source).is_some());
        assert!(register(&table, 5).is_none());
        drop(registration);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn strangers_can_fill_neither_memory_nor_a_session() {
        let table = Arc::new(SessionTable::default());
        let source = CLIENT.parse().unwrap();
        let forged = |session| ControlFrame { number: 99, ..challenge(session) };
        for session in 0..1000 {
            table.find(&forged(session % 7), true, source);
        }
        assert_eq!(table.lock().early.len(), 64, "docs/security.md");
        let registration = register(&table, 5).unwrap();
        assert_eq!(registration.pending().largest(), 0);
        assert!(table.find(&forged(9), false, source).is_none());
        assert!(table.lock().early.is_empty());
    }

    /// One datagram with the address of a victim would have all data of a download sent there.
    #[test]
    fn a_copy_from_elsewhere_gets_a_challenge_of_its_size_at_most_and_changes_nothing() {
        let table = Arc::new(SessionTable::default());
        let registration = register(&table, 5).unwrap();
        let (client, elsewhere) = (CLIENT.parse().unwrap(), ELSEWHERE.parse().unwrap());
        let copy = challenge(5);
        match registration.pending().on_frame(&copy, elsewhere) {
            Verdict::Challenged(challenge) => {
                assert!(challenge.len() <= copy.size.into(), "{}", challenge.len());
            }
            verdict => panic!("{verdict:?}"),
        }
        assert_eq!(registration.pending().on_frame(&challenge(5), client), Verdict::Taken(None));
        assert_eq!(registration.pending().largest(), 1200);
        // What the client answers from its own address moves nothing either.
        let Verdict::Challenged(challenge) = registration.pending().on_frame(&copy, elsewhere) else {
            panic!("it may be the client, behind another NAT");
        };
        let number = ControlFrame::parse(&challenge).unwrap().number;
        let response = keys(5, Role::Client).frame(ControlFrameKind::Response, number, copy.size);
        let response = ControlFrame::parse(&response).unwrap();
        assert_eq!(registration.pending().on_frame(&response, client), Verdict::Taken(None));
        assert!(matches!(registration.pending().on_frame(&copy, elsewhere), Verdict::Challenged(_)));
    }

    /// The UDP packets of a client may have another address than its TCP connection.
    #[test]
    fn a_client_that_answers_the_challenge_is_where_it_says() {
        let table = Arc::new(SessionTable::default());
        let registration = register(&table, 5).unwrap();
        let elsewhere: SocketAddr = ELSEWHERE.parse().unwrap();
        let mut probe = probe(5);
        let mut challenges = Vec::new();
        while let Some(frame) = next(&mut probe) {
            match registration.pending().on_frame(&frame, elsewhere) {
                Verdict::Challenged(challenge) => challenges.push(challenge),
                verdict => panic!("{verdict:?}"),
            }
        }
        let challenge = ControlFrame::parse(&challenges[0]).unwrap();
        assert!(keys(5, Role::Client).verifies(&challenge) && !probe.on_frame(Time::ZERO, &challenge));
        let response =
            keys(5, Role::Client).frame(ControlFrameKind::Response, challenge.number, challenge.size);
        let response = ControlFrame::parse(&response).unwrap();
        // What was for this address is of no use at another one.
        let other = "198.51.100.10:7".parse().unwrap();
        assert_eq!(registration.pending().on_frame(&response, other), Verdict::Unauthentic);
        assert_eq!(registration.pending().on_frame(&response, elsewhere), Verdict::Taken(None));
        // The client asks again at once, and is not challenged again.
        let again = next(&mut probe).unwrap();
        assert_eq!(registration.pending().on_frame(&again, elsewhere), Verdict::Taken(None));
    }
}
