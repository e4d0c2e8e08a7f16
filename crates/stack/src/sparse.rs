//! A queue that is empty nearly always: it costs a pointer until something is put in, because a base station has
//! thousands of stacks.

use std::collections::VecDeque;

/// A `VecDeque` that is made when it is needed.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "the point is the size of the empty one")]
pub(crate) struct Sparse<T>(Option<Box<VecDeque<T>>>);

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Sparse<T> {
    pub(crate) fn push_back(&mut self, value: T) {
        self.0.get_or_insert_default().push_back(value);
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.0.as_mut()?.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
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
    fn it_is_a_queue() {
        let mut queue = Sparse::default();
        assert_eq!((queue.pop_front(), queue.is_empty(), queue.contains(&1)), (None, true, false));
        queue.push_back(1);
        queue.push_back(2);
        assert_eq!((queue.len(), queue.contains(&2)), (2, true));
        assert_eq!((queue.pop_front(), queue.pop_front(), queue.pop_front()), (Some(1), Some(2), None));
        assert_eq!(size_of::<Sparse<u64>>(), size_of::<usize>());
    }
}
