//! What is known of messages between their segments and their delivery.

use std::collections::VecDeque;

/// A few values by message, the oldest forgotten first.
#[derive(Debug)]
pub(crate) struct Notes<T> {
    kept: VecDeque<(u32, T)>,
    limit: usize,
    /// The latest message that was ever noted.
    newest: u32,
}

impl<T: Copy> Notes<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { kept: VecDeque::new(), limit, newest: u32::MAX }
    }

    /// Notes `value` if nothing is noted of `message`. Most segments are of the message that was noted last.
    pub(crate) fn note(&mut self, message: u32, value: T) {
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

    /// Takes out what is noted of `message`. Most messages are delivered in the order in which they began.
    pub(crate) fn take(&mut self, message: u32) -> Option<T> {
        let at = self.kept.iter().position(|note| note.0 == message)?;
        self.kept.remove(at).map(|note| note.1)
    }

    /// Another limit; nothing is forgotten for it if all of it `is_needed`.
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
    fn the_first_note_stays_and_the_oldest_goes() {
        let mut notes = Notes::new(2);
        notes.note(1, 'a');
        notes.note(1, 'b');
        notes.note(2, 'c');
        notes.note(3, 'd');
        assert_eq!(
            (notes.take(1), notes.take(2), notes.take(3), notes.take(3)),
            (None, Some('c'), Some('d'), None)
        );
        notes.set_limit(1, false);
        notes.note(1, 'a');
        assert_eq!(notes.take(1), Some('a'));
    }
}
