//! Dispatches the packets received on an endpoint's socket to their connections.

use std::net::SocketAddr;

use haul_base::{Received as Packets, Time};
use haul_proto::connection::{FrameKeys, Header, Peer, Verdict};
use haul_udp::Datagrams;
use haul_wire::packet::{ControlFrame, ControlFrameKind, DatagramKind, PairHeader};

use super::connection::{Connection, received};
use super::shared::SharedEndpoint;
use crate::wake::lock;

/// Dispatches the datagrams of one buffer; consecutive packets of one connection stay a batch.
pub(super) fn dispatch(shared: &SharedEndpoint, now: Time, arrival: Option<Time>, batch: Datagrams<'_>) {
    let Datagrams { data, stride, source, ecn, .. } = batch;
    let stride = stride.max(1);
    let mut rest = data;
    while !rest.is_empty() {
        let datagram_kind = DatagramKind::of(&rest[..rest.len().min(stride)]);
        let run = match datagram_kind {
            DatagramKind::Stack(_) => {
                rest.chunks(stride).take_while(|packet| DatagramKind::of(packet) == datagram_kind).count()
            }
            _ => 1,
        };
        let (these, others) = rest.split_at_mut((run * stride).min(rest.len()));
        rest = others;
        match datagram_kind {
            DatagramKind::Stack(identity) => {
                on_packets(shared, now, received(these, stride, ecn, arrival), source, identity);
            }
            DatagramKind::Initial => super::accept::on_initial(shared, now, these, source, ecn),
            DatagramKind::ControlFrame => on_frame(shared, now, these, source),
            DatagramKind::Pair => on_pair(shared, now, received(these, stride, ecn, arrival), source),
            DatagramKind::Stray => shared.counters.strays.add_one(),
        }
    }
}

/// Dispatches adjacent packets to the connection with this identity.
fn on_packets(shared: &SharedEndpoint, now: Time, packets: Packets<'_>, source: SocketAddr, identity: u32) {
    let on_packets = |it: &Connection| it.on_packets(shared, now, packets, source, Header::Absent);
    if !shared.with_connection(identity, on_packets) {
        shared.counters.unknown.add_one();
    }
}

/// Splits a datagram that carries two packets of one connection.
fn on_pair(shared: &SharedEndpoint, now: Time, datagram: Packets<'_>, source: SocketAddr) {
    let Packets { data, ecn, arrival, .. } = datagram;
    let Ok((first, second)) = PairHeader::split(data) else { return shared.counters.strays.add_one() };
    for packet in [first, second] {
        let stride = packet.len();
        match DatagramKind::of(packet) {
            DatagramKind::Stack(identity) => {
                on_packets(shared, now, received(packet, stride, ecn, arrival), source, identity);
            }
            _ => shared.counters.strays.add_one(),
        }
    }
}

fn on_frame(shared: &SharedEndpoint, now: Time, packet: &[u8], source: SocketAddr) {
    let Ok(frame) = ControlFrame::parse(packet) else { return shared.counters.strays.add_one() };
    if frame.id.has_control_channel() {
        return on_session_frame(shared, &frame, source);
    }
    let (keys, live) = match lock(&shared.table).get(frame.id.identity) {
        Some(Peer { resumption: known, live, .. }) => {
            (FrameKeys::new(&known.secret, frame.id, known.role), live.clone())
        }
        None => return shared.counters.unknown.add_one(),
    };
    if !keys.verifies(&frame) {
        return shared.counters.unauthentic.add_one();
    }
    match live.filter(|live| live.id() == frame.id) {
        Some(connection) => {
            connection.guarded(|connection| connection.on_frame(shared, now, &frame, source));
            shared.remove_if_over(&connection);
        }
        None if matches!(frame.kind, ControlFrameKind::Close | ControlFrameKind::CloseAndDropResumption) => {
            super::accept::send_closed(shared, frame.id);
        }
        None => {}
    }
    super::accept::drop_resumption_state_if_requested(shared, &frame);
}

/// Handles a session's control frame on the shared socket: the session's own is not open or was overtaken.
fn on_session_frame(shared: &SharedEndpoint, frame: &ControlFrame, source: SocketAddr) {
    let counters = &shared.counters;
    // Its session may be registered shortly.
    let Some(session) = shared.sessions.find(frame, source) else { return counters.unknown.add_one() };
    let answer = match session.on_frame(frame, source) {
        (Verdict::Unauthentic, _) => return counters.unauthentic.add_one(),
        (Verdict::Consumed, response) => response,
        (Verdict::Challenged(challenge), _) => {
            counters.challenged.add_one();
            Some(challenge)
        }
    };
    if let Some(answer) = answer {
        shared.send(&answer, source);
    }
}
