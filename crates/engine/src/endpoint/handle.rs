use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use haul_base::Bytes;
use haul_udp::{Options, UdpSocket};

use super::EndpointStats;
use super::driver;
use super::shared::Shared;
use crate::spawn::spawn;
use crate::wake::lock;
use crate::{ConnectionOptions, EngineError};

/// What to ask the kernel for: all connections share these buffers.
const BUFFER: Bytes = Bytes(16 << 20);

/// A UDP socket and a thread for any number of connections. A thread that waits on one of its channels may do the work
/// of the endpoint's own. Clones are the same endpoint, which ends with the last of them and of its channels.
#[derive(derive_more::Debug, Clone)]
#[debug("Endpoint({:?})", handle.shared.socket)]
pub struct Endpoint {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop();
        let thread = lock(&self.thread).take();
        // A waker on a driver's thread may have held the last channel. That thread would wait for itself, or two for
        // each other.
        if let Some(thread) = thread.filter(|_| !driver::is_driver()) {
            let _ = thread.join();
        }
    }
}

impl Endpoint {
    /// An endpoint that begins connections with any number of servers, over IPv6 and IPv4.
    ///
    /// # Errors
    /// [`EngineError::System`] if there is no socket or thread to be had.
    pub fn client() -> Result<Self, EngineError> {
        let options =
            Options { dual_stack: true, recv_buffer: BUFFER, send_buffer: BUFFER, ..Options::default() };
        let bind = |ip: IpAddr| UdpSocket::bind(SocketAddr::new(ip, 0), &options);
        // A kernel without IPv6 has IPv4 only.
        let socket = bind(Ipv6Addr::UNSPECIFIED.into())
            .or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()))
            .map_err(|e| EngineError::system("cannot open a UDP socket", e))?;
        // It has begun all its connections itself.
        Self::start(socket, usize::MAX, 0)
    }

    /// Keeps the resumption state of `known_peers`, with connections or without, and `arrivals` connections that wait to be
    /// accepted.
    pub(crate) fn start(socket: UdpSocket, known_peers: usize, arrivals: usize) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared::new(Arc::new(socket), known_peers, arrivals)?);
        let ours = shared.clone();
        let thread = Mutex::new(Some(spawn("haul-endpoint", move || driver::run(&ours))?));
        Ok(Self { handle: Arc::new(Handle { shared, thread }) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// How connections run that the other side begins from now on.
    pub fn set_options(&self, options: ConnectionOptions) {
        *lock(&self.shared().options) = options;
    }

    /// Peers whose resumption state is kept, with or without a connection.
    pub fn known_peers(&self) -> usize {
        lock(&self.shared().table).count()
    }

    /// The counters.
    pub fn stats(&self) -> EndpointStats {
        self.shared().counters.read()
    }
}
