//! The bytes of the packets under way: a ring that is allocated once.

use std::collections::VecDeque;
use std::ops::Range;

use haul_base::{Bytes, Ecn};

/// The most packets under way at a time, whatever their size: 64 bytes and more each on average.
const SMALLEST_MEAN: u64 = 64;
/// The most datagrams in one batch, which every kernel with GSO takes (`UDP_MAX_SEGMENTS` of Linux 4.18).
const MAX_BATCH: usize = 64;
/// The most bytes in one batch: what one IPv4 packet can carry over UDP.
const MAX_BATCH_BYTES: usize = 65_507;

/// Which client a packet belongs to.
pub(super) type FlowId = u32;

/// Packets in the order in which they came, each with a number until it is let go. Room comes back when the oldest
/// packet or the newest one has been let go.
#[derive(Debug)]
pub(super) struct Ring {
    data: Box<[u8]>,
    /// Where the next packet goes, if there is room.
    head: usize,
    kept: VecDeque<Entry>,
    /// The number of the oldest packet.
    first: u64,
    most_packets: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: usize,
    len: usize,
    flow: FlowId,
    ecn: Ecn,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Kept,
    LetGo,
}

/// Consecutive packets of one client, of one size (the last may be shorter), side by side in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    /// The number of the first packet.
    pub first: u64,
    /// How many packets.
    pub packets: usize,
    /// Where the bytes are; see [`Ring::bytes`].
    pub range: Range<usize>,
    /// Size of every packet but the last.
    pub segment: usize,
    /// Whose they are.
    pub flow: FlowId,
    /// Their ECN bits.
    pub ecn: Ecn,
}

impl Batch {
    /// What is left of it when its first `packets` packets have gone; `None` if nothing is.
    pub(super) fn without(self, packets: usize) -> Option<Self> {
        let packets = packets.min(self.packets);
        let start = (self.range.start + packets * self.segment).min(self.range.end);
        let left = self.packets - packets;
        let first = self.first + packets as u64;
        (left > 0).then_some(Self { first, packets: left, range: start..self.range.end, ..self })
    }
}

impl Ring {
    /// A ring with room for `capacity` bytes.
    pub(super) fn new(capacity: Bytes) -> Self {
        let bytes = capacity.0 as usize;
        Self {
            data: vec![0; bytes].into_boxed_slice(),
            head: 0,
            kept: VecDeque::with_capacity(bytes / 1_024),
            first: 0,
            most_packets: (capacity.0 / SMALLEST_MEAN) as usize,
        }
    }

    /// Keeps a packet and says its number, which is one more than that of the packet before if both are still kept;
    /// `None` if there is no room.
    pub(super) fn push(&mut self, packet: &[u8], flow: FlowId, ecn: Ecn) -> Option<u64> {
        let start = self.place(packet.len()).filter(|_| self.kept.len() < self.most_packets)?;
        self.data[start..start + packet.len()].copy_from_slice(packet);
        self.head = start + packet.len();
        self.kept.push_back(Entry { start, len: packet.len(), flow, ecn, state: State::Kept });
        Some(self.first + self.kept.len() as u64 - 1)
    }

    /// A free stretch of `len` bytes: behind the last packet, or at the start of the ring.
    fn place(&self, len: usize) -> Option<usize> {
        let Some(oldest) = self.kept.front() else {
            return (len <= self.data.len()).then_some(0);
        };
        let newest = self.kept.back().unwrap_or(oldest);
        if newest.start >= oldest.start {
            // Used is oldest.start..head: room is behind it, and before it.
            if len <= self.data.len() - self.head {
                return Some(self.head);
            }
            return (len < oldest.start).then_some(0);
        }
        (self.head + len < oldest.start).then_some(self.head)
    }

    fn entry(&self, number: u64) -> Option<&Entry> {
        self.kept.get(number.checked_sub(self.first)? as usize)
    }

    /// The packet as a batch of its own; `None` if it is not kept.
    pub(super) fn batch(&self, number: u64) -> Option<Batch> {
        let Entry { start, len, flow, ecn, .. } = *self.entry(number)?;
        Some(Batch { first: number, packets: 1, range: start..start + len, segment: len, flow, ecn })
    }

