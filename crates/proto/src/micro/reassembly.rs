//! Reassembly of messages in bounded memory.

use std::collections::VecDeque;

#[cfg(not(test))]
use haul_base::RangeSet;
use haul_stack::{Buffer, Pool};

#[cfg(test)]
use super::counted_ranges::RangeSet;

/// A segment of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'s> {
    /// Message ID.
    pub(crate) message: u64,
    /// Offset in the message, in bytes.
    pub(crate) offset: usize,
    /// Whether it is the last segment of the message.
    pub(crate) last: bool,
    /// Sequence number; 0 where it does not matter.
    pub(crate) sequence: u64,
    pub(crate) data: &'s [u8],
}

impl Segment<'_> {
    fn end(&self) -> usize {
        self.offset + self.data.len()
    }
}

/// Result of adding a segment.
#[derive(Debug)]
pub(crate) enum Added {
    /// The message is still incomplete.
    Incomplete,
    /// The segment had already arrived.
    Duplicate,
    /// The segment contradicts earlier ones, or the message would be too long.
    Impossible,
    /// No buffer space.
    NoRoom,
    /// The message is now complete.
    Complete(Buffer),
}

/// Bytes that an incomplete message is charged besides its contents.
const OVERHEAD: usize = 128;
/// Maximum number of ranges of one message beyond its first gap. The longest message in packets of the
/// smallest datagram, every second one lost, has half as many.
const STRETCHES: usize = 16_384;

/// Memory limits, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum length of a message.
    pub(crate) message: usize,
    /// Maximum for all incomplete messages together.
    pub(crate) total: usize,
}

impl Limits {
    /// Memory available to all messages: the rest is reserved, so that the message that everything waits for
    /// can always be completed.
    fn common(self) -> usize {
        self.total.saturating_sub(self.message + OVERHEAD)
    }

    /// Creates limits that always hold two messages: one in the common memory, one in the reserve.
    pub(crate) fn of(message: usize, total: usize) -> Self {
        Self { message, total: total.max(2 * (message + OVERHEAD)) }
    }
}

#[derive(Debug)]
struct Incomplete {
    message: u64,
    data: Buffer,
    /// All bytes before this offset have arrived.
    front: u64,
    /// Ranges that have arrived beyond the first gap.
    out_of_order: RangeSet,
    len: Option<usize>,
    /// Highest sequence number of its segments.
    newest: u64,
}

impl Incomplete {
    /// Whether all, none, or some of `[from, to)` has arrived.
    fn overlap(&self, from: u64, to: u64) -> Overlap {
        if from == to {
            // An empty message has no bytes that could have arrived.
            Overlap::None
        } else if to <= self.front || self.out_of_order.covers(from..to) {
            Overlap::All
        } else if from < self.front || self.out_of_order.intersects(from..to) {
            Overlap::Some
        } else {
            Overlap::None
        }
    }

    fn add_range(&mut self, from: u64, to: u64) {
        if from > self.front {
            return self.out_of_order.insert(from..to);
        }
        self.front = to;
        if let Some(next) = self.out_of_order.containing(to) {
            self.front = next.end;
            self.out_of_order.remove(next);
        }
    }

    fn is_complete(&self) -> bool {
        self.len.is_some_and(|len| len as u64 == self.front)
    }

    fn write(&mut self, segment: &Segment<'_>) {
        if segment.offset == self.data.len() {
            self.data.extend(segment.data);
            return;
        }
        if segment.end() > self.data.len() {
            self.data.resize(segment.end());
        }
        self.data[segment.offset..segment.end()].copy_from_slice(segment.data);
    }
}

enum Overlap {
    None,
    Some,
    All,
}

/// Incomplete messages of one direction.
#[derive(Debug)]
pub(crate) struct Reassembly {
    limits: Limits,
    /// Sorted by message ID.
    messages: VecDeque<Incomplete>,
    /// Bytes charged for `messages`.
    used: usize,
}

