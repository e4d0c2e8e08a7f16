//! The sender's half of acknowledgements: round-trip time, what they say in the words of
//! [`Acknowledgement`], and the timer.

use std::iter::once;
use std::mem::take;
use std::ops::Range;

use haul_base::{Span, Time};
use haul_stack::{Attribute, Batch, Context, Event, Kind, Missing, RETRANSMIT_TIMEOUT, SharedValue, U48};

use super::wire::{Abandoned, Head};
use crate::RttEstimator;
use crate::micro::events::{Acknowledgement, LossBoundary, Outcome, RttSample, Statement};
use crate::micro::round_trip::without_delay;
use crate::micro::scoreboard::{Scoreboard, SegmentState};
use crate::micro::stretches::Stretches;

/// Name of the timer.
pub(super) const OVERDUE: u8 = 0;
/// No timeout is longer (RFC 6298 section 2.5 allows such a bound from 60 s).
const LONGEST_TIMEOUT: Span = Span::from_secs(60);
/// Timeouts in a row after which the sender no longer repeats which segments it gave up: some 130 times the first
/// timeout.
const MOST_EXPIRATIONS: u16 = 12;
/// So many of the oldest segments are timed (a choice: the initial window of RFC 6928). What is silent may only be late, as where
/// the other end waits for a processor, and then all others would leave again in vain. They are lost once anything sent after them
/// arrives.
const TIMED: usize = 10;
/// A reordering window is this part of the smallest round trip (RFC 8985 section 6.2).
const REORDERING_SHARE: u64 = 4;

/// When a segment that was not acknowledged counts as overdue.
///
/// Its first `linear` timeouts are `srtt + max(4 rttvar, granularity)` (RFC 6298 section 2.3) after each transmission,
/// without backing off, as TCP's linear timeouts for thin streams; later ones double (section 5.5), as often as the
/// timer has run out since an acknowledgement last came (RFC 9002 section 6.2.1): the path is alive then. There is no
/// lower bound but the granularity, where section 2.4 has a second: a repetition of a small message costs one
/// packet, and waiting costs its delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) granularity: Span,
    pub(super) linear: u16,
    /// What the other side may wait before it acknowledges.
    pub(super) delay: Span,
    /// Only the oldest segment is timed, because nothing is known of the others (RFC 6298 section 5.4).
    pub(super) oldest_only: bool,
}

impl Policy {
    /// From one transmission, the `tries`th, to the next.
    pub(super) fn timeout(&self, rtt: &RttEstimator, tries: u16) -> Span {
        let first = rtt.smoothed() + (rtt.variation() * 4).max(self.granularity) + self.delay;
        let doublings = u32::from(tries.saturating_sub(self.linear.max(1))).min(20);
        (first * (1 << doublings)).min(LONGEST_TIMEOUT.max(first))
    }

    /// What a sample counts for. Nothing is learnt from how much later than the timeout an acknowledgement came, as
    /// what it is for was repeated by then: a host that was stopped once would make the next ten round trips wait for
    /// it (RFC 6298 takes every sample). A path that has become longer is known after some samples more.
    fn counted(&self, rtt: &RttEstimator, sample: Span) -> Span {
        if rtt.is_measured() { sample.min(self.timeout(rtt, 1).saturating_sub(self.delay)) } else { sample }
    }
}

/// What an acknowledgement is checked against and turned into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bindings {
    pub(super) scoreboard: SharedValue<Scoreboard>,
    pub(super) acknowledged: Event<Acknowledgement>,
    pub(super) sampled: Event<RttSample>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) policy: Policy,
    rtt: RttEstimator,
    /// The sequence number after the highest that has left.
    next: u64,
    /// Packet number of the newest acknowledgement.
    newest: Option<u64>,
    acknowledgement: Acknowledgement,
    missing: Missing,
    /// When the timer runs out, not later than the first segment is overdue; and the first timeout at that time.
    armed: Option<(Time, Span)>,
    /// How often the timer has run out since an acknowledgement last came.
    expirations: u16,
    /// The other side is to be told what was given up.
    pub(super) tells_abandoned: bool,
    pub(super) timeouts: u64,
}

