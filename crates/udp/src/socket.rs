//! The socket itself; sending, errors and receiving are in their own files.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::Socket;

use crate::capabilities::Capabilities;
use crate::errors::SocketError;
use crate::options::Options;
use crate::send_state::SendState;
use crate::stats::{Counters, SocketMemory, Stats};
use crate::{setup, sys};

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// A datagram, or an error from the network.
    Read,
    /// Room in the send buffer.
    Write,
}

/// A UDP socket that never blocks, with what the kernel has to offer turned on.
///
/// It can be used from several threads; each receiving thread has a [`Receiver`](crate::Receiver) of its own.
/// A socket bound to `[::]` serves IPv4 too, unless the system says otherwise (`net.ipv6.bindv6only`); such
/// peers have addresses of the form `::ffff:a.b.c.d`.
pub struct UdpSocket {
    socket: Socket,
    capabilities: Capabilities,
    pub(crate) sending: SendState,
    pub(crate) counters: Counters,
}

impl UdpSocket {
    /// Opens a socket and binds it to `addr`; port 0 lets the kernel choose one.
    ///
    /// # Errors
    /// [`SocketError::Open`] or [`SocketError::Bind`]. Whatever else the kernel does not grant is no error
    /// but shows in [`capabilities`](Self::capabilities).
    pub fn bind(addr: SocketAddr, options: &Options) -> Result<Self, SocketError> {
        let (socket, capabilities) = setup::open(addr, options)?;
        socket.bind(&addr.into()).map_err(|source| SocketError::Bind { addr, source })?;
        tracing::debug!(%addr, %capabilities, "UDP socket");
        let sending = SendState::new(&capabilities);
        Ok(Self { socket, capabilities, sending, counters: Counters::default() })
    }

    /// Opens a socket that is bound to `local` and connected to `peer`, for a session beside a listener on the
    /// same port ([`Options::reuse_port`]).
    ///
    /// Between the two steps, a few microseconds, the kernel may hand it datagrams that were meant for the
    /// listener: whoever reads the socket has to expect strangers, and whoever lost a datagram to send it again.
    ///
    /// # Errors
    /// As [`bind`](Self::bind) and [`connect`](Self::connect).
    pub fn connected(local: SocketAddr, peer: SocketAddr, options: &Options) -> Result<Self, SocketError> {
        let socket = Self::bind(local, options)?;
        socket.connect(peer)?;
        Ok(socket)
    }

    /// Sets the peer, also in the place of another: [`send`](Self::send) goes there, and only what comes from there is
    /// received.
    ///
    /// # Errors
    /// [`SocketError::Connect`], for example without a route.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), SocketError> {
        self.socket.connect(&peer.into()).map_err(|source| SocketError::Connect { peer, source })?;
        self.sending.set_peer(peer);
        Ok(())
    }

    /// The address that the socket is bound to.
    ///
    /// # Errors
    /// [`SocketError::Query`] if the kernel does not say.
    pub fn local_addr(&self) -> Result<SocketAddr, SocketError> {
        let addr = self.socket.local_addr().map_err(SocketError::Query)?;
        addr.as_socket().ok_or_else(|| SocketError::Query(io::ErrorKind::Unsupported.into()))
    }

    /// The peer, once [`connect`](Self::connect) has set it.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()?.as_socket()
    }

    /// What the socket can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// What has happened so far.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// The kernel's account of the socket; takes about 0.3 microseconds.
    ///
    /// # Errors
    /// [`SocketError::Query`] on kernels before Linux 4.12.
    pub fn socket_memory(&self) -> Result<SocketMemory, SocketError> {
        let mut words = [0; SocketMemory::WORDS];
        let count = sys::get_option(self.fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, &mut words);
        let count = count.map_err(SocketError::Query)?;
        let memory = words.get(..count).and_then(SocketMemory::from_words);
        memory.ok_or_else(|| SocketError::Query(io::ErrorKind::Unsupported.into()))
    }

    /// Waits until the socket is ready or has an error to report; false if `timeout` (or a signal) came first.
    ///
    /// # Errors
    /// What `ppoll` says; not expected for an open socket.
    pub fn wait(&self, interest: Interest, timeout: Duration) -> io::Result<bool> {
        let events = match interest {
            Interest::Read => libc::POLLIN,
            Interest::Write => libc::POLLOUT,
        };
        sys::wait(self.fd(), events, timeout)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = self.local_addr().ok();
        f.debug_struct("UdpSocket")
            .field("local", &local)
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}
