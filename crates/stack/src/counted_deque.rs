//! A `VecDeque` that counts how often it moves an element, so that tests can measure the work of queues.

use std::cell::Cell;
use std::collections::vec_deque;
use std::ops::{Deref, DerefMut};

thread_local! {
    static MOVES: Cell<usize> = const { Cell::new(0) };
}

/// Returns how often this thread has moved an element of a queue.
pub(crate) fn moves() -> usize {
    MOVES.get()
}

fn count(moves: usize) {
    MOVES.set(MOVES.get() + moves);
}

#[derive(Debug)]
pub(crate) struct VecDeque<T>(vec_deque::VecDeque<T>);

impl<T> Default for VecDeque<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> VecDeque<T> {
    pub(crate) fn new() -> Self {
        Self(vec_deque::VecDeque::new())
    }

    pub(crate) fn push_back(&mut self, value: T) {
        count(1);
        self.0.push_back(value);
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.0.pop_front().inspect(|_| count(1))
    }

    /// Moves the elements on the shorter side of the new one.
    pub(crate) fn insert(&mut self, at: usize, value: T) {
        count(1 + at.min(self.0.len() - at));
        self.0.insert(at, value);
    }

    /// Moves the elements on the shorter side of the removed one.
    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        self.0.remove(at).inspect(|_| count(1 + at.min(self.0.len() - at)))
    }
}

impl<T> Deref for VecDeque<T> {
    type Target = vec_deque::VecDeque<T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T> DerefMut for VecDeque<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<T> IntoIterator for VecDeque<T> {
    type Item = T;
    type IntoIter = vec_deque::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
