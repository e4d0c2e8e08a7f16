//! Values stored per message between its segments and its delivery.

use std::collections::VecDeque;

/// A bounded map from messages to small values; the oldest are dropped first.
#[derive(Debug)]
pub(crate) struct MessageMap<T> {
    kept: VecDeque<(u32, T)>,
    limit: usize,
    /// The newest message ever inserted.
    newest: u32,
}

impl<T: Copy> MessageMap<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { kept: VecDeque::new(), limit, newest: u32::MAX }
    }

    /// Inserts `value` unless the message has one. Most segments belong to the message inserted last.
    pub(crate) fn insert(&mut self, message: u32, value: T) {
        let newer = message.wrapping_sub(self.newest).cast_signed() > 0;
        if !newer && self.kept.iter().rev().any(|note| note.0 == message) {
            return;
        }
        if newer {
            self.newest = message;
        }
        if self.kept.len() >= self.limit {
            self.kept.pop_front();
        }
        self.kept.push_back((message, value));
    }

    /// Removes the value of `message`. Most messages are delivered in the order in which they started.
    pub(crate) fn remove(&mut self, message: u32) -> Option<T> {
        let at = self.kept.iter().position(|note| note.0 == message)?;
        self.kept.remove(at).map(|note| note.1)
    }

    /// Sets another limit; drops nothing if all entries are needed (`is_needed`).
    pub(crate) fn set_limit(&mut self, limit: usize, is_needed: bool) {
        self.limit = if is_needed { limit.max(self.limit) } else { limit };
        while self.kept.len() > self.limit {
            self.kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_is_kept_and_the_oldest_removed() {
        let mut map = MessageMap::new(2);
        map.insert(1, 'a');
        map.insert(1, 'b');
        map.insert(2, 'c');
        map.insert(3, 'd');
        assert_eq!(
            (map.remove(1), map.remove(2), map.remove(3), map.remove(3)),
            (None, Some('c'), Some('d'), None)
        );
        map.set_limit(1, false);
        map.insert(1, 'a');
        assert_eq!(map.remove(1), Some('a'));
    }
}