    /// Adds the packet to a batch if both can leave with one call.
    pub(super) fn join(&self, batch: &mut Batch, number: u64) -> bool {
        let Some(entry) = self.entry(number) else { return false };
        let all_whole = batch.range.len() == batch.packets * batch.segment;
        let fits = all_whole
            && number == batch.first + batch.packets as u64
            && (1..=batch.segment).contains(&entry.len)
            && entry.start == batch.range.end
            && (entry.flow, entry.ecn) == (batch.flow, batch.ecn)
            && batch.packets < MAX_BATCH
            && batch.range.len() + entry.len <= MAX_BATCH_BYTES;
        if fits {
            batch.range.end += entry.len;
            batch.packets += 1;
        }
        fits
    }

    /// A batch's bytes.
    pub(super) fn bytes(&self, batch: &Batch) -> &[u8] {
        &self.data[batch.range.clone()]
    }

    /// Lets go of `packets` packets from the number `first` on.
    pub(super) fn release(&mut self, first: u64, packets: usize) {
        let from = first.saturating_sub(self.first) as usize;
        for entry in self.kept.iter_mut().skip(from).take(packets) {
            entry.state = State::LetGo;
        }
        let is_gone = |entry: Option<&Entry>| entry.is_some_and(|entry| entry.state == State::LetGo);
        while is_gone(self.kept.front()) {
            self.kept.pop_front();
            self.first += 1;
        }
        while is_gone(self.kept.back()) {
            self.kept.pop_back();
        }
        if let Some(newest) = self.kept.back() {
            self.head = newest.start + newest.len;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn push(ring: &mut Ring, len: usize, flow: FlowId) -> Option<u64> {
        ring.push(&vec![len as u8; len], flow, Ecn::NotEct)
    }

    #[test]
    fn only_equal_neighbours_of_one_client_leave_together() {
        let mut ring = Ring::new(Bytes(10_000));
        let mut batches: Vec<Batch> = Vec::new();
        for (len, flow) in [(100, 1), (100, 1), (40, 1), (100, 1), (100, 2), (120, 2), (0, 2), (0, 2)] {
            let number = push(&mut ring, len, flow).unwrap();
            if !batches.last_mut().is_some_and(|batch| ring.join(batch, number)) {
                batches.push(ring.batch(number).unwrap());
            }
        }
        let seen: Vec<_> = batches.iter().map(|b| (b.packets, b.segment, b.range.len(), b.flow)).collect();
        let expected = [(3, 100, 240, 1), (1, 100, 100, 1), (1, 100, 100, 2), (1, 120, 120, 2)];
        assert_eq!(seen[..4], expected);
        assert_eq!(seen[4..], [(1, 0, 0, 2), (1, 0, 0, 2)]);
        let rest = batches[0].clone().without(2).unwrap();
        assert_eq!((rest.first, rest.packets, rest.range), (2, 1, 200..240));
        assert_eq!(batches[0].clone().without(3), None);
    }

    #[test]
    fn a_full_ring_refuses_and_takes_again_when_the_oldest_or_the_newest_go() {
        let mut ring = Ring::new(Bytes(1_000));
        let fill = |ring: &mut Ring| (0..20).take_while(|_| push(ring, 100, 0).is_some()).count();
        assert_eq!(fill(&mut ring), 10);
        ring.release(4, 2);
        assert_eq!(fill(&mut ring), 0);
        ring.release(8, 2);
        assert_eq!(fill(&mut ring), 2);
        ring.release(0, 3);
        assert_eq!(fill(&mut ring), 2);
        assert_eq!(push(&mut ring, 1_001, 0), None);
    }

    proptest! {
        #[test]
        fn packets_stay_as_they_are_until_they_are_let_go(
            steps in prop::collection::vec((0u8..3, 0usize..200, any::<prop::sample::Index>()), 1..400),
        ) {
            let mut ring = Ring::new(Bytes(2_000));
            let mut kept: Vec<(u64, Vec<u8>)> = Vec::new();
            let mut stamp = 0u8;
            for (step, len, which) in steps {
                if step > 0 {
                    stamp = stamp.wrapping_add(1);
                    let packet = vec![stamp; len];
                    if let Some(number) = ring.push(&packet, 7, Ecn::NotEct) {
                        prop_assert!(kept.last().is_none_or(|(last, _)| *last < number));
                        kept.push((number, packet));
                    }
                } else if !kept.is_empty() {
                    let (number, _) = kept.remove(which.index(kept.len()));
                    ring.release(number, 1);
                }
                for (number, packet) in &kept {
                    let batch = ring.batch(*number).expect("it is kept");
                    prop_assert_eq!(ring.bytes(&batch), packet.as_slice());
                }
            }
            for (number, _) in kept {
                ring.release(number, 1);
            }
            prop_assert_eq!(ring.kept.len(), 0);
        }
    }
}
