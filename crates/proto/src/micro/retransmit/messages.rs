//! Assigns segments to messages, so that messages settle.

use std::collections::VecDeque;

use crate::micro::truncated::expand;

/// A message with outstanding segments. Its segments have consecutive sequence numbers.
#[derive(Clone, Copy, Debug)]
struct Open {
    message: u64,
    first: u64,
    /// Number of segments so far; `pending`: those that have not arrived.
    segments: u32,
    pending: u32,
    /// Whether the last segment has been sent.
    ended: bool,
    failed: bool,
}

/// Messages in the order in which they were segmented.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    open: VecDeque<Open>,
    /// The newest message, with all bits of its ID.
    newest: u64,
}

impl Ledger {
    /// Records that a segment of `message` is sent for the first time; returns whether to store it (its
    /// message has not failed).
    pub(super) fn add(&mut self, message: u32, sequence: u64, last: bool) -> bool {
        let same = |open: &&mut Open| open.message as u32 == message && !open.ended;
        if let Some(open) = self.open.back_mut().filter(same) {
            open.segments += 1;
            open.pending += u32::from(!open.failed);
            open.ended = last;
            let keep = !open.failed;
            self.drop_finished();
            return keep;
        }
        let message = expand(message, self.newest);
        self.newest = message;
        self.open.push_back(Open {
            message,
            first: sequence,
            segments: 1,
            pending: 1,
            ended: last,
            failed: false,
        });
        true
    }

    fn find(&mut self, sequence: u64) -> Option<&mut Open> {
        let index = self.open.partition_point(|open| open.first <= sequence);
        let open = self.open.get_mut(index.checked_sub(1)?)?;
        (sequence < open.first + u64::from(open.segments)).then_some(open)
    }

    /// Frees unused capacity.
    pub(super) fn release_idle(&mut self) {
        self.open.shrink_to_fit();
    }

    /// Records that a segment has arrived; returns its message if all of it has.
    pub(super) fn arrived(&mut self, sequence: u64) -> Option<u64> {
        let open = self.find(sequence)?;
        open.pending = open.pending.saturating_sub(1);
        let settled = (open.pending == 0 && open.ended && !open.failed).then_some(open.message);
        self.drop_finished();
        settled
    }

    /// Gives up the message of a segment; returns the message and its sequence numbers, unless it was already
    /// given up.
    pub(super) fn fail(&mut self, sequence: u64) -> Option<(u64, std::ops::Range<u64>)> {
        let open = self.find(sequence).filter(|open| !open.failed)?;
        (open.failed, open.pending) = (true, 0);
        let failed = (open.message, open.first..open.first + u64::from(open.segments));
        self.drop_finished();
        Some(failed)
    }

    /// Returns the first sequence number of an open message.
    pub(super) fn first_of(&self, message: u64) -> Option<u64> {
        let known = |open: &&Open| open.message == message && !open.failed;
        self.open.iter().find(known).map(|open| open.first)
    }

    fn drop_finished(&mut self) {
        // A failed message may never end; once another has started it has no more segments.
        while self.open.front().is_some_and(|open| open.pending == 0 && (open.ended || self.open.len() > 1)) {
            self.open.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_completes_with_its_last_segment_in_any_order() {
        let mut ledger = Ledger::default();
        assert!(ledger.add(4, 10, false) && ledger.add(4, 11, false));
        assert_eq!((ledger.arrived(11), ledger.arrived(10)), (None, None));
        assert!(ledger.add(4, 12, true) && ledger.add(5, 13, true));
        assert_eq!((ledger.arrived(13), ledger.arrived(12)), (Some(5), Some(4)));
        assert!(ledger.open.is_empty());
        assert_eq!(ledger.arrived(12), None);
    }

    #[test]
    fn a_failed_message_is_released_completely() {
        let mut ledger = Ledger::default();
        assert!(ledger.add(1, 0, false) && ledger.add(1, 1, false));
        assert_eq!(ledger.first_of(1), Some(0));
        assert_eq!(ledger.fail(1), Some((1, 0..2)));
        assert_eq!((ledger.fail(0), ledger.first_of(1)), (None, None));
        assert!(!ledger.add(1, 2, true));
        assert!(ledger.open.is_empty());
    }

    #[test]
    fn numbers_continue_beyond_32_bits() {
        let mut ledger = Ledger { newest: u64::from(u32::MAX), ..Ledger::default() };
        ledger.add(2, 0, true);
        assert_eq!(ledger.arrived(0), Some((1 << 32) + 2));
    }
}
