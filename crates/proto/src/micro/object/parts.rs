//! Packets that arrive in parts, because the path's MTU shrank after they were first sent. Rare, so plain
//! collections suffice.

use std::collections::BTreeMap;
use std::ops::Range;

use haul_base::RangeSet;

/// Maximum number of ranges of all incomplete packets: more than a window of the old size has packets.
const MAX_RANGES: usize = 400_000;

/// Range of the object that a whole packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketExtent {
    /// Offset in the object, in bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A packet of which some parts have arrived.
#[derive(Debug)]
struct PartialPacket {
    extent: PacketExtent,
    received: RangeSet,
}

/// Received parts of incomplete packets.
#[derive(Debug)]
pub(super) struct Parts {
    open: BTreeMap<u64, PartialPacket>,
    /// Number of ranges in `open`.
    ranges: usize,
    most: usize,
}

impl Default for Parts {
    fn default() -> Self {
        Self { open: BTreeMap::new(), ranges: 0, most: MAX_RANGES }
    }
}

impl Parts {
    /// Whether there are no incomplete packets, as nearly always.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether bytes `range` of packet `seq` can be recorded: with too many ranges, only those that adjoin
    /// one.
    pub(super) fn has_room(&self, seq: u64, range: &Range<u64>) -> bool {
        let adjoins =
            |open: &PartialPacket| open.received.intersects(range.start.saturating_sub(1)..range.end + 1);
        self.ranges < self.most || self.open.get(&seq).is_some_and(adjoins)
    }

    /// Records that bytes `range` of packet `seq` arrived, and returns the new ones; `None` if other parts of
    /// it have a different extent.
    pub(super) fn insert(
        &mut self,
        seq: u64,
        extent: PacketExtent,
        range: Range<u64>,
    ) -> Option<Vec<Range<u64>>> {
        let open =
            self.open.entry(seq).or_insert_with(|| PartialPacket { extent, received: RangeSet::new() });
        if open.extent != extent {
            return None;
        }
        let fresh = gaps(&open.received, range.clone());
        self.ranges -= open.received.len();
        open.received.insert(range);
        self.ranges += open.received.len();
        Some(fresh)
    }

    /// Whether all bytes of packet `seq` have arrived; if so, removes it.
    pub(super) fn take_complete(&mut self, seq: u64) -> bool {
        let complete = self.open.get(&seq).is_some_and(|open| open.received.covers(0..open.extent.len));
        if complete {
            self.remove(seq);
        }
        complete
    }

    /// Removes packet `seq`, which has arrived whole, and returns which of its bytes are new; `None` if all
    /// are, because no matching parts have arrived.
    pub(super) fn take_missing(&mut self, seq: u64, extent: PacketExtent) -> Option<Vec<Range<u64>>> {
        let open = self.remove(seq).filter(|open| open.extent == extent)?;
        Some(gaps(&open.received, 0..extent.len))
    }

    fn remove(&mut self, seq: u64) -> Option<PartialPacket> {
        let open = self.open.remove(&seq)?;
        self.ranges -= open.received.len();
        Some(open)
    }
}

/// Returns the parts of `range` that are not in `received`.
fn gaps(received: &RangeSet, range: Range<u64>) -> Vec<Range<u64>> {
    let mut missing = RangeSet::new();
    missing.insert(range);
    for held in received.iter() {
        missing.remove(held);
    }
    missing.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: PacketExtent = PacketExtent { offset: 7_000, len: 200 };

    fn fresh(parts: &mut Parts, range: Range<u64>) -> Vec<(u64, u64)> {
        let fresh = parts.insert(5, EXTENT, range).unwrap();
        fresh.into_iter().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn overlapping_parts_count_once_and_complete_the_packet() {
        let mut parts = Parts::default();
        assert_eq!(fresh(&mut parts, 0..100), [(0, 100)]);
        assert_eq!(fresh(&mut parts, 50..150), [(100, 150)]);
        assert!(!parts.take_complete(5));
        assert_eq!(fresh(&mut parts, 0..200), [(150, 200)]);
        assert!(parts.take_complete(5));
        assert!(!parts.take_complete(5));
    }

    #[test]
    fn a_complete_packet_supplies_the_missing_parts() {
        let mut parts = Parts::default();
        assert_eq!(parts.take_missing(5, EXTENT), None);
        parts.insert(5, EXTENT, 40..60);
        assert_eq!(parts.take_missing(6, EXTENT), None);
        assert_eq!(parts.take_missing(5, EXTENT), Some(vec![0..40, 60..200]));
        assert_eq!(parts.take_missing(5, EXTENT), None);
    }

    #[test]
    fn ranges_are_bounded_and_parts_that_fill_a_gap_are_accepted() {
        let mut parts = Parts { most: 100, ..Parts::default() };
        let mut accepted = Vec::new();
        for at in (1..200).step_by(2) {
            for seq in 0..3 {
                if parts.has_room(seq, &(at..at + 1)) {
                    parts.insert(seq, EXTENT, at..at + 1).unwrap();
                    accepted.push((seq, at));
                }
            }
        }
        assert_eq!((accepted.len(), parts.ranges), (100, 100));
        assert!(!parts.has_room(3, &(0..10)) && !parts.has_room(1, &(150..151)));
        for (seq, at) in accepted {
            assert!(parts.has_room(seq, &(at - 1..at)));
            parts.insert(seq, EXTENT, at - 1..at).unwrap();
        }
        assert_eq!(parts.ranges, 3);
        for seq in 0..3 {
            parts.take_missing(seq, EXTENT).unwrap();
        }
        assert_eq!(parts.ranges, 0);
    }

    #[test]
    fn parts_of_another_packet_are_rejected() {
        for other in [PacketExtent { offset: 7_001, ..EXTENT }, PacketExtent { len: 201, ..EXTENT }] {
            let mut parts = Parts::default();
            parts.insert(5, EXTENT, 40..60);
            assert_eq!(parts.insert(5, other, 60..80), None);
            assert_eq!(parts.take_missing(5, other), None, "all of it is new");
        }
    }
}
