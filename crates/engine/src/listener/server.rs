//! What a listener is told, and what its threads share.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use haul_proto::connection::{ENCRYPTED, HandshakeLimits};
use haul_wire::control::Cipher;
use rustls::ServerConfig;

use super::incoming::Incoming;
use super::limiter::Limiter;
use super::refusals::RefusalLog;
use crate::endpoint::{SessionTable, Shared};
use crate::identity::ServerIdentity;
use crate::{Monitor, Waker};

haul_base::counters! {
    Counters:
    /// What a listener has seen since it was bound.
    pub struct ListenerStats {
        /// TCP connections.
        pub connections,
        /// Connections closed in the handshake because too many were in it.
        pub evicted,
        /// Connections that did not get through the handshake, evicted ones included.
        pub failed,
        /// Clients that were refused: no Hello, wrong secret, expired, other version, cipher, too many waiting.
        pub refused,
        /// Clients that have authenticated.
        pub sessions,
    }
}

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Address and port for both TCP and UDP; port 0 lets the system choose, `[::]` serves IPv4 too.
    pub addr: SocketAddr,
    /// The URL is good for so long; `None`: while the listener exists.
    pub expires: Option<Duration>,
    /// Ciphers that clients may choose from, [`Cipher::None`] apart.
    pub ciphers: Vec<Cipher>,
    /// Whether a client that wants no encryption gets none.
    pub permit_cipher_none: bool,
    /// Connections that may be in the handshake at once.
    pub handshakes: HandshakeLimits,
    /// A handshake may take so long.
    pub handshake_timeout: Duration,
    /// Authenticated clients that may wait for [`Listener::accept`](crate::Listener::accept).
    pub max_waiting: usize,
    /// UDP is taken for blocked when no challenge comes so long after [`Incoming::accept`].
    pub udp_timeout: Duration,
    /// Clients whose resumption state is kept. Above, the one without a connection that has been idle longest is
    /// dropped; while all have connections, clients that want another one are refused with
    /// [`FaultCode::Busy`](haul_wire::control::FaultCode::Busy).
    pub max_known_peers: usize,
    /// Connections that may wait for [`Endpoint::poll_accept`](crate::Endpoint::poll_accept). Above, a new one is not
    /// answered; its client tries again.
    pub max_connections_waiting: usize,
}

impl ListenOptions {
    /// What suits most servers, on this address and port.
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            expires: None,
            ciphers: ENCRYPTED.to_vec(),
            permit_cipher_none: false,
            handshakes: HandshakeLimits::default(),
            handshake_timeout: Duration::from_secs(10),
            max_waiting: 64,
            udp_timeout: Duration::from_secs(3),
            max_known_peers: 1 << 20,
            max_connections_waiting: 4_096,
        }
    }
}

/// What becomes of a client before it waits to be accepted: it is given back, or has been dealt with. Runs in the thread
/// of the client's handshake, which may wait. A panic ends the client's attempt.
pub type Admit = Box<dyn Fn(Incoming) -> Option<Incoming> + Send + Sync>;

/// What the listener's threads share.
pub(super) struct Server {
    pub(super) options: ListenOptions,
    pub(super) identity: ServerIdentity,
    pub(super) tls: Arc<ServerConfig>,
    pub(super) sessions: Arc<SessionTable>,
    pub(super) port: Weak<Shared>,
    pub(super) limiter: Limiter,
    pub(super) refusals: RefusalLog,
    pub(super) counters: Counters,
    pub(super) admit: Admit,
    pub(super) waiting: Monitor<VecDeque<Incoming>>,
    /// Readable when the listener stops.
    pub(super) stop: Waker,
}
