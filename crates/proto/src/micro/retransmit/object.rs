//! `retransmit` with `keep = "object"`: stores each sent segment's offset, not its bytes (24 bytes per
//! segment); the bytes are read again. A segment that no longer fits the path is sent in parts.

use std::any::Any;

use haul_base::{Span, Time};
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, Event, EventId, Kind, MAX_BATCH, MicroProtocol,
    Order, Part, ProtocolStats, Resolution, Setup, SharedValue, U48,
};
use haul_wire::packet::{DATA_BODY_LEN, PART_BODY_LEN, PartBody};

use super::keep::RetransmitConfig;
use super::sent_packets::{Change, New, Record, SentPackets};
use crate::control::ledger::LossLedger;
use crate::micro::attributes::{OFFSET, SEQUENCE};
use crate::micro::events::{
    ACKNOWLEDGED, Acknowledgement, DELIVERED, LossBoundary, PROBE_TIMEOUT, ProbeTimeout,
};
use crate::micro::object::{DATA_PART, carries_data};
use crate::micro::shared::{ReportDelay, SendWindow};
use crate::micro::stats::KeepObjectStats;
use crate::rtt::RttEstimator;

/// Maximum time between two probes of a silent path.
const LONGEST_TIMEOUT: Span = Span::from_secs(2);
/// Minimum number of bytes released to the source at once while more is in flight; each call may cost it a
/// lock.
const WORTH_RELEASING: u64 = 1 << 20;
/// Lateness of the timer after which this end first reads packets for as long, before silence counts as loss.
/// Our choice: timers are less late.
const LISTEN: Span = Span::from_millis(1);
/// Packets retransmitted when the probe timer expires.
const PROBE_PACKETS: u32 = 2;
/// The probe timer.
const TIMER: u8 = 0;

/// Used without a loss boundary: nothing counts as lost.
const NO_LOSS: LossBoundary = LossBoundary { largest_pn: 0, sent_at: 0, reordering: Span::ZERO };

/// Handles of shared values and events.
#[derive(Clone, Copy, Debug)]
struct Bindings {
    send_window: SharedValue<SendWindow>,
    rtt: SharedValue<RttEstimator>,
    delay: SharedValue<ReportDelay>,
    ledger: SharedValue<LossLedger>,
    acknowledged: Event<Acknowledgement>,
    timeout: Event<ProbeTimeout>,
    delivered: Event<()>,
}

/// Attributes of a repeated segment.
#[derive(Clone, Copy, Debug)]
struct Places {
    sequence: Attribute<U48>,
    offset: Attribute<U48>,
}

/// State of the retransmission from the object.
#[derive(Debug)]
struct KeepObject {
    initial_rtt: Span,
    bindings: Option<Bindings>,
    places: Option<Places>,
    /// Allocated when the first segment is sent: an end that only receives has none.
    table: Option<Box<SentPackets>>,
    window: u64,
    probes: bool,
    /// The segment at the front of the queue that is being sent in parts; `part_sent`: bytes of it already
    /// sent.
    part_of: Option<u64>,
    part_sent: u16,
    /// Offset below which the source was told to release its bytes.
    released: u64,
    /// Whether nothing was in flight when the current batch was started.
    was_idle: bool,
    /// Start of the probe timer.
    timer_base: Time,
    timeouts_in_row: u32,
    /// Whether the timer was late, and packets that had arrived by then have been read since.
    has_listened: bool,
    counters: KeepObjectStats,
}

pub(super) fn build(parameters: &RetransmitConfig, setup: &Setup) -> Box<dyn MicroProtocol> {
    Box::new(KeepObject {
        initial_rtt: setup.initial_rtt,
        bindings: None,
        places: None,
        table: None,
        window: parameters.window,
        probes: parameters.probe,
        part_of: None,
        part_sent: 0,
        released: 0,
        was_idle: true,
        timer_base: setup.now,
        timeouts_in_row: 0,
        has_listened: false,
        counters: KeepObjectStats::default(),
    })
}

impl KeepObject {
    fn bindings(&self) -> Bindings {
        self.bindings.expect("declared before it is used")
    }

    /// Adds lost segments to the batch.
    fn repeat(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        self.was_idle = self.in_flight() == 0;
        while let Some((seq, record)) = self.table.as_mut().and_then(|table| table.peek_lost()) {
            let in_parts = usize::from(record.len) > batch.max_space();
            // Whole segments and parts cannot share a batch.
            if !batch.is_empty() && in_parts == batch.is_data() {
                return;
            }
            let added = if in_parts {
                self.repeat_part(seq, record, batch, context)
            } else {
                self.repeat_packet(seq, record, batch, context)
            };
            if added.is_none() {
                return;
            }
        }
    }

