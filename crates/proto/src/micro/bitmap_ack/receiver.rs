//! The receiving side: records arrivals and writes reports.

use std::any::Any;

use haul_base::{Ecn, HostSample, Span, Time};
use haul_stack::{
    Attribute, Batch, Context, Declaration, Event, EventId, Order, Resolution, SharedValue, U48,
};
use haul_wire::packet::FeedbackHeader;

use super::packets::{CHANNEL_REPORT, FEEDBACK};
use super::received::{Arrival, ReceivedBitmap};
use super::report::{ArrivalTimes, Report, When};
use crate::micro::attributes::SEQUENCE;
use crate::micro::events::{
    HOST_SAMPLE, NO_LIMIT, OutgoingReport, PART_ARRIVED, PartArrived, REPORT, REPORT_SOON,
};
use crate::micro::stats::BitmapAckStats;

/// Handles of shared values and events.
#[derive(Clone, Copy, Debug)]
struct Bindings {
    received: SharedValue<ReceivedBitmap>,
    report: Event<OutgoingReport>,
    report_soon: Event<()>,
    part: Event<PartArrived>,
    host: Event<HostSample>,
}

/// Consecutive segments of a batch.
struct Run {
    first: u64,
    packets: u64,
    /// UDP payload bytes.
    bytes: u64,
    /// Index of the last one in the batch.
    last: usize,
}

/// Returns the live packets of a batch, if they are consecutive segments sent in this order.
fn run(batch: &Batch<'_>, sequence: Attribute<U48>) -> Option<Run> {
    let first = batch.values(sequence).next()?;
    let (mut next, mut least, mut follows) = (first, 0, true);
    batch.numbered(sequence).for_each(|(pn, seq)| {
        follows &= seq == next && pn >= least;
        (next, least) = (next + 1, pn + 1);
    });
    let last = batch.live().last().filter(|_| follows)?;
    Some(Run { first, packets: next - first, bytes: batch.live_bytes() as u64, last })
}

/// State of the receiving side.
#[derive(Debug)]
pub(super) struct Receiver {
    bindings: Option<Bindings>,
    sequence: Option<Attribute<U48>>,
    report: Report,
    /// Whether this end sends reports: it receives an object, or data has arrived.
    reports: bool,
    packets: u64,
    bytes: u64,
    duplicates: u64,
    ecn_ce: u64,
    socket_drops: u32,
    buffers: u32,
    /// Load of this host, if sampled since the last report.
    host: Option<HostSample>,
    sent: u64,
}

/// Arrival times of the packets being handled.
fn arrival_times(context: &Context<'_>) -> ArrivalTimes {
    ArrivalTimes { at: context.arrival().at, read: context.now() }
}

impl Receiver {
    pub(super) fn new(now: Time, when: When, interval: Span) -> Self {
        Self {
            bindings: None,
            sequence: None,
            report: Report::new(now, when, interval),
            reports: false,
            packets: 0,
            bytes: 0,
            duplicates: 0,
            ecn_ce: 0,
            socket_drops: 0,
            buffers: 0,
            host: None,
            sent: 0,
        }
    }

