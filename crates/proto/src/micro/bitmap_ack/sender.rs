//! The sending side: processes reports.

use haul_base::{Span, Time};
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, Event, Order, Resolution, SEND_PERMIT, SendPermit, Setup,
    SharedValue,
};
use haul_wire::packet::{FeedbackHeader, FeedbackView, LAST_WORD_BITS, SEGMENT_PACKETS, SEGMENT_WORDS};

use super::packets::{REPORT_INTERVAL, ROUND};
use super::report::When;
use super::report_interval::ReportInterval;
use super::reverse_path::ReportArrival;
use crate::micro::events::{
    ACKNOWLEDGED, Acknowledgement, LossBoundary, Newest, PEER_REPORT, PeerReport, ROUND_ENDED,
    ReceiverCounters, Statement,
};
use crate::micro::round_trip::{RoundTrip, reordering_window};
use crate::micro::shared::{ChunkNow, Clock, LawInterval, ReportDelay, SendWindow, WaitingFor};
use crate::micro::stats::BitmapAckStats;

/// Timer that repeats the request at the end of a round.
pub(super) const ROUND_TIMER: u8 = 1;
/// RFC 8985 section 6.2.1 limits the number of steps by the smoothed round trip; this is our limit.
const MAX_REORDERING_STEPS: u32 = 16;
/// Round trips without a report after which the end of a round is repeated; also round trips without anything
/// to send after which a round ends.
const ROUND_REPEAT: u64 = 2;
const SHORTEST_REPEAT: Span = Span::from_millis(5);

/// Handles of shared values and events.
#[derive(Clone, Copy, Debug)]
struct Bindings {
    send_window: SharedValue<SendWindow>,
    round_trip: RoundTrip,
    delay: SharedValue<ReportDelay>,
    clock: SharedValue<Clock>,
    chunk: SharedValue<ChunkNow>,
    law: SharedValue<LawInterval>,
    acknowledged: Event<Acknowledgement>,
    peer_report: Event<PeerReport>,
    round_ended: Event<()>,
}

/// State of a round, if the sender requests reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Reports are sent without requests.
    None,
    Running,
    /// Nothing can be sent, though there is or will be more: the sender is app-limited.
    Starved,
    /// Everything is sent; the request is due.
    Ended,
    /// The request was sent.
    Requested,
}

/// State of the sending side.
#[derive(Debug)]
pub(super) struct Sender {
    initial_rtt: Span,
    bindings: Option<Bindings>,
    /// Kept to reuse its memory.
    words: Vec<Statement>,
    /// Number of the newest report.
    newest: Option<u64>,
    largest_acked_pn: Option<u64>,
    /// Factor of the base reordering window (RFC 8985 section 6.2).
    reordering_steps: u32,
    has_resent: bool,
    when: When,
    round: Round,
    /// Number of the segment or chunk that is sent for the first time.
    unit: u64,
    /// A segment or chunk has ended, and a report on it must be requested.
    unit_ended: bool,
    /// When a report was last requested.
    requested_at: Time,
    reports: u64,
    interval: ReportInterval,
    peer_drops: u32,
    peer_duplicates: u32,
    peer_ecn_ce: u32,
}

impl Sender {
    pub(super) fn new(setup: &Setup, when: When, interval: Span) -> Self {
        Self {
            initial_rtt: setup.initial_rtt,
            bindings: None,
            words: Vec::new(),
            newest: None,
            largest_acked_pn: None,
            reordering_steps: 1,
            has_resent: false,
            when,
            round: if when.is_on_request() { Round::Running } else { Round::None },
            unit: 0,
            unit_ended: false,
            requested_at: setup.now,
            reports: 0,
            interval: ReportInterval::new(setup.now, interval),
            peer_drops: 0,
            peer_duplicates: 0,
            peer_ecn_ce: 0,
        }
    }

