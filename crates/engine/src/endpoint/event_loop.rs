//! Gives the packets that come to an endpoint's socket to their connections.

use std::net::SocketAddr;

use haul_proto::connection::FrameKeys;
use haul_base::{Received as Packets, Time};
use haul_udp::Datagrams;
use haul_wire::packet::{
    CONTROL_FRAME_KIND, ControlFrame, ControlFrameKind, IDENTITY_AT, INITIAL_HEADER_KIND, PAIR_KIND,
    PairHeader,
};

use super::connection::{Connection, Header, received};
use super::pending::Verdict;
use super::shared::Shared;
use super::table::Entry;
use crate::guard::lock;

/// What a datagram is, by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DatagramKind {
    Open,
    ControlFrame,
    Stack(u32),
    Pair,
    Stray,
}

fn kind_of(packet: &[u8]) -> DatagramKind {
    let identity = packet.get(IDENTITY_AT..IDENTITY_AT + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
    match (packet.first(), identity) {
        (Some(&INITIAL_HEADER_KIND), Some(_)) => DatagramKind::Open,
        (Some(&CONTROL_FRAME_KIND), Some(_)) => DatagramKind::ControlFrame,
        (Some(&PAIR_KIND), Some(_)) => DatagramKind::Pair,
        (_, Some(identity)) => DatagramKind::Stack(u32::from_be_bytes(identity)),
        _ => DatagramKind::Stray,
    }
}

/// Gives the datagrams of one buffer to their connections; consecutive packets of one connection stay a batch.
pub(super) fn dispatch(shared: &Shared, now: Time, arrival: Option<Time>, batch: Datagrams<'_>) {
    let Datagrams { data, stride, source, ecn, .. } = batch;
    let stride = stride.max(1);
    let mut rest = data;
    while !rest.is_empty() {
        let what = kind_of(&rest[..rest.len().min(stride)]);
        let run = match what {
            DatagramKind::Stack(_) => {
                rest.chunks(stride).take_while(|packet| kind_of(packet) == what).count()
            }
            _ => 1,
        };
        let (these, others) = rest.split_at_mut((run * stride).min(rest.len()));
        rest = others;
        match what {
            DatagramKind::Stack(identity) => {
                on_packets(shared, now, received(these, stride, ecn, arrival), source, identity);
            }
            DatagramKind::Open => super::accept::on_open(shared, now, these, source, ecn),
            DatagramKind::ControlFrame => on_frame(shared, now, these, source),
            DatagramKind::Pair => on_pair(shared, now, received(these, stride, ecn, arrival), source),
            DatagramKind::Stray => shared.counters.strays.add_one(),
        }
    }
}

/// Packets of the connection with this identity have come, side by side.
fn on_packets(shared: &Shared, now: Time, packets: Packets<'_>, source: SocketAddr, identity: u32) {
    let on_packets = |it: &Connection| it.on_packets(shared, now, packets, source, Header::Absent);
    if !shared.with_connection(identity, on_packets) {
        shared.counters.unknown.add_one();
    }
}

/// Two packets of one connection have come in one datagram.
fn on_pair(shared: &Shared, now: Time, datagram: Packets<'_>, source: SocketAddr) {
    let Packets { data, ecn, arrival, .. } = datagram;
    let Ok((first, second)) = PairHeader::split(data) else { return shared.counters.strays.add_one() };
    for packet in [first, second] {
        let stride = packet.len();
        match kind_of(packet) {
            DatagramKind::Stack(identity) => {
                on_packets(shared, now, received(packet, stride, ecn, arrival), source, identity);
            }
            _ => shared.counters.strays.add_one(),
        }
    }
}

fn on_frame(shared: &Shared, now: Time, packet: &[u8], source: SocketAddr) {
    let Ok(frame) = ControlFrame::parse(packet) else { return shared.counters.strays.add_one() };
    if frame.id.has_control_channel() {
        return on_session_frame(shared, &frame, source);
    }
    let (keys, live) = match lock(&shared.table).get(frame.id.identity) {
        Some(Entry { resumption: known, live, .. }) => {
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
        }
        None if matches!(frame.kind, ControlFrameKind::Close | ControlFrameKind::Forget) => {
            super::accept::send_closed(shared, frame.id);
        }
        None => {}
    }
    super::accept::drop_resumption_state_if_asked(shared, &frame);
}

/// A control frame of a session has come to the shared socket: its own is not open yet, or the frame was faster.
fn on_session_frame(shared: &Shared, frame: &ControlFrame, source: SocketAddr) {
    let counters = &shared.counters;
    let answer = match shared.sessions.find(frame, source).map(|it| it.on_frame(frame, source)) {
        // Its session may be about to exist.
        None => return counters.unknown.add_one(),
        Some(Verdict::Unauthentic) => return counters.unauthentic.add_one(),
        Some(Verdict::Taken(response)) => response,
        Some(Verdict::Challenged(challenge)) => {
            counters.challenged.add_one();
            Some(challenge)
        }
    };
    if let Some(answer) = answer {
        shared.send(&answer, source);
    }
}
