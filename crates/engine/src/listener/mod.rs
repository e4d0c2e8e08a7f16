//! The server's listener: one port for TCP and UDP, an identity of its own, and any number of sessions at once.

mod handshake;
mod incoming;
mod limiter;
mod refusals;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_base::Bytes;
use haul_proto::connection::{ENCRYPTED, HandshakeLimiter, HandshakeLimits};
use haul_udp::{Options, UdpSocket};
use haul_wire::control::Cipher;
use rustix::event::{PollFd, PollFlags};
use rustls::ServerConfig;

pub use self::incoming::Incoming;
use self::limiter::Limiter;
use self::refusals::RefusalLog;
use crate::clock::after;
use crate::counters::counters;
use crate::endpoint::{SessionTable, Shared};
use crate::identity::ServerIdentity;
use crate::spawn::spawn;
use crate::tls::server_config;
use crate::wake::lock;
use crate::wake::{block_until, wait_ready};
use crate::{Endpoint, EngineError, HaulUrl, Monitor, Waker};

/// Challenges, and the packets of all connections; sessions have sockets of their own.
const UDP_BUFFER: Bytes = Bytes(16 << 20);
/// Ports tried when the system chooses one and it is free for TCP only.
const PORT_TRIES: u32 = 16;
/// After a failed accept, most often for lack of file descriptors, wait so long.
const RECOVERY: Duration = Duration::from_millis(50);
/// How often it is said that none can be accepted, at most.
const SAID_AGAIN: Duration = Duration::from_secs(60);

counters! {
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
    /// Authenticated clients that may wait for [`Listener::accept`].
    pub max_waiting: usize,
    /// UDP is taken for blocked when no challenge comes so long after [`Incoming::accept`].
    pub udp_timeout: Duration,
    /// Clients whose resumption state is kept. Above, the one without a connection that has been idle longest is
    /// dropped; while all have connections, clients that want another one are refused with
    /// [`FaultCode::Busy`](haul_wire::control::FaultCode::Busy).
    pub max_known_peers: usize,
    /// Connections that may wait for [`Endpoint::poll_accept`]. Above, a new one is not answered; its client tries
    /// again.
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
struct Server {
    options: ListenOptions,
    identity: ServerIdentity,
    tls: Arc<ServerConfig>,
    sessions: Arc<SessionTable>,
    port: Weak<Shared>,
    limiter: Limiter,
    refusals: RefusalLog,
    counters: Counters,
    admit: Admit,
    waiting: Monitor<VecDeque<Incoming>>,
    /// Readable when the listener stops.
    stop: Waker,
}

/// A server that accepts sessions. Handshakes run in threads of their own, no more than there are places, so that a
/// slow or hostile peer holds up nobody. Dropping it stops listening; sessions and channels that were accepted go on.
#[derive(derive_more::Debug)]
#[debug("Listener({local})")]
pub struct Listener {
    server: Arc<Server>,
    local: SocketAddr,
    endpoint: Endpoint,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens, with a new certificate and a new secret.
    ///
    /// # Errors
    /// [`EngineError::Listen`] if the address or port cannot be had for both TCP and UDP;
    /// [`EngineError::System`].
    pub fn bind(options: ListenOptions) -> Result<Self, EngineError> {
        Self::bind_admitting(options, Box::new(Some))
    }

    /// As [`Listener::bind`]; `admit` sees each client before it waits to be accepted.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind_admitting(options: ListenOptions, admit: Admit) -> Result<Self, EngineError> {
        let (tcp, udp) = bind_both(options.addr)?;
        let local = tcp.local_addr().map_err(|e| listen_error(options.addr, e))?;
        let identity = ServerIdentity::generate(options.expires)?;
        let endpoint = Endpoint::start(udp, options.max_known_peers, options.max_connections_waiting)?;
        let server = Arc::new(Server {
            tls: Arc::new(server_config(&identity)?),
            identity,
            sessions: endpoint.shared().sessions.clone(),
            port: Arc::downgrade(endpoint.shared()),
            limiter: Arc::new(Mutex::new(HandshakeLimiter::new(options.handshakes))),
            refusals: RefusalLog::default(),
            counters: Counters::default(),
            admit,
            waiting: Monitor::default(),
            stop: Waker::new()?,
            options,
        });
        let ours = server.clone();
        let thread = Some(spawn("haul-accept", move || accept_connections(&ours, &tcp))?);
        Ok(Self { server, local, endpoint, thread })
    }

    /// The address and port that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The URL of `path` below the server's root, for clients that reach this machine as `host`.
    pub fn url(&self, host: &str, path: &[u8]) -> HaulUrl {
        HaulUrl {
            host: host.to_owned(),
            port: self.local.port(),
            path: path.to_vec(),
            fingerprint: self.server.identity.fingerprint(),
            secret: self.server.identity.secret.clone(),
            expires: self.server.identity.expires,
        }
    }

    /// The next client that has authenticated; `None` if none comes within `timeout`. Any number of threads may wait.
    pub fn accept(&self, timeout: Duration) -> Option<Incoming> {
        block_until(Some(after(timeout)), |context| self.poll_accept(context))
    }

    /// As [`Listener::accept`], for tasks.
    pub fn poll_accept(&self, context: &Context<'_>) -> Poll<Incoming> {
        self.server.waiting.poll(context, |waiting| {
            waiting.retain(|incoming| !incoming.is_gone());
            waiting.pop_front()
        })
    }

    /// The endpoint of this port's connections: [`Incoming::agree`] adds a client.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What has come to this port so far.
    pub fn stats(&self) -> ListenerStats {
        self.server.counters.read()
    }

    /// Sessions that exist now, those in their handshake included.
    pub fn sessions(&self) -> usize {
        self.server.sessions.len()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It stays readable, so no wake-up is missed.
        self.server.stop.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread that accepts TCP connections.
fn accept_connections(server: &Arc<Server>, listener: &TcpListener) {
    let stopping = || PollFd::from_borrowed_fd(server.stop.fd(), PollFlags::IN);
    let mut said: Option<Instant> = None;
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), stopping()];
        let waited = wait_ready(&mut fds, server.refusals.due());
        if waited.is_err() || !fds[1].revents().is_empty() {
            return;
        }
        server.refusals.tell_left_out();
        match listener.accept() {
            Ok((tcp, peer)) => start_handshake(server, tcp, peer),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                if said.is_none_or(|at| at.elapsed() >= SAID_AGAIN) {
                    said = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept a connection (ulimit -n raises the limit on open files)");
                }
                let _ = wait_ready(&mut [stopping()], Some(RECOVERY));
            }
        }
    }
}

