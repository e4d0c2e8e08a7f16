//! What comes to the listener's UDP socket and belongs to no association. Authentic HELLOs go to their sessions, or are
//! answered by a challenge if they come from elsewhere; everything else is dropped, the cheap reasons first.

use std::net::SocketAddr;

use haul_wire::packet::{HelloHeader, PacketKind};

use super::Server;
use super::pending::Verdict;
use super::stats::Counter;
use super::table::Lookup;
use crate::hello::MIN_DATAGRAM;

/// Deals with a datagram, and gives what is to be answered.
pub(super) fn route(server: &Server, datagram: &mut [u8], source: SocketAddr) -> Option<Vec<u8>> {
    let mut answer = None;
    judge(server, datagram, source, &mut answer).add_one();
    answer
}

/// Deals with a datagram, and says which counter it belongs to.
fn judge<'a>(
    server: &'a Server,
    datagram: &mut [u8],
    source: SocketAddr,
    answer: &mut Option<Vec<u8>>,
) -> &'a Counter {
    let stats = &server.counters;
    if datagram.first() != Some(&(PacketKind::Hello as u8)) || datagram.len() < usize::from(MIN_DATAGRAM) {
        return &stats.udp_strays;
    }
    let Ok(header) = HelloHeader::parse(datagram) else {
        return &stats.udp_strays;
    };
    let expecting = server.limiter.is_busy();
    let pending = match server.table.find(header.session, expecting, datagram, source) {
        Lookup::Found(pending) => pending,
        Lookup::Early => return &stats.udp_early,
        Lookup::Unknown => return &stats.udp_unknown_sessions,
    };
    match pending.on_hello(datagram, source) {
        Verdict::Taken => &stats.udp_hellos,
        Verdict::Unauthentic => &stats.udp_unauthentic,
        Verdict::Foreign => &stats.udp_foreign,
        Verdict::Challenged(challenge) => {
            *answer = Some(challenge);
            &stats.udp_challenged
        }
    }
}
