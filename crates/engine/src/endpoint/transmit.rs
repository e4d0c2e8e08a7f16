//! How the packets of a connection leave: in batches, behind the initial header, or two in one datagram.

use haul_base::{Ecn, Time, Transmit};
use haul_stack::Together;
use haul_udp::Full;
use haul_wire::packet::{INITIAL_HEADER_LEN, PAIR_LEN, PairHeader};

use super::connection::{Connection, LOCAL_QUEUE_WAIT, ROUNDS, State, Unsent};
use super::phase::Phase;
use super::shared::{SLOT, Shared, count};

impl Connection {
    /// Sends up to [`ROUNDS`] batches, and returns how many; if that many, there may be more.
    pub(super) fn transmit(&self, shared: &Shared, state: &mut State, now: Time) -> usize {
        if matches!(state.phase, Phase::Ended(_)) || state.validated_peer().is_none() {
            return 0;
        }
        if let Some(unsent) = state.unsent.take_if(|unsent| unsent.retry.is_some_and(|at| at <= now)) {
            self.send_batch(shared, state, now, &unsent.data, unsent.segment_size, unsent.ecn);
        }
        let mut slot = shared.take_slot();
        let mut sent = 0;
        while sent < ROUNDS && state.unsent.is_none() {
            // A pair's header goes in front of the packets.
            let next = state.stack.poll_transmit_together(now, &mut slot[PAIR_LEN..SLOT]);
            let Some(next) = next else { break };
            sent += 1;
            let Transmit { len, segment_size, ecn, .. } = next.batch();
            let data = &slot[PAIR_LEN..PAIR_LEN + len];
            if let Phase::Opening(opening) = &mut state.phase {
                opening.on_accompanied(now);
                let (data, size) = self.with_header(data, segment_size);
                self.send_batch(shared, state, now, &data, size, ecn);
            } else if let Some(header) = pair_header(next, state.stack.path().datagram) {
                slot[..PAIR_LEN].copy_from_slice(&header.to_bytes());
                count(&shared.counters.pairs);
                self.send_batch(shared, state, now, &slot[..PAIR_LEN + len], PAIR_LEN + len, ecn);
            } else {
                self.send_batch(shared, state, now, data, segment_size, ecn);
            }
        }
        shared.put_slot(slot);
        sent
    }

    /// Sends a batch. Keeps what the socket has no room for, and has it sent later.
    fn send_batch(
        &self,
        shared: &Shared,
        state: &mut State,
        now: Time,
        data: &[u8],
        segment_size: usize,
        ecn: Ecn,
    ) {
        let Err((done, full)) = shared.send_batch(data, segment_size, ecn, state.peer) else { return };
        let retry = match full {
            Full::SocketBuffer => None,
            Full::LocalQueue => Some(now + LOCAL_QUEUE_WAIT),
        };
        state.unsent = Some(Box::new(Unsent { data: data[done..].to_vec(), segment_size, ecn, retry }));
        if full == Full::SocketBuffer {
            shared.driver.wait_for_room(self.identity());
        }
    }

    /// The packets of a batch, each behind the initial header.
    fn with_header(&self, data: &[u8], segment_size: usize) -> (Vec<u8>, usize) {
        let header = self.keys().frames().initial_header();
        let packets = data.chunks(segment_size.max(1));
        (
            packets.flat_map(|packet| header.iter().chain(packet).copied()).collect(),
            INITIAL_HEADER_LEN + segment_size,
        )
    }
}

/// The header that makes one datagram of a pair, if it fits: half the packets, and half the work for each hop.
fn pair_header(next: Together, datagram: u16) -> Option<PairHeader> {
    let Together::Pair(Transmit { len, segment_size, .. }) = next else { return None };
    let first = u16::try_from(segment_size).ok()?;
    (PAIR_LEN + len <= usize::from(datagram)).then_some(PairHeader { first })
}
