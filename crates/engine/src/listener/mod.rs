//! The server's listener: one port for TCP and UDP, one identity, and any number of concurrent sessions.

mod handshake;
mod incoming;
mod limiter;
mod refusals;
mod server;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_base::Bytes;
use haul_proto::connection::HandshakeLimiter;
use haul_udp::{Options, UdpSocket};
use rustix::event::{PollFd, PollFlags};

pub use self::incoming::Incoming;
use self::refusals::RefusalLog;
pub use self::server::{Admit, ListenOptions, ListenerStats};
use self::server::{Counters, Server};
use crate::clock::after;
use crate::identity::ServerIdentity;
use crate::spawn::spawn;
use crate::tls::server_config;
use crate::wake::{block_until, lock, wait_ready};
use crate::{Endpoint, EngineError, HaulUrl, Monitor, Waker};

/// Receive buffer for challenges and the packets of all connections; sessions have their own sockets.
const UDP_BUFFER: Bytes = Bytes(16 << 20);
/// Attempts to find a port that is free for both TCP and UDP, if the system chooses it.
const PORT_TRIES: u32 = 16;
/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Minimum interval of the warning about failed accepts.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A server that accepts sessions. Handshakes run in worker threads, limited in number, so that a slow or
/// hostile peer does not delay others. Dropping it stops listening; accepted sessions and channels stay open.
#[derive(derive_more::Debug)]
#[debug("Listener({local})")]
pub struct Listener {
    server: Arc<Server>,
    local: SocketAddr,
    endpoint: Endpoint,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Binds the address with a new certificate and a new secret.
    ///
    /// # Errors
    /// [`EngineError::Listen`] if the address or port is not free for TCP and UDP; [`EngineError::System`].
    pub fn bind(options: ListenOptions) -> Result<Self, EngineError> {
        Self::bind_admitting(options, Box::new(Some))
    }

    /// Like [`Listener::bind`]; `admit` is called for each client before it is queued for acceptance.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind_admitting(options: ListenOptions, admit: Admit) -> Result<Self, EngineError> {
        let (tcp, udp) = bind_both(options.addr)?;
        let local = tcp.local_addr().map_err(|e| listen_error(options.addr, e))?;
        let identity = ServerIdentity::generate(options.expires)?;
        let (known_peers, backlog) = (options.max_known_peers, options.max_connections_waiting);
        let endpoint = Endpoint::start(udp, known_peers, backlog, identity.expires)?;
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

    /// Returns the local address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the URL of `path` below the server's root, for clients that reach this machine as `host`.
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

    /// Waits for an authenticated client, also in several threads; `None` if none arrives within `timeout`.
    pub fn accept(&self, timeout: Duration) -> Option<Incoming> {
        block_until(Some(after(timeout)), |context| self.poll_accept(context))
    }

    /// Polling version of [`Listener::accept`].
    pub fn poll_accept(&self, context: &Context<'_>) -> Poll<Incoming> {
        self.server.waiting.poll(context, |waiting| {
            waiting.retain(|incoming| !incoming.has_failed());
            waiting.pop_front()
        })
    }

    /// Returns the endpoint of this port's connections; [`Incoming::agree`] adds a client to it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the listener's counters.
    pub fn stats(&self) -> ListenerStats {
        self.server.counters.read()
    }

    /// Returns the number of open sessions, including those in the handshake.
    pub fn sessions(&self) -> usize {
        self.server.sessions.len()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.endpoint.stop_accepting();
        // The eventfd stays readable, so no wake-up is missed.
        self.server.stop.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Body of the thread that accepts TCP connections.
fn accept_connections(server: &Arc<Server>, listener: &TcpListener) {
    let stopping = || PollFd::from_borrowed_fd(server.stop.fd(), PollFlags::IN);
    let mut warned_at: Option<Instant> = None;
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), stopping()];
        let waited = wait_ready(&mut fds, server.refusals.due());
        if waited.is_err() || !fds[1].revents().is_empty() {
            return;
        }
        server.refusals.log_suppressed();
        match listener.accept() {
            Ok((tcp, peer)) => start_handshake(server, tcp, peer),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                if warned_at.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
                    warned_at = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept a connection (ulimit -n raises the limit on open files)");
                }
                let _ = wait_ready(&mut [stopping()], Some(ACCEPT_RETRY_DELAY));
            }
        }
    }
}

/// Assigns a slot and, if permitted, a thread to the connection. Without resources, closes it.
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
        for _ in 0..lock(&server.limiter).refuse_waiting() {
            server.counters.failed.add_one();
        }
    }
}

fn listen_error(addr: SocketAddr, error: impl Into<io::Error>) -> EngineError {
    EngineError::Listen { addr, source: error.into().into() }
}

/// Binds one port for both. If the system chooses it, retries until it is free for both.
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
