//! Event queue: the next actor and its time.

use haul_base::Time;

/// Heap of actors ordered by the time of their next event; equal times keep the order in which they were
/// set. Each actor has at most one event, which can be moved.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: Vec<u32>,
    /// Per actor: its position in the heap, and its event.
    actors: Vec<Entry>,
    sequence: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    place: Option<u32>,
    key: (Time, u64),
}

impl EventQueue {
    /// Adds an actor without an event.
    pub(super) fn add(&mut self) -> u32 {
        self.actors.push(Entry::default());
        (self.actors.len() - 1) as u32
    }

    /// Sets, moves or clears the actor's event.
    pub(super) fn set(&mut self, actor: u32, at: Option<Time>) {
        let entry = self.actors[actor as usize];
        match (entry.place, at) {
            (None, None) => {}
            (Some(_), Some(at)) if entry.key.0 == at => {}
            (Some(place), Some(at)) => {
                self.actors[actor as usize].key = (at, self.number());
                let place = self.up(place as usize);
                self.sift_down(place);
            }
            (None, Some(at)) => {
                let place = self.heap.len();
                self.heap.push(actor);
                self.actors[actor as usize] = Entry { place: Some(place as u32), key: (at, self.number()) };
                self.up(place);
            }
            (Some(place), None) => self.remove(place as usize),
        }
    }

    /// Returns the actor with the earliest event, and its time.
    pub(super) fn first(&self) -> Option<(Time, u32)> {
        self.heap.first().map(|&actor| (self.key(actor).0, actor))
    }

    fn number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn key(&self, actor: u32) -> (Time, u64) {
        self.actors[actor as usize].key
    }

    fn remove(&mut self, place: usize) {
        let actor = self.heap.swap_remove(place);
        self.actors[actor as usize].place = None;
        if place < self.heap.len() {
            self.record_place(place);
            let place = self.up(place);
            self.sift_down(place);
        }
    }

    fn record_place(&mut self, place: usize) {
        self.actors[self.heap[place] as usize].place = Some(place as u32);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.record_place(a);
        self.record_place(b);
    }

    fn up(&mut self, mut place: usize) -> usize {
        while place > 0 && self.key(self.heap[place]) < self.key(self.heap[(place - 1) / 2]) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        place
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2].into_iter().filter(|&c| c < self.heap.len());
            let Some(least) = children.min_by_key(|&c| self.key(self.heap[c])) else {
                return;
            };
            if self.key(self.heap[place]) <= self.key(self.heap[least]) {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_event_is_the_earliest_then_the_oldest(
            steps in prop::collection::vec((0u32..8, prop::option::weighted(0.8, 0u64..10)), 0..200),
        ) {
            let mut event_queue = EventQueue::default();
            let mut model: Vec<Option<(u64, usize)>> = vec![None; 8];
            for _ in 0..8 {
                event_queue.add();
            }
            for (n, (actor, at)) in steps.into_iter().enumerate() {
                event_queue.set(actor, at.map(Time::from_nanos));
                let old = model[actor as usize];
                model[actor as usize] = match (old, at) {
                    (Some((t, m)), Some(at)) if t == at => Some((t, m)),
                    (_, at) => at.map(|at| (at, n)),
                };
                let best = (0..8).filter_map(|a| model[a].map(|key| (key, a as u32))).min();
                prop_assert_eq!(event_queue.first().map(|(t, a)| (t.as_nanos(), a)), best.map(|((t, _), a)| (t, a)));
            }
        }
    }
}
