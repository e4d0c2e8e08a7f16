//! Packets under way: a ring of bytes that is allocated once, with what is to come out when.

use std::collections::VecDeque;
use std::ops::Range;

use haul_base::{Bytes, Ecn, Time};

/// The most packets under way at a time, whatever their size: 64 bytes and more each on average.
const SMALLEST_MEAN: u64 = 64;
/// The most datagrams in one batch, which every kernel with GSO takes (`UDP_MAX_SEGMENTS` of Linux 4.18).
const MAX_BATCH: usize = 64;
/// The most bytes in one batch: what one IPv4 packet can carry over UDP.
const MAX_BATCH_BYTES: usize = 65_507;

/// Which client a packet belongs to.
pub(super) type FlowId = u32;

/// A first-in first-out line of packets with their due times.
#[derive(Debug)]
pub(super) struct DelayLine {
    data: Box<[u8]>,
    /// Where the next packet goes, if there is room.
    head: usize,
    under_way: VecDeque<Entry>,
    most_packets: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    due: Time,
    start: usize,
    len: usize,
    flow: FlowId,
    ecn: Ecn,
}

/// Consecutive packets of one client, due, of one size (the last may be shorter), side by side in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    /// Where the bytes are; see [`DelayLine::bytes`].
    pub range: Range<usize>,
    /// Size of every packet but the last.
    pub segment: usize,
    /// How many packets.
    pub packets: usize,
    /// Whose they are.
    pub flow: FlowId,
    /// Their ECN bits.
    pub ecn: Ecn,
}

impl DelayLine {
    /// A line with room for `capacity` bytes.
    pub(super) fn new(capacity: Bytes) -> Self {
        let bytes = capacity.0 as usize;
        Self {
            data: vec![0; bytes].into_boxed_slice(),
            head: 0,
            under_way: VecDeque::with_capacity(bytes / 1_024),
            most_packets: (capacity.0 / SMALLEST_MEAN) as usize,
        }
    }

    /// Takes a packet; false if there is no room. `due` must not be earlier than that of the packet before.
    pub(super) fn push(&mut self, packet: &[u8], due: Time, flow: FlowId, ecn: Ecn) -> bool {
        let Some(start) = self.place(packet.len()).filter(|_| self.under_way.len() < self.most_packets)
        else {
            return false;
        };
        self.data[start..start + packet.len()].copy_from_slice(packet);
        self.head = start + packet.len();
        self.under_way.push_back(Entry { due, start, len: packet.len(), flow, ecn });
        true
    }

    /// A free stretch of `len` bytes: behind the last packet, or at the start of the ring.
    fn place(&self, len: usize) -> Option<usize> {
        let Some(oldest) = self.under_way.front() else {
            return (len <= self.data.len()).then_some(0);
        };
        let newest = self.under_way.back().unwrap_or(oldest);
        if newest.start >= oldest.start {
            // Used is oldest.start..head: room is behind it, and before it.
            if len <= self.data.len() - self.head {
                return Some(self.head);
            }
            return (len < oldest.start).then_some(0);
        }
        (self.head + len < oldest.start).then_some(self.head)
    }

    /// When the next packet is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.under_way.front().map(|entry| entry.due)
    }

    /// The packets at the front that are due at `now` and can leave with one call.
    pub(super) fn due_batch(&self, now: Time) -> Option<Batch> {
        let first = self.under_way.front().filter(|entry| entry.due <= now)?;
        let mut batch = Batch {
            range: first.start..first.start + first.len,
            segment: first.len,
            packets: 1,
            flow: first.flow,
            ecn: first.ecn,
        };
        let mut last_len = first.len;
        for entry in self.under_way.range(1..) {
            let fits = entry.due <= now
                && last_len == batch.segment
                && (1..=batch.segment).contains(&entry.len)
                && entry.start == batch.range.end
                && (entry.flow, entry.ecn) == (batch.flow, batch.ecn)
                && batch.packets < MAX_BATCH
                && batch.range.len() + entry.len <= MAX_BATCH_BYTES;
            if !fits {
                break;
            }
            batch.range.end += entry.len;
            batch.packets += 1;
            last_len = entry.len;
        }
        Some(batch)
    }

    /// A batch's bytes.
    pub(super) fn bytes(&self, batch: &Batch) -> &[u8] {
        &self.data[batch.range.clone()]
    }

    /// Forgets the first `packets` packets.
    pub(super) fn release(&mut self, packets: usize) {
        self.under_way.drain(..packets.min(self.under_way.len()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn only_equal_neighbours_of_one_client_leave_together() {
        let mut line = DelayLine::new(Bytes(10_000));
        for (len, flow) in [(100, 1), (100, 1), (40, 1), (100, 1), (100, 2), (120, 2)] {
            assert!(line.push(&vec![len as u8; len], at(5), flow, Ecn::NotEct));
        }
        let mut taken = Vec::new();
        while let Some(batch) = line.due_batch(at(5)) {
            taken.push((batch.packets, batch.segment, batch.range.len(), batch.flow));
            line.release(batch.packets);
        }
        assert_eq!(taken, [(3, 100, 240, 1), (1, 100, 100, 1), (1, 100, 100, 2), (1, 120, 120, 2)]);
    }

    #[test]
    fn nothing_leaves_before_it_is_due() {
        let mut line = DelayLine::new(Bytes(10_000));
        line.push(b"a", at(5), 0, Ecn::NotEct);
        line.push(b"b", at(6), 0, Ecn::NotEct);
        assert_eq!(line.due_batch(at(4)), None);
        assert_eq!(line.due_batch(at(5)).unwrap().packets, 1);
        assert_eq!(line.due_batch(at(6)).unwrap().packets, 2);
        assert_eq!(line.next_due(), Some(at(5)));
    }

    #[test]
    fn a_full_line_refuses_and_takes_again_after_a_release() {
        let mut line = DelayLine::new(Bytes(1_000));
        let pushed = (0..20).take_while(|_| line.push(&[0; 100], at(1), 0, Ecn::NotEct)).count();
        assert_eq!(pushed, 10);
        line.release(3);
        let again = (0..20).take_while(|_| line.push(&[0; 100], at(1), 0, Ecn::NotEct)).count();
        assert_eq!(again, 2);
        assert!(!line.push(&[0; 1_001], at(1), 0, Ecn::NotEct));
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out_once_in_order_and_unchanged(
            steps in prop::collection::vec((any::<bool>(), 0usize..200, 0u32..3), 1..400),
        ) {
            let mut line = DelayLine::new(Bytes(2_000));
            let mut expected = VecDeque::new();
            let (mut now, mut stamp) = (0, 0u8);
            for (push, len, flow) in steps {
                now += 1;
                if push {
                    stamp = stamp.wrapping_add(1);
                    let packet = vec![stamp; len];
                    if line.push(&packet, at(now), flow, Ecn::NotEct) {
                        expected.push_back((packet, flow));
                    }
                } else if let Some(batch) = line.due_batch(at(now)) {
                    let bytes = line.bytes(&batch).to_vec();
                    let parts: Vec<&[u8]> = match batch.segment {
                        0 => vec![&[]],
                        segment => bytes.chunks(segment).collect(),
                    };
                    prop_assert_eq!(parts.len(), batch.packets);
                    for part in parts {
                        prop_assert_eq!(Some((part.to_vec(), batch.flow)), expected.pop_front());
                    }
                    line.release(batch.packets);
                }
            }
        }
    }
}
