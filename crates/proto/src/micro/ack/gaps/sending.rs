//! The sender's side: processes reports, drops old segments, and requests reports.

use std::iter::once;
use std::mem::replace;

use haul_base::Time;
use haul_stack::{Batch, Context, Kind, Missing, RETRANSMIT_TIMEOUT};

use super::timing::{CONFIRM, DISCARD, NegativeAckConfig, repeat_after};
use super::wire::{Report, STATE_LEN, SenderState};
use crate::micro::ack::bindings::Bindings;
use crate::micro::ack::statements::state;
use crate::micro::events::{Acknowledgement, Discarded, Outcome};
use crate::micro::ranges::Ranges;
use crate::micro::scoreboard::SegmentState;

/// Timers that are running.
#[derive(Debug, Default)]
struct Running {
    confirm: bool,
    forget: bool,
}

#[derive(Debug, Default)]
pub(super) struct Sending {
    /// The sequence number after the highest sent.
    pub(super) next: u64,
    /// Whether the peer is known to listen.
    is_heard: bool,
    running: Running,
    wants_confirmation: bool,
    /// Whether the last segments were sent long ago without a report of their arrival.
    is_stale: bool,
    /// Requests since the last report.
    asked: u32,
    /// Allocated by the first report; an end that only receives never gets one.
    arguments: Option<Box<EventArguments>>,
}

/// Consecutive requests before they become rarer.
const EAGER_QUESTIONS: u32 = 4;

/// Arguments of the events that a report raises, kept to reuse their buffers.
#[derive(Debug, Default)]
struct EventArguments {
    acknowledged: Acknowledgement,
    missing: Missing,
}

impl Sending {
    /// The peer listens from the start if this end opened the session.
    pub(super) fn start(&mut self, context: &Context<'_>) {
        self.is_heard = context.is_initiator();
    }

    /// Segments are renumbered; packets are not.
    pub(super) fn renumber(&mut self) {
        (self.next, self.is_stale, self.asked) = (0, false, 0);
    }

    /// Records that segments were sent.
    pub(super) fn sent(
        &mut self,
        next: u64,
        bindings: Bindings,
        limits: &NegativeAckConfig,
        context: &mut Context<'_>,
    ) {
        self.next = self.next.max(next);
        if !self.running.forget {
            self.running.forget = true;
            context.set_timer(DISCARD, context.now() + limits.retention);
        }
        self.ask_if_needed(bindings, context);
    }

    /// Whether a confirmation that segments have arrived is needed.
    fn needs_confirmation(&self, bindings: Bindings, context: &mut Context<'_>) -> bool {
        let draining = context.is_draining();
        let scoreboard = context.shared(bindings.scoreboard);
        scoreboard.open() > 0 && (draining || scoreboard.is_crowded() || self.is_stale || !self.is_heard)
    }

    /// Requests a report, repeatedly, while one is needed.
    pub(super) fn ask_if_needed(&mut self, bindings: Bindings, context: &mut Context<'_>) {
        if !self.running.confirm && self.needs_confirmation(bindings, context) {
            self.running.confirm = true;
            // Delayed: a gap may be reported without a request, and more segments may follow.
            context.set_timer(CONFIRM, context.now() + context.path().rtt / 4);
        }
    }

    /// Returns whether to request a report now.
    pub(super) fn on_confirm(
        &mut self,
        bindings: Bindings,
        limits: &NegativeAckConfig,
        context: &mut Context<'_>,
    ) -> bool {
        self.running.confirm = self.needs_confirmation(bindings, context);
        if self.running.confirm {
            self.wants_confirmation = true;
            let repeat = repeat_after(context) * (1 << (self.asked / EAGER_QUESTIONS).min(20));
            self.asked = self.asked.saturating_add(1);
            context.set_timer(CONFIRM, context.now() + repeat.min(limits.silence));
        }
        self.running.confirm
    }

    /// Drops segments that were not reported missing for the retention time. Later segments would have shown
    /// the gap to the receiver; if there are none, the receiver is asked.
    pub(super) fn on_discard(
        &mut self,
        bindings: Bindings,
        limits: &NegativeAckConfig,
        context: &mut Context<'_>,
    ) {
        let now = context.now();
        let scoreboard = context.shared(bindings.scoreboard);
        let newest = scoreboard.next().checked_sub(1).and_then(|newest| scoreboard.get(newest));
        if newest.is_some_and(|slot| slot.sent + limits.silence <= now) {
            self.is_stale = true;
            context.set_timer(DISCARD, now + limits.silence);
            self.ask_if_needed(bindings, context);
            return;
        }
        let due = |sent: Time| sent + limits.retention;
        let mut below = scoreboard.base();
        while scoreboard
            .get(below)
            .is_some_and(|slot| slot.state == SegmentState::Done || due(slot.sent) <= now)
        {
            below += 1;
        }
        let next = scoreboard.get(below).map(|slot| due(slot.sent).max(now));
        self.running.forget = next.is_some();
        if let Some(at) = next {
            context.set_timer(DISCARD, at);
        }
        context.raise(bindings.discarded, &mut Discarded { below });
    }

