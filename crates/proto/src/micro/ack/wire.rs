//! The body of an acknowledgement: `echo u32 | delay u32 | newest packet u48 | below u48 | (gap u16 | length u16) ...`,
//! all big-endian. Gaps and lengths are stretches of sequence numbers, from `below` upwards.
//!
//! The body of what a sender says when it has given segments up, and nothing leaves that would say so: ` sent_at u32 |
//! oldest u48 ` , as FORWARD TSN of SCTP (RFC 3758). It is shorter than any acknowledgement.

use haul_base::Span;

use crate::micro::arrived::Arrived;

/// Bytes in front of the stretches, and of each of them.
pub(super) const FIXED: usize = 20;
pub(super) const STRETCH: usize = 4;

/// What an acknowledgement says besides its stretches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// `sent_at` of the newest packet that has come, wrapped microseconds of its sender's clock.
    pub(super) echo: u32,
    /// How long that packet has waited for this acknowledgement.
    pub(super) delay: Span,
    /// Its packet number.
    pub(super) newest: u64,
    /// Everything below this sequence number has come.
    pub(super) below: u64,
}

fn u48(value: u64) -> [u8; 6] {
    let mut bytes = [0; 6];
    bytes.copy_from_slice(&value.to_be_bytes()[2..]);
    bytes
}

fn read_u48(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

impl Head {
    pub(super) fn write(&self, into: &mut [u8]) {
        let delay = u32::try_from(self.delay.as_micros()).unwrap_or(u32::MAX);
        into[..4].copy_from_slice(&self.echo.to_be_bytes());
        into[4..8].copy_from_slice(&delay.to_be_bytes());
        into[8..14].copy_from_slice(&u48(self.newest));
        into[14..20].copy_from_slice(&u48(self.below));
    }

    /// Reads the head; what is behind it are the stretches. `None` if these are no acknowledgement's bytes.
    pub(super) fn read(body: &[u8]) -> Option<(Self, &[u8])> {
        let (head, stretches) = body.split_at_checked(FIXED)?;
        let word = |at: usize| Some(u32::from_be_bytes(head[at..at + 4].try_into().ok()?));
        let read = Self {
            echo: word(0)?,
            delay: Span::from_micros(u64::from(word(4)?)),
            newest: read_u48(&head[8..14]),
            below: read_u48(&head[14..20]),
        };
        stretches.len().is_multiple_of(STRETCH).then_some((read, stretches))
    }
}

/// What a sender says of segments that it has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Abandoned {
    /// Wrapped microseconds of the sender's clock.
    pub(super) sent_at: u32,
    /// The sender repeats nothing below this sequence number.
    pub(super) oldest: u64,
}

impl Abandoned {
    pub(super) const LEN: usize = 10;

    pub(super) fn write(&self, into: &mut [u8]) {
        into[..4].copy_from_slice(&self.sent_at.to_be_bytes());
        into[4..].copy_from_slice(&u48(self.oldest));
    }

    /// `None` if these are other bytes.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = body.try_into().ok()?;
        let sent_at = u32::from_be_bytes(bytes[..4].try_into().ok()?);
        Some(Self { sent_at, oldest: read_u48(&bytes[4..]) })
    }
}

/// The stretches that have come beyond `below`, oldest first, as `from..to` sequence numbers.
pub(super) fn stretches(below: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let mut at = below;
    bytes.chunks_exact(STRETCH).map(move |stretch| {
        let half = |at: usize| u64::from(u16::from_be_bytes([stretch[at], stretch[at + 1]]));
        let from = at + half(0);
        at = from + half(2);
        (from, at)
    })
}

