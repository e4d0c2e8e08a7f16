//! Coalescing an acknowledgement or other control packet with a data packet into one batch.

use haul_base::{Time, Transmit};

use crate::batch::MAX_BATCH;
use crate::stack::Stack;

/// Output of one call of [`Stack::poll_transmit_coalesced`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coalesced {
    /// An ordinary batch.
    Batch(Transmit),
    /// A control packet and a data packet, the longer one first. Both are usually small and may share a
    /// datagram.
    Pair(Transmit),
}

impl Coalesced {
    /// The packets, coalesced or not.
    pub const fn batch(self) -> Transmit {
        match self {
            Self::Batch(transmit) | Self::Pair(transmit) => transmit,
        }
    }
}

impl Stack {
    /// As [`Machine::poll_transmit`](haul_base::Machine::poll_transmit), but adds a data packet, if there is
    /// one, to a control packet, so that the peer receives one buffer instead of two.
    pub fn poll_transmit_coalesced(&mut self, now: Time, slot: &mut [u8]) -> Option<Coalesced> {
        let datagram = usize::from(self.core.path.datagram);
        self.guarded(now, |stack, now| {
            stack.advance_change(now);
            let answer = stack.write_change(now, slot).or_else(|| stack.write_control(now, slot));
            let Some(answer) = answer else {
                return stack.write_data(now, slot, MAX_BATCH).map(Coalesced::Batch);
            };
            // A path probe is sent alone.
            if answer.len > datagram || slot.len() < 2 * datagram {
                return Some(Coalesced::Batch(answer));
            }
            let data = stack.write_data(now, &mut slot[answer.len..], 1);
            Some(match data {
                Some(data) => Coalesced::Pair(side_by_side(slot, answer, data)),
                None => Coalesced::Batch(answer),
            })
        })?
    }
}

/// Returns one batch of two adjacent packets. Swaps them if needed: only the last packet of a batch may be
/// shorter.
fn side_by_side(slot: &mut [u8], first: Transmit, second: Transmit) -> Transmit {
    let len = first.len + second.len;
    if first.len < second.len {
        slot[..len].rotate_left(first.len);
    }
    Transmit { len, segment_size: first.len.max(second.len), ..first }
}
