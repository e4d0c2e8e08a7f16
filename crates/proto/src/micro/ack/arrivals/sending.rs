//! The sender's side of acknowledgements: the round-trip time, conversion to [`Acknowledgement`], and the
//! timer.

use std::iter::once;
use std::mem::take;

use haul_base::{Span, Time};
use haul_stack::{Attribute, Batch, Context, Kind, Missing, RETRANSMIT_TIMEOUT, U48};

use super::wire::{Abandoned, Head};
use crate::RttEstimator;
use crate::micro::ack::bindings::Bindings;
use crate::micro::ack::statements::state;
use crate::micro::events::{Acknowledgement, LossBoundary, Outcome, RttSample, Statement};
use crate::micro::ranges::Ranges;
use crate::micro::round_trip::without_delay;
use crate::micro::scoreboard::SegmentState;

/// The retransmission timer.
pub(super) const OVERDUE: u8 = 0;
/// Maximum timeout (RFC 6298 section 2.5 allows such a bound from 60 s).
const LONGEST_TIMEOUT: Span = Span::from_secs(60);
/// Consecutive timeouts after which the sender no longer repeats which segments it gave up: some 130 times
/// the first timeout.
const MAX_EXPIRATIONS: u16 = 12;
/// Number of the oldest segments that are timed (a choice: the initial window of RFC 6928). If the peer is
/// only late, for example because it waits for a processor, timing all would retransmit them needlessly. The
/// others are lost once anything sent after them arrives.
const TIMED: usize = 10;
/// Divisor: the reordering window is this fraction of the minimum round trip (RFC 8985 section 6.2).
const REORDERING_SHARE: u64 = 4;

/// When a segment that was not acknowledged times out.
///
/// Its first `linear` timeouts are `srtt + max(4 rttvar, granularity)` (RFC 6298 section 2.3) after each
/// transmission, without backing off, as TCP's linear timeouts for thin streams. Later ones double (section
/// 5.5), but no more often than the timer has expired since the last acknowledgement, which shows that the
/// path works (RFC 9002 section 6.2.1). The only lower bound is the granularity, where section 2.4 has a
/// second: retransmitting a small message costs one packet, waiting costs its delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) granularity: Span,
    pub(super) linear: u16,
    /// Maximum time that the peer may delay its acknowledgement.
    pub(super) delay: Span,
    /// Whether only the oldest segment is timed, because nothing is known of the others (RFC 6298 section
    /// 5.4).
    pub(super) oldest_only: bool,
}

impl Policy {
    /// Returns the time from one transmission, the `tries`th, to the next.
    pub(super) fn timeout(&self, rtt: &RttEstimator, tries: u16) -> Span {
        let first = rtt.smoothed() + (rtt.variation() * 4).max(self.granularity) + self.delay;
        let doublings = u32::from(tries.saturating_sub(self.linear.max(1))).min(20);
        (first * (1 << doublings)).min(LONGEST_TIMEOUT.max(first))
    }

    /// Returns a sample, limited to the timeout. How much later than the timeout an acknowledgement arrives
    /// is ignored, because its segment was retransmitted by then: otherwise a host that was suspended once
    /// would delay the next ten round trips (RFC 6298 takes every sample). A longer path is learnt after a
    /// few more samples.
    fn counted(&self, rtt: &RttEstimator, sample: Span) -> Span {
        if rtt.is_measured() { sample.min(self.timeout(rtt, 1).saturating_sub(self.delay)) } else { sample }
    }
}

