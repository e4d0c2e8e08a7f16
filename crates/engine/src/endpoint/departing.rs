//! How the packets of a flight leave: in batches, behind the opening header, or two in one datagram.

use haul_base::{Time, Transmit};
use haul_stack::Together;
use haul_wire::packet::{OPEN_LEN, OpenHeader, PAIR_LEN, PairHeader};

use super::inner::{Inner, ROUNDS, State};
use super::phase::Phase;
use super::shared::{SLOT, Shared, count};

impl Inner {
    /// Gives how many batches it has sent; if [`ROUNDS`], there may be more.
    pub(super) fn transmit(&self, shared: &Shared, state: &mut State, now: Time) -> usize {
        if matches!(state.phase, Phase::Ended(_)) || state.proven_peer().is_none() {
            return 0;
        }
        let mut slot = shared.take_slot();
        let mut sent = 0;
        while sent < ROUNDS {
            // In front of the packets there is room for the header of a pair.
            let next = state.stack.poll_transmit_together(now, &mut slot[PAIR_LEN..SLOT]);
            let Some(next) = next else { break };
            sent += 1;
            let Transmit { len, segment_size, ecn, .. } = next.batch();
            let data = &slot[PAIR_LEN..PAIR_LEN + len];
            if let Phase::Opening(opening) = &mut state.phase {
                opening.on_accompanied(now);
                let (data, size) = self.with_header(data, segment_size);
                shared.send(&data, size, ecn, state.peer);
            } else if let Some(header) = pair_header(next, state.stack.path().datagram) {
                slot[..PAIR_LEN].copy_from_slice(&header.to_bytes());
                count(&shared.counters.pairs);
                shared.send(&slot[..PAIR_LEN + len], PAIR_LEN + len, ecn, state.peer);
            } else {
                shared.send(data, segment_size, ecn, state.peer);
            }
        }
        shared.put_slot(slot);
        sent
    }

    pub(super) fn opening_header(&self) -> [u8; OPEN_LEN] {
        let flight = self.flight();
        let mac = self.keys().mac(&OpenHeader::authenticated(&flight));
        OpenHeader { flight, mac }.to_bytes()
    }

    /// The packets of a batch, each behind the opening header.
    fn with_header(&self, data: &[u8], segment_size: usize) -> (Vec<u8>, usize) {
        let header = self.opening_header();
        let packets = data.chunks(segment_size.max(1));
        (packets.flat_map(|packet| header.iter().chain(packet).copied()).collect(), OPEN_LEN + segment_size)
    }
}

/// What makes one datagram of a pair, if it fits: half the packets on the way, and half the work of all who carry them.
fn pair_header(next: Together, datagram: u16) -> Option<PairHeader> {
    let Together::Pair(Transmit { len, segment_size, .. }) = next else { return None };
    let first = u16::try_from(segment_size).ok()?;
    (PAIR_LEN + len <= usize::from(datagram)).then_some(PairHeader { first })
}
