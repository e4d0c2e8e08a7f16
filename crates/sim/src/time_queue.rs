//! Time-ordered queue.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use haul_base::Time;

/// Queue ordered by time; entries with equal times keep their insertion order. Entries pushed in time
/// order only touch the ring; entries that overtake others go through the heap.
#[derive(Debug)]
pub(crate) struct TimeQueue<T> {
    ring: VecDeque<Entry<T>>,
    heap: BinaryHeap<Reverse<Entry<T>>>,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Time,
    sequence: u64,
    item: T,
}

impl<T> Entry<T> {
    fn key(&self) -> (Time, u64) {
        (self.at, self.sequence)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<T> Default for TimeQueue<T> {
    fn default() -> Self {
        Self { ring: VecDeque::new(), heap: BinaryHeap::new(), sequence: 0 }
    }
}

impl<T> TimeQueue<T> {
    /// Creates a queue that holds `capacity` items without allocating again.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { ring: VecDeque::with_capacity(capacity), ..Self::default() }
    }

    pub(crate) fn push(&mut self, at: Time, item: T) {
        let entry = Entry { at, sequence: self.sequence, item };
        self.sequence += 1;
        match self.ring.back() {
            Some(back) if back.at > at => self.heap.push(Reverse(entry)),
            _ => self.ring.push_back(entry),
        }
    }

    /// Returns the time of the first item.
    pub(crate) fn next(&self) -> Option<Time> {
        match (self.ring.front(), self.heap.peek()) {
            (Some(ring), Some(Reverse(heap))) => Some(ring.at.min(heap.at)),
            (Some(ring), None) => Some(ring.at),
            (None, heap) => heap.map(|Reverse(heap)| heap.at),
        }
    }

    /// Removes and returns the first item, with its time, if it is due at `now`.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Time, T)> {
        let from_heap = match (self.ring.front(), self.heap.peek()) {
            (Some(ring), Some(Reverse(heap))) => heap < ring,
            (ring, _) => ring.is_none(),
        };
        let entry = if from_heap {
            self.heap.peek().filter(|Reverse(entry)| entry.at <= now)?;
            self.heap.pop().map(|Reverse(entry)| entry)
        } else {
            self.ring.front().filter(|entry| entry.at <= now)?;
            self.ring.pop_front()
        };
        entry.map(|entry| (entry.at, entry.item))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entries_are_ordered_by_time_then_insertion(steps in prop::collection::vec(prop::option::weighted(0.6, 0u64..50), 0..200)) {
            let mut time_queue = TimeQueue::with_capacity(4);
            let mut model: Vec<(u64, usize)> = Vec::new();
            for (n, step) in steps.into_iter().enumerate() {
                if let Some(at) = step {
                    time_queue.push(Time::from_nanos(at), n);
                    model.push((at, n));
                    model.sort_unstable();
                } else {
                    let now = 40;
                    let expected = (model.first().is_some_and(|first| first.0 <= now)).then(|| model.remove(0));
                    let got = time_queue.pop_due(Time::from_nanos(now)).map(|(at, n)| (at.as_nanos(), n));
                    prop_assert_eq!(got, expected);
                }
                prop_assert_eq!(time_queue.next().map(Time::as_nanos), model.first().map(|first| first.0));
            }
        }
    }
}