    pub(super) fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let initial_rtt = self.initial_rtt;
        self.bindings = Some(Bindings {
            send_window: declaration.shared(SendWindow::default),
            round_trip: RoundTrip::declare(declaration, initial_rtt),
            delay: declaration.shared(ReportDelay::default),
            clock: declaration.shared(Clock::default),
            chunk: declaration.shared(ChunkNow::default),
            law: declaration.shared(LawInterval::default),
            acknowledged: declaration.event(ACKNOWLEDGED),
            peer_report: declaration.event(PEER_REPORT),
            round_ended: declaration.event(ROUND_ENDED),
        });
    }

    pub(super) fn bind(&mut self, resolution: &mut Resolution<'_>) {
        if self.round != Round::None {
            resolution.on_batch(BatchEvent::FILL, Order::LAST);
            resolution.on_event(SEND_PERMIT, Order::LAST);
        }
    }

    fn bindings(&self) -> Bindings {
        self.bindings.expect("declared before it is used")
    }

    /// Sets the recipe's interval, which is in force until the sender requests a longer one.
    pub(super) fn set_interval(&mut self, interval: Span, context: &mut Context<'_>) {
        self.interval.set_shortest(interval);
        *context.shared(self.bindings().delay) = ReportDelay(interval);
    }

    pub(super) fn on_segments(&mut self, batch: &Batch<'_>) {
        self.has_resent = self.has_resent || batch.live().any(|i| batch.is_resent(i));
    }

    /// Handles a batch that was filled as far as possible. Returns whether to request a report.
    pub(super) fn on_filled(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) -> bool {
        if !batch.is_empty() {
            if self.round != Round::None {
                self.round = Round::Running;
                self.publish_delay(context);
            }
            let unit = self.current_unit(context);
            self.unit_ended |= unit > self.unit;
            self.unit = unit;
            return self.unit_ended;
        }
        let waiting = context.shared(self.bindings().clock).reason();
        match (self.round, waiting) {
            // Only a report empties a window, and none is sent without a request.
            (Round::Running | Round::Starved, Some(WaitingFor::Acknowledgement | WaitingFor::Window)) => {
                self.round = Round::Ended;
                return true;
            }
            // The receiver may raise its limit, or request more, only once it has what is missing: this ends
            // a round too, unless it passes soon.
            (Round::Running, Some(reason)) if reason.is_app_limited() => self.starve(context),
            _ => {}
        }
        false
    }

    /// Publishes the time that the receiver may wait before it reports: with requests, the time since the
    /// last one.
    fn publish_delay(&self, context: &mut Context<'_>) {
        let since_request = match self.round {
            Round::None => Span::ZERO,
            _ => context.now().since(self.requested_at),
        };
        *context.shared(self.bindings().delay) = ReportDelay(self.interval.get().max(since_request));
    }

    /// Returns the number of the segment or chunk that is sent for the first time, to within a batch.
    fn current_unit(&self, context: &mut Context<'_>) -> u64 {
        match self.when {
            When::Segment => context.shared(self.bindings().send_window).sent / SEGMENT_PACKETS,
            When::Chunk => context.shared(self.bindings().chunk).0,
            When::Interval | When::Law | When::Round => 0,
        }
    }

    fn starve(&mut self, context: &mut Context<'_>) {
        self.round = Round::Starved;
        let end = context.now() + pause(context);
        context.set_timer(ROUND_TIMER, end);
    }

    /// Handles a full window of the control law, which stops the sender until a report. Returns whether to
    /// request one.
    pub(super) fn on_permit(&mut self, permit: &SendPermit, context: &mut Context<'_>) -> bool {
        let reason = context.shared(self.bindings().clock).reason();
        let is_full = permit.packets == 0 && reason == Some(WaitingFor::Window);
        let must_request = is_full && matches!(self.round, Round::Running | Round::Starved);
        if must_request {
            self.round = Round::Ended;
        }
        must_request
    }

    pub(super) fn on_round_timer(&mut self) {
        if matches!(self.round, Round::Starved | Round::Requested) {
            self.round = Round::Ended;
        }
    }

    /// Requests a report, if one is due: a round, a segment or a chunk has ended.
    pub(super) fn write_round(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) -> bool {
        let has_ended = self.round == Round::Ended;
        let is_due = std::mem::take(&mut self.unit_ended) || has_ended;
        if !is_due || !context.shared(self.bindings().send_window).outstanding {
            return false;
        }
        let now = context.now();
        self.requested_at = now;
        if let Some(i) = batch.push(ROUND, size_of::<u32>()) {
            batch.payload_mut(i).copy_from_slice(&now.as_wrapped_micros().to_be_bytes());
        }
        if !has_ended {
            return true;
        }
        self.round = Round::Requested;
        if self.when == When::Round {
            context.raise(self.bindings().round_ended, &mut ());
        }
        let repeat = pause(context);
        context.set_timer(ROUND_TIMER, now + repeat);
        true
    }

    /// Requests another report interval from the receiver, if that is due.
    pub(super) fn write_interval(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) -> bool {
        if !context.shared(self.bindings().send_window).outstanding {
            return false;
        }
        let Some(interval) = self.interval.take_request(context.now()) else { return false };
        if let Some(i) = batch.push(REPORT_INTERVAL, size_of::<u32>()) {
            batch.payload_mut(i).copy_from_slice(&(interval.as_micros() as u32).to_be_bytes());
        }
        true
    }

    /// Processes a report; `None` if it is invalid. `number` is that of its packet, or of its message on the
    /// control channel: a newer report has a higher one.
    pub(super) fn on_report(&mut self, body: &[u8], number: u64, context: &mut Context<'_>) -> Option<()> {
        let view = FeedbackView::parse(body).ok()?;
        let bindings = self.bindings();
        // A receiver cannot have what was never sent. One that has nothing yet reports packet 0.
        let sent = context.shared(bindings.send_window).sent;
        if view.header.largest_pn >= context.next_pn().max(1) || view.header.highest > sent {
            return None;
        }
        let newest = self.newest.is_none_or(|newest| number > newest);
        self.reports += 1;
        let mut duplicates = 0;
        if newest {
            self.newest = Some(number);
            let grown = view.header.duplicates.wrapping_sub(self.peer_duplicates).cast_signed();
            duplicates = grown.max(0).unsigned_abs();
            self.on_scalars(&view.header, context);
            self.on_arrival(number, &view.header, context);
        }
        let mut ack = self.statements(&view, context);
        ack.duplicates = duplicates.into();
        context.raise(bindings.acknowledged, &mut ack);
        self.words = std::mem::take(&mut ack.words);
        let header = &view.header;
        let arrived = (header.packets > 0).then_some((header.received_at, header.bytes));
        let now_known = Newest {
            limit: header.limit,
            last_probe: header.last_probe,
            arrived,
            receiver: counters(header),
            host: header.host,
        };
        let mut report = PeerReport {
            outcome: ack.outcome,
            packets: header.packets,
            largest_pn: header.largest_pn,
            loss: ack.loss,
            newest: newest.then_some(now_known),
        };
        context.raise(bindings.peer_report, &mut report);
        Some(())
    }

    fn on_scalars(&mut self, header: &FeedbackHeader, context: &mut Context<'_>) {
        if header.duplicates != self.peer_duplicates && self.has_resent {
            self.reordering_steps = (self.reordering_steps + 1).min(MAX_REORDERING_STEPS);
        }
        self.peer_drops = header.socket_drops;
        self.peer_duplicates = header.duplicates;
        self.peer_ecn_ce = header.ecn_ce;
        let new_echo = self.largest_acked_pn.is_none_or(|largest| header.largest_pn > largest);
        if self.covers_arrivals(header) && new_echo {
            self.largest_acked_pn = Some(header.largest_pn);
            self.on_echo(header, context);
        }
    }

    fn on_arrival(&mut self, pn: u64, header: &FeedbackHeader, context: &mut Context<'_>) {
        let report = ReportArrival { at: context.arrival().at, pn, number: self.reports };
        let law = *context.shared(self.bindings().law);
        let required = (self.when == When::Law).then(|| law.required.unwrap_or_default());
        let law = LawInterval { required, ..law };
        if self.interval.on_report(report, header, context.path().min_rtt, law) {
            context.request_control();
        }
        self.publish_delay(context);
    }

    /// Whether the report covers arrivals: data has arrived, or the request that ends a round.
    fn covers_arrivals(&self, header: &FeedbackHeader) -> bool {
        header.highest > 0 || (self.round != Round::None && header.largest_pn > 0)
    }

    /// Measures a round trip, from the echo of the newest transmission's timestamp.
    fn on_echo(&mut self, header: &FeedbackHeader, context: &mut Context<'_>) {
        // Time of arrival in the kernel: the delay of reading is not part of the path.
        let (round_trip, at) = (self.bindings().round_trip, context.arrival().at);
        let elapsed = at.as_wrapped_micros().wrapping_sub(header.echo_timestamp);
        let [elapsed, delay] = [elapsed, header.echo_delay_us].map(|us| Span::from_micros(us.into()));
        if let Some(sample) = round_trip.measure(at, elapsed, delay, context) {
            round_trip.publish(sample, context);
        }
    }

    fn statements(&mut self, view: &FeedbackView<'_>, context: &Context<'_>) -> Acknowledgement {
        let header = &view.header;
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        if !self.covers_arrivals(header) {
            return Acknowledgement { words, ..Acknowledgement::default() };
        }
        for block in view.blocks() {
            let first = block.first_seq();
            words.extend((0..block.words).map(|i| Statement {
                first: first + i as u64 * 64,
                received: block.word(i),
                known: if block.first_word + i + 1 == SEGMENT_WORDS { LAST_WORD } else { u64::MAX },
            }));
        }
        let reordering = reordering_window(context.path().min_rtt, self.reordering_steps);
        let loss = LossBoundary { largest_pn: header.largest_pn, sent_at: header.echo_timestamp, reordering };
        let (below, nothing_from) = (header.complete_below, Some(header.highest));
        Acknowledgement { below, words, nothing_from, loss: Some(loss), ..Acknowledgement::default() }
    }

    pub(super) fn count(&self, stats: &mut BitmapAckStats) {
        stats.reports_received = self.reports;
        stats.peer_drops = self.peer_drops;
        stats.peer_duplicates = self.peer_duplicates;
        stats.peer_ecn_ce = self.peer_ecn_ce;
    }
}

fn counters(header: &FeedbackHeader) -> ReceiverCounters {
    ReceiverCounters {
        packets: header.packets,
        duplicates: header.duplicates,
        ecn_ce: header.ecn_ce,
        socket_drops: header.socket_drops,
        buffers: header.buffers,
        read_delay_us: header.read_delay_us,
    }
}

/// Returns the time after which the request at the end of a round is sent or repeated: for a report, or for a
/// starved sender.
fn pause(context: &Context<'_>) -> Span {
    (context.path().rtt * ROUND_REPEAT).max(SHORTEST_REPEAT)
}

/// Valid bits of the last word of a bitmap.
const LAST_WORD: u64 = (1 << LAST_WORD_BITS) - 1;