    /// Processes a report; returns whether it needs an answer, or `None` if it is invalid.
    pub(super) fn on_report(
        &mut self,
        report: &Report,
        ranges: Ranges<'_>,
        bindings: Bindings,
        context: &mut Context<'_>,
    ) -> Option<bool> {
        let newest_possible = report.newest == 0 || report.newest < context.next_pn();
        let next = self.next.max(context.shared(bindings.scoreboard).next());
        if !newest_possible || report.next > next || ranges.end() > report.next {
            return None;
        }
        (self.is_heard, self.is_stale, self.asked) = (true, false, 0);
        let mut arguments = self.arguments.take().unwrap_or_default();
        acknowledge(&mut arguments.acknowledged, report, ranges, bindings, context);
        collect(&mut arguments.missing.sequence_numbers, report, ranges, bindings, context);
        let scoreboard = context.shared(bindings.scoreboard);
        let (base, is_idle) = (scoreboard.base(), scoreboard.lost() == 0);
        let asks_for_lost = ranges.iter().any(|range| !range.is_empty() && range.start < base);
        let repeats = !arguments.missing.sequence_numbers.is_empty();
        if repeats {
            context.raise(RETRANSMIT_TIMEOUT, &mut arguments.missing);
        }
        self.arguments = Some(arguments);
        Some(asks_for_lost || report.is_silence && is_idle && !repeats)
    }

    /// Adds the sender's state to the batch.
    pub(super) fn write(
        &mut self,
        kind: Kind,
        batch: &mut Batch<'_>,
        bindings: Bindings,
        context: &mut Context<'_>,
    ) {
        let scoreboard = context.shared(bindings.scoreboard);
        // An empty scoreboard holds nothing, whatever its base.
        let oldest = if scoreboard.open() == 0 { self.next } else { scoreboard.base() };
        let sender_state =
            SenderState { confirm: self.wants_confirmation, oldest, next: self.next.max(oldest) };
        let Some(i) = batch.push(kind, STATE_LEN) else { return };
        sender_state.write(batch.payload_mut(i));
        self.wants_confirmation = false;
    }
}

/// Raises the event with the arrivals in the report.
fn acknowledge(
    acknowledgement: &mut Acknowledgement,
    report: &Report,
    ranges: Ranges<'_>,
    bindings: Bindings,
    context: &mut Context<'_>,
) {
    let base = context.shared(bindings.scoreboard).base();
    acknowledgement.below = report.below;
    acknowledgement.loss = None;
    acknowledgement.outcome = Outcome::default();
    acknowledgement.words.clear();
    let mut at = report.below;
    // If the list of ranges is full, more may be missing after the last. Without any, `below` says all.
    let next = if ranges.is_full() || ranges.is_empty() { ranges.end() } else { report.next };
    let arrived = ranges.iter().chain(once(next..next)).map(|gap| replace(&mut at, gap.end)..gap.start);
    state(report.below.max(base), arrived, false, &mut acknowledgement.words);
    context.raise(bindings.acknowledged, acknowledgement);
}

/// Collects the segments to retransmit: those that are missing although a packet sent later has arrived, or
/// although they have had more than enough time to arrive.
fn collect(
    missing: &mut Vec<u64>,
    report: &Report,
    ranges: Ranges<'_>,
    bindings: Bindings,
    context: &mut Context<'_>,
) {
    let (now, wait) = (context.now(), repeat_after(context));
    let scoreboard = context.shared(bindings.scoreboard);
    missing.clear();
    let tail = report.is_silence.then(|| report.next..scoreboard.next());
    for range in ranges.iter().chain(tail) {
        for sequence in range.start.max(scoreboard.base())..range.end.min(scoreboard.next()) {
            let lost = scoreboard.get(sequence).is_some_and(|slot| {
                slot.state == SegmentState::Waiting && (slot.pn < report.newest || slot.sent + wait <= now)
            });
            if lost {
                missing.push(sequence);
            }
        }
    }
}