impl Reassembly {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, messages: VecDeque::new(), used: 0 }
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Number of incomplete messages.
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Bytes by which a segment of `message` that ends at `end` would increase memory use.
    pub(crate) fn growth(&self, message: u64, end: usize) -> usize {
        let known = self.find(message).map(|at| self.messages[at].data.len());
        known.map_or(end + OVERHEAD, |known| end.saturating_sub(known))
    }

    /// Whether `growth` more bytes fit without the reserve.
    pub(crate) fn fits(&self, growth: usize) -> bool {
        self.used + growth <= self.limits.common()
    }

    fn find(&self, message: u64) -> Option<usize> {
        self.messages.binary_search_by_key(&message, |known| known.message).ok()
    }

    /// Adds a segment. Returns the message when it is complete.
    pub(crate) fn add(&mut self, segment: &Segment<'_>, pool: &mut Pool) -> Added {
        let is_useless = segment.data.is_empty() && !(segment.last && segment.offset == 0);
        if segment.end() > self.limits.message || is_useless {
            return Added::Impossible;
        }
        let growth = self.growth(segment.message, segment.end());
        if self.used + growth > self.limits.total {
            return Added::NoRoom;
        }
        let at = self.find(segment.message).unwrap_or_else(|| self.begin(segment.message, pool));
        let message = &mut self.messages[at];
        let (from, to) = (segment.offset as u64, segment.end() as u64);
        let too_long = message.len.is_some_and(|len| segment.end() > len);
        let two_ends = segment.last
            && (message.len.is_some_and(|len| len != segment.end()) || message.data.len() > segment.end());
        match message.overlap(from, to) {
            _ if too_long || two_ends || message.out_of_order.len() >= STRETCHES => return Added::Impossible,
            Overlap::All => return Added::Duplicate,
            Overlap::Some => return Added::Impossible,
            Overlap::None => {}
        }
        if segment.last {
            message.len = Some(segment.end());
        }
        if !segment.data.is_empty() {
            message.add_range(from, to);
            message.write(segment);
        }
        message.newest = message.newest.max(segment.sequence);
        self.used += growth;
        if self.messages[at].is_complete() { Added::Complete(self.remove(at)) } else { Added::Incomplete }
    }

    fn begin(&mut self, message: u64, pool: &mut Pool) -> usize {
        let at = self.messages.partition_point(|known| known.message < message);
        let (data, out_of_order) = (pool.get(0), RangeSet::new());
        self.messages.insert(at, Incomplete { message, data, front: 0, out_of_order, len: None, newest: 0 });
        at
    }

    fn remove(&mut self, at: usize) -> Buffer {
        let Some(message) = self.messages.remove(at) else { return Buffer::default() };
        self.used -= message.data.len() + OVERHEAD;
        message.data
    }

    /// Highest sequence number received of the oldest message.
    pub(crate) fn newest_of_oldest(&self) -> Option<u64> {
        self.messages.front().map(|message| message.newest)
    }

    /// A sequence number up to which the oldest message misses a segment. A message's segments are
    /// consecutive, so it misses the one after its newest if it misses none before.
    pub(crate) fn oldest_lacks(&self) -> Option<u64> {
        let message = self.messages.front()?;
        Some(if message.out_of_order.is_empty() {
            message.newest + 1
        } else {
            message.newest.saturating_sub(1)
        })
    }

    /// Gives up the oldest message; `None` if there is none.
    pub(crate) fn give_up_oldest(&mut self, pool: &mut Pool) -> Option<u64> {
        let message = self.messages.front()?.message;
        let data = self.remove(0);
        pool.put(data);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::micro::counted_ranges::steps;

    const LIMITS: Limits = Limits { message: 1_000, total: 3_500 };

    fn body(message: u64, len: usize) -> Vec<u8> {
        (0..len).map(|at| (message as usize * 31 + at) as u8).collect()
    }

    proptest! {
        /// Adds segments of many messages in any order, some twice, some late: every message is completed
        /// once while there is buffer space.
        #[test]
        fn messages_are_reassembled_with_bounded_memory(
            lens in prop::collection::vec(1usize..1_000, 1..12),
            cut in 1usize..400,
            order in prop::collection::vec(any::<u32>(), 200),
        ) {
            let bodies: Vec<_> = lens.iter().enumerate().map(|(id, &len)| body(id as u64, len)).collect();
            let mut segments = Vec::new();
            for (id, body) in bodies.iter().enumerate() {
                for (n, data) in body.chunks(cut).enumerate() {
                    let offset = n * cut;
                    segments.push(Segment { message: id as u64, offset, last: offset + data.len() == body.len(), sequence: 0, data });
                }
            }
            let mut keys = order.iter().cycle();
            segments.sort_by_cached_key(|_| *keys.next().unwrap());
            let (mut table, mut pool) = (Reassembly::new(LIMITS), Pool::new(8));
            let mut completed = vec![0; bodies.len()];
            // Segments without space are added again, as by a reliable sender; the first missing one may use
            // the reserve.
            while !segments.is_empty() {
                let before = segments.len();
                let first = |s: &Segment<'_>| (s.message, s.offset);
                let mut missing: Vec<_> = segments.iter().map(first).collect();
                missing.sort_unstable();
                segments.retain(|segment| {
                    let growth = table.growth(segment.message, segment.end());
                    if missing.first() != Some(&first(segment)) && !table.fits(growth) {
                        return true;
                    }
                    missing.retain(|other| *other != first(segment));
                    match table.add(segment, &mut pool) {
                        Added::Complete(data) => {
                            assert_eq!(&data[..], &bodies[segment.message as usize][..]);
                            completed[segment.message as usize] += 1;
                        }
                        Added::Incomplete => {}
                        other => panic!("{other:?}"),
                    }
                    false
                });
                prop_assert!(table.used <= LIMITS.total);
                prop_assert!(segments.len() < before, "stuck");
            }
            prop_assert!(completed.iter().all(|&n| n == 1));
            prop_assert_eq!((table.used, table.len()), (0, 0));
        }

        #[test]
        fn any_segments_stay_within_bounds(
            segments in prop::collection::vec((0u64..6, 0usize..1_200, 0usize..300, any::<bool>()), 0..200),
        ) {
            let (mut table, mut pool) = (Reassembly::new(LIMITS), Pool::new(8));
            for (message, offset, len, last) in segments {
                let data = body(message, len);
                let _ = table.add(&Segment { message, offset, last, sequence: 0, data: &data }, &mut pool);
                prop_assert_eq!(table.used, table.messages.iter().map(|m| m.data.len() + OVERHEAD).sum::<usize>());
                prop_assert!(table.used <= LIMITS.total);
            }
        }
    }

    /// Adds a message of one-byte segments, first every second one; returns the steps of its range set.
    fn steps_of_a_message(len: usize) -> u64 {
        let (mut table, mut pool) = (Reassembly::new(Limits::of(len, 0)), Pool::new(0));
        let before = steps();
        let added = (1..len).step_by(2).chain((0..len).step_by(2)).map(|offset| {
            let last = offset + 1 == len;
            table.add(&Segment { message: 0, offset, last, sequence: 0, data: &[7] }, &mut pool)
        });
        assert!(matches!(added.last(), Some(Added::Complete(data)) if data[..] == vec![7; len]));
        steps() - before
    }

    #[test]
    fn adding_a_segment_takes_no_more_work_with_more_gaps() {
        let [few, many] = [1_000, 10_000].map(steps_of_a_message);
        assert!(few >= 1_000, "the range set does not count its work: {few} steps");
        assert!(many <= 11 * few, "{few} steps for 1,000 segments, {many} for 10,000");
    }

    #[test]
    fn contradictions_are_reported() {
        let (mut table, mut pool) = (Reassembly::new(LIMITS), Pool::new(8));
        let segment = |offset, last, data| Segment { message: 1, offset, last, sequence: 0, data };
        assert!(matches!(table.add(&segment(100, true, &[1; 50]), &mut pool), Added::Incomplete));
        assert!(matches!(table.add(&segment(100, true, &[1; 50]), &mut pool), Added::Duplicate));
        assert!(matches!(table.add(&segment(140, false, &[1; 20]), &mut pool), Added::Impossible));
        assert!(matches!(table.add(&segment(90, false, &[1; 20]), &mut pool), Added::Impossible));
        assert!(matches!(table.add(&segment(0, true, &[1; 50]), &mut pool), Added::Impossible));
        assert!(matches!(table.add(&segment(990, false, &[1; 11]), &mut pool), Added::Impossible));
        assert!(matches!(table.add(&segment(0, false, &[1; 100]), &mut pool), Added::Complete(_)));
    }
}
