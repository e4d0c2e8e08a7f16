//! When the next message is likely to come, told from when earlier ones came.
//!
//! Where messages and answers take turns, the next message comes as long after this end's last one as those before it did:
//! after a round trip. A thread that sleeps until then is woken by the kernel, which takes longer than all else that happens
//! to a small message on its way; so for a short time around that moment it does not sleep but looks for itself, as Linux'
//! own busy polling does (`SO_BUSY_POLL`, socket(7)).

mod allowance;
mod crowd;

use haul_base::{Span, Time};

use self::allowance::Allowance;
use self::crowd::Crowd;
use super::guest::Rested;

/// Up to this part of what it may, it looks before the message is expected: what is left is for messages that come late, which
/// sleepers would answer later still.
const EARLY: (u64, u64) = (2, 3);
/// A sleeper is thought to need so long to wake up at first, and never more or less than these.
const WAKING: Span = Span::from_micros(80);
const WAKING_BOUNDS: (Span, Span) = (Span::from_micros(8), Span::from_micros(270));
/// And so long to be as fast as it can be: the processor has slept too, and its caches hold what others wanted.
const WARMING: Span = Span::from_micros(30);
/// It is not worth while if it would have to stop less than this after the moment at which the message is expected.
const LATE: Span = Span::from_micros(20);
/// What is so far from that moment says nothing of the next.
const FAR: Span = Span::from_micros(400);
/// One message that comes at quite another time took the application longer; after so many in a row what was known is
/// forgotten.
const GONE_ASTRAY: u8 = 3;
/// From so many messages on, the newest counts for as much of mean and deviation as RFC 6298 section 2 says. Before, it counts
/// for more: all would not know enough of the path until ten had come.
const MEAN_OVER: u8 = 8;
const DEVIATION_OVER: u8 = 4;

/// What is known of the times between a message of this end and the next one of the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anticipation {
    allowance: Allowance,
    crowd: Crowd,
    waking: Waking,
    /// How late the thread woke up before the message that is awaited; it counts from the next one on.
    late: Option<Span>,
    /// What this end has said last, if no message has come since.
    sent: Option<Sent>,
    /// How often anything was repeated so far.
    repetitions: u64,
    known: Known,
    /// Messages in a row that came at quite another time.
    astray: u8,
}

/// When a message is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) at: Time,
    /// Nothing if to look is not worth while.
    pub(super) look: Option<Window>,
}

/// When a thread looks for a message itself: before, and from the end on, it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: Time,
    pub(super) end: Time,
}

/// How long after the time that was set a sleeper wakes up, in half of all cases: a mean would follow the few in which the host
/// was busy with others.
#[derive(Clone, Copy, Debug)]
struct Waking(Span);

/// What the next message may be the answer to.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// When it was sent, for the last time.
    at: Time,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Message,
    /// A message that was sent more than once: nobody knows which of them was answered (Karn's algorithm, RFC 6298 section 3).
    Repetition,
    /// Word that the flight has begun: the other end may say something at once, or when it likes.
    Greeting,
}

/// Smoothed like a round-trip time (RFC 6298 section 2).
#[derive(Clone, Copy, Debug)]
struct Known {
    mean: Span,
    deviation: Span,
    /// Messages that this was learnt from, as far as it matters. Without any it is a guess.
    messages: u8,
}

impl Anticipation {
    /// A thread looks for `longest` at a time at most. Until a message has come, `round_trip` is what an answer is thought to take.
    pub(super) fn new(now: Time, longest: Span, round_trip: Span) -> Self {
        let allowance = Allowance::new(now, longest);
        let known = Known { mean: round_trip, deviation: allowance.budget(round_trip) / 2, messages: 0 };
        let (crowd, waking) = (Crowd::default(), Waking(WAKING));
        Self { allowance, crowd, waking, late: None, sent: None, repetitions: 0, known, astray: 0 }
    }

