//! Totals at the time packets were sent (the per-packet state of draft-ietf-ccwg-bbr, section "Delivery Rate
//! Samples"), recorded once per 1/64 of a round trip instead of per packet.

use std::collections::VecDeque;

use haul_base::{Span, Time};

/// Totals and bytes in flight when packets were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// First packet number sent under this mark.
    pub(super) pn: u64,
    pub(super) at: Time,
    /// Packets delivered, lost and marked by then.
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) marked: u64,
    /// Peak of the UDP payload bytes in flight while packets were sent, those packets included.
    pub(super) in_flight: u64,
}

/// Marks of the packets in flight.
#[derive(Debug, Default)]
pub(super) struct History {
    marks: VecDeque<Mark>,
}

impl History {
    /// Maximum number of marks, reached only if the round-trip time grows quickly; then the oldest is
    /// dropped.
    const MAX_MARKS: usize = 256;
    /// Marks per round trip.
    const PER_ROUND: u64 = 64;

    /// Records that packets were sent and `in_flight` bytes are in flight now.
    pub(super) fn on_sent(&mut self, now: Time, in_flight: u64) {
        if self.marks.is_empty() {
            self.marks.push_back(Mark { at: now, ..Mark::default() });
        }
        if let Some(mark) = self.marks.back_mut() {
            mark.in_flight = mark.in_flight.max(in_flight);
        }
    }

    /// Returns the mark of packet `pn` and drops older marks.
    pub(super) fn of(&mut self, pn: u64) -> Mark {
        while self.marks.get(1).is_some_and(|mark| mark.pn <= pn) {
            self.marks.pop_front();
        }
        self.marks.front().copied().unwrap_or_default()
    }

    /// Adds a mark for packets sent from now on.
    pub(super) fn record(&mut self, mark: Mark, rtt: Span) {
        if let Some(last) = self.marks.back_mut() {
            if mark.pn == last.pn {
                // Nothing was sent since.
                *last = Mark { in_flight: last.in_flight, ..mark };
                return;
            }
            if mark.pn < last.pn || mark.at.since(last.at) < rtt / Self::PER_ROUND {
                return;
            }
        }
        if self.marks.len() == Self::MAX_MARKS {
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
    fn a_packet_finds_the_state_at_its_send_time() {
        let mut history = History::default();
        assert_eq!(history.of(7), Mark::default());
        for n in 0..5 {
            history.record(mark(n), RTT);
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
            history.record(mark(n), Span::from_secs(1));
        }
        assert!(history.marks.len() <= History::MAX_MARKS);
        let kept: Vec<_> = history.marks.iter().map(|mark| mark.pn).collect();
        assert!(kept.windows(2).all(|pair| pair[1] >= pair[0] + 150), "{kept:?}");
        let last = *history.marks.back().unwrap();
        history.record(mark(3), RTT);
        assert_eq!(history.marks.back(), Some(&last));
    }
}
