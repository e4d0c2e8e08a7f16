//! Body of an acknowledgement, all big-endian:
//! `echo u32 | delay u32 | newest packet u48 | below u48 | (gap u16 | length u16) ...`. `below` is followed
//! by ranges of sequence numbers that have arrived above it.
//!
//! A sender that has given up segments, and has no segment to send that would report it, sends
//! `sent_at u32 | oldest u48`, as FORWARD TSN of SCTP (RFC 3758). It is shorter than any acknowledgement.

use std::ops::Range;

use haul_base::Span;
use haul_stack::{AttributeType, U48};

use crate::micro::ranges::Ranges;
use crate::micro::received_set::ReceivedSet;

/// Bytes before the ranges.
pub(super) const FIXED: usize = 20;

/// Fixed part of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// `sent_at` of the newest packet received, in wrapped microseconds of its sender's clock.
    pub(super) echo: u32,
    /// Time between the arrival of that packet and this acknowledgement.
    pub(super) delay: Span,
    /// Packet number of that packet.
    pub(super) newest: u64,
    /// Everything below this sequence number has arrived.
    pub(super) below: u64,
}

impl Head {
    pub(super) fn write(&self, into: &mut [u8]) {
        let delay = u32::try_from(self.delay.as_micros()).unwrap_or(u32::MAX);
        into[..4].copy_from_slice(&self.echo.to_be_bytes());
        into[4..8].copy_from_slice(&delay.to_be_bytes());
        U48::write(self.newest, &mut into[8..14]);
        U48::write(self.below, &mut into[14..20]);
    }

    /// Parses an acknowledgement; `None` if the bytes are invalid.
    pub(super) fn read(body: &[u8]) -> Option<(Self, Ranges<'_>)> {
        let (head, ranges) = body.split_at_checked(FIXED)?;
        let word = |at: usize| Some(u32::from_be_bytes(head[at..at + 4].try_into().ok()?));
        let read = Self {
            echo: word(0)?,
            delay: Span::from_micros(u64::from(word(4)?)),
            newest: U48::read(&head[8..14]),
            below: U48::read(&head[14..20]),
        };
        Some((read, Ranges::read(read.below, ranges)?))
    }
}

/// A sender's report of segments that it has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Abandoned {
    /// Wrapped microseconds of the sender's clock.
    pub(super) sent_at: u32,
    /// The sender retransmits nothing below this sequence number.
    pub(super) oldest: u64,
}

impl Abandoned {
    pub(super) const LEN: usize = 10;

    pub(super) fn write(&self, into: &mut [u8]) {
        into[..4].copy_from_slice(&self.sent_at.to_be_bytes());
        U48::write(self.oldest, &mut into[4..]);
    }

    /// Parses a report; `None` if the bytes are invalid.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = body.try_into().ok()?;
        let sent_at = u32::from_be_bytes(bytes[..4].try_into().ok()?);
        Some(Self { sent_at, oldest: U48::read(&bytes[4..]) })
    }
}

/// Chooses at most `most` ranges: those with `fresh` (sorted) numbers first, so that every arrival is
/// confirmed at once; then the newest, so that one acknowledgement makes up for lost ones.
pub(super) fn choose(received: &ReceivedSet, fresh: &[u64], most: usize, into: &mut Vec<Range<u64>>) {
    into.clear();
    for &number in fresh {
        if into.len() >= most {
            break;
        }
        if into.last().is_none_or(|last| last.end <= number) {
            into.extend(received.range_around(number));
        }
    }
    let named = into.len();
    for range in received.newest_ranges() {
        if into.len() >= most {
            break;
        }
        if !into[..named].contains(&range) {
            into.push(range);
        }
    }
    into.sort_unstable_by_key(|range| range.start);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::micro::received_set::SPAN;

    fn received(numbers: impl IntoIterator<Item = u64>) -> ReceivedSet {
        let mut received = ReceivedSet::default();
        for number in numbers {
            received.insert(number, SPAN);
        }
        received
    }

    #[test]
    fn the_latest_packet_is_acknowledged_even_with_many_ranges() {
        let received = received((1..400).map(|n| 2 * n));
        let mut chosen = Vec::new();
        choose(&received, &[10, 20, 20], 4, &mut chosen);
        assert_eq!(chosen, [10..11, 20..21, 796..797, 798..799]);
        choose(&received, &[10, 20, 30], 2, &mut chosen);
        assert_eq!(chosen, [10..11, 20..21]);
    }

    proptest! {
        #[test]
        fn a_head_round_trips(echo: u32, delay in 0u64..1 << 32, newest in 0u64..1 << 48, below in 0u64..1 << 48) {
            let head = Head { echo, delay: Span::from_micros(delay), newest, below };
            let mut bytes = [0; FIXED];
            head.write(&mut bytes);
            let read = Head::read(&bytes).unwrap();
            prop_assert_eq!((read.0, read.1.is_empty()), (head, true));
        }

        #[test]
        fn abandoned_segments_round_trip_and_are_not_acknowledged(sent_at: u32, oldest in 0u64..1 << 48) {
            let abandoned = Abandoned { sent_at, oldest };
            let mut bytes = [0; Abandoned::LEN];
            abandoned.write(&mut bytes);
            prop_assert_eq!(Abandoned::read(&bytes), Some(abandoned));
            prop_assert_eq!(Head::read(&bytes), None);
        }

        #[test]
        fn all_received_ranges_are_chosen_if_they_fit(numbers in prop::collection::btree_set(1u64..500, 0..80), base in 0u64..1 << 40) {
            let mut set = ReceivedSet::default();
            set.settle_below(base);
            for number in &numbers {
                set.insert(base + number, SPAN);
            }
            let mut chosen = Vec::new();
            choose(&set, &[], usize::MAX, &mut chosen);
            let chosen: Vec<u64> = chosen.into_iter().flatten().map(|number| number - base).collect();
            prop_assert_eq!(chosen, numbers.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(Abandoned::read(&bytes).is_some(), bytes.len() == Abandoned::LEN);
            prop_assert_eq!(Head::read(&bytes).is_some(), bytes.len() >= FIXED && bytes.len().is_multiple_of(4));
        }
    }
}
