//! The sender's side: settles sent packets by the reports, and informs the control law.

use std::collections::VecDeque;

use haul_base::{Span, Time};
use haul_stack::{Batch, Context, Declaration, Event, Resolution, SharedValue};

use super::wire::{ArrivedBits, Head};
use crate::control::ledger::LossLedger;
use crate::micro::events::{
    LossBoundary, NO_LIMIT, Newest, Outcome, PEER_REPORT, PROBE_TIMEOUT, PeerReport, ProbeTimeout,
};
use crate::micro::round_trip::{RoundTrip, reordering_window};
use crate::micro::shared::{Clock, ReportDelay, SendWindow, WaitingFor};
use crate::micro::stats::ReceiverReportStats;

/// Timer of a sender that waits for a report.
pub(super) const PROBE_TIMER: u8 = 1;
/// Maximum number of sent packets without a known outcome; beyond that the oldest count as lost.
const MAX_UNSETTLED: usize = 1 << 16;
/// Packets that may be sent after a timeout regardless of the window (RFC 9002, section 6.2.4).
const PROBES: u32 = 2;
/// Maximum timeout.
const LONGEST_TIMEOUT: Span = Span::from_secs(10);
/// Consecutive timeouts of a sender that does not wait for its window after which the timer stops.
const IDLE_TIMEOUTS: u32 = 6;

/// Handles of shared values and events.
#[derive(Clone, Copy, Debug)]
struct Bindings {
    send_window: SharedValue<SendWindow>,
    round_trip: RoundTrip,
    delay: SharedValue<ReportDelay>,
    clock: SharedValue<Clock>,
    ledger: SharedValue<LossLedger>,
    peer_report: Event<PeerReport>,
    timeout: Event<ProbeTimeout>,
}

/// A data packet whose outcome is not known.
#[derive(Clone, Copy, Debug)]
struct Packet {
    pn: u64,
    /// UDP payload bytes.
    size: u32,
    sent: Time,
}

/// State of the sender's side.
#[derive(Debug)]
pub(super) struct Sending {
    initial_rtt: Span,
    interval: Span,
    bindings: Option<Bindings>,
    /// Whether the acknowledgements of another micro-protocol measure the path.
    is_measured: bool,
    /// In the order of sending.
    unsettled: VecDeque<Packet>,
    in_flight: u64,
    /// Packet number of the newest report.
    newest: Option<u64>,
    /// The largest packet number known to have arrived, and when it was sent.
    echoed: Option<(u64, Time)>,
    is_timed: bool,
    timeouts: u32,
    reports: u64,
    lost: u64,
    /// Packets, and their bytes, that were declared lost since the last report because there were too many.
    given_up: (u64, u64),
}

impl Sending {
    pub(super) fn new(initial_rtt: Span, interval: Span) -> Self {
        Self {
            initial_rtt,
            interval,
            bindings: None,
            is_measured: false,
            unsettled: VecDeque::new(),
            in_flight: 0,
            newest: None,
            echoed: None,
            is_timed: false,
            timeouts: 0,
            reports: 0,
            lost: 0,
            given_up: (0, 0),
        }
    }