    fn repeat_packet(
        &mut self,
        seq: u64,
        record: Record,
        batch: &mut Batch<'_>,
        context: &mut Context<'_>,
    ) -> Option<()> {
        let places = self.places.expect("bound before it is used");
        let kind = if record.fin { Kind::DATA_FIN } else { Kind::DATA };
        let i = batch.push_again(kind, usize::from(record.len))?;
        batch.set(i, places.sequence, seq);
        batch.set(i, places.offset, record.offset);
        if let Some(source) = &mut context.ends().object_source {
            source.read(record.offset, batch.payload_mut(i));
        }
        self.on_repeated(batch.pn(i), context.now());
        Some(())
    }

    /// Adds the next part of a segment that no longer fits the path.
    fn repeat_part(
        &mut self,
        seq: u64,
        record: Record,
        batch: &mut Batch<'_>,
        context: &mut Context<'_>,
    ) -> Option<()> {
        if self.part_of != Some(seq) {
            self.part_of = Some(seq);
            self.part_sent = 0;
        }
        let room = batch.max_space().checked_sub(PART_BODY_LEN - DATA_BODY_LEN)?;
        let (offset, total_len, fin, skip) = (record.offset, record.len, record.fin, self.part_sent);
        let len = room.min(usize::from(total_len - skip));
        let i = batch.push_again(DATA_PART, PART_BODY_LEN + len)?;
        let now = context.now();
        let timestamp = now.as_wrapped_micros();
        let body = batch.payload_mut(i);
        PartBody { seq, offset, timestamp, skip, total_len, fin }.write(body);
        if let Some(source) = &mut context.ends().object_source {
            source.read(offset + u64::from(skip), &mut body[PART_BODY_LEN..]);
        }
        self.part_sent += len as u16;
        if self.part_sent == total_len {
            self.part_of = None;
            self.on_repeated(batch.pn(i), now);
        }
        Some(())
    }

    fn on_repeated(&mut self, pn: u64, now: Time) {
        if let Some(table) = &mut self.table {
            table.resent(pn, now.as_wrapped_micros());
        }
        self.counters.resent += 1;
    }

    fn in_flight(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.in_flight())
    }

    /// Records the new segments of a batch that is about to be sent.
    fn record(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        let places = self.places.expect("bound before it is used");
        let overhead = batch.layout().data_overhead();
        let table = self.table.get_or_insert_with(|| Box::new(SentPackets::new(overhead)));
        table.set_overhead(overhead);
        let sent_at = context.now().as_wrapped_micros();
        let first = batch.fresh().next();
        debug_assert!(
            first.is_none_or(|i| batch.get(i, places.sequence) == table.next_seq()),
            "numbered as recorded"
        );
        let row = if batch.is_row() { batch.len() - 1 } else { 0 };
        if row > 0 {
            let mut offsets = [0; MAX_BATCH];
            let mut next = offsets.iter_mut();
            batch.values(places.offset).for_each(|offset| {
                if let Some(place) = next.next() {
                    *place = offset;
                }
            });
            table.push_row(batch.pn(0), (batch.stride() - overhead) as u16, &offsets[..row], sent_at);
        }
        for i in batch.fresh().skip(row) {
            let len = (batch.size(i) - overhead) as u16;
            let fin = batch.kind(i) == Kind::DATA_FIN;
            table.push(New { offset: batch.get(i, places.offset), len, fin, pn: batch.pn(i) }, sent_at);
        }
        self.update_send_window(true, context);
        if self.was_idle {
            self.timer_base = context.now();
            self.set_timer(context);
        }
    }

    fn update_send_window(&self, outstanding: bool, context: &mut Context<'_>) {
        let Some(table) = &self.table else { return };
        *context.shared(self.bindings().send_window) = SendWindow {
            bytes: table.in_flight(),
            sent: table.next_seq(),
            room: self.window.saturating_sub(table.span()),
            outstanding,
        };
    }

    fn is_clear(&self) -> bool {
        self.table.as_ref().is_none_or(|table| table.is_empty() && !table.has_lost())
    }

    /// Returns the time at which silence means that packets in flight were lost.
    fn timeout_at(&self, context: &mut Context<'_>) -> Time {
        let bindings = self.bindings();
        let delay = context.shared(bindings.delay).0;
        let timeout = context.shared(bindings.rtt).probe_timeout(delay);
        let backed_off = timeout * (1 << self.timeouts_in_row.min(10));
        self.timer_base + backed_off.min(LONGEST_TIMEOUT.max(timeout))
    }

    fn set_timer(&mut self, context: &mut Context<'_>) {
        self.has_listened = false;
        if !self.probes || self.is_clear() {
            context.cancel_timer(TIMER);
            return;
        }
        let at = self.timeout_at(context);
        context.set_timer(TIMER, at);
    }

    fn on_acknowledged(&mut self, ack: &mut Acknowledgement, context: &mut Context<'_>) {
        let change = self.table.as_mut().map_or(Change::default(), |table| take_in(table, ack));
        if change.lost_packets > 0
            && let Some(table) = &mut self.table
        {
            let ledger = context.shared(self.bindings.expect("declared before it is used").ledger);
            table.take_losses().for_each(|lost| ledger.on_lost(lost.pn, lost.sent_at));
        }
        if change.acked_packets > 0 {
            self.timeouts_in_row = 0;
            self.timer_base = context.now();
        }
        self.counters.acked += change.acked_packets;
        self.counters.acked_bytes += change.acked_bytes;
        self.counters.lost += change.lost_packets;
        ack.outcome.acked_packets += change.acked_packets;
        ack.outcome.acked_bytes += change.acked_bytes;
        ack.outcome.lost_packets += change.lost_packets;
        ack.outcome.lost_bytes += change.lost_bytes;
        ack.outcome.in_flight = self.in_flight();
        ack.outcome.nothing_outstanding = self.table.as_ref().is_none_or(|table| table.is_empty());
        self.update_send_window(!self.is_clear(), context);
        self.set_timer(context);
        self.release(context);
    }

    /// Lets the source release what has arrived.
    fn release(&mut self, context: &mut Context<'_>) {
        let released = self.table.as_ref().and_then(|table| table.released());
        // Including the last bytes: a source that waits for space in its full buffer would otherwise wait for
        // ever.
        let worth = if self.is_clear() { 1 } else { WORTH_RELEASING };
        if let Some(offset) = released.filter(|&offset| offset >= self.released + worth) {
            self.released = offset;
            if let Some(source) = &mut context.ends().object_source {
                source.release(offset);
            }
        }
    }
}