    pub(super) fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.bindings = Some(Bindings {
            received: declaration.shared(ReceivedBitmap::new),
            report: declaration.event(REPORT),
            report_soon: declaration.event(REPORT_SOON),
            part: declaration.event(PART_ARRIVED),
            host: declaration.event(HOST_SAMPLE),
        });
    }

    pub(super) fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.sequence = Some(resolution.attribute(SEQUENCE));
        let bindings = self.bindings();
        resolution.on_event(bindings.report_soon, Order::NORMAL);
        resolution.on_event(bindings.part, Order::NORMAL);
        resolution.on_event(bindings.host, Order::NORMAL);
    }

    fn bindings(&self) -> Bindings {
        self.bindings.expect("declared before it is used")
    }

    pub(super) fn set_interval(&mut self, interval: Span) {
        self.report.set_interval(interval);
    }

    /// Handles the sender's request for another interval; `None` if it is invalid.
    pub(super) fn on_interval(&mut self, body: &[u8]) -> Option<()> {
        let micros = u32::from_be_bytes(body.try_into().ok()?);
        self.report.on_requested(Span::from_micros(u64::from(micros)));
        Some(())
    }

    pub(super) fn begin(&mut self) {
        self.reports = true;
    }

    /// When the next report is due, if this end sends reports.
    pub(super) fn due(&self) -> Option<Time> {
        self.reports.then(|| self.report.due())
    }

    /// Whether a report that takes several packets is unfinished.
    pub(super) fn has_more(&self) -> bool {
        self.report.has_more()
    }

    /// Records the segments of a batch and removes duplicates.
    pub(super) fn on_segments(
        &mut self,
        batch: &mut Batch<'_>,
        sent_at: Attribute<u32>,
        context: &mut Context<'_>,
    ) {
        let sequence = self.sequence.expect("bound before it is used");
        let (times, arrival) = (arrival_times(context), context.arrival());
        let before = self.packets;
        let received = context.shared(self.bindings().received);
        let run = run(batch, sequence).filter(|run| received.extend(run.first, run.packets));
        if let Some(run) = &run {
            self.packets += run.packets;
            self.bytes += run.bytes;
            self.report.on_run(times, batch.pn(run.last), batch.get(run.last, sent_at), run.packets as u32);
        }
        let singly = run.is_none().then(|| batch.live());
        for i in singly.into_iter().flatten() {
            let arrival = received.insert(batch.get(i, sequence));
            match arrival {
                Arrival::TooFar => {
                    batch.reject(i);
                    continue;
                }
                Arrival::Duplicate => batch.take(i),
                Arrival::New { .. } => {}
            }
            self.packets += 1;
            self.bytes += batch.size(i) as u64;
            self.duplicates += u64::from(arrival == Arrival::Duplicate);
            let gap = arrival == Arrival::New { gap: true };
            self.report.on_data(times, batch.pn(i), batch.get(i, sent_at), gap);
        }
        if arrival.ecn == Ecn::Ce {
            self.ecn_ce += self.packets - before;
        }
        self.buffers = self.buffers.wrapping_add(u32::from(self.packets > before));
        self.reports |= self.packets > before;
    }

    pub(super) fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        let bindings = self.bindings();
        if bindings.report_soon.is(event) {
            self.report.report_early();
        } else if let Some(part) = bindings.part.of(event, argument) {
            self.packets += 1;
            self.bytes += part.size as u64;
            self.duplicates += u64::from(part.duplicate);
            self.ecn_ce += u64::from(context.arrival().ecn == Ecn::Ce);
            self.buffers = self.buffers.wrapping_add(1);
            self.report.on_data(arrival_times(context), part.pn, part.sent_at, part.gap);
        } else if let Some(host) = bindings.host.of(event, argument) {
            self.host = Some(*host);
        }
    }

    /// Handles the sender's request for a report. The request counts as the newest transmission that has
    /// arrived.
    pub(super) fn on_round(&mut self, batch: &Batch<'_>, i: usize, context: &Context<'_>) -> Option<()> {
        let timestamp = u32::from_be_bytes(batch.payload(i).try_into().ok()?);
        self.report.on_round(arrival_times(context), batch.pn(i), timestamp);
        self.reports.then_some(())
    }

    /// Returns the counters and the limit of a report, if one is due.
    fn begin_report(&mut self, context: &mut Context<'_>) -> Option<FeedbackHeader> {
        let bindings = self.bindings();
        let now = context.now();
        if !self.reports || !self.report.start(now, context.shared(bindings.received)) {
            return None;
        }
        let mut outgoing = OutgoingReport { limit: NO_LIMIT, last_probe: 0 };
        context.raise(bindings.report, &mut outgoing);
        let rejected = context.stats().unauthentic + context.stats().violations;
        self.socket_drops = context.arrival().socket_drops;
        let received = context.shared(bindings.received);
        Some(FeedbackHeader {
            packets: self.packets + received.without_room,
            bytes: self.bytes,
            duplicates: self.duplicates as u32,
            ecn_ce: self.ecn_ce as u32,
            socket_drops: self.socket_drops,
            rejected: rejected as u32,
            limit: outgoing.limit,
            last_probe: outgoing.last_probe,
            buffers: self.buffers,
            host: self.host.take(),
            ..self.report.header(now, received)
        })
    }

    /// Writes a report if one is due; returns whether it did.
    pub(super) fn write(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) -> bool {
        let Some(header) = self.begin_report(context) else { return false };
        let Some(space) = batch.control_space() else { return false };
        let received = context.shared(self.bindings().received);
        batch.push_with(FEEDBACK, space, |body| Some(self.report.write(body, &header, received)));
        self.sent += 1;
        true
    }

    /// As [`Receiver::write`], appending to `out`, for the control channel.
    pub(super) fn write_channel(&mut self, out: &mut Vec<u8>, context: &mut Context<'_>) -> bool {
        let Some(header) = self.begin_report(context) else { return false };
        let received = context.shared(self.bindings().received);
        let start = out.len();
        out.resize(start + CHANNEL_REPORT, 0);
        let len = self.report.write(&mut out[start..], &header, received);
        out.truncate(start + len);
        self.sent += 1;
        true
    }

    pub(super) fn count(&self, stats: &mut BitmapAckStats) {
        stats.packets_received = self.packets;
        stats.bytes_received = self.bytes;
        stats.duplicates = self.duplicates;
        stats.ecn_ce = self.ecn_ce;
        stats.reports_sent = self.sent;
    }
}
