//! Sending a connection's packets: in batches, behind the initial header, or two in one datagram.

use haul_base::{Ecn, Machine, Time, Transmit, WithCauses};
use haul_proto::connection::Unsent;
use haul_proto::micro::events::SIZE_REFUSED;
use haul_stack::Coalesced;
use haul_udp::{FullQueue, SendError};
use haul_wire::packet::{INITIAL_HEADER_LEN, PAIR_LEN, PairHeader};

use super::connection::{Connection, LOCAL_QUEUE_WAIT, LockedConnection};
use super::socket::{EndpointSocket, SLOT_START};
use crate::EngineError;

impl Connection {
    /// Sends up to [`EndpointSocket::rounds`] batches; returns how many. If it is the maximum, more may be
    /// pending.
    pub(super) fn transmit(&self, shared: &EndpointSocket, state: &mut LockedConnection, now: Time) -> usize {
        if state.lifecycle.is_ended() || state.peer.validated().is_none() {
            return 0;
        }
        if let Some(unsent) = state.unsent.take_if(|unsent| unsent.retry.is_some_and(|at| at <= now)) {
            self.send_batch(shared, state, now, &unsent.data, unsent.segment_size, unsent.ecn);
        }
        let mut slot = shared.take_slot();
        let mut sent = 0;
        while sent < shared.rounds && state.unsent.is_none() {
            // Sealing a batch takes time, and packets carry their time of sending.
            let now = if sent == 0 { now } else { shared.clock.now() };
            let room = &mut slot[SLOT_START..];
            let next = match shared.timers {
                Some(_) => state.stack.poll_transmit_coalesced(now, room),
                None => state.stack.poll_transmit(now, room).map(Coalesced::Batch),
            };
            let Some(next) = next else { break };
            sent += 1;
            let Transmit { len, segment_size, ecn, .. } = next.batch();
            let (pair, end) = (SLOT_START - PAIR_LEN, SLOT_START + len);
            let data = &slot[SLOT_START..end];
            if state.lifecycle.on_transmit(now) {
                let (data, size) = self.with_header(data, segment_size);
                self.send_batch(shared, state, now, &data, size, ecn);
            } else if let Some(header) = pair_header(next, state.stack.path().datagram) {
                // Directly before the packets.
                slot[pair..SLOT_START].copy_from_slice(&header.to_bytes());
                shared.counters.pairs.add_one();
                self.send_batch(shared, state, now, &slot[pair..end], PAIR_LEN + len, ecn);
            } else {
                self.send_batch(shared, state, now, data, segment_size, ecn);
            }
        }
        shared.return_slot(slot);
        sent
    }

    /// Sends a batch. Keeps what does not fit the socket buffer, to send it later.
    fn send_batch(
        &self,
        shared: &EndpointSocket,
        state: &mut LockedConnection,
        now: Time,
        data: &[u8],
        segment_size: usize,
        ecn: Ecn,
    ) {
        let Err((done, error)) = shared.send_batch(data, segment_size, ecn, state.peer.at) else { return };
        let retry = match error {
            SendError::WouldBlock(FullQueue::SocketBuffer) => None,
            SendError::WouldBlock(FullQueue::LocalQueue) => Some(now + LOCAL_QUEUE_WAIT),
            error => return on_send_error(shared, state, now, segment_size, error),
        };
        state.unsent = Some(Box::new(Unsent { data: data[done..].to_vec(), segment_size, ecn, retry }));
        if let (None, Some(timers)) = (retry, &shared.timers) {
            timers.add_blocked(self.identity());
        }
    }

    /// Prepends the initial header to each packet of a batch.
    fn with_header(&self, data: &[u8], segment_size: usize) -> (Vec<u8>, usize) {
        let header = self.keys.frames().initial_header();
        let packets = data.chunks(segment_size.max(1));
        (
            packets.flat_map(|packet| header.iter().chain(packet).copied()).collect(),
            INITIAL_HEADER_LEN + segment_size,
        )
    }
}

/// Handles a batch, or the rest of one, that the system rejected for good: it counts as lost on the path. A
/// failed socket ends the connection that owns it.
fn on_send_error(
    shared: &EndpointSocket,
    state: &mut LockedConnection,
    now: Time,
    segment_size: usize,
    error: SendError,
) {
    tracing::debug!(error = %WithCauses(&error), to = %state.peer.at, "packets were not sent");
    shared.counters.unsent.add_one();
    match error {
        SendError::TooLarge => state.stack.raise(now, SIZE_REFUSED, &mut (segment_size as u16)),
        // Once packets have arrived, this may be temporary: a firewall reload, a full connection-tracking
        // table.
        SendError::NotPermitted(error) if shared.timers.is_none() && state.authentic() == 0 => {
            state.end(EngineError::UdpForbidden(error.into()));
        }
        SendError::Io(error) if shared.timers.is_none() => {
            state.end(EngineError::system("the UDP socket failed", error));
        }
        _ => {}
    }
}

/// Returns the header that combines a pair into one datagram, if it fits: half the packets on the path.
fn pair_header(next: Coalesced, datagram: u16) -> Option<PairHeader> {
    let Coalesced::Pair(Transmit { len, segment_size, .. }) = next else { return None };
    let first = u16::try_from(segment_size).ok()?;
    (PAIR_LEN + len <= usize::from(datagram)).then_some(PairHeader { first })
}
