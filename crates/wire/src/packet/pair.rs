//! Two packets of one connection in one datagram: an acknowledgement and a message.

use super::PacketError;
use super::field::split;

/// Kind of a datagram that carries two packets; stacks use other kinds.
pub const PAIR_KIND: u8 = 0x3E;
/// Length of the header before the first packet.
pub const PAIR_LEN: usize = 3;

/// Header before two packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairHeader {
    /// Length of the first packet; the rest is the second.
    pub first: u16,
}

impl PairHeader {
    /// Splits the datagram. Neither packet is empty.
    ///
    /// # Errors
    /// [`PacketError::Truncated`] if it ends before the second packet, or the first is empty;
    /// [`PacketError::Kind`] if it is not a pair.
    pub fn split(datagram: &mut [u8]) -> Result<(&mut [u8], &mut [u8]), PacketError> {
        let len = datagram.len();
        let ([kind, high, low], _) = split::<PAIR_LEN>(datagram)?;
        if *kind != PAIR_KIND {
            return Err(PacketError::Kind(*kind));
        }
        let first = usize::from(u16::from_be_bytes([*high, *low]));
        let needed = PAIR_LEN + first + 1;
        if first == 0 || len < needed {
            return Err(PacketError::Truncated { len, needed });
        }
        Ok(datagram[PAIR_LEN..].split_at_mut(first))
    }

    /// Returns the header as bytes.
    pub const fn to_bytes(self) -> [u8; PAIR_LEN] {
        let [high, low] = self.first.to_be_bytes();
        [PAIR_KIND, high, low]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn two_packets_round_trip(
            first in prop::collection::vec(any::<u8>(), 1..300), second in prop::collection::vec(any::<u8>(), 1..300),
        ) {
            let header = PairHeader { first: first.len() as u16 }.to_bytes();
            let mut datagram = [&header[..], &first, &second].concat();
            let (a, b) = PairHeader::split(&mut datagram).unwrap();
            prop_assert_eq!((&*a, &*b), (&first[..], &second[..]));
        }

        #[test]
        fn any_bytes_are_two_packets_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..40), pair: bool) {
            if let Some(kind) = bytes.first_mut().filter(|_| pair) {
                *kind = PAIR_KIND;
            }
            let len = bytes.len();
            if let Ok((a, b)) = PairHeader::split(&mut bytes) {
                prop_assert!(!a.is_empty() && !b.is_empty() && a.len() + b.len() + PAIR_LEN == len);
            }
        }
    }
}
