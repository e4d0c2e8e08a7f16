//! The server's side of opening connections. Each connection is accepted once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use haul_base::{Ecn, Time};
use haul_proto::connection::{BARE_FRAME_LEN, FrameKeys, Header, PeerAddress, ResumptionState};
use haul_stack::Ends;
use haul_wire::packet::{
    CloseReason, ConnectionId, ControlFrame, ControlFrameKind, INITIAL_HEADER_LEN, InitialHeader,
};

use super::connection::{Connection, received};
use super::shared::SharedEndpoint;
use crate::clock::is_past;
use crate::wake::lock;
use crate::{EngineError, Role};

/// Handles a packet with an initial header.
pub(super) fn on_initial(shared: &SharedEndpoint, now: Time, packet: &mut [u8], from: SocketAddr, ecn: Ecn) {
    let Ok((header, _)) = InitialHeader::parse(packet) else { return shared.counters.strays.add_one() };
    // It is followed by a packet of the stack or by nothing.
    let inner = &mut packet[INITIAL_HEADER_LEN..];
    let Some(connection) = find_or_open(shared, now, &header, from) else { return };
    connection.on_header(shared, from);
    let len = inner.len();
    connection.guarded(|connection| {
        if len == 0 {
            // Sets the keep-alive timer, even if no thread waits on the connection.
            connection.flush(shared, now);
        } else {
            connection.on_packets(shared, now, received(inner, len, ecn, None), from, Header::Present);
        }
    });
}

/// Returns the connection of an initial header: the live one, or a new one if its epoch is the highest yet.
fn find_or_open(
    shared: &SharedEndpoint,
    now: Time,
    header: &InitialHeader,
    source: SocketAddr,
) -> Option<Arc<Connection>> {
    let (id, counters) = (header.id, &shared.counters);
    let table = lock(&shared.table);
    let Some(entry) = table.get(id.identity).filter(|entry| entry.resumption.role == Role::Server) else {
        counters.unknown.add_one();
        return None;
    };
    let (resumption, live, last) = (entry.resumption.clone(), entry.live.clone(), entry.last_epoch);
    let is_validated = entry.validated == Some(source.ip().to_canonical());
    let peer = PeerAddress { at: source, moves: is_validated.then_some(0) };
    drop(table);
    if !FrameKeys::new(&resumption.secret, id, Role::Server).verifies_initial(header) {
        counters.unauthentic.add_one();
        return None;
    }
    if let Some(live) = live.filter(|live| live.id() == id) {
        return Some(live);
    }
    if id.epoch > last {
        if is_past(shared.expires) {
            counters.unknown.add_one();
            return None;
        }
        return open(shared, now, &resumption, id, peer);
    }
    // This end has closed the connection with this epoch.
    if id.epoch == last {
        send_closed(shared, id);
    } else {
        counters.replayed_connections.add_one();
    }
    None
}

fn open(
    shared: &SharedEndpoint,
    now: Time,
    resumption: &ResumptionState,
    id: ConnectionId,
    peer: PeerAddress,
) -> Option<Arc<Connection>> {
    let options = lock(&shared.options).clone();
    let connection = Connection::new(now, resumption, id, peer, Duration::ZERO, &options, Ends::default());
    let connection = connection.inspect_err(|error| {
        tracing::warn!(%error, "a stack cannot be made from a recipe that was accepted");
    });
    let Some(connection) = connection.ok().filter(|_| shared.is_accepting()).map(Arc::new) else {
        let keys = FrameKeys::new(&resumption.secret, id, Role::Server);
        shared.send(&keys.frame(ControlFrameKind::Close, CloseReason::Abort as u32, BARE_FRAME_LEN), peer.at);
        return None;
    };
    let mut table = lock(&shared.table);
    table.get(id.identity)?;
    let wakers = shared.queue_for_accept(connection.clone())?;
    let old = table.begin(now, id, connection.clone());
    drop(table);
    // As in `Endpoint::begin`.
    if shared.is_stopped() {
        let mut state = connection.lock();
        state.end(EngineError::Closed);
        Connection::release(state);
    }
    shared.counters.connections.add_one();
    if let Some(old) = old {
        old.supersede();
    }
    wakers.wake();
    Some(connection)
}

/// Answers a close of the latest connection, which this end has closed already. The answer goes to the
/// client's last address, whatever the source of this copy of the close.
pub(super) fn send_closed(shared: &SharedEndpoint, id: ConnectionId) {
    let (resumption, peer) = match lock(&shared.table).get(id.identity) {
        Some(entry) if entry.last_epoch == id.epoch => match &entry.last_peer {
            Some(peer) => (entry.resumption.clone(), **peer),
            None => return,
        },
        _ => return,
    };
    let keys = FrameKeys::new(&resumption.secret, id, resumption.role);
    shared.send(&keys.frame(ControlFrameKind::Closed, 0, BARE_FRAME_LEN), peer);
}

/// Removes the resumption state if the client's frame requests it.
pub(super) fn drop_resumption_state_if_requested(shared: &SharedEndpoint, frame: &ControlFrame) {
    if frame.kind != ControlFrameKind::CloseAndDropResumption {
        return;
    }
    let mut table = lock(&shared.table);
    let entry = table.get(frame.id.identity).filter(|entry| entry.resumption.role == Role::Server);
    // A frame of another connection with the same epoch must not end the live one.
    let is_it = |live: &Arc<Connection>| live.id() == frame.id;
    if entry.is_some_and(|it| it.last_epoch == frame.id.epoch && it.live.as_ref().is_none_or(is_it)) {
        table.remove(frame.id.identity);
    }
}
