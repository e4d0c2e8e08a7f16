//! Record of arrivals: one bitmap per segment of 10,000 packets (FOBS).

use std::collections::VecDeque;

use haul_wire::packet::{SEGMENT_PACKETS, SEGMENT_WORDS};

const PACKETS: u64 = SEGMENT_PACKETS;
const WORDS: usize = SEGMENT_WORDS;

/// Maximum number of segments from the first incomplete one: 10 million packets, about 14 GB of object in
/// flight and 1.3 MB of bitmaps.
const MAX_SEGMENTS: u64 = 1_024;

/// Result of inserting a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// First arrival; `gap` if an earlier packet is now known to be missing.
    New { gap: bool },
    /// Arrived before.
    Duplicate,
    /// Too far ahead to be recorded.
    TooFar,
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    bits: [u64; WORDS],
    count: u16,
    dirty: bool,
}

impl Segment {
    const EMPTY: Self = Self { bits: [0; WORDS], count: 0, dirty: false };

    /// The bitmap; bits above packet 9,999 are zero.
    pub(crate) fn bits(&self) -> &[u64; WORDS] {
        &self.bits
    }

    pub(crate) fn is_complete(&self) -> bool {
        u64::from(self.count) == PACKETS
    }

    /// Index of the first word in which a packet is missing.
    pub(crate) fn first_incomplete_word(&self) -> usize {
        self.bits.iter().position(|&w| w != u64::MAX).unwrap_or(WORDS)
    }
}

/// The bitmaps of all segments from the first incomplete one on. Stored in wire format, so that a report
/// copies words. Tracks which segments have changed.
#[derive(Debug)]
pub(crate) struct ReceivedBitmap {
    base: u64,
    segments: VecDeque<Segment>,
    /// Highest sequence number received, plus one.
    highest: u64,
    /// Packets that arrived without space for them; the sender must know of their arrival.
    pub(crate) without_room: u64,
}

impl ReceivedBitmap {
    pub(crate) fn new() -> Self {
        Self { base: 0, segments: VecDeque::new(), highest: 0, without_room: 0 }
    }

    /// Highest sequence number received, plus one; 0 if there is none.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Every packet below this sequence number has arrived.
    pub(crate) fn complete_below(&self) -> u64 {
        let Some(first) = self.segments.front() else {
            return self.base * PACKETS;
        };
        let word = first.first_incomplete_word();
        let ones = first.bits.get(word).map_or(0, |w| w.trailing_ones());
        self.base * PACKETS + word as u64 * 64 + u64::from(ones)
    }

    /// Whether `seq` has arrived.
    pub(crate) fn contains(&self, seq: u64) -> bool {
        let Some(slot) = (seq / PACKETS).checked_sub(self.base) else {
            return true;
        };
        let index = (seq % PACKETS) as usize;
        let segment = self.segments.get(slot as usize);
        segment.is_some_and(|s| s.bits[index / 64] >> (index % 64) & 1 == 1)
    }

    /// Whether the arrival of `seq` can be recorded: no sender's window reaches further.
    pub(crate) fn reaches(&self, seq: u64) -> bool {
        (seq / PACKETS).saturating_sub(self.base) < MAX_SEGMENTS
    }

    /// Records the arrival of `seq`.
    pub(crate) fn insert(&mut self, seq: u64) -> Arrival {
        let Some(slot) = (seq / PACKETS).checked_sub(self.base) else {
            return Arrival::Duplicate;
        };
        if !self.reaches(seq) {
            return Arrival::TooFar;
        }
        if self.segments.capacity() == 0 {
            self.segments.reserve(MAX_SEGMENTS as usize);
        }
        while self.segments.len() <= slot as usize {
            self.segments.push_back(Segment::EMPTY);
        }
        let index = (seq % PACKETS) as usize;
        let segment = &mut self.segments[slot as usize];
        let bit = 1u64 << (index % 64);
        if segment.bits[index / 64] & bit != 0 {
            return Arrival::Duplicate;
        }
        segment.bits[index / 64] |= bit;
        segment.count += 1;
        segment.dirty = true;
        let gap = seq > self.highest;
        self.highest = self.highest.max(seq + 1);
        self.retire();
        Arrival::New { gap }
    }

