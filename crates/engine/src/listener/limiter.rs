//! Connections in the handshake: their sockets, and the slots and threads assigned by the limiter.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use haul_proto::connection::HandshakeLimiter;

use crate::wake::lock;

#[derive(Clone, Debug)]
pub(super) struct PendingTcp {
    pub(super) tcp: Arc<TcpStream>,
    pub(super) peer: SocketAddr,
    pub(super) at: Instant,
}

pub(super) type Limiter = Arc<Mutex<HandshakeLimiter<PendingTcp>>>;

/// Adds a connection and closes another one if there are too many. Returns the permit of a new thread, if one
/// may be started, and whether a connection was closed.
pub(super) fn accept(limiter: &Limiter, tcp: TcpStream, peer: SocketAddr) -> (Option<WorkerPermit>, bool) {
    let pending_tcp = PendingTcp { tcp: Arc::new(tcp), peer, at: Instant::now() };
    let (evicted, may_start) = lock(limiter).accept(peer.ip(), pending_tcp);
    if let Some(evicted) = &evicted {
        // The thread that serves it sees the end of the connection.
        let _ = evicted.tcp.shutdown(Shutdown::Both);
    }
    let permit = may_start.then(|| WorkerPermit { limiter: limiter.clone(), is_taken: true });
    (permit, evicted.is_some())
}

/// A thread's permit to serve connections; returned when none waits, or when dropped.
pub(super) struct WorkerPermit {
    limiter: Limiter,
    is_taken: bool,
}

impl WorkerPermit {
    /// Returns the connection that has waited longest. `None`: none waits, and the thread must end.
    pub(super) fn next(&mut self) -> Option<Handshake> {
        let waiting = lock(&self.limiter).next_waiting();
        self.is_taken = waiting.is_some();
        let (id, pending_tcp) = waiting?;
        Some(Handshake { pending_tcp, limiter: self.limiter.clone(), id })
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        if self.is_taken {
            lock(&self.limiter).end_thread();
        }
    }
}

/// A connection in the handshake, and its slot. Dropping it frees the slot and closes the connection.
#[derive(derive_more::Deref)]
pub(super) struct Handshake {
    #[deref]
    pending_tcp: PendingTcp,
    limiter: Limiter,
    id: u64,
}

impl Handshake {
    /// Frees the slot, once the request is read. Returns false if the connection was evicted for another.
    pub(super) fn free_slot(&self) -> bool {
        lock(&self.limiter).leave(self.id)
    }

    pub(super) fn into_tcp(self) -> Option<TcpStream> {
        let tcp = self.tcp.clone();
        drop(self);
        Arc::into_inner(tcp)
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.free_slot();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use haul_proto::connection::HandshakeLimits;

    use super::*;

    #[test]
    fn an_evicted_connection_is_closed_and_its_thread_serves_the_new_one() {
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
        assert!(!handshake.free_slot());
        drop(handshake);
        let newcomer = permit.next().unwrap();
        assert!(newcomer.free_slot() && newcomer.into_tcp().is_some());
        assert!(permit.next().is_none(), "nobody waits any more");
    }
}
