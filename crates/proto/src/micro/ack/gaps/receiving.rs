//! The receiver's side: detects what is missing, and reports it.

use haul_base::{Span, Time};
use haul_stack::{Batch, Context, Kind, NACK_TIMEOUT, SharedValue};

use super::timing::{GAP, NegativeAckConfig, SILENCE, repeat_after};
use super::wire::{FIXED, Report, SenderState};
use crate::micro::ranges::{self, MAX_BYTES};
use crate::micro::received_set::ReceivedSet;

/// Unanswered reports of silence at the first interval; after them, and after an answer, the interval
/// doubles.
const EAGER_REPORTS: u32 = 8;
/// Divisor: the maximum interval is this fraction of the time for which the sender stores segments.
const RETENTION_SHARE: u64 = 4;

#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// Packet number of the newest packet received.
    newest: u64,
    /// The sequence number after the highest that the sender reports as sent.
    told: u64,
    /// When anything was last received; `None` until something is expected.
    heard: Option<Time>,
    /// Intervals of silence since then. `doublings` counts how often the interval has doubled.
    silent: u32,
    doublings: u32,
    /// Consecutive reports about one gap without progress.
    without_progress: u32,
    below: u64,
    is_waiting: bool,
    is_silence: bool,
}

impl Receiving {
    /// Expects packets from now on.
    pub(super) fn listen(&mut self, limits: &NegativeAckConfig, context: &mut Context<'_>) {
        if self.heard.replace(context.now()).is_none() {
            context.set_timer(SILENCE, context.now() + limits.silence);
        }
    }

    pub(super) fn take(
        &mut self,
        batch: &Batch<'_>,
        shared: SharedValue<ReceivedSet>,
        limits: &NegativeAckConfig,
        context: &mut Context<'_>,
    ) {
        for i in batch.live() {
            self.newest = self.newest.max(batch.pn(i));
        }
        self.listen(limits, context);
        (self.silent, self.doublings) = (0, 0);
        self.look_for_gaps(shared, limits.reordering, context);
    }

    /// Segments are renumbered; packets are not.
    pub(super) fn renumber(&mut self, context: &mut Context<'_>) {
        (self.told, self.below, self.without_progress) = (0, 0, 0);
        if std::mem::take(&mut self.is_waiting) {
            context.cancel_timer(GAP);
        }
    }

    fn is_whole(&self, received: &ReceivedSet) -> bool {
        received.is_whole() && self.told <= received.next()
    }

    /// Delays the report of a gap by `wait`.
    fn look_for_gaps(&mut self, shared: SharedValue<ReceivedSet>, wait: Span, context: &mut Context<'_>) {
        let received = context.shared(shared);
        if self.is_whole(received) {
            if self.is_waiting {
                self.is_waiting = false;
                context.cancel_timer(GAP);
            }
        } else if !self.is_waiting {
            (self.is_waiting, self.without_progress) = (true, 0);
            context.set_timer(GAP, context.now() + wait);
        }
    }

    /// Returns whether something is still missing and must be reported. Schedules a repetition.
    pub(super) fn on_gap(
        &mut self,
        shared: SharedValue<ReceivedSet>,
        limits: &NegativeAckConfig,
        context: &mut Context<'_>,
    ) -> bool {
        let received = context.shared(shared);
        if self.is_whole(received) {
            self.is_waiting = false;
            return false;
        }
        let progress = received.below() > self.below;
        self.below = received.below();
        self.without_progress = if progress { 0 } else { (self.without_progress + 1).min(20) };
        let again =
            repeat_after(context).max(limits.reordering) * (1 << self.without_progress.saturating_sub(3));
        context.set_timer(GAP, context.now() + again.min(limits.silence));
        true
    }

    /// Returns whether nothing was received during the interval, which must be reported.
    pub(super) fn on_silence(&mut self, limits: &NegativeAckConfig, context: &mut Context<'_>) -> bool {
        let Some(heard) = self.heard else { return false };
        let interval = self.interval(limits);
        let due = heard + interval;
        if due > context.now() {
            context.set_timer(SILENCE, due);
            return false;
        }
        self.heard = Some(context.now());
        self.silent += 1;
        if self.silent > EAGER_REPORTS {
            self.doublings += 1;
        }
        context.raise(NACK_TIMEOUT, &mut ());
        self.is_silence = true;
        context.set_timer(SILENCE, context.now() + self.interval(limits));
        true
    }

    fn interval(&self, limits: &NegativeAckConfig) -> Span {
        let longest = (limits.retention / RETENTION_SHARE).max(limits.silence);
        (limits.silence * (1 << self.doublings.min(20))).min(longest)
    }

    /// Handles the sender's state message; returns whether it requests a report.
    pub(super) fn on_sender_state(
        &mut self,
        sender_state: &SenderState,
        shared: SharedValue<ReceivedSet>,
        limits: &NegativeAckConfig,
        context: &mut Context<'_>,
    ) -> bool {
        self.listen(limits, context);
        context.shared(shared).settle_below(sender_state.oldest);
        self.told = self.told.max(sender_state.next);
        if !sender_state.confirm && self.is_whole(context.shared(shared)) {
            self.doublings += u32::from(self.silent > 0);
        }
        // The sender has already waited before reporting, so this gap is reported at once.
        self.look_for_gaps(shared, Span::ZERO, context);
        sender_state.confirm
    }

    pub(super) fn write(
        &mut self,
        kind: Kind,
        batch: &mut Batch<'_>,
        shared: SharedValue<ReceivedSet>,
        context: &mut Context<'_>,
    ) {
        let received = context.shared(shared);
        let (below, next) = (received.below(), received.next().max(self.told));
        let tail = (received.next() < next).then(|| received.next()..next);
        let mut ranges = [0; MAX_BYTES];
        let used = ranges::write(below, received.holes().chain(tail), &mut ranges);
        let report = Report { is_silence: self.is_silence, newest: self.newest, below, next };
        let Some(i) = batch.push(kind, FIXED + used) else { return };
        let (fixed, rest) = batch.payload_mut(i).split_at_mut(FIXED);
        report.write(fixed);
        rest.copy_from_slice(&ranges[..used]);
        self.is_silence = false;
    }
}
