//! What was known when packets left (the per-packet state of draft-ietf-ccwg-bbr, section "Delivery Rate Samples"),
//! once a sixty-fourth of a round trip instead of once a packet.

use std::collections::VecDeque;

use haul_base::{Span, Time};

/// Totals when packets left, and how much was in flight then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Packets from this number on left then.
    pub(super) pn: u64,
    pub(super) at: Time,
    /// Packets that had arrived, been lost and come marked.
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) marked: u64,
    /// Most UDP payload bytes in flight as packets left, those packets included.
    pub(super) in_flight: u64,
}

/// The marks of what is on its way.
#[derive(Debug, Default)]
pub(super) struct History {
    marks: VecDeque<Mark>,
}

impl History {
    /// More are kept only if the round trip grows quickly; then the oldest goes.
    const MOST: usize = 256;
    /// Marks in a round trip.
    const PER_ROUND: u64 = 64;

    /// Packets have left, and so much is in flight now.
    pub(super) fn on_sent(&mut self, now: Time, in_flight: u64) {
        if self.marks.is_empty() {
            self.marks.push_back(Mark { at: now, ..Mark::default() });
        }
        if let Some(mark) = self.marks.back_mut() {
            mark.in_flight = mark.in_flight.max(in_flight);
        }
    }

    /// The mark of packet `pn`. Older ones are forgotten.
    pub(super) fn of(&mut self, pn: u64) -> Mark {
        while self.marks.get(1).is_some_and(|mark| mark.pn <= pn) {
            self.marks.pop_front();
        }
        self.marks.front().copied().unwrap_or_default()
    }

    /// Marks what leaves from now on.
    pub(super) fn note(&mut self, mark: Mark, rtt: Span) {
        if let Some(last) = self.marks.back_mut() {
            if mark.pn == last.pn {
                // Nothing has left since.
                *last = Mark { in_flight: last.in_flight, ..mark };
                return;
            }
            if mark.pn < last.pn || mark.at.since(last.at) < rtt / Self::PER_ROUND {
                return;
            }
        }
        if self.marks.len() == Self::MOST {
            self.marks.pop_front();
        }
        self.marks.push_back(mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Span = Span::from_millis(64);

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn mark(n: u64) -> Mark {
        Mark { pn: n * 10, at: at(n), delivered: n, ..Mark::default() }
    }

    #[test]
    fn a_packet_finds_what_was_known_as_it_left() {
        let mut history = History::default();
        assert_eq!(history.of(7), Mark::default());
        for n in 0..5 {
            history.note(mark(n), RTT);
            history.on_sent(at(n), n * 1_000);
            history.on_sent(at(n), n * 500);
        }
        assert_eq!(
            (history.of(9).delivered, history.of(25).delivered, history.of(30).in_flight),
            (0, 2, 3_000)
        );
        assert_eq!(history.of(1_000).delivered, 4);
    }

    #[test]
    fn marks_are_spaced_and_bounded_and_never_go_back() {
        let mut history = History::default();
        for n in 0..100_000 {
            history.note(mark(n), Span::from_secs(1));
        }
        assert!(history.marks.len() <= History::MOST);
        let kept: Vec<_> = history.marks.iter().map(|mark| mark.pn).collect();
        assert!(kept.windows(2).all(|pair| pair[1] >= pair[0] + 150), "{kept:?}");
        let last = *history.marks.back().unwrap();
        history.note(mark(3), RTT);
        assert_eq!(history.marks.back(), Some(&last));
    }
}