/// Chooses at most `most` stretches: those with `fresh` (sorted) numbers first, so that every arrival is confirmed at
/// once; then the newest, so that one acknowledgement makes up for those that were lost.
pub(super) fn choose(arrived: &Arrived, fresh: &[u64], most: usize, into: &mut Vec<(u64, u64)>) {
    into.clear();
    for &number in fresh {
        let stretch = arrived.beyond().containing(number).map(|range| (range.start, range.end));
        if let Some(stretch) = stretch.filter(|stretch| into.last() != Some(stretch))
            && into.len() < most
        {
            into.push(stretch);
        }
    }
    let named = into.len();
    for range in arrived.beyond().iter().rev() {
        if into.len() >= most {
            break;
        }
        let stretch = (range.start, range.end);
        if !into[..named].contains(&stretch) {
            into.push(stretch);
        }
    }
    into.sort_unstable();
}

/// Writes the stretches, as many as can be said; gives the bytes used.
pub(super) fn write_stretches(below: u64, stretches: &[(u64, u64)], into: &mut [u8]) -> usize {
    let mut at = below;
    let mut used = 0;
    for (&(from, to), place) in stretches.iter().zip(into.chunks_exact_mut(STRETCH)) {
        let (Ok(gap), Ok(len)) = (u16::try_from(from - at), u16::try_from(to - from)) else { break };
        place[..2].copy_from_slice(&gap.to_be_bytes());
        place[2..].copy_from_slice(&len.to_be_bytes());
        at = to;
        used += STRETCH;
    }
    used
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arrived(numbers: impl IntoIterator<Item = u64>) -> Arrived {
        let mut arrived = Arrived::default();
        for number in numbers {
            arrived.insert(number);
        }
        arrived
    }

    #[test]
    fn what_has_just_come_is_named_even_where_many_stretches_are() {
        let arrived = arrived((1..400).map(|n| 2 * n));
        let mut chosen = Vec::new();
        choose(&arrived, &[10, 20, 20], 4, &mut chosen);
        assert_eq!(chosen, [(10, 11), (20, 21), (796, 797), (798, 799)]);
        choose(&arrived, &[10, 20, 30], 2, &mut chosen);
        assert_eq!(chosen, [(10, 11), (20, 21)]);
    }

    proptest! {
        #[test]
        fn a_head_survives(echo: u32, delay in 0u64..1 << 32, newest in 0u64..1 << 48, below in 0u64..1 << 48) {
            let head = Head { echo, delay: Span::from_micros(delay), newest, below };
            let mut bytes = [0; FIXED];
            head.write(&mut bytes);
            prop_assert_eq!(Head::read(&bytes), Some((head, &[][..])));
        }

        #[test]
        fn what_was_abandoned_survives_and_is_no_acknowledgement(sent_at: u32, oldest in 0u64..1 << 48) {
            let abandoned = Abandoned { sent_at, oldest };
            let mut bytes = [0; Abandoned::LEN];
            abandoned.write(&mut bytes);
            prop_assert_eq!(Abandoned::read(&bytes), Some(abandoned));
            prop_assert_eq!(Head::read(&bytes), None);
        }

        #[test]
        fn stretches_survive(numbers in prop::collection::btree_set(1u64..500, 0..80), base in 0u64..1 << 40) {
            let mut set = Arrived::default();
            set.settle_below(base);
            for number in &numbers {
                set.insert(base + number);
            }
            let mut chosen = Vec::new();
            choose(&set, &[], usize::MAX, &mut chosen);
            let mut bytes = vec![0; chosen.len() * STRETCH];
            prop_assert_eq!(write_stretches(base, &chosen, &mut bytes), bytes.len());
            let said: Vec<u64> = stretches(base, &bytes).flat_map(|(from, to)| from - base..to - base).collect();
            prop_assert_eq!(said, numbers.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(Abandoned::read(&bytes).is_some(), bytes.len() == Abandoned::LEN);
            if let Some((head, rest)) = Head::read(&bytes) {
                let mut last = head.below;
                for (from, to) in stretches(head.below, rest) {
                    prop_assert!(last <= from && from <= to);
                    last = to;
                }
            }
        }
    }
}