impl Sending {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            rtt: RttEstimator::new(Span::ZERO),
            next: 0,
            newest: None,
            acknowledgement: Acknowledgement::default(),
            missing: Missing::default(),
            armed: None,
            expirations: 0,
            tells_abandoned: false,
            timeouts: 0,
        }
    }

    pub(super) fn start(&mut self, context: &mut Context<'_>) {
        self.rtt = RttEstimator::new(context.path().rtt);
    }

    /// The path's state has a better guess of the round trip than at the start.
    pub(super) fn guess_again(&mut self, bindings: Bindings, context: &mut Context<'_>) {
        if self.rtt.is_measured() {
            return;
        }
        self.start(context);
        if self.armed.is_some() {
            self.check(bindings, context);
        }
    }

    /// Segments are numbered anew; packets are not.
    pub(super) fn renumber(&mut self) {
        (self.next, self.acknowledgement.below, self.expirations) = (0, 0, 0);
    }

    pub(super) fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// Segments have left.
    pub(super) fn sent(&mut self, batch: &Batch<'_>, sequence: Attribute<U48>, context: &mut Context<'_>) {
        for i in batch.live().filter(|&i| !batch.is_resent(i)) {
            self.next = self.next.max(batch.get(i, sequence) + 1);
        }
        let first = self.policy.timeout(&self.rtt, 1);
        let due = context.now() + first;
        if self.armed.is_none_or(|(at, _)| due < at) {
            self.arm(due, first, context);
        }
    }

    fn arm(&mut self, at: Time, first: Span, context: &mut Context<'_>) {
        self.armed = Some((at, first));
        context.set_timer(OVERDUE, at);
    }

    fn disarm(&mut self, context: &mut Context<'_>) {
        self.armed = None;
        context.cancel_timer(OVERDUE);
    }

    /// Whether nothing is outstanding, and segments were given up of which the other side is not known to know. The
    /// next segment says so; as long as none leaves, this has to be said by itself, though not for ever.
    fn has_abandoned(&self, bindings: Bindings, context: &mut Context<'_>) -> bool {
        let scoreboard = context.shared(bindings.scoreboard);
        let is_unknown =
            scoreboard.base() > self.acknowledgement.below && self.expirations < MOST_EXPIRATIONS;
        scoreboard.open() == 0 && is_unknown
    }

    /// The timer has run out.
    pub(super) fn on_timer(&mut self, bindings: Bindings, context: &mut Context<'_>) {
        // What is not answered is said again, later each time, as segments are.
        let is_unanswered = self.has_abandoned(bindings, context);
        self.expirations = self.expirations.saturating_add(u16::from(is_unanswered));
        self.check(bindings, context);
        if self.has_abandoned(bindings, context) {
            self.tells_abandoned = true;
            context.want_control();
        }
    }

    /// Adds what was given up to the batch, if that is to be told.
    pub(super) fn write(
        &mut self,
        kind: Kind,
        batch: &mut Batch<'_>,
        bindings: Bindings,
        context: &mut Context<'_>,
    ) {
        if !take(&mut self.tells_abandoned) || !self.has_abandoned(bindings, context) {
            return;
        }
        let Some(i) = batch.push(kind, Abandoned::LEN) else { return };
        let (sent_at, oldest) =
            (context.now().as_wrapped_micros(), context.shared(bindings.scoreboard).base());
        Abandoned { sent_at, oldest }.write(batch.payload_mut(i));
    }

    /// Raises the timeout of what is overdue, and waits for the next.
    fn check(&mut self, bindings: Bindings, context: &mut Context<'_>) {
        let next = self.find_overdue(bindings, context);
        if !self.missing.sequence_numbers.is_empty() {
            self.timeouts += self.missing.sequence_numbers.len() as u64;
            self.expirations = self.expirations.saturating_add(1);
            context.raise(RETRANSMIT_TIMEOUT, &mut self.missing);
        }
        if !self.waits(bindings, context) {
            return self.disarm(context);
        }
        // What waits to leave again may be given up, or turn out to have come: others are timed then.
        let again = context.now() + self.policy.timeout(&self.rtt, self.expirations.saturating_add(1));
        self.arm(next.unwrap_or(again), self.policy.timeout(&self.rtt, 1), context);
    }

    /// Whether an acknowledgement is awaited.
    fn waits(&self, bindings: Bindings, context: &mut Context<'_>) -> bool {
        context.shared(bindings.scoreboard).open() > 0 || self.has_abandoned(bindings, context)
    }

    /// Finds what is overdue; gives when the next will be.
    fn find_overdue(&mut self, bindings: Bindings, context: &mut Context<'_>) -> Option<Time> {
        let now = context.now();
        let scoreboard = context.shared(bindings.scoreboard);
        let timed = if self.policy.oldest_only { 1 } else { TIMED };
        let timed = scoreboard.outstanding().take(timed);
        let mut next: Option<Time> = None;
        self.missing.sequence_numbers.clear();
        for (sequence, slot) in timed.filter(|(_, slot)| slot.state == SegmentState::Waiting) {
            let tries = slot.tries.min(self.expirations.saturating_add(1));
            let due = slot.sent + self.policy.timeout(&self.rtt, tries);
            if due <= now {
                self.missing.sequence_numbers.push(sequence);
            } else {
                next = Some(next.map_or(due, |known| known.min(due)));
            }
        }
        next
    }

    /// Takes an acknowledgement; whether it is possible.
    pub(super) fn acknowledge(
        &mut self,
        pn: u64,
        body: &[u8],
        bindings: Bindings,
        context: &mut Context<'_>,
    ) -> bool {
        let Some((head, stretches)) = Head::read(body) else { return false };
        // The peer cannot have received what was never sent.
        let next = self.next.max(context.shared(bindings.scoreboard).next());
        if head.newest >= context.next_pn() || stretches.end() > next {
            return false;
        }
        let mut has_expired = false;
        if self.newest.is_none_or(|newest| pn > newest) {
            self.newest = Some(pn);
            has_expired = take(&mut self.expirations) > 0;
            self.measure(&head, bindings, context);
        }
        self.tell(&head, stretches, bindings, context);
        let first = self.policy.timeout(&self.rtt, 1);
        if !self.waits(bindings, context) {
            self.disarm(context);
        } else if has_expired || self.armed.is_some_and(|(_, then)| first < then * 7 / 8) {
            self.check(bindings, context);
        }
        true
    }

    fn measure(&mut self, head: &Head, bindings: Bindings, context: &mut Context<'_>) {
        let elapsed = context.now().as_wrapped_micros().wrapping_sub(head.echo);
        // Half of the clock's range is 35 minutes: what seems older comes from a clock that is not ours.
        if elapsed > u32::MAX / 2 {
            return;
        }
        let Some(rtt) = without_delay(Span::from_micros(elapsed.into()), head.delay) else { return };
        self.rtt.on_sample(context.now(), self.policy.counted(&self.rtt, rtt));
        let path = context.path_mut();
        path.rtt = self.rtt.smoothed();
        path.rtt_variation = self.rtt.variation();
        path.min_rtt = self.rtt.min();
        let at = context.now();
        context.raise(bindings.sampled, &mut RttSample { at, rtt });
    }

    fn tell(&mut self, head: &Head, stretches: Stretches<'_>, bindings: Bindings, context: &mut Context<'_>) {
        let reordering = (self.rtt.min() / REORDERING_SHARE).max(self.policy.granularity);
        let boundary = LossBoundary { largest_pn: head.newest, sent_at: head.echo, reordering };
        let scoreboard = context.shared(bindings.scoreboard);
        let base = scoreboard.base();
        self.acknowledgement.below = head.below;
        self.acknowledgement.loss = Some(boundary);
        self.acknowledgement.outcome = Outcome::default();
        self.acknowledgement.words.clear();
        let is_complete = !stretches.is_full();
        if head.below < scoreboard.next() {
            // Something newer than this number's segment has come, or the boundary makes no claim about it.
            self.acknowledgement.words.push(Statement { first: head.below, received: 0, known: 1 });
            let highest = stretches.end().max(base);
            let names_all = is_complete && !self.policy.oldest_only;
            let end = if names_all { scoreboard.end_of_earlier(highest, head.newest) } else { highest };
            let stretches = stretches.iter().chain(once(end..end));
            state(head.below.max(base), stretches, is_complete, &mut self.acknowledgement.words);
        }
        context.raise(bindings.acknowledged, &mut self.acknowledgement);
    }
}

