//! The sessions that HELLOs can be for.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use haul_wire::packet::HelloBody;

use super::pending::PendingSession;
use crate::crypto::DataKeys;
use crate::hello::LateHellos;

/// HELLOs kept for sessions that may be about to exist.
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

/// A HELLO that has overtaken the end of its session's TLS handshake, as it usually does.
struct Early {
    session: u32,
    source: SocketAddr,
    datagram: Vec<u8>,
}

/// Whom a HELLO is for.
pub(super) enum Lookup {
    Found(Arc<PendingSession>),
    /// Kept for a while.
    Early,
    Unknown,
}

impl SessionTable {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a session with the keys of its HELLOs, of whoever is connected from `control_peer` over TCP;
    /// `None` if another one has its number (one in four thousand million). `challenge_key` is random.
    pub(super) fn register(
        self: &Arc<Self>,
        session: u32,
        keys: &DataKeys,
        control_peer: IpAddr,
        challenge_key: [u8; 32],
    ) -> Option<Registration> {
        let pending = Arc::new(PendingSession::new(keys, control_peer, challenge_key));
        let mut state = self.lock();
        if state.sessions.contains_key(&session) {
            return None;
        }
        state.sessions.insert(session, pending.clone());
        let all = std::mem::take(&mut state.early);
        let (mine, others) = all.into_iter().partition(|early| early.session == session);
        state.early = others;
        drop(state);
        for Early { source, mut datagram, .. } in mine {
            // A client that is challenged sends another one soon.
            pending.on_hello(&mut datagram, source);
        }
        Some(Registration { session, pending, table: Arc::downgrade(self) })
    }

    /// Finds the session of a HELLO. If there is none and `expecting` says that there may soon be, the HELLO
    /// is kept, in the place of the oldest if there are many.
    pub(super) fn find(&self, session: u32, expecting: bool, datagram: &[u8], source: SocketAddr) -> Lookup {
        let mut state = self.lock();
        if let Some(pending) = state.sessions.get(&session) {
            return Lookup::Found(pending.clone());
        }
        if !expecting {
            state.early.clear();
            return Lookup::Unknown;
        }
        if state.early.len() == MAX_EARLY {
            state.early.pop_front();
        }
        state.early.push_back(Early { session, source, datagram: datagram.to_vec() });
        Lookup::Early
    }