    /// This end has sent a message.
    pub(super) fn on_sent(&mut self, now: Time) {
        self.spend(now);
        if self.sent.is_some_and(|sent| sent.what != What::Greeting) && self.known.messages == 0 {
            // Not everybody is answered.
            self.known.deviation = self.allowance.budget(self.known.mean);
        }
        self.sent = Some(Sent { at: now, what: What::Message });
    }

    /// This end has told the other one at `at` that it is there, and has heard nothing of it since.
    pub(super) fn on_greeted(&mut self, at: Time) {
        self.sent = Some(Sent { at, what: What::Greeting });
    }

    /// This end has sent packets, and has repeated `repetitions` ever since: to these the answer is expected from now on.
    pub(super) fn on_transmitted(&mut self, now: Time, repetitions: u64) {
        if repetitions > self.repetitions && self.sent.is_some() {
            self.spend(now);
            self.sent = Some(Sent { at: now, what: What::Repetition });
        }
        self.repetitions = repetitions;
    }

    /// A message of the other end has come, for which a thread was waiting.
    pub(super) fn on_message(&mut self, now: Time) {
        if self.looks_at(now) {
            self.crowd.gain(self.waking.late());
        }
        self.spend(now);
        let sent = self.sent.take().filter(|sent| sent.what == What::Message);
        let Some(took) = sent.map(|sent| now.since(sent.at)) else { return };
        let patience = if self.known.messages > 0 { GONE_ASTRAY } else { 0 };
        if self.known.is_far_from(took) && self.astray < patience {
            self.astray += 1;
            return;
        }
        self.astray = 0;
        if self.known.is_far_from(took) {
            // A second one that agrees with it is enough.
            let deviation = self.allowance.budget(took) * 2 / 3;
            self.known = Known { mean: took, deviation, messages: 1 };
        } else {
            self.known.add(took);
        }
    }

    /// Whether it says nothing of the messages that come after a long silence: none was an answer so far, none is expected.
    pub(super) fn is_blank(&self) -> bool {
        self.known.messages == 0 && self.sent.is_none_or(|sent| sent.what == What::Greeting)
    }

    /// When the next message is expected.
    pub(super) fn expected(&self) -> Option<Expected> {
        let sent = self.sent?.at;
        Some(Expected { at: sent + self.known.mean, look: self.look(sent) })
    }

    fn look(&self, sent: Time) -> Option<Window> {
        let known = self.known;
        let budget = self.allowance.budget(known.mean);
        // With more deviation most messages would come when nobody looks.
        if known.deviation > budget / 2 {
            return None;
        }
        let early = (known.deviation * 2 + self.waking.takes()).min(budget * EARLY.0 / EARLY.1);
        let start = sent + known.mean.saturating_sub(early);
        let allowed = self.allowance.until(start);
        let is_worth_while = allowed >= early + LATE && !self.crowd.keeps_out(start);
        is_worth_while.then(|| Window { start, end: start + allowed })
    }

    fn window(&self) -> Option<Window> {
        self.look(self.sent?.at)
    }

    fn looks_at(&self, now: Time) -> bool {
        self.window().is_some_and(|window| window.start <= now && now < window.end)
    }

    /// The thread has rested before a message that is expected. If it has had to wait for its processor, others need it too.
    pub(super) fn on_rested(&mut self, now: Time, rested: Rested) {
        if let Some(kept) = rested.kept {
            self.crowd.lose(now, kept);
        }
        self.late = self.late.or(rested.late);
    }

    /// The thread has looked until now, or until it had to stop.
    fn spend(&mut self, now: Time) {
        let looked = self.window().map_or(Span::ZERO, |window| now.min(window.end).since(window.start));
        self.allowance.spend(now, looked);
        if let Some(late) = self.late.take() {
            self.waking.add(late);
        }
    }
}

impl Waking {
    fn late(self) -> Span {
        self.0
    }

    /// So long before a message is expected a sleeper has to be called.
    fn takes(self) -> Span {
        self.0 + WARMING
    }

