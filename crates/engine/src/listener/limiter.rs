//! The connections in the handshake: their sockets, and the places and threads that the limiter gives them.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use haul_proto::connection::HandshakeLimiter;

use crate::wake::lock;

/// A TCP connection that has come.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    pub(super) tcp: Arc<TcpStream>,
    pub(super) peer: SocketAddr,
    pub(super) at: Instant,
}

pub(super) type Limiter = Arc<Mutex<HandshakeLimiter<Arrived>>>;

/// Accepts a connection; closes another one if there are too many, and says whether it has. Gives the permit of a new
/// thread, if there may be one more.
pub(super) fn accept(limiter: &Limiter, tcp: TcpStream, peer: SocketAddr) -> (Option<WorkerPermit>, bool) {
    let arrived = Arrived { tcp: Arc::new(tcp), peer, at: Instant::now() };
    let (evicted, may_start) = lock(limiter).accept(peer.ip(), arrived);
    if let Some(evicted) = &evicted {
        // A thread that serves it sees its end.
        let _ = evicted.tcp.shutdown(Shutdown::Both);
    }
    let permit = may_start.then(|| WorkerPermit { limiter: limiter.clone(), is_taken: true });
    (permit, evicted.is_some())
}

/// A thread's permission to serve connections; returned when none waits, or when dropped.
pub(super) struct WorkerPermit {
    limiter: Limiter,
    is_taken: bool,
}

impl WorkerPermit {
    /// The connection that has waited longest. `None`: none waits, and the thread has to end.
    pub(super) fn next(&mut self) -> Option<Handshake> {
        let waiting = lock(&self.limiter).next_waiting();
        self.is_taken = waiting.is_some();
        let (id, arrived) = waiting?;
        Some(Handshake { arrived, limiter: self.limiter.clone(), id })
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        if self.is_taken {
            lock(&self.limiter).end_thread();
        }
    }
}

/// A connection in the handshake, and its place. The place is given back when this is dropped, which closes the
/// connection.
#[derive(derive_more::Deref)]
pub(super) struct Handshake {
    #[deref]
    arrived: Arrived,
    limiter: Limiter,
    id: u64,
}

impl Handshake {
    /// The client has proved that it knows the secret: gives up the place. False if there is none: the connection has
    /// been closed in favour of another one.
    pub(super) fn leave(&self) -> bool {
        lock(&self.limiter).leave(self.id)
    }

    /// The connection of a client that has left.
    pub(super) fn into_tcp(self) -> Option<TcpStream> {
        let tcp = self.tcp.clone();
        drop(self);
        Arc::into_inner(tcp)
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use haul_proto::connection::HandshakeLimits;

    use super::*;

    #[test]
    fn a_connection_that_has_to_go_is_closed_and_its_thread_serves_the_newcomer() {
        let limits = HandshakeLimits { total: 1, ..HandshakeLimits::default() };
        let limiter: Limiter = Arc::new(Mutex::new(HandshakeLimiter::new(limits)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let come = || {
            let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            (tcp, accept(&limiter, accepted, peer))
        };
        let (mut first, (permit, evicted)) = come();
        let mut permit = permit.unwrap();
        let handshake = permit.next().unwrap();
        assert!(!evicted);
        let (_second, (no_permit, evicted)) = come();
        assert!(no_permit.is_none() && evicted);
        assert_eq!(first.read(&mut [0]).unwrap(), 0, "it was closed");
        assert!(!handshake.leave());
        drop(handshake);
        let newcomer = permit.next().unwrap();
        assert!(newcomer.leave() && newcomer.into_tcp().is_some());
        assert!(permit.next().is_none(), "nobody waits any more");
    }
}
