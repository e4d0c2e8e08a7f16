//! A listener's options, and the state shared by its threads.

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
use crate::endpoint::{SessionTable, SharedEndpoint};
use crate::identity::ServerIdentity;
use crate::{Monitor, Waker};

haul_base::counters! {
    Counters:
    /// Counters of a listener since it was bound.
    pub struct ListenerStats {
        /// TCP connections accepted.
        pub connections,
        /// Connections closed during the handshake because there were too many.
        pub evicted,
        /// Connections that failed in the handshake, including evicted ones.
        pub failed,
        /// Refused clients: no Hello, wrong secret, expired, other version, cipher, too many waiting.
        pub refused,
        /// Authenticated clients queued for [`Listener::accept`](crate::Listener::accept).
        pub sessions,
    }
}

/// Options of a listener.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Address and port for both TCP and UDP; with port 0 the system chooses one, `[::]` also serves IPv4.
    pub addr: SocketAddr,
    /// Lifetime of the URL, after which no client connects or resumes; `None` for that of the listener.
    pub expires: Option<Duration>,
    /// Ciphers that clients may choose from, apart from [`Cipher::None`].
    pub ciphers: Vec<Cipher>,
    /// Whether clients may connect without encryption.
    pub permit_cipher_none: bool,
    /// Limits for connections in the handshake.
    pub handshakes: HandshakeLimits,
    /// Timeout of a handshake.
    pub handshake_timeout: Duration,
    /// Maximum number of authenticated clients queued for [`Listener::accept`](crate::Listener::accept).
    pub max_waiting: usize,
    /// Time after [`Incoming::accept`] without a challenge after which UDP counts as blocked.
    pub udp_timeout: Duration,
    /// Maximum number of clients whose resumption state is kept. A further client replaces the one without a
    /// connection that has been idle longest; if all have connections, it is refused with
    /// [`FaultCode::Busy`](haul_wire::control::FaultCode::Busy).
    pub max_known_peers: usize,
    /// Maximum number of connections queued for [`Endpoint::poll_accept`](crate::Endpoint::poll_accept).
    /// Further ones are not answered; their clients retry.
    pub max_connections_waiting: usize,
}

impl ListenOptions {
    /// Returns the default options for this address and port.
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

/// Filter for authenticated clients: returns those to queue for acceptance, and handles the others. Runs in
/// the thread of the client's handshake, which may block. A panic ends the client's attempt.
pub type Admit = Box<dyn Fn(Incoming) -> Option<Incoming> + Send + Sync>;

pub(super) struct Server {
    pub(super) options: ListenOptions,
    pub(super) identity: ServerIdentity,
    pub(super) tls: Arc<ServerConfig>,
    pub(super) sessions: Arc<SessionTable>,
    pub(super) port: Weak<SharedEndpoint>,
    pub(super) limiter: Limiter,
    pub(super) refusals: RefusalLog,
    pub(super) counters: Counters,
    pub(super) admit: Admit,
    pub(super) waiting: Monitor<VecDeque<Incoming>>,
    pub(super) stop: Waker,
}
