//! The thread that accepts TCP connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Server, greet};

/// After a failed accept, most often for lack of file descriptors, wait so long.
const RECOVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Accepts until the listener stops.
pub(super) fn run(server: &Arc<Server>, listener: &TcpListener) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&server.stop, PollFlags::IN)];
        let waited = poll(&mut fds, None);
        let stopped = !fds[1].revents().is_empty();
        if stopped || waited.is_err_and(|e| e != rustix::io::Errno::INTR) {
            return;
        }
        match listener.accept() {
            Ok((tcp, peer)) => admit(server, tcp, peer),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                let _ = poll(&mut [PollFd::new(&server.stop, PollFlags::IN)], Some(&RECOVERY));
            }
        }
    }
}

/// Starts the handshake in a thread of its own. Without resources for it the connection is closed.
fn admit(server: &Arc<Server>, tcp: TcpStream, peer: SocketAddr) {
    server.counters.connections.add_one();
    let Ok(handle) = tcp.try_clone() else {
        return server.counters.failed.add_one();
    };
    let limit = server.options.max_handshakes;
    let (admission, evicted) = server.gate.admit(handle, peer.ip(), limit);
    if evicted {
        server.counters.evicted.add_one();
    }
    let worker = server.clone();
    let greet = move || greet::run(&worker, tcp, peer, admission);
    if std::thread::Builder::new().name("haul-handshake".to_owned()).spawn(greet).is_err() {
        server.counters.failed.add_one();
    }
}
