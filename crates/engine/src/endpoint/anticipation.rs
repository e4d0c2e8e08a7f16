//! When the next message is likely to come, told from when earlier ones came.
//!
//! Where messages and answers take turns, the next message comes as long after this end's last one as those before it did:
//! after a round trip. A thread that sleeps until then is woken by the kernel, which takes longer than all else that happens
//! to a small message on its way; so for a short time around that moment it does not sleep but looks for itself, as Linux'
//! own busy polling does (`SO_BUSY_POLL`, socket(7)).

use haul_base::{Span, Time};

/// A thread looks for itself for this part of the time between two messages at most.
const SHARE: u64 = 5;
/// It may always do so for so long.
const SHORTEST: Span = Span::from_micros(50);
/// A sleeper needs up to so long to wake up, and its processor to be as fast as it can be: one that was idle for long has slept
/// too, and its caches hold what others wanted.
const WAKING: Span = Span::from_micros(300);
/// It looks at least so long after the moment at which the message was expected.
const LATE: Span = Span::from_micros(20);
/// What is so far from that moment says nothing of the next.
const FAR: Span = Span::from_micros(400);
/// One message that comes at quite another time was repeated, or took the application longer; after so many in a row what
/// was known is forgotten.
const GONE_ASTRAY: u8 = 3;

/// What is known of the times between a message of this end and the next one of the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anticipation {
    /// A thread looks for itself so long at most.
    longest: Span,
    /// This end's last message, if none has come since.
    sent: Option<Time>,
    known: Option<Known>,
    /// Messages in a row that came at quite another time.
    astray: u8,
}

/// When a message is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// From here on a thread looks for itself.
    pub(super) start: Time,
    pub(super) expected: Time,
    /// From here on it sleeps again.
    pub(super) end: Time,
}

/// Smoothed like a round-trip time (RFC 6298 section 2).
#[derive(Clone, Copy, Debug)]
struct Known {
    mean: Span,
    deviation: Span,
}

impl Anticipation {
    pub(super) fn new(longest: Span) -> Self {
        Self { longest, sent: None, known: None, astray: 0 }
    }

    /// This end has sent a message.
    pub(super) fn on_sent(&mut self, now: Time) {
        self.sent = Some(now);
    }

    /// A message of the other end has come, for which a thread was waiting.
    pub(super) fn on_message(&mut self, now: Time) {
        let Some(took) = self.sent.take().map(|sent| now.since(sent)) else { return };
        match &mut self.known {
            Some(known) if known.is_far_from(took) && self.astray < GONE_ASTRAY => self.astray += 1,
            Some(known) if self.astray < GONE_ASTRAY => {
                self.astray = 0;
                known.add(took);
            }
            known => {
                self.astray = 0;
                *known = Some(Known { mean: took, deviation: self.longest });
            }
        }
    }

    /// When to look for the next message, if that can be told well enough.
    pub(super) fn window(&self) -> Option<Window> {
        let (sent, known) = (self.sent?, self.known?);
        let budget = (known.mean / SHARE).max(SHORTEST).min(self.longest);
        // With more deviation most messages would come when nobody looks.
        if known.deviation > budget / 2 {
            return None;
        }
        let expected = sent + known.mean;
        let early = (known.deviation * 2 + WAKING).min(budget * 2 / 3).min(known.mean);
        let late = (known.deviation * 4 + LATE).min(budget / 3);
        Some(Window { start: expected - early, expected, end: expected + late })
    }
}

impl Known {
    fn off(&self, took: Span) -> Span {
        self.mean.max(took).saturating_sub(self.mean.min(took))
    }

    fn is_far_from(&self, took: Span) -> bool {
        self.off(took) > (self.deviation * 2).max(FAR)
    }

    fn add(&mut self, took: Span) {
        self.deviation = self.deviation * 3 / 4 + self.off(took) / 4;
        self.mean = self.mean * 7 / 8 + took / 8;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST: Span = Span::from_micros(1_500);

    /// One end sends, and has its answer after each of these times.
    fn after(times: impl IntoIterator<Item = u64>) -> (Anticipation, Time) {
        let (mut anticipation, mut now) = (Anticipation::new(LONGEST), Time::from_nanos(5));
        for micros in times {
            anticipation.on_sent(now);
            now += Span::from_micros(micros);
            anticipation.on_message(now);
        }
        anticipation.on_sent(now);
        (anticipation, now)
    }

    fn steady(micros: u64) -> impl Iterator<Item = u64> {
        [micros - 9, micros + 9].into_iter().cycle().take(20)
    }

    #[test]
    fn an_answer_is_expected_a_round_trip_after_the_question() {
        for (rtt, longest) in [(1_000, 200), (60_000, 1_500)] {
            let (anticipation, sent) = after(steady(rtt));
            let window = anticipation.window().unwrap();
            let answer = sent + Span::from_micros(rtt);
            assert!(window.start < answer && answer < window.end, "{window:?}");
            assert!(window.end.since(window.start) <= Span::from_micros(longest), "{window:?}");
        }
    }

    #[test]
    fn nothing_is_expected_at_first_nor_where_answers_come_at_any_time_nor_without_a_question() {
        assert_eq!(after([]).0.window(), None);
        assert_eq!(after([1_000]).0.window(), None);
        assert_eq!(after([900, 4_000, 1_000, 9_000, 2_000, 30_000, 1_000, 5_000]).0.window(), None);
        let (mut anticipation, now) = after(steady(1_000));
        anticipation.on_message(now + Span::from_millis(1));
        assert_eq!(anticipation.window(), None);
    }

    #[test]
    fn one_late_answer_changes_nothing_and_many_make_a_new_beginning() {
        let expected = |times: Vec<u64>| {
            let (anticipation, sent) = after(times);
            anticipation.window().map(|window| window.expected.since(sent).as_micros())
        };
        let before = expected(steady(1_000).collect());
        assert_eq!(expected(steady(1_000).chain([2_500]).collect()), before);
        assert_eq!(expected(steady(1_000).chain([5_000; 4]).collect()), None);
        assert_eq!(expected(steady(1_000).chain([5_000; 12]).collect()), Some(5_000));
    }

    proptest! {
        #[test]
        fn nobody_looks_longer_than_he_may(times in prop::collection::vec(0u64..100_000, 0..40), spread in 0u64..300) {
            let times = times.into_iter().map(|t| 20_000 + t % (spread + 1));
            let (anticipation, sent) = after(times);
            if let Some(Window { start, expected, end }) = anticipation.window() {
                prop_assert!(sent <= start && start <= expected && expected <= end);
                prop_assert!(end.since(start) <= LONGEST);
            }
        }
    }
}
