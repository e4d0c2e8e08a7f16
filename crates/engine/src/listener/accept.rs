//! The thread that accepts TCP connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Server, handshake};
use crate::spawn::spawn;

/// After a failed accept, most often for lack of file descriptors, wait so long.
const RECOVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

pub(super) fn run(server: &Arc<Server>, listener: &TcpListener) {
    let stopping = || PollFd::from_borrowed_fd(server.stop.fd(), PollFlags::IN);
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), stopping()];
        let due = server.refusals.due().and_then(|due| Timespec::try_from(due).ok());
        let waited = poll(&mut fds, due.as_ref());
        let stopped = !fds[1].revents().is_empty();
        if stopped || waited.is_err_and(|e| e != rustix::io::Errno::INTR) {
            return;
        }
        server.refusals.tell_left_out();
        match listener.accept() {
            Ok((tcp, peer)) => start_handshake(server, tcp, peer),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                let _ = poll(&mut [stopping()], Some(&RECOVERY));
            }
        }
    }
}

/// Gives the connection a place, and a thread if there may be one more. Without resources for it the connection is
/// closed.
fn start_handshake(server: &Arc<Server>, tcp: TcpStream, peer: SocketAddr) {
    server.counters.connections.add_one();
    let (permit, evicted) = server.limiter.accept(tcp, peer);
    if evicted {
        server.counters.evicted.add_one();
    }
    let Some(permit) = permit else { return };
    let worker = server.clone();
    let serve = move || handshake::run(&worker, permit);
    if let Err(error) = spawn("haul-handshake", serve) {
        tracing::warn!(%error);
        for _ in 0..server.limiter.turn_away_waiting() {
            server.counters.failed.add_one();
        }
    }
}