/// Gives the connection a place, and a thread if there may be one more. Without resources for it the connection is
/// closed.
fn start_handshake(server: &Arc<Server>, tcp: TcpStream, peer: SocketAddr) {
    server.counters.connections.add_one();
    let (permit, evicted) = limiter::accept(&server.limiter, tcp, peer);
    if evicted {
        server.counters.evicted.add_one();
    }
    let Some(permit) = permit else { return };
    let worker = server.clone();
    let serve = move || handshake::run(&worker, permit);
    if let Err(error) = spawn("haul-handshake", serve) {
        tracing::warn!(error = error.with_causes());
        for _ in 0..lock(&server.limiter).turn_away_waiting() {
            server.counters.failed.add_one();
        }
    }
}

fn listen_error(addr: SocketAddr, error: impl Into<io::Error>) -> EngineError {
    EngineError::Listen { addr, source: error.into().into() }
}

/// One port for both. If the system chooses it, it may have to choose again.
fn bind_both(addr: SocketAddr) -> Result<(TcpListener, UdpSocket), EngineError> {
    let options = Options { reuse_port: true, recv_buffer: UDP_BUFFER, ..Options::default() };
    let mut tries = if addr.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        let tcp = TcpListener::bind(addr).map_err(|e| listen_error(addr, e))?;
        tcp.set_nonblocking(true).map_err(|e| listen_error(addr, e))?;
        let local = tcp.local_addr().map_err(|e| listen_error(addr, e))?;
        tries -= 1;
        match UdpSocket::bind(local, &options) {
            Ok(udp) => return Ok((tcp, udp)),
            Err(_) if tries > 0 => {}
            Err(error) => return Err(listen_error(local, error)),
        }
    }
}