/// Adds statements about what lies from `start` to the last of `stretches`, which may be empty. What lies between two of
/// them is known to be missing if they `are_complete`.
fn state(
    start: u64,
    stretches: impl Iterator<Item = Range<u64>>,
    are_complete: bool,
    into: &mut Vec<Statement>,
) {
    let mut told = start;
    let first_word = into.len();
    for Range { start: from, end: to } in stretches {
        let mut at = told;
        while at < to {
            let word = first_word + ((at - start) / 64) as usize;
            let first = start + (at - start) / 64 * 64;
            if into.len() <= word {
                into.push(Statement { first, received: 0, known: 0 });
            }
            let end = to.min(first + 64);
            let (missing, come) = (mask(first, at, from.min(end)), mask(first, at.max(from), end));
            let statement = &mut into[word];
            statement.received |= come;
            statement.known |= come | if are_complete { missing } else { 0 };
            at = end;
        }
        told = told.max(to);
    }
}

/// The bits `from..to` of a word that begins with `first`; none if the range is empty.
fn mask(first: u64, from: u64, to: u64) -> u64 {
    if from >= to {
        return 0;
    }
    let len = to - from;
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    ones << (from - first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy() -> Policy {
        Policy { granularity: Span::from_micros(500), linear: 3, delay: Span::ZERO, oldest_only: false }
    }

    #[test]
    fn one_late_sample_hardly_matters_and_many_make_the_timeout_longer() {
        let mut rtt = RttEstimator::new(Span::from_millis(60));
        let mut timeout_after = |millis, samples| {
            for _ in 0..samples {
                rtt.on_sample(Time::ZERO, policy().counted(&rtt, Span::from_millis(millis)));
            }
            policy().timeout(&rtt, 1).as_micros()
        };
        assert_eq!(timeout_after(1, 100), 1_500, "the first sample is believed");
        assert!((1_500..1_800).contains(&timeout_after(20, 1)));
        assert!((1_500..1_510).contains(&timeout_after(1, 30)));
        let longer = timeout_after(20, 16);
        assert!((20_000..60_000).contains(&longer), "{longer}");
        assert!((20_400..20_600).contains(&timeout_after(20, 100)));
    }

    #[test]
    fn the_first_timeouts_are_equal_and_later_ones_double_up_to_a_minute() {
        let mut rtt = RttEstimator::new(Span::from_millis(60));
        for _ in 0..100 {
            rtt.on_sample(Time::ZERO, Span::from_millis(60));
        }
        let timeouts: Vec<u64> =
            [1, 2, 3, 4, 5, 60].iter().map(|&n| policy().timeout(&rtt, n).as_micros()).collect();
        assert_eq!(timeouts, [60_500, 60_500, 60_500, 121_000, 242_000, 60_000_000]);
    }

    proptest! {
        #[test]
        fn statements_say_what_the_stretches_say(
            below in 0u64..1_000, base in 0u64..1_200, complete: bool,
            pieces in prop::collection::vec((1u64..100, 1u64..150), 0..6),
        ) {
            let start = below.max(base);
            let (mut at, mut stretches) = (below, Vec::new());
            for (gap, len) in pieces {
                stretches.push(at + gap..at + gap + len);
                at += gap + len;
            }
            let mut words = Vec::new();
            state(start, stretches.iter().cloned(), complete, &mut words);
            let find = |n: u64| words.iter().find(|w| (w.first..w.first + 64).contains(&n));
            for n in start..at + 70 {
                let come = stretches.iter().any(|stretch| stretch.contains(&n));
                let bit = |word: u64, first: u64| word >> (n - first) & 1 == 1;
                let said = find(n).is_some_and(|w| bit(w.received, w.first));
                let known = find(n).is_some_and(|w| bit(w.known, w.first));
                prop_assert_eq!(said, come, "{}", n);
                prop_assert_eq!(known, come || complete && n < at, "{}", n);
            }
        }
    }
}