    /// Records the arrival of `count` packets that directly follow the highest, as nearly all do. Returns
    /// false and changes nothing unless they do so within one open segment.
    pub(crate) fn extend(&mut self, first: u64, count: u64) -> bool {
        let (segment, index) = (first / PACKETS, first % PACKETS);
        let slot = segment.checked_sub(self.base).and_then(|slot| usize::try_from(slot).ok());
        let open = slot.and_then(|slot| self.segments.get_mut(slot));
        let Some(segment) = open.filter(|_| first == self.highest && index + count <= PACKETS) else {
            return false;
        };
        let (mut at, end) = (index, index + count);
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            segment.bits[(at / 64) as usize] |= u64::MAX >> (64 - bits) << (at % 64);
            at += bits;
        }
        segment.count += count as u16;
        segment.dirty = true;
        self.highest += count;
        self.retire();
        true
    }

    fn retire(&mut self) {
        while self.segments.front().is_some_and(Segment::is_complete) {
            self.segments.pop_front();
            self.base += 1;
        }
    }

    /// Returns the open segment of this number.
    pub(crate) fn segment(&self, number: u64) -> Option<&Segment> {
        self.segments.get(number.checked_sub(self.base)? as usize)
    }

    /// Returns whether the segment has changed since the last call.
    pub(crate) fn take_dirty(&mut self, number: u64) -> bool {
        let slot = number.checked_sub(self.base).map(|s| s as usize);
        let segment = slot.and_then(|s| self.segments.get_mut(s));
        segment.is_some_and(|s| std::mem::take(&mut s.dirty))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_and_duplicates_are_distinguished() {
        let mut a = ReceivedBitmap::new();
        assert_eq!(a.insert(0), Arrival::New { gap: false });
        assert_eq!(a.insert(2), Arrival::New { gap: true });
        assert_eq!(a.insert(1), Arrival::New { gap: false });
        assert_eq!(a.insert(2), Arrival::Duplicate);
        assert_eq!((a.complete_below(), a.highest()), (3, 3));
    }

    #[test]
    fn complete_segments_are_released_and_remain_received() {
        let mut a = ReceivedBitmap::new();
        for seq in 0..10_000 {
            a.insert(seq);
        }
        assert_eq!(a.complete_below(), 10_000);
        assert_eq!(a.segments.len(), 0);
        assert_eq!(a.insert(5), Arrival::Duplicate);
    }

    #[test]
    fn segments_too_far_ahead_are_refused_without_allocation() {
        let mut a = ReceivedBitmap::new();
        assert_eq!(a.insert(MAX_SEGMENTS * PACKETS), Arrival::TooFar);
        assert_eq!(a.insert(1 << 47), Arrival::TooFar);
        assert_eq!(a.segments.len(), 0);
    }

    proptest! {
        #[test]
        fn runs_are_equivalent_to_single_packets(runs in prop::collection::vec((0u64..300, 0u64..300), 1..120)) {
            let (mut a, mut b) = (ReceivedBitmap::new(), ReceivedBitmap::new());
            let mut next = 0;
            for (gap, count) in runs {
                // Mostly without a gap.
                let first = next + gap.saturating_sub(250);
                next = first + count;
                let extended = count > 0 && a.extend(first, count);
                prop_assert!(!extended || first == b.highest());
                for seq in first..next {
                    if !extended {
                        a.insert(seq);
                    }
                    b.insert(seq);
                }
                prop_assert_eq!((a.complete_below(), a.highest()), (b.complete_below(), b.highest()));
                for seq in 0..next {
                    prop_assert_eq!(a.contains(seq), b.contains(seq));
                }
            }
        }

        #[test]
        fn behaves_like_a_set(seqs in prop::collection::vec(0u64..30_000, 1..500), solid in 0u64..12_000) {
            let mut a = ReceivedBitmap::new();
            let mut model = BTreeSet::new();
            for seq in (0..solid).chain(seqs) {
                let fresh = model.insert(seq);
                prop_assert_eq!(matches!(a.insert(seq), Arrival::New { .. }), fresh);
            }
            let first_missing = (0..=30_001).find(|s| !model.contains(s)).unwrap();
            prop_assert_eq!(a.complete_below(), first_missing);
            prop_assert_eq!(a.highest(), model.last().unwrap() + 1);
        }
    }
}
