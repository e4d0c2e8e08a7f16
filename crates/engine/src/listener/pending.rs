//! The UDP side of a session until it has its own socket, which is opened for the client's first HELLO to the
//! listener's socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_udp::{Options, UdpSocket};
use haul_wire::control::ControlMessage;
use haul_wire::packet::HelloBody;

use crate::crypto::{DataKeys, Opener, Sealer};
use crate::hello::{MIN_DATAGRAM, open_hello, write_ack};
use crate::{Control, Direction, EngineError, Role};

/// HELLOs that wait for the session; more than there are sizes.
const MAX_WAITING: usize = 4;
/// Longest time without a look at the control channel.
const LOOK: Duration = Duration::from_millis(50);

/// The UDP side of one session, as the routing thread sees it.
pub(crate) struct PendingSession {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    open: Opener,
    seal: Sealer,
    /// Of the challenges that were sent.
    next_pn: u64,
    /// Key of the challenges; it never leaves this process.
    challenge_key: [u8; 32],
    /// The address of the TCP connection, which is validated by it.
    control_peer: IpAddr,
    /// The source of the first authentic HELLO from a validated address. Others are ignored.
    source: Option<SocketAddr>,
    waiting: Vec<HelloBody>,
    service: Option<Service>,
    socket: Option<Result<UdpSocket, EngineError>>,
}

/// What an accepted session brings.
pub(crate) struct Service {
    /// Where to say that UDP passes.
    pub(crate) control: Control,
    /// Where the client reached the server.
    pub(crate) local: SocketAddr,
    /// How to open the session's socket.
    pub(crate) options: Options,
    /// No HELLO by then: UDP is blocked.
    pub(crate) deadline: Instant,
}

/// What became of a HELLO.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Taken,
    Unauthentic,
    /// Anybody may have copied it: this goes to its source, which has to send back the challenge in it.
    Challenged(Vec<u8>),
    /// From another address than the first.
    Foreign,
}

impl PendingSession {
    /// For the session of whoever is connected from `control_peer` over TCP; `challenge_key` is random.
    pub(super) fn new(keys: &DataKeys, control_peer: IpAddr, challenge_key: [u8; 32]) -> Self {
        let state = State {
            open: keys.opener(Role::Server),
            seal: keys.sealer(Role::Server),
            next_pn: 0,
            challenge_key,
            control_peer: control_peer.to_canonical(),
            source: None,
            waiting: Vec::new(),
            service: None,
            socket: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what claims to be a HELLO of this session.
    pub(super) fn on_hello(&self, packet: &mut [u8], from: SocketAddr) -> Verdict {
        let mut state = self.lock();
        if state.source.is_some_and(|source| source != from) {
            return Verdict::Foreign;
        }
        let Some(hello) = open_hello(&mut state.open, packet) else {
            return Verdict::Unauthentic;
        };
        // Once the source is known no challenge is sealed: answers of the session continue from `next_pn` under its
        // key.
        if state.source.is_none() && !state.is_known(from, &hello) {
            return Verdict::Challenged(state.challenge(from, &hello));
        }
        state.source = Some(from);
        state.note(hello);
        state.open_socket();
        drop(state);
        self.changed.notify_all();
        Verdict::Taken
    }

    /// The first packet number that no challenge has used. Once the session has its socket it does not change.
    pub(crate) fn next_pn(&self) -> u64 {
        self.lock().next_pn
    }

    /// The session has been accepted: from now on it may have its socket.
    pub(crate) fn serve(&self, service: Service) {
        let mut state = self.lock();
        state.service = Some(service);
        state.open_socket();
    }

    /// Takes the HELLOs that have come by the listener's socket.
    pub(super) fn drain(&self, into: &mut Vec<HelloBody>) {
        into.append(&mut self.lock().waiting);
    }

    /// The session's socket, once the client's first HELLO has come.
    pub(crate) fn wait_for_socket(&self, control: &Control) -> Result<UdpSocket, EngineError> {
        let mut state = self.lock();
        loop {
            if let Some(socket) = state.socket.take() {
                return socket;
            }
            let Some(service) = &state.service else {
                return Err(EngineError::Closed);
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
    /// Whether the sender of a HELLO is known to be at `from`: it shares the address of the TCP connection, or has got
    /// what was sent there (RFC 9000, section 8).
    fn is_known(&self, from: SocketAddr, hello: &HelloBody) -> bool {
        from.ip().to_canonical() == self.control_peer || hello.challenge == self.expected_challenge(from)
    }

    /// What an address has to send back. Derived without state, so copies from other addresses displace nothing.
    fn expected_challenge(&self, from: SocketAddr) -> u64 {
        let hash = blake3::keyed_hash(&self.challenge_key, from.to_string().as_bytes());
        let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        // 0 is no challenge.
        u64::from_be_bytes(*first).max(1)
    }

    /// A datagram no longer than any HELLO.
    fn challenge(&mut self, from: SocketAddr, hello: &HelloBody) -> Vec<u8> {
        let mut packet = vec![0; MIN_DATAGRAM.into()];
        let ack =
            HelloBody { nonce: hello.nonce, size: MIN_DATAGRAM, challenge: self.expected_challenge(from) };
        write_ack(&mut self.seal, self.next_pn, &ack, &mut packet);
        self.next_pn += 1;
        packet
    }

    /// The latest HELLO of each size waits for its answer.
    fn note(&mut self, hello: HelloBody) {
        if let Some(same) = self.waiting.iter_mut().find(|h| h.size == hello.size) {
            *same = hello;
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.push(hello);
        }
    }

    /// Opens the session's socket when both the accept and a HELLO are there. The service is then used up.
    fn open_socket(&mut self) {
        let (Some(source), Some(first)) = (self.source, self.waiting.first()) else {
            return;
        };
        let Some(service) = self.service.take() else {
            return;
        };
        let hello_size = first.size;
        let socket = UdpSocket::connected(service.local, source, &service.options)
            .map_err(|e| EngineError::system("cannot open the session's UDP socket", e));
        if socket.is_ok() {
            // If the channel has failed the session finds out by itself.
            let _ = service.control.send_now(&ControlMessage::UdpSeen { hello_size });
        }
        self.socket = Some(socket);
    }
}
