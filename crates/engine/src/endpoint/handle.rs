use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use haul_base::Bytes;
use haul_udp::{Options, UdpSocket};

use super::EndpointStats;
use super::driver;
use super::shared::SharedEndpoint;
use crate::spawn::spawn;
use crate::wake::lock;
use crate::{ConnectionOptions, EngineError};

/// Socket buffer size to request; all connections share it.
const BUFFER: Bytes = Bytes(16 << 20);

/// A UDP socket and a thread for any number of connections. A thread that waits on one of its channels may
/// drive it instead. Clones share the endpoint, which ends with the last clone and channel.
#[derive(derive_more::Debug, Clone)]
#[debug("Endpoint({:?})", handle.shared.socket)]
pub struct Endpoint {
    handle: Arc<EndpointHandle>,
}

struct EndpointHandle {
    shared: Arc<SharedEndpoint>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for EndpointHandle {
    fn drop(&mut self) {
        self.shared.stop();
        let thread = lock(&self.thread).take();
        // A waker called on a driver's thread may drop the last channel. Joining would then deadlock: a
        // thread with itself, or two with each other.
        if let Some(thread) = thread.filter(|_| !driver::is_driver()) {
            let _ = thread.join();
        }
    }
}

impl Endpoint {
    /// Creates a client endpoint, which can connect to any number of servers over IPv6 and IPv4.
    ///
    /// # Errors
    /// [`EngineError::System`] if the socket or the thread cannot be created.
    pub fn client() -> Result<Self, EngineError> {
        let options =
            Options { dual_stack: true, recv_buffer: BUFFER, send_buffer: BUFFER, ..Options::default() };
        let bind = |ip: IpAddr| UdpSocket::bind(SocketAddr::new(ip, 0), &options);
        // Without IPv6 in the kernel, use IPv4 only.
        let socket = bind(Ipv6Addr::UNSPECIFIED.into())
            .or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()))
            .map_err(|e| EngineError::system("cannot open a UDP socket", e))?;
        // A client accepts no connections.
        Self::start(socket, usize::MAX, 0, None)
    }

    /// Starts an endpoint that keeps the resumption state of at most `known_peers` peers, and queues at most
    /// `backlog` connections to be accepted, none from `expires` on (seconds since 1970).
    pub(crate) fn start(
        socket: UdpSocket,
        known_peers: usize,
        backlog: usize,
        expires: Option<u64>,
    ) -> Result<Self, EngineError> {
        let shared = Arc::new(SharedEndpoint::new(Arc::new(socket), known_peers, backlog, expires)?);
        let ours = shared.clone();
        let thread = Mutex::new(Some(spawn("haul-endpoint", move || driver::run(&ours))?));
        Ok(Self { handle: Arc::new(EndpointHandle { shared, thread }) })
    }

    pub(crate) fn shared(&self) -> &Arc<SharedEndpoint> {
        &self.handle.shared
    }

    /// Sets the options of connections opened by peers from now on.
    pub fn set_options(&self, options: ConnectionOptions) {
        *lock(&self.shared().options) = options;
    }

    /// Returns the number of peers whose resumption state is kept, with or without a connection.
    pub fn known_peers(&self) -> usize {
        lock(&self.shared().table).count()
    }

    /// Returns the counters.
    pub fn stats(&self) -> EndpointStats {
        self.shared().counters.read()
    }
}
