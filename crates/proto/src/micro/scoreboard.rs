//! The scoreboard of sent segments that are not settled, by sequence number. `retransmit` writes it; the
//! acknowledgements read from it when a segment's timeout expires. A shared value, so that neither depends on
//! the other.

use std::collections::VecDeque;

use haul_base::Time;

/// Capacity that an empty scoreboard keeps: a wide window is rarely needed, and many connections are idle.
pub(crate) const KEPT_PLACES: usize = 1_024;

/// State of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// In flight, or lost without this end knowing.
    Waiting,
    /// Declared lost; to be retransmitted.
    Lost,
    /// Arrived, given up or dropped.
    Done,
}

/// One segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// Packet number of the newest transmission.
    pub(crate) pn: u64,
    /// Time of the newest transmission.
    pub(crate) sent: Time,
    /// Number of transmissions.
    pub(crate) tries: u16,
    pub(crate) state: SegmentState,
}

/// Segments in the order of their sequence numbers; the first one is not done.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    base: u64,
    slots: VecDeque<Slot>,
    open: usize,
    lost: usize,
    crowded: bool,
}

impl Scoreboard {
    /// Whether half of the window or of the memory for copies is in use, so that an acknowledgement is needed
    /// soon.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    pub(crate) fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    /// Segments that are declared lost and not yet retransmitted.
    pub(crate) fn lost(&self) -> usize {
        self.lost
    }

    /// Lowest sequence number that is not done.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Sequence number of the next new segment.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// Number of segments that are not done.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Number of sequence numbers from the oldest segment that is not done to the next new one.
    pub(crate) fn span(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(sequence.checked_sub(self.base)?).ok()?)
    }

    fn get_mut(&mut self, sequence: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(sequence.checked_sub(self.base)?).ok()?)
    }

    /// Returns the end of the range from `sequence` on of segments that are done or were sent in packets
    /// before `pn`.
    pub(crate) fn end_of_earlier(&self, sequence: u64, pn: u64) -> u64 {
        let is_earlier = |slot: &Slot| slot.state == SegmentState::Done || slot.pn < pn;
        (sequence..self.next()).find(|&at| !self.get(at).is_some_and(is_earlier)).unwrap_or(self.next())
    }

    /// Records a new segment. Numbers are assigned in order. After a gap (another micro-protocol renumbers)
    /// the scoreboard follows, which is possible only while it is empty.
    pub(crate) fn begin(&mut self, sequence: u64, pn: u64, now: Time) -> bool {
        if self.slots.is_empty() {
            self.base = sequence;
        }
        if sequence != self.next() {
            return false;
        }
        self.slots.push_back(Slot { pn, sent: now, tries: 1, state: SegmentState::Waiting });
        self.open += 1;
        true
    }

    /// Records a retransmission.
    pub(crate) fn repeat(&mut self, sequence: u64, pn: u64, now: Time) {
        if let Some(slot) = self.get_mut(sequence)
            && slot.state != SegmentState::Done
        {
            let was_lost = slot.state == SegmentState::Lost;
            *slot = Slot { pn, sent: now, tries: slot.tries.saturating_add(1), state: SegmentState::Waiting };
            self.lost -= usize::from(was_lost);
        }
    }

    /// Declares a segment lost; returns whether it was in flight before.
    pub(crate) fn mark_lost(&mut self, sequence: u64) -> bool {
        match self.get_mut(sequence) {
            Some(slot) if slot.state == SegmentState::Waiting => {
                slot.state = SegmentState::Lost;
                self.lost += 1;
                true
            }
            _ => false,
        }
    }

    /// Marks a segment as done; returns its previous state if it was not.
    pub(crate) fn finish(&mut self, sequence: u64) -> Option<Slot> {
        let slot = self.get_mut(sequence).filter(|slot| slot.state != SegmentState::Done)?;
        let before = *slot;
        slot.state = SegmentState::Done;
        self.open -= 1;
        self.lost -= usize::from(before.state == SegmentState::Lost);
        while self.slots.front().is_some_and(|slot| slot.state == SegmentState::Done) {
            self.slots.pop_front();
            self.base += 1;
        }
        if self.slots.is_empty() && self.slots.capacity() > KEPT_PLACES {
            self.slots.shrink_to(KEPT_PLACES);
        }
        Some(before)
    }

    /// Frees the capacity that an empty scoreboard keeps.
    pub(crate) fn release_idle(&mut self) {
        self.slots.shrink_to_fit();
    }

    /// Segments that are not done, with their sequence numbers, oldest first.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = (u64, &Slot)> {
        let numbered = (self.base..).zip(&self.slots);
        numbered.filter(|(_, slot)| slot.state != SegmentState::Done)
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Span;

    use super::*;

    #[test]
    fn the_front_advances_past_finished_segments() {
        let mut scoreboard = Scoreboard::default();
        for sequence in 7..11 {
            assert!(scoreboard.begin(sequence, 100 + sequence, Time::ZERO));
        }
        assert!(!scoreboard.begin(13, 0, Time::ZERO));
        assert_eq!(
            (scoreboard.base(), scoreboard.next(), scoreboard.open(), scoreboard.span()),
            (7, 11, 4, 4)
        );
        assert_eq!(scoreboard.finish(8).unwrap().pn, 108);
        assert!(
            scoreboard.finish(8).is_none()
                && scoreboard.finish(6).is_none()
                && scoreboard.finish(11).is_none()
        );
        assert_eq!((scoreboard.base(), scoreboard.open()), (7, 3));
        scoreboard.finish(7);
        assert_eq!((scoreboard.base(), scoreboard.open(), scoreboard.span()), (9, 2, 2));
        scoreboard.finish(9);
        scoreboard.finish(10);
        assert!(scoreboard.begin(0, 1, Time::ZERO));
        assert_eq!((scoreboard.base(), scoreboard.next()), (0, 1));
    }

    #[test]
    fn memory_of_a_wide_window_is_freed() {
        let mut scoreboard = Scoreboard::default();
        for sequence in 0..16_384 {
            assert!(scoreboard.begin(sequence, sequence, Time::ZERO));
        }
        for sequence in 0..16_384 {
            assert!(scoreboard.finish(sequence).is_some());
        }
        assert!(scoreboard.slots.capacity() <= KEPT_PLACES, "{}", scoreboard.slots.capacity());
        scoreboard.release_idle();
        assert_eq!((scoreboard.base(), scoreboard.span(), scoreboard.slots.capacity()), (16_384, 0, 0));
    }

    #[test]
    fn a_retransmitted_segment_is_outstanding_again() {
        let mut scoreboard = Scoreboard::default();
        scoreboard.begin(0, 5, Time::ZERO);
        assert!(scoreboard.mark_lost(0));
        assert!(!scoreboard.mark_lost(0));
        let (_, slot) = scoreboard.outstanding().next().unwrap();
        assert_eq!((slot.state, scoreboard.lost()), (SegmentState::Lost, 1));
        let later = Time::ZERO + Span::from_millis(3);
        scoreboard.repeat(0, 9, later);
        let (sequence, slot) = scoreboard.outstanding().next().unwrap();
        assert_eq!((sequence, slot.pn, slot.sent, slot.tries), (0, 9, later, 2));
        assert_eq!(scoreboard.lost(), 0);
    }
}
