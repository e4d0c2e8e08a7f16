//! State shared by an endpoint's drivers and the application's threads.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::task::{self, Context, Poll};
use std::time::Instant;

use derive_more::Deref;
use haul_proto::connection::{Application, PeerTable};
use haul_udp::UdpSocket;
use rustix::event::epoll;
use rustix::io::Errno;

use super::connection::Connection;
use super::pending::SessionTable;
use super::socket::EndpointSocket;
use crate::socket_reader::SocketReader;
use crate::wake::{WakerList, lock};
use crate::{ConnectionOptions, EngineError, Monitor, Role, Waker};

/// Tags of ready descriptors in an epoll instance; other descriptors are tagged with their number.
pub(super) const SOCKET: u64 = u64::MAX;
pub(super) const WAKER: u64 = u64::MAX - 1;

pub(super) fn system(error: Errno) -> EngineError {
    EngineError::system("cannot wait for the UDP socket", error)
}

/// What the drivers of an endpoint wait with.
pub(super) struct Driver {
    pub(super) reader: Mutex<SocketReader>,
    /// Epoll instance of the inline driver: the socket and `inline_waker`.
    pub(super) inline: OwnedFd,
    pub(super) inline_waker: Waker,
    pub(super) inline_in_use: AtomicBool,
    /// Epoll instance of the endpoint's thread: the socket and the TCP connections of handshakes.
    pub(super) background: OwnedFd,
    /// Tasks waiting for these connections, by descriptor, each with its deadline.
    pub(super) handshakes: Mutex<HashMap<RawFd, (Instant, task::Waker)>>,
}

impl Driver {
    fn new(socket: &UdpSocket) -> Result<Self, EngineError> {
        let inline_waker = Waker::new()?;
        let inline = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let background = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let exclusive = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        // The order of these two decides which driver is woken first.
        epoll::add(&inline, socket, epoll::EventData::new_u64(SOCKET), exclusive).map_err(system)?;
        epoll::add(&background, socket, epoll::EventData::new_u64(SOCKET), exclusive).map_err(system)?;
        epoll::add(&inline, inline_waker.fd(), epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)
            .map_err(system)?;
        Ok(Self {
            reader: Mutex::new(SocketReader::new(socket)),
            inline,
            inline_waker,
            inline_in_use: AtomicBool::new(false),
            background,
            handshakes: Mutex::default(),
        })
    }
}

/// The connections and known peers of an endpoint.
#[derive(Deref)]
pub(crate) struct SharedEndpoint {
    /// Socket through which connections send; they know nothing of each other.
    #[deref]
    io: EndpointSocket,
    pub(crate) table: Mutex<PeerTable<Connection>>,
    /// Sessions whose control frames may arrive on this socket.
    pub(crate) sessions: Arc<SessionTable>,
    pub(super) driver: Driver,
    /// Options of connections opened by peers.
    pub(super) options: Mutex<ConnectionOptions>,
    /// Connections opened by peers and not accepted yet; `None` once the listener was dropped.
    backlog: Monitor<Option<VecDeque<Arc<Connection>>>>,
    max_backlog: usize,
    /// When peers can no longer open connections, in seconds since 1970.
    pub(super) expires: Option<u64>,
}

impl SharedEndpoint {
    pub(super) fn new(
        socket: Arc<UdpSocket>,
        known_peers: usize,
        max_backlog: usize,
        expires: Option<u64>,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            driver: Driver::new(&socket)?,
            io: EndpointSocket::shared(socket)?,
            table: Mutex::new(PeerTable::new(known_peers)),
            sessions: Arc::default(),
            options: Mutex::default(),
            backlog: Monitor::new(Some(VecDeque::new())),
            max_backlog,
            expires,
        })
    }

    /// Runs `work` with the live connection of this peer; returns whether there is one.
    pub(super) fn with_connection(&self, identity: u32, work: impl FnOnce(&Connection)) -> bool {
        let connection = lock(&self.table).live(identity);
        connection.map(|connection| connection.guarded(work)).is_some()
    }

    /// Removes a connection that has ended and whose channel was dropped, and a client's resumption state.
    pub(super) fn remove_if_over(&self, connection: &Arc<Connection>) {
        let state = connection.lock();
        let (is_over, peer) =
            (state.application == Application::Dropped && state.lifecycle.is_over(), state.peer.validated());
        drop(state);
        if !is_over {
            return;
        }
        let mut table = lock(&self.table);
        if table.end(self.clock.now(), connection.identity(), connection, peer)
            && connection.role() == Role::Client
        {
            table.remove(connection.identity());
        }
    }

    /// Queues a connection to accept; returns the tasks to wake once unlocked, or `None` if the queue is
    /// full or closed.
    pub(super) fn queue_for_accept(&self, connection: Arc<Connection>) -> Option<WakerList> {
        let mut backlog = self.backlog.lock();
        let queue = backlog.as_mut().filter(|queue| queue.len() < self.max_backlog)?;
        queue.push_back(connection);
        Some(backlog.wakers.take())
    }

    /// Whether peers may open connections.
    pub(super) fn is_accepting(&self) -> bool {
        self.backlog.lock().is_some()
    }

    /// Closes the queue; returns the connections in it.
    pub(super) fn stop_accepting(&self) -> impl Iterator<Item = Arc<Connection>> + use<> {
        self.backlog.update(Option::take).into_iter().flatten()
    }

    pub(super) fn poll_backlog(&self, context: &Context<'_>) -> Poll<Result<Arc<Connection>, EngineError>> {
        self.backlog.poll(context, |backlog| match backlog.as_mut().map(VecDeque::pop_front) {
            Some(None) if !self.is_stopped() => None,
            next => Some(next.flatten().ok_or(EngineError::Closed)),
        })
    }

    /// Ends the endpoint's thread and fails the tasks waiting for connections.
    pub(super) fn stop(&self) {
        self.io.stop();
        self.backlog.update(|_| ());
    }

    /// Stops the endpoint, and ends all its connections.
    pub(super) fn end_all(&self, error: &EngineError) {
        if !matches!(error, EngineError::Closed) {
            tracing::error!(error = error.with_causes(), "the UDP endpoint has failed");
        }
        self.stop();
        let connections = lock(&self.table).clear();
        for connection in connections {
            let mut state = connection.lock();
            state.end(error.clone());
            Connection::release(state);
        }
    }
}