/// State of the sender's side.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) policy: Policy,
    rtt: RttEstimator,
    /// The sequence number after the highest sent.
    next: u64,
    /// Packet number of the newest acknowledgement.
    newest: Option<u64>,
    acknowledgement: Acknowledgement,
    missing: Missing,
    /// When the timer expires, not later than the first segment's timeout; and the first timeout at the time
    /// of setting it.
    armed: Option<(Time, Span)>,
    /// Number of timeouts since the last acknowledgement.
    expirations: u16,
    /// Whether to report to the peer what was given up.
    pub(super) must_report_abandoned: bool,
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
            must_report_abandoned: false,
            timeouts: 0,
        }
    }

    pub(super) fn start(&mut self, context: &mut Context<'_>) {
        self.rtt = RttEstimator::new(context.path().rtt);
    }

    /// Starts again from the path's state, which has a better estimate of the round trip than at the start.
    pub(super) fn update_initial_rtt(&mut self, bindings: Bindings, context: &mut Context<'_>) {
        if self.rtt.is_measured() {
            return;
        }
        self.start(context);
        if self.armed.is_some() {
            self.check(bindings, context);
        }
    }

    /// Segments are renumbered; packets are not.
    pub(super) fn renumber(&mut self) {
        (self.next, self.acknowledgement.below, self.expirations) = (0, 0, 0);
    }

    pub(super) fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// Records that segments were sent.
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

    /// Whether nothing is outstanding, and segments were given up without the peer having confirmed it. The
    /// next segment reports it; while none is sent, a separate packet must, for a limited time.
    fn has_abandoned(&self, bindings: Bindings, context: &mut Context<'_>) -> bool {
        let scoreboard = context.shared(bindings.scoreboard);
        let is_unknown = scoreboard.base() > self.acknowledgement.below && self.expirations < MAX_EXPIRATIONS;
        scoreboard.open() == 0 && is_unknown
    }

    /// Handles the expired timer.
    pub(super) fn on_timer(&mut self, bindings: Bindings, context: &mut Context<'_>) {
        // Unanswered reports are repeated with increasing intervals, like segments.
        let is_unanswered = self.has_abandoned(bindings, context);
        self.expirations = self.expirations.saturating_add(u16::from(is_unanswered));
        self.check(bindings, context);
        if self.has_abandoned(bindings, context) {
            self.must_report_abandoned = true;
            context.request_control();
        }
    }

    /// Adds the report of given-up segments to the batch, if it is due.
    pub(super) fn write(
        &mut self,
        kind: Kind,
        batch: &mut Batch<'_>,
        bindings: Bindings,
        context: &mut Context<'_>,
    ) {
        if !take(&mut self.must_report_abandoned) || !self.has_abandoned(bindings, context) {
            return;
        }
        let Some(i) = batch.push(kind, Abandoned::LEN) else { return };
        let (sent_at, oldest) =
            (context.now().as_wrapped_micros(), context.shared(bindings.scoreboard).base());
        Abandoned { sent_at, oldest }.write(batch.payload_mut(i));
    }

    /// Raises the timeout of overdue segments, and sets the timer for the next.
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
        // Segments that wait to be retransmitted may be given up, or turn out to have arrived: others are
        // timed then.
        let again = context.now() + self.policy.timeout(&self.rtt, self.expirations.saturating_add(1));
        self.arm(next.unwrap_or(again), self.policy.timeout(&self.rtt, 1), context);
    }

    /// Whether an acknowledgement is expected.
    fn waits(&self, bindings: Bindings, context: &mut Context<'_>) -> bool {
        context.shared(bindings.scoreboard).open() > 0 || self.has_abandoned(bindings, context)
    }

    /// Finds overdue segments; returns when the next one times out.
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

    /// Processes an acknowledgement; returns whether it is valid.
    pub(super) fn acknowledge(
        &mut self,
        pn: u64,
        body: &[u8],
        bindings: Bindings,
        context: &mut Context<'_>,
    ) -> bool {
        let Some((head, ranges)) = Head::read(body) else { return false };
        // The peer cannot have received what was never sent.
        let next = self.next.max(context.shared(bindings.scoreboard).next());
        if head.newest >= context.next_pn() || ranges.end() > next {
            return false;
        }
        let mut has_expired = false;
        if self.newest.is_none_or(|newest| pn > newest) {
            self.newest = Some(pn);
            has_expired = take(&mut self.expirations) > 0;
            self.measure(&head, bindings, context);
        }
        self.apply(&head, ranges, bindings, context);
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
        // Half of the clock's range is 35 minutes: anything that seems older was not stamped by this end's
        // clock.
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

    fn apply(&mut self, head: &Head, ranges: Ranges<'_>, bindings: Bindings, context: &mut Context<'_>) {
        let reordering = (self.rtt.min() / REORDERING_SHARE).max(self.policy.granularity);
        let boundary = LossBoundary { largest_pn: head.newest, sent_at: head.echo, reordering };
        let scoreboard = context.shared(bindings.scoreboard);
        let base = scoreboard.base();
        self.acknowledgement.below = head.below;
        self.acknowledgement.loss = Some(boundary);
        self.acknowledgement.outcome = Outcome::default();
        self.acknowledgement.words.clear();
        let is_complete = !ranges.is_full();
        if head.below < scoreboard.next() {
            // Something newer than this number's segment has arrived, or the loss boundary does not apply to
            // it.
            self.acknowledgement.words.push(Statement { first: head.below, received: 0, known: 1 });
            let highest = ranges.end().max(base);
            let names_all = is_complete && !self.policy.oldest_only;
            let end = if names_all { scoreboard.end_of_earlier(highest, head.newest) } else { highest };
            let ranges = ranges.iter().chain(once(end..end));
            state(head.below.max(base), ranges, is_complete, &mut self.acknowledgement.words);
        }
        context.raise(bindings.acknowledged, &mut self.acknowledgement);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy { granularity: Span::from_micros(500), linear: 3, delay: Span::ZERO, oldest_only: false }
    }

    #[test]
    fn only_many_late_samples_raise_the_timeout() {
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
}