    /// How many sessions there are, from the end of the TLS handshake on.
    pub(super) fn len(&self) -> usize {
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

    /// The HELLOs that came, and still come, by the listener's socket.
    pub(crate) fn into_late_hellos(self) -> Arc<dyn LateHellos> {
        Arc::new(self)
    }
}

impl LateHellos for Registration {
    fn drain(&self, into: &mut Vec<HelloBody>) {
        self.pending.drain(into);
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
    use haul_wire::control::Cipher;

    use super::super::pending::Verdict;
    use super::*;
    use crate::hello::{HelloDriver, MAX_HELLO};

    const CLIENT: &str = "192.0.2.7:5000";
    const ELSEWHERE: &str = "198.51.100.9:7";

    fn register(table: &Arc<SessionTable>, session: u32) -> Option<Registration> {
        let client: SocketAddr = CLIENT.parse().unwrap();
        table.register(session, &keys(), client.ip(), [6; 32])
    }

    fn keys() -> DataKeys {
        DataKeys::new(Cipher::Aes128Gcm, [1; 32], [2; 32])
    }

    fn hello(session: u32) -> Vec<u8> {
        let mut driver = HelloDriver::new(Time::ZERO, session, CLIENT.parse().unwrap(), &keys(), 7);
        let mut pending = vec![0; MAX_HELLO];
        let len = driver.poll_transmit(Time::ZERO, &mut pending).unwrap();
        pending[..len].to_vec()
    }

    fn waiting(registration: &Registration) -> usize {
        let mut hellos = Vec::new();
        registration.drain(&mut hellos);
        hellos.len()
    }

    #[test]
    fn a_hello_that_overtakes_the_handshake_finds_its_session_later() {
        let table = Arc::new(SessionTable::default());
        let source = CLIENT.parse().unwrap();
        assert!(matches!(table.find(5, true, &hello(5), source), Lookup::Early));
        assert!(matches!(table.find(6, true, &hello(6), source), Lookup::Early));
        let registration = register(&table, 5).unwrap();
        assert_eq!(waiting(&registration), 1);
        assert!(matches!(table.find(5, false, &hello(5), source), Lookup::Found(_)));
        assert!(register(&table, 5).is_none());
        drop(registration);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn strangers_can_fill_neither_memory_nor_a_session() {
        let table = Arc::new(SessionTable::default());
        let source = CLIENT.parse().unwrap();
        let mut forged = hello(5);
        forged[20] ^= 1;
        for session in 0..1000 {
            table.find(session % 7, true, &forged, source);
        }
        assert_eq!(table.lock().early.len(), 64, "docs/security.md");
        let registration = register(&table, 5).unwrap();
        assert_eq!(waiting(&registration), 0);
        assert!(matches!(table.find(9, false, &forged, source), Lookup::Unknown));
        assert!(table.lock().early.is_empty());
    }

    /// One datagram with the address of a victim would have all data of a download sent there.
    #[test]
    fn a_copy_from_elsewhere_gets_a_challenge_of_its_size_at_most_and_changes_nothing() {
        let table = Arc::new(SessionTable::default());
        let registration = register(&table, 5).unwrap();
        let (client, elsewhere) = (CLIENT.parse().unwrap(), ELSEWHERE.parse().unwrap());
        let mut copy = hello(5);
        let len = copy.len();
        match registration.pending().on_hello(&mut copy, elsewhere) {
            Verdict::Challenged(challenge) => assert!(challenge.len() <= len, "{}", challenge.len()),
            verdict => panic!("{verdict:?}"),
        }
        assert_eq!(registration.pending().on_hello(&mut hello(5), client), Verdict::Taken);
        assert_eq!(waiting(&registration), 1);
        // From now on, nothing from elsewhere gets an answer.
        assert_eq!(registration.pending().on_hello(&mut hello(5), elsewhere), Verdict::Foreign);
    }

    /// The UDP packets of a client may have another address than its TCP connection.
    #[test]
    fn a_client_that_answers_the_challenge_is_where_it_says() {
        let table = Arc::new(SessionTable::default());
        let registration = register(&table, 5).unwrap();
        let (client, elsewhere): (_, SocketAddr) = (CLIENT.parse().unwrap(), ELSEWHERE.parse().unwrap());
        let mut driver = HelloDriver::new(Time::ZERO, 5, client, &keys(), 7);
        let mut pending = vec![0; MAX_HELLO];
        let mut next = |driver: &mut HelloDriver| {
            let len = driver.poll_transmit(Time::ZERO, &mut pending)?;
            Some(pending[..len].to_vec())
        };
        let mut challenges = Vec::new();
        while let Some(mut hello) = next(&mut driver) {
            match registration.pending().on_hello(&mut hello, elsewhere) {
                Verdict::Challenged(challenge) => challenges.push(challenge),
                verdict => panic!("{verdict:?}"),
            }
        }
        assert!(driver.on_packet(Time::ZERO, &mut challenges[0]) && !driver.is_answered());
        let answer = next(&mut driver).unwrap();
        // What was for this address is of no use at another one.
        let other = "198.51.100.10:7".parse().unwrap();
        assert!(matches!(
            registration.pending().on_hello(&mut answer.clone(), other),
            Verdict::Challenged(_)
        ));
        assert_eq!(registration.pending().on_hello(&mut answer.clone(), elsewhere), Verdict::Taken);
        let next_pn = registration.pending().next_pn();
        assert!(next_pn > challenges.len() as u64);
        // A HELLO from before the answer comes late. A challenge would use a number that the session's answers use too.
        assert_eq!(registration.pending().on_hello(&mut hello(5), elsewhere), Verdict::Taken);
        assert_eq!(registration.pending().next_pn(), next_pn);
    }
}
