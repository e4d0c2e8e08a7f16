//! Packets that arrive in parts, because the path's MTU shrank after they were first sent. Rare, so plain
//! collections suffice.

use std::collections::BTreeMap;
use std::ops::Range;

use haul_base::RangeSet;

/// Maximum number of incomplete packets: more than a window of the old size can hold.
const MAX_OPEN: usize = 400_000;

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
#[derive(Debug, Default)]
pub(super) struct Parts {
    open: BTreeMap<u64, PartialPacket>,
}

impl Parts {
    /// Whether there are no incomplete packets, as nearly always.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Records that bytes `range` of packet `seq` arrived, and returns the new ones; `None` if there are too
    /// many incomplete packets, or other parts of this one have a different extent.
    pub(super) fn insert(
        &mut self,
        seq: u64,
        extent: PacketExtent,
        range: Range<u64>,
    ) -> Option<Vec<Range<u64>>> {
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&seq) {
            return None;
        }
        let open =
            self.open.entry(seq).or_insert_with(|| PartialPacket { extent, received: RangeSet::new() });
        if open.extent != extent {
            return None;
        }
        let fresh = gaps(&open.received, range.clone());
        open.received.insert(range);
        Some(fresh)
    }

    /// Whether all bytes of packet `seq` have arrived; if so, removes it.
    pub(super) fn take_complete(&mut self, seq: u64) -> bool {
        let complete = self.open.get(&seq).is_some_and(|open| open.received.covers(0..open.extent.len));
        if complete {
            self.open.remove(&seq);
        }
        complete
    }

    /// Removes packet `seq`, which has arrived whole, and returns which of its bytes are new; `None` if all
    /// are, because no matching parts have arrived.
    pub(super) fn take_missing(&mut self, seq: u64, extent: PacketExtent) -> Option<Vec<Range<u64>>> {
        let open = self.open.remove(&seq).filter(|open| open.extent == extent)?;
        Some(gaps(&open.received, 0..extent.len))
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
    fn parts_of_another_packet_are_rejected() {
        for other in [PacketExtent { offset: 7_001, ..EXTENT }, PacketExtent { len: 201, ..EXTENT }] {
            let mut parts = Parts::default();
            parts.insert(5, EXTENT, 40..60);
            assert_eq!(parts.insert(5, other, 60..80), None);
            assert_eq!(parts.take_missing(5, other), None, "all of it is new");
        }
    }
}
