//! The thread that reads the listener's UDP socket. It never answers: it hands authentic HELLOs to their
//! sessions and drops everything else, the cheap reasons first.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use haul_udp::{Receiver, RecvError, UdpSocket};
use haul_wire::packet::{HelloHeader, PacketKind};
use rustix::event::{PollFd, PollFlags, poll};

use super::Server;
use super::slot::Verdict;
use super::stats::Counter;
use super::table::Lookup;
use crate::hello::MIN_DATAGRAM;

/// Routes until the listener stops.
pub(super) fn run(server: &Server, socket: &UdpSocket) {
    let mut receiver = Receiver::new(socket);
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            PollFd::new(&server.stop, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return tracing::error!(%error, "the UDP listener has failed"),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match receiver.recv(socket) {
            Ok(_) => {}
            Err(RecvError::Io(error)) => return tracing::error!(%error, "the UDP listener has failed"),
            Err(_) => continue,
        }
        for mut batch in receiver.datagrams() {
            let source = batch.source;
            batch.iter_mut().for_each(|datagram| judge(server, datagram, source).add_one());
        }
    }
}

/// Deals with a datagram, and says which counter it belongs to.
fn judge<'a>(server: &'a Server, datagram: &mut [u8], source: SocketAddr) -> &'a Counter {
    let stats = &server.counters;
    if datagram.first() != Some(&(PacketKind::Hello as u8)) || datagram.len() < usize::from(MIN_DATAGRAM) {
        return &stats.udp_strays;
    }
    let Ok(header) = HelloHeader::parse(datagram) else {
        return &stats.udp_strays;
    };
    let expecting = server.gate.is_busy();
    let slot = match server.table.find(header.session, expecting, datagram, source) {
        Lookup::Found(slot) => slot,
        Lookup::Early => return &stats.udp_early,
        Lookup::Unknown => return &stats.udp_unknown_sessions,
    };
    match slot.on_hello(datagram, source) {
        Verdict::Taken => &stats.udp_hellos,
        Verdict::Unauthentic => &stats.udp_unauthentic,
        Verdict::Foreign => &stats.udp_foreign,
    }
}