    /// Steps of a sixteenth up and down meet at the median.
    fn add(&mut self, late: Span) {
        let step = self.0 / 16;
        let median = if late > self.0 { self.0 + step } else { self.0.saturating_sub(step) };
        self.0 = median.clamp(WAKING_BOUNDS.0, WAKING_BOUNDS.1);
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
        self.messages = (self.messages + 1).min(MEAN_OVER);
        // What was thought of the deviation at first counts like that of a message.
        let of_deviation = u64::from((self.messages + 1).min(DEVIATION_OVER));
        self.deviation = (self.deviation * (of_deviation - 1) + self.off(took)) / of_deviation;
        let of_mean = u64::from(self.messages);
        self.mean = (self.mean * (of_mean - 1) + took) / of_mean;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::allowance::SHARE;
    use super::*;

    const LONGEST: Span = Span::from_micros(1_500);
    const BEGIN: Time = Time::from_nanos(5);
    /// What is thought of a path of which nothing is known.
    const UNKNOWN: Span = Span::from_millis(333);

    /// One end sends, and has its answer after each of these times.
    fn after(times: impl IntoIterator<Item = u64>) -> (Anticipation, Time) {
        with_guess(UNKNOWN, times)
    }

    fn with_guess(round_trip: Span, times: impl IntoIterator<Item = u64>) -> (Anticipation, Time) {
        let (mut anticipation, mut now) = (Anticipation::new(BEGIN, LONGEST, round_trip), BEGIN);
        for micros in times {
            anticipation.on_sent(now);
            now += Span::from_micros(micros);
            anticipation.on_message(now);
        }
        anticipation.on_sent(now);
        (anticipation, now)
    }

    fn look(anticipation: &Anticipation) -> Option<Window> {
        anticipation.window()
    }

    fn steady(micros: u64) -> impl Iterator<Item = u64> {
        [micros - 9, micros + 9].into_iter().cycle().take(60)
    }

    #[test]
    fn an_answer_is_expected_a_round_trip_after_the_question() {
        for rtt in [1_000, 60_000] {
            let (anticipation, sent) = after(steady(rtt));
            let (window, answer) = (look(&anticipation).unwrap(), sent + Span::from_micros(rtt));
            assert!(window.start < answer && answer < window.end, "{window:?}");
            assert!(window.end.since(window.start) <= LONGEST, "{window:?}");
            assert!(answer.since(window.start).as_micros() < rtt / SHARE, "{window:?}");
        }
    }

    #[test]
    fn nothing_is_looked_for_at_first_nor_where_answers_come_at_any_time_nor_without_a_question() {
        let (fresh, _) = after([]);
        assert!(look(&fresh).unwrap().start.since(BEGIN).as_micros() > 330_000, "not before it may come");
        assert_eq!(look(&after([1_000]).0), None);
        assert_eq!(look(&after([900, 4_000, 1_000, 9_000, 2_000, 30_000, 1_000, 5_000]).0), None);
        let (mut anticipation, now) = after(steady(1_000));
        anticipation.on_message(now + Span::from_millis(1));
        assert_eq!(anticipation.expected(), None);
    }

    #[test]
    fn the_first_answer_is_looked_for_if_the_round_trip_is_known_and_the_third_if_not() {
        for rtt in [1_000, 60_000] {
            let known = Span::from_micros(rtt + 40);
            for answers in 0..20 {
                let (anticipation, sent) = with_guess(known, steady(rtt).take(answers));
                let (window, answer) = (look(&anticipation).unwrap(), sent + Span::from_micros(rtt));
                assert!(window.start < answer && answer < window.end, "{answers} answers: {window:?}");
            }
            let looks = |answers| look(&after(steady(rtt).take(answers)).0).is_some();
            assert_eq!([1, 2, 3, 4].map(looks), [false, true, true, true]);
        }
        // A guess that was wrong is forgotten at once, and tried once where nobody answers.
        let (wrong, sent) = with_guess(Span::from_millis(20), [1_000]);
        assert_eq!((wrong.expected().unwrap().at.since(sent).as_micros(), look(&wrong)), (1_000, None));
        let (mut unanswered, sent) = with_guess(Span::from_millis(1), []);
        assert!(look(&unanswered).is_some());
        unanswered.on_sent(sent + Span::from_millis(5));
        assert_eq!(look(&unanswered), None);
    }

    #[test]
    fn who_was_greeted_may_say_something_at_once_or_later_which_teaches_nothing() {
        for rtt in [1_000, 60_000] {
            let round_trip = Span::from_micros(rtt);
            let greeted = |took: u64| {
                let mut greeted = Anticipation::new(BEGIN + Span::from_micros(50), LONGEST, round_trip);
                greeted.on_greeted(BEGIN);
                let (window, at) = (look(&greeted).unwrap(), BEGIN + Span::from_micros(took));
                greeted.on_message(at);
                greeted.on_sent(at);
                (window, at, greeted)
            };
            let (window, at, _) = greeted(rtt);
            assert!(window.start < at && at < window.end, "{window:?}");
            for took in [40, rtt, rtt * 7, 5_000_000] {
                let (_, sent, after) = greeted(took);
                let (window, answer) = (look(&after).unwrap(), sent + round_trip);
                assert!(window.start < answer && answer < window.end, "{took}: {window:?}");
                assert_eq!((after.known.mean, after.known.messages), (round_trip, 0), "{took}");
            }
        }
        // Nor is what this end says first an answer that was expected in vain.
        let mut talker = Anticipation::new(BEGIN, LONGEST, Span::from_millis(1));
        talker.on_greeted(BEGIN);
        talker.on_sent(BEGIN + Span::from_millis(9));
        assert!(look(&talker).is_some());
    }

    #[test]
    fn who_has_learnt_something_or_waits_for_an_answer_is_not_blank() {
        let fresh = Anticipation::new(BEGIN, LONGEST, Span::from_millis(1));
        let with = |change: fn(&mut Anticipation)| {
            let mut changed = fresh;
            change(&mut changed);
            changed.is_blank()
        };
        assert!(fresh.is_blank() && with(|greeted| greeted.on_greeted(BEGIN)));
        assert!(!with(|asking| asking.on_sent(BEGIN)));
        let unasked = |heard: &mut Anticipation| {
            heard.on_greeted(BEGIN);
            heard.on_message(BEGIN + Span::from_secs(5));
        };
        assert!(with(unasked), "what was said unasked teaches nothing");
        assert!(!after([1_000]).0.is_blank());
    }

    #[test]
    fn what_was_repeated_is_answered_a_round_trip_later_and_teaches_nothing() {
        let (mut anticipation, sent) = after(steady(60_000));
        let before = anticipation.known;
        let lost = sent + Span::from_millis(62);
        anticipation.on_transmitted(sent + Span::from_millis(1), 0);
        assert_eq!(anticipation.expected().unwrap().at, sent + before.mean);
        anticipation.on_transmitted(lost, 1);
        let (window, answer) = (look(&anticipation).unwrap(), lost + Span::from_millis(60));
        assert!(window.start < answer && answer < window.end, "{window:?}");
        for _ in 0..9 {
            anticipation.on_message(answer);
            anticipation.on_sent(answer);
            anticipation.on_transmitted(answer + Span::from_millis(3), anticipation.repetitions + 1);
        }
        let after = anticipation.known;
        assert_eq!((after.mean, after.deviation, anticipation.astray), (before.mean, before.deviation, 0));
    }

    #[test]
    fn one_late_answer_changes_nothing_and_many_make_a_new_beginning() {
        let expected = |times: Vec<u64>| {
            let (anticipation, sent) = after(times);
            anticipation.expected().unwrap().at.since(sent).as_micros()
        };
        let before = expected(steady(1_000).collect());
        assert_eq!(expected(steady(1_000).chain([2_500]).collect()), before);
        assert_eq!(expected(steady(1_000).chain([5_000; 12]).collect()), 5_000);
        assert_eq!(look(&after(steady(1_000).chain([5_000; 4])).0), None);
    }

    #[test]
    fn who_may_not_look_still_knows_when_the_answer_comes() {
        let (mut anticipation, mut now) = (Anticipation::new(BEGIN, Span::ZERO, UNKNOWN), BEGIN);
        for micros in steady(1_000) {
            anticipation.on_sent(now);
            now += Span::from_micros(micros);
            anticipation.on_message(now);
        }
        anticipation.on_sent(now);
        let expected = anticipation.expected().unwrap();
        assert_eq!((expected.look, expected.at.since(now).as_micros().abs_diff(1_000) < 10), (None, true));
    }

    #[test]
    fn what_was_not_used_is_there_for_a_late_answer() {
        let (rested, sent) = after(steady(1_000));
        let window = look(&rested).unwrap();
        assert!(window.end.since(sent) > Span::from_millis(2), "{window:?}");
        // One that is late all the time uses it up.
        let (mut spent, mut now) = (rested, sent);
        for _ in 0..4 {
            now += Span::from_millis(4);
            spent.on_message(now);
            spent.on_sent(now);
        }
        let next = look(&spent).map(|window| window.end.since(window.start));
        assert!(next.is_none_or(|next| next < window.end.since(window.start)), "{next:?}");
    }

    #[test]
    fn nobody_looks_where_others_take_more_than_looking_gains() {
        let kept = Rested { kept: Some(Span::from_millis(2)), late: None };
        // A few messages gain less than a turn of others takes; what a thousand gain is not used up by one.
        for (messages, looks_on) in [(3, false), (1_000, true)] {
            let (mut anticipation, mut now) = after((0..messages).map(|n| 991 + n % 2 * 18));
            anticipation.on_rested(now, kept);
            assert_eq!(look(&anticipation).is_some(), looks_on, "{messages}");
            anticipation.on_rested(now, kept);
            assert_eq!(look(&anticipation), None, "{messages}");
            let crowded = now;
            while look(&anticipation).is_none() {
                now += Span::from_millis(1);
                anticipation.on_message(now);
                anticipation.on_sent(now);
            }
            assert!(now.since(crowded) >= Span::from_millis(200), "{messages}");
        }
    }

    #[test]
    fn who_sleeps_is_called_so_much_earlier_as_it_takes_to_wake_up() {
        // Every eighth time the host was busy with others.
        let early = |micros| {
            let (mut anticipation, mut now) = after(steady(60_000));
            for n in 0..80 {
                let before = look(&anticipation);
                let late = Span::from_micros(if n % 8 == 0 { 5_000 } else { micros });
                anticipation.on_rested(now, Rested { kept: None, late: Some(late) });
                assert_eq!(look(&anticipation), before, "it sleeps no second time");
                now += Span::from_millis(60);
                anticipation.on_message(now);
                anticipation.on_sent(now);
            }
            let expected = anticipation.expected().unwrap();
            expected.at.since(expected.look.unwrap().start).as_micros()
        };
        for (micros, bounds) in [(0, 30..60), (50, 75..115), (150, 170..220), (20_000, 250..320)] {
            assert!(bounds.contains(&early(micros)), "{micros}: {}", early(micros));
        }
    }

    proptest! {
        #[test]
        fn nobody_looks_for_more_than_his_part_of_the_time(
            rtt in 20u64..100_000, guess in 0u64..100_000, offs in prop::collection::vec(0u64..1_000, 1..300), spread in 0u64..1_000,
            late in 0u64..400,
        ) {
            let (mut anticipation, mut now) =
                (Anticipation::new(BEGIN, LONGEST, Span::from_micros(guess)), BEGIN);
            let mut looked = Span::ZERO;
            for off in offs {
                anticipation.on_sent(now);
                now += Span::from_micros(rtt + off * spread / 1_000);
                let late = Span::from_micros(late * off / 1_000);
                anticipation.on_rested(now, Rested { kept: None, late: Some(late) });
                if let Some(Window { start, end }) = look(&anticipation) {
                    prop_assert!(start <= end && end.since(start) <= LONGEST);
                    looked = looked + now.min(end).since(start);
                }
                anticipation.on_message(now);
                // Each time is rounded up by less than a nanosecond.
                let bound = LONGEST + now.since(BEGIN) / SHARE + Span::from_micros(1);
                prop_assert!(looked <= bound, "{looked:?} of {:?}", now.since(BEGIN));
            }
        }
    }
}