    pub(super) fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let initial_rtt = self.initial_rtt;
        self.bindings = Some(Bindings {
            send_window: declaration.shared(SendWindow::default),
            round_trip: RoundTrip::declare(declaration, initial_rtt),
            delay: declaration.shared(ReportDelay::default),
            clock: declaration.shared(Clock::default),
            ledger: declaration.shared(LossLedger::default),
            peer_report: declaration.event(PEER_REPORT),
            timeout: declaration.event(PROBE_TIMEOUT),
        });
    }

    pub(super) fn bind(&mut self, resolution: &Resolution<'_>) {
        self.is_measured = ["positive_ack", "cumulative_ack"].iter().any(|name| resolution.has(name));
    }

    fn bindings(&self) -> Bindings {
        self.bindings.expect("a stack declares before it runs")
    }

    pub(super) fn start(&self, context: &mut Context<'_>) {
        let now = context.now();
        context.shared(self.bindings().clock).start(now);
        *context.shared(self.bindings().delay) = ReportDelay(self.interval);
    }

    pub(super) fn set_interval(&mut self, interval: Span, context: &mut Context<'_>) {
        self.interval = interval;
        *context.shared(self.bindings().delay) = ReportDelay(interval);
    }

    /// Handles a batch that was filled as far as possible.
    pub(super) fn on_filled(&self, batch: &Batch<'_>, context: &mut Context<'_>) {
        if batch.is_empty() {
            let now = context.now();
            context.shared(self.bindings().clock).wait(now, WaitingFor::Source);
        }
    }

    pub(super) fn on_sent(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        let sent = context.now();
        for i in batch.live() {
            let size = batch.size(i) as u32;
            self.unsettled.push_back(Packet { pn: batch.pn(i), size, sent });
            self.in_flight += u64::from(size);
        }
        let excess = self.unsettled.len().saturating_sub(MAX_UNSETTLED);
        for packet in self.unsettled.drain(..excess) {
            let bytes = u64::from(packet.size);
            self.in_flight -= bytes;
            self.lost += 1;
            self.given_up = (self.given_up.0 + 1, self.given_up.1 + bytes);
            let ledger = context.shared(self.bindings.expect("declared").ledger);
            ledger.on_lost(packet.pn, packet.sent.as_wrapped_micros());
        }
        self.publish(context);
        if !self.is_timed {
            self.set_timer(context);
        }
    }

    /// Processes a report; `None` if it is invalid.
    pub(super) fn on_report(&mut self, pn: u64, body: &[u8], context: &mut Context<'_>) -> Option<()> {
        let (head, words) = Head::read(body)?;
        // A receiver cannot have what was never sent.
        if head.largest_pn >= context.next_pn() {
            return None;
        }
        self.reports += 1;
        let is_newest = self.newest.is_none_or(|newest| pn > newest);
        if is_newest {
            self.newest = Some(pn);
            self.on_echo(&head, context);
        }
        let loss = self.echoed.map(|(largest_pn, sent)| LossBoundary {
            largest_pn,
            sent_at: sent.as_wrapped_micros(),
            reordering: reordering_window(context.shared(self.bindings().round_trip.estimator).min(), 1),
        });
        let outcome =
            loss.map(|loss| self.settle(head.largest_pn, &words, loss, context)).unwrap_or_default();
        self.publish(context);
        if outcome.acked_packets > 0 {
            self.timeouts = 0;
            self.set_timer(context);
        }
        let arrived = Some((head.received_at, head.bytes));
        let newest = Newest { limit: NO_LIMIT, last_probe: 0, arrived, receiver: head.counters, host: None };
        let mut report = PeerReport {
            outcome,
            packets: head.counters.packets,
            largest_pn: head.largest_pn,
            loss,
            newest: is_newest.then_some(newest),
        };
        context.raise(self.bindings().peer_report, &mut report);
        Some(())
    }

    /// Measures the round trip by the packet with the largest number, if it is still unsettled.
    fn on_echo(&mut self, head: &Head, context: &mut Context<'_>) {
        let Ok(at) = self.unsettled.binary_search_by_key(&head.largest_pn, |packet| packet.pn) else {
            return;
        };
        let sent = self.unsettled[at].sent;
        if self.echoed.is_some_and(|(known, _)| known >= head.largest_pn) {
            return;
        }
        self.echoed = Some((head.largest_pn, sent));
        // The delay between kernel and reading is not part of the path.
        let (round_trip, at) = (self.bindings().round_trip, context.arrival().at);
        let sample = round_trip.measure(at, at.since(sent), head.echo_delay, context);
        if let Some(sample) = sample.filter(|_| !self.is_measured) {
            round_trip.publish(sample, context);
        }
    }

    /// Removes the packets up to `upto` whose outcome is known now.
    fn settle(
        &mut self,
        upto: u64,
        arrived: &ArrivedBits<'_>,
        loss: LossBoundary,
        context: &mut Context<'_>,
    ) -> Outcome {
        let (ledger, mut outcome) = (self.bindings().ledger, Outcome::default());
        let known = self.unsettled.partition_point(|packet| packet.pn <= upto);
        let mut kept = Vec::new();
        for packet in self.unsettled.drain(..known) {
            let sent = packet.sent.as_wrapped_micros();
            if arrived.has(packet.pn) {
                outcome.acked_packets += 1;
                outcome.acked_bytes += u64::from(packet.size);
            } else if loss.is_passed(packet.pn, sent) {
                outcome.lost_packets += 1;
                outcome.lost_bytes += u64::from(packet.size);
                context.shared(ledger).on_lost(packet.pn, sent);
            } else {
                kept.push(packet);
            }
        }
        kept.into_iter().rev().for_each(|packet| self.unsettled.push_front(packet));
        self.in_flight -= outcome.acked_bytes + outcome.lost_bytes;
        self.lost += outcome.lost_packets;
        let (packets, bytes) = std::mem::take(&mut self.given_up);
        outcome.lost_packets += packets;
        outcome.lost_bytes += bytes;
        outcome.in_flight = self.in_flight;
        outcome.nothing_outstanding = self.unsettled.is_empty();
        outcome
    }

    fn publish(&self, context: &mut Context<'_>) {
        let send_window = context.shared(self.bindings().send_window);
        send_window.bytes = self.in_flight;
        send_window.outstanding = !self.unsettled.is_empty();
    }

    /// Sets the probe timer, or cancels it when no report is expected.
    fn set_timer(&mut self, context: &mut Context<'_>) {
        self.is_timed = !self.unsettled.is_empty();
        if !self.is_timed {
            return context.cancel_timer(PROBE_TIMER);
        }
        let first = context.shared(self.bindings().round_trip.estimator).probe_timeout(self.interval);
        let timeout = (first * (1 << self.timeouts.min(20))).min(LONGEST_TIMEOUT);
        context.set_timer(PROBE_TIMER, context.now() + timeout);
    }

    pub(super) fn on_probe_timer(&mut self, context: &mut Context<'_>) {
        let bindings = self.bindings();
        let is_waiting = context.shared(bindings.clock).reason() == Some(WaitingFor::Window);
        self.is_timed = false;
        if self.unsettled.is_empty() || self.timeouts >= IDLE_TIMEOUTS && !is_waiting {
            // By now nothing is in flight any more. Nothing else would empty a full window.
            context.shared(bindings.send_window).bytes = 0;
            return;
        }
        self.timeouts += 1;
        context.raise(bindings.timeout, &mut ProbeTimeout { in_row: self.timeouts, packets: PROBES });
        self.set_timer(context);
    }

    pub(super) fn count(&self, stats: &mut ReceiverReportStats) {
        stats.reports_received = self.reports;
        stats.packets_lost = self.lost;
        stats.in_flight_bytes = self.in_flight;
    }
}