/// Applies an acknowledgement to the table.
fn take_in(table: &mut SentPackets, ack: &Acknowledgement) -> Change {
    let rule = ack.loss.unwrap_or(NO_LOSS);
    let mut change = Change::default();
    table.on_complete_below(ack.below, &mut change);
    for statement in &ack.words {
        table.on_statement(statement, &rule, &mut change);
    }
    if let Some(seq) = ack.nothing_from {
        table.on_missing_from(seq, &rule, &mut change);
    }
    if ack.loss.is_some() {
        table.settle_expired(&rule, ack.duplicates, &mut change);
    }
    table.retire_complete();
    change
}

impl MicroProtocol for KeepObject {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let initial_rtt = self.initial_rtt;
        self.bindings = Some(Bindings {
            send_window: declaration.shared(SendWindow::default),
            rtt: declaration.shared(|| RttEstimator::new(initial_rtt)),
            delay: declaration.shared(ReportDelay::default),
            ledger: declaration.shared(LossLedger::default),
            acknowledged: declaration.event(ACKNOWLEDGED),
            timeout: declaration.event(PROBE_TIMEOUT),
            delivered: declaration.event(DELIVERED),
        });
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        let (sequence, offset) = (resolution.attribute(SEQUENCE), resolution.attribute(OFFSET));
        self.places = Some(Places { sequence, offset });
        resolution.on_batch(BatchEvent::FILL, Order::EARLY);
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::NORMAL);
        resolution.on_event(self.bindings().acknowledged, Order::NORMAL);
        resolution.on_event(self.bindings().delivered, Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        context.shared(self.bindings().send_window).room = self.window;
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::FILL {
            self.repeat(batch, context);
        } else if carries_data(batch) {
            self.record(batch, context);
        }
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        if let Some(ack) = self.bindings().acknowledged.of(event, argument) {
            self.on_acknowledged(ack, context);
        } else {
            context.cancel_timer(TIMER);
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        let late = context.now().since(self.timeout_at(context));
        if late > LISTEN && !std::mem::replace(&mut self.has_listened, true) {
            // This end had no processor: packets that arrived meanwhile are still to be read.
            let again = context.now() + LISTEN;
            context.set_timer(TIMER, again);
            return;
        }
        let Some(table) = &mut self.table else { return };
        self.timer_base = context.now();
        self.timeouts_in_row += 1;
        self.counters.probe_timeouts += 1;
        table.expire_oldest(PROBE_PACKETS as usize);
        self.update_send_window(true, context);
        self.set_timer(context);
        let mut timeout = ProbeTimeout { in_row: self.timeouts_in_row, packets: PROBE_PACKETS };
        context.raise(self.bindings().timeout, &mut timeout);
    }

    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        RetransmitConfig { window: self.window, probe: self.probes, .. } = parameters.read();
        self.update_send_window(!self.is_clear(), context);
        self.set_timer(context);
        Ok(())
    }

    fn unfinished(&self) -> usize {
        self.table.as_ref().map_or(0, |table| table.unacknowledged() as usize)
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&self.counters);
    }
}
