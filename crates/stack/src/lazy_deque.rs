//! A queue that is nearly always empty. It costs only a pointer until something is added, because a base
//! station runs thousands of stacks.

#[cfg(not(test))]
use std::collections::VecDeque;

#[cfg(test)]
use crate::counted_deque::VecDeque;

/// A `VecDeque` allocated on first use.
#[derive(Debug)]
#[cfg_attr(not(test), expect(clippy::box_collection, reason = "an empty queue must be small"))]
pub(crate) struct LazyDeque<T>(Option<Box<VecDeque<T>>>);

impl<T> Default for LazyDeque<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> LazyDeque<T> {
    /// Returns the queue, allocated if necessary.
    pub(crate) fn get_mut(&mut self) -> &mut VecDeque<T> {
        self.0.get_or_insert_default()
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.0.as_ref()?.front()
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut()?.front_mut()
    }

    pub(crate) fn push_back(&mut self, value: T) {
        self.get_mut().push_back(value);
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.0.as_mut()?.pop_front()
    }

    /// Takes all elements.
    pub(crate) fn take(&mut self) -> VecDeque<T> {
        self.0.take().map_or_else(VecDeque::new, |queue| *queue)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(|queue| queue.iter())
    }

    /// Frees the memory if the queue is empty.
    pub(crate) fn release_idle(&mut self) {
        if self.is_empty() {
            self.0 = None;
        }
    }

    pub(crate) fn contains(&self, value: &T) -> bool
    where
        T: PartialEq,
    {
        self.0.as_ref().is_some_and(|queue| queue.contains(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lazy_deque_behaves_like_a_queue() {
        let mut queue = LazyDeque::default();
        assert_eq!((queue.pop_front(), queue.is_empty(), queue.contains(&1)), (None, true, false));
        queue.push_back(1);
        queue.push_back(2);
        assert_eq!((queue.len(), queue.contains(&2)), (2, true));
        assert_eq!((queue.pop_front(), queue.pop_front(), queue.pop_front()), (Some(1), Some(2), None));
        queue.push_back(3);
        queue.release_idle();
        assert_eq!(queue.iter().collect::<Vec<_>>(), [&3]);
        queue.pop_front();
        queue.release_idle();
        assert!(queue.0.is_none());
        assert_eq!(size_of::<LazyDeque<u64>>(), size_of::<usize>());
    }
}
