//! The socket; sending, receiving and errors are in separate modules.

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

/// Event to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// A datagram, or an error from the network.
    Read,
    /// Space in the send buffer.
    Write,
}

/// A non-blocking UDP socket with all available kernel features enabled.
///
/// It can be used from several threads; each receiving thread has its own [`Receiver`](crate::Receiver). A
/// socket bound to `[::]` also serves IPv4, unless the system disables that (`net.ipv6.bindv6only`); such
/// peers have addresses of the form `::ffff:a.b.c.d`.
pub struct UdpSocket {
    socket: Socket,
    capabilities: Capabilities,
    pub(crate) sending: SendState,
    pub(crate) counters: Counters,
}

impl UdpSocket {
    /// Opens a socket and binds it to `addr`. The kernel chooses a port if it is 0.
    ///
    /// # Errors
    /// [`SocketError::Open`] or [`SocketError::Bind`]. Anything else that the kernel does not grant is no
    /// error but shows in [`capabilities`](Self::capabilities).
    pub fn bind(addr: SocketAddr, options: &Options) -> Result<Self, SocketError> {
        let socket = Self::bound(addr, options, false)?;
        // Only sockets that are connected join: another listener's would take half of the clients.
        socket.socket.set_reuse_port(options.reuse_port).map_err(SocketError::Open)?;
        Ok(socket)
    }

    fn bound(addr: SocketAddr, options: &Options, joins_port: bool) -> Result<Self, SocketError> {
        let (socket, capabilities) = setup::open(addr, options)?;
        socket.set_reuse_port(joins_port).map_err(SocketError::Open)?;
        socket.bind(&addr.into()).map_err(|source| SocketError::Bind { addr, source })?;
        tracing::debug!(%addr, %capabilities, "UDP socket");
        let sending = SendState::new(&capabilities);
        Ok(Self { socket, capabilities, sending, counters: Counters::default() })
    }

    /// Opens a socket bound to `local` and connected to `peer`, for a session beside a listener on the same
    /// port ([`Options::reuse_port`]).
    ///
    /// Between the two steps, for a few microseconds, the kernel may deliver datagrams to it that are meant
    /// for the listener: readers must expect foreign datagrams, and senders must retransmit lost ones.
    ///
    /// # Errors
    /// As [`bind`](Self::bind) and [`connect`](Self::connect).
    pub fn connected(local: SocketAddr, peer: SocketAddr, options: &Options) -> Result<Self, SocketError> {
        let socket = Self::bound(local, options, options.reuse_port)?;
        socket.connect(peer)?;
        Ok(socket)
    }

    /// Sets or replaces the peer: [`send`](Self::send) sends to it, and only its datagrams are received.
    ///
    /// # Errors
    /// [`SocketError::Connect`], for example if there is no route.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), SocketError> {
        self.socket.connect(&peer.into()).map_err(|source| SocketError::Connect { peer, source })?;
        self.sending.set_peer(peer);
        Ok(())
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// [`SocketError::Query`] if the kernel does not return it.
    pub fn local_addr(&self) -> Result<SocketAddr, SocketError> {
        let addr = self.socket.local_addr().map_err(SocketError::Query)?;
        addr.as_socket().ok_or_else(|| SocketError::Query(io::ErrorKind::Unsupported.into()))
    }

    /// Returns the peer's address, once [`connect`](Self::connect) has set it.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()?.as_socket()
    }

    /// Returns the capabilities of the socket.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the counters of the socket.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// Returns the kernel's memory accounting of the socket; takes about 0.3 us.
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

    /// Waits until the socket is ready or has an error; returns false if `timeout` expires or a signal
    /// arrives first.
    ///
    /// # Errors
    /// Errors of `ppoll`; not expected for an open socket.
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
