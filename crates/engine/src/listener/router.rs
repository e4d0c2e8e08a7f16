//! What comes to the listener's UDP socket and belongs to no association. Authentic control frames go to their sessions,
//! or are answered by a challenge if they come from elsewhere; everything else is dropped, the cheap reasons first.

use std::net::SocketAddr;

use haul_wire::packet::ControlFrame;

use super::Server;
use super::pending::Verdict;
use super::stats::Counter;
use super::table::Lookup;

/// Deals with a datagram, and gives what is to be answered.
pub(super) fn route(server: &Server, datagram: &[u8], source: SocketAddr) -> Option<Vec<u8>> {
    let (counter, answer) = judge(server, datagram, source);
    counter.add_one();
    answer
}

/// Deals with a datagram, and says which counter it belongs to.
fn judge<'a>(server: &'a Server, datagram: &[u8], source: SocketAddr) -> (&'a Counter, Option<Vec<u8>>) {
    let stats = &server.counters;
    let Some(frame) = ControlFrame::parse(datagram).ok().filter(|frame| frame.id.has_control_channel())
    else {
        return (&stats.udp_strays, None);
    };
    let pending = match server.table.find(&frame, server.limiter.is_busy(), source) {
        Lookup::Found(pending) => pending,
        Lookup::Early => return (&stats.udp_early, None),
        Lookup::Unknown => return (&stats.udp_unknown_sessions, None),
    };
    match pending.on_frame(&frame, source) {
        Verdict::Taken(response) => (&stats.udp_taken, response),
        Verdict::Unauthentic => (&stats.udp_unauthentic, None),
        Verdict::Foreign => (&stats.udp_foreign, None),
        Verdict::Challenged(challenge) => (&stats.udp_challenged, Some(challenge)),
    }
}
