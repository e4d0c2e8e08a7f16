//! `bitmap_ack`: the receiver reports what has arrived, as one bitmap per 10,000 segments; the sender
//! processes the reports, measures the round trip and determines which segments count as lost.
//!
//! *When* the receiver reports arrivals is a parameter: at intervals, or on the sender's request at the end
//! of a segment, a chunk or a round. Counters and the flow-control limit are sent at intervals in any case.
//! *Over what* is another: over UDP, where a lost report has no effect because the next one repeats it all,
//! or over the control channel, which is TCP, where a lost packet delays all reports after it.
//!
//! Bitmaps instead of acknowledgements of packets are from FOBS (dickens-system-aware-fobs, section on bitmap
//! acknowledgements), reports at the end of a round from RBUDP (he-rbudp, section 2); both send them over
//! TCP. In FOBS and ASYNCH (asynch, section 3) the control law sets the interval.

mod packets;
pub(crate) mod received;
mod receiver;
mod report;
mod report_interval;
mod reverse_path;
mod sender;
#[cfg(test)]
mod tests;

use std::any::Any;

use haul_base::{Span, Time};
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, Event, EventId, Kind, MicroProtocol, Order, Part,
    ProtocolStats, Registration, Resolution, SEND_PERMIT, Setup, choice, configuration,
};

use super::attributes::SENT_AT;
use super::events::{PAUSE_NEEDED, PAUSE_REQUESTED, Pause};
use super::stats::BitmapAckStats;
use crate::control::MAX_PAUSE;
use packets::{FEEDBACK, PAUSE, REPORT_INTERVAL, ROUND};
use receiver::Receiver;
pub use report::When;
use sender::{ROUND_TIMER, Sender};

/// Timer of the next report.
const REPORT_TIMER: u8 = 0;

/// State of `bitmap_ack`; see the module documentation.
#[derive(Debug)]
struct BitmapAck {
    interval: Span,
    when: When,
    over: Over,
    pauses: Option<Pauses>,
    /// Messages of the control channel so far.
    messages: u64,
    sent_at: Option<Attribute<u32>>,
    sender: Sender,
    receiver: Receiver,
}

choice! {
    /// Channel that carries reports.
    pub enum Over {
        /// UDP.
        Udp = "udp",
        /// The control channel (TCP).
        Control = "control",
    }
}

/// Pauses that the receiver requests. One that is lost or overtaken is not repeated, because it is outdated.
#[derive(Debug)]
struct Pauses {
    needed: Event<Pause>,
    requested: Event<Pause>,
    /// At the receiver: the pause to request.
    next: Option<Span>,
    /// At the sender: packet or message number of the newest pause.
    newest: Option<u64>,
}

configuration! {
    /// Parameters of `bitmap_ack`.
    pub struct BitmapAckConfig: "bitmap_ack" {
        when: When = "interval",
            "when the receiver reports: at adaptive intervals (`interval`), at the law's interval (`law`), or at the end of each segment of 10,000 packets, chunk or round";
        over: Over = "udp", "whether reports are sent over UDP or the control channel (TCP)";
        interval: Span in (Span::from_micros(100), Span::from_secs(1)) = "2ms",
            "minimum time between reports; the sender may request more";
    }
}

/// Returns the registry entry.
pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["object"], &["sequenced_segment"], &["retransmit"]],
        conflicts: &[
            ("positive_ack", "both report arrivals"),
            ("negative_ack", "both report arrivals"),
            ("cumulative_ack", "both report arrivals"),
        ],
        ..Registration::of::<BitmapAckConfig>(
            4,
            "reports what has arrived as bitmaps",
            |parameters, setup| Ok(Box::new(build(&parameters.read(), setup))),
        )
    }
}

fn build(config: &BitmapAckConfig, setup: &mut Setup) -> BitmapAck {
    let &BitmapAckConfig { when, over, interval } = config;
    let receiver = Receiver::new(setup.now, when, interval);
    let sender = Sender::new(setup, when, interval);
    let (pauses, messages) = (None, 0);
    BitmapAck { interval, when, over, pauses, messages, sent_at: None, sender, receiver }
}

impl BitmapAck {
    /// Requests sending a report now, or sets the timer of the next one.
    fn schedule(&mut self, context: &mut Context<'_>) {
        let Some(due) = self.receiver.due() else { return };
        if due > context.now() {
            context.set_timer(REPORT_TIMER, due);
        } else if self.over == Over::Udp {
            context.request_control();
            context.set_timer(REPORT_TIMER, context.now());
        } else {
            // Written when the channel can accept a message; nothing to do until then.
            context.request_channel();
            context.cancel_timer(REPORT_TIMER);
        }
    }

    /// Requests a pause from the peer.
    fn request_pause(&mut self, duration: Span, context: &mut Context<'_>) {
        if let Some(pauses) = &mut self.pauses {
            pauses.next = Some(duration);
        }
        match self.over {
            Over::Udp => context.request_control(),
            Over::Control => context.request_channel(),
        }
    }

    /// Handles the receiver's request for a pause. `None` if it is invalid; one that was overtaken is
    /// ignored.
    fn on_pause(&mut self, body: &[u8], number: u64, context: &mut Context<'_>) -> Option<()> {
        let micros = u32::from_be_bytes(body.try_into().ok()?);
        let pauses = self.pauses.as_mut()?;
        if pauses.newest.is_none_or(|newest| number > newest) {
            pauses.newest = Some(number);
            let duration = Span::from_micros(u64::from(micros)).min(MAX_PAUSE);
            context.raise(pauses.requested, &mut Pause(duration));
        }
        Some(())
    }

    /// Takes the body of the pause to request, if there is one.
    fn take_pause(&mut self) -> Option<[u8; 4]> {
        let duration = self.pauses.as_mut()?.next.take()?;
        Some(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX).to_be_bytes())
    }

    fn stamp(&self, batch: &mut Batch<'_>, now: Time) {
        let sent_at = self.sent_at.expect("declared before it is used");
        batch.set_all(sent_at, now.as_wrapped_micros());
    }
}

/// Requests a report as soon as a packet can be sent, even when data may not be sent now.
fn request_report(context: &mut Context<'_>) {
    context.request_control();
    context.set_timer(ROUND_TIMER, context.now());
}

impl MicroProtocol for BitmapAck {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.sent_at = Some(declaration.attribute(SENT_AT));
        declaration.kind(FEEDBACK);
        declaration.kind(REPORT_INTERVAL);
        declaration.kind(PAUSE);
        if self.when.is_on_request() {
            declaration.kind(ROUND);
        }
        let (needed, requested) = (declaration.event(PAUSE_NEEDED), declaration.event(PAUSE_REQUESTED));
        let (next, newest) = self.pauses.as_ref().map_or((None, None), |known| (known.next, known.newest));
        self.pauses = Some(Pauses { needed, requested, next, newest });
        self.sender.declare(declaration);
        self.receiver.declare(declaration);
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_FROM_USER, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::NORMAL);
        if let Some(pauses) = &self.pauses {
            resolution.on_event(pauses.needed, Order::NORMAL);
        }
        self.receiver.bind(resolution);
        self.sender.bind(resolution);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        self.sender.set_interval(self.interval, context);
        if context.ends().object_sink.is_some() {
            self.receiver.begin();
            self.schedule(context);
        }
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_FROM_USER {
            self.sender.on_segments(batch);
            self.stamp(batch, context.now());
        } else if event == BatchEvent::FILL {
            if self.sender.on_filled(batch, context) {
                request_report(context);
            }
        } else if let Some(sent_at) = self.sent_at {
            self.receiver.on_segments(batch, sent_at, context);
            self.schedule(context);
        }
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        if let Some(permit) = SEND_PERMIT.of(event, argument) {
            if self.sender.on_permit(permit, context) {
                request_report(context);
            }
            return;
        }
        let needed = self.pauses.as_ref().and_then(|pauses| pauses.needed.of(event, argument));
        if let Some(&mut Pause(duration)) = needed {
            return self.request_pause(duration, context);
        }
        self.receiver.on_event(event, argument, context);
        self.schedule(context);
    }

    fn on_control(&mut self, kind: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        let understood = match kind {
            ROUND => self.receiver.on_round(batch, i, context),
            REPORT_INTERVAL => self.receiver.on_interval(batch.payload(i)),
            // The receiver then sends over the control channel only.
            _ if self.over == Over::Control => None,
            PAUSE => self.on_pause(batch.payload(i), batch.pn(i), context),
            _ => self.sender.on_report(batch.payload(i), batch.pn(i), context),
        };
        match understood {
            Some(()) => self.schedule(context),
            None => batch.reject(i),
        }
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if self.sender.write_round(batch, context) || self.sender.write_interval(batch, context) {
            return;
        }
        if self.over == Over::Control {
            return;
        }
        if let Some(pause) = self.take_pause() {
            if let Some(i) = batch.push(PAUSE, pause.len()) {
                batch.payload_mut(i).copy_from_slice(&pause);
            }
            return context.request_control();
        }
        if self.receiver.write(batch, context) && self.receiver.has_more() {
            context.request_control();
        }
        self.schedule(context);
    }

    fn on_channel(&mut self, kind: Kind, body: &[u8], context: &mut Context<'_>) -> bool {
        if self.over == Over::Udp {
            return false;
        }
        self.messages += 1;
        let understood = match kind {
            FEEDBACK => self.sender.on_report(body, self.messages, context),
            PAUSE => self.on_pause(body, self.messages, context),
            _ => None,
        };
        understood.is_some()
    }

    fn write_channel(&mut self, out: &mut Vec<u8>, context: &mut Context<'_>) -> Option<Kind> {
        let pause = self.take_pause();
        let kind = if let Some(pause) = pause {
            out.extend(pause);
            Some(PAUSE)
        } else {
            self.receiver.write_channel(out, context).then_some(FEEDBACK)
        };
        self.schedule(context);
        kind
    }

    fn on_timer(&mut self, timer: u8, context: &mut Context<'_>) {
        if timer == ROUND_TIMER {
            self.sender.on_round_timer();
            context.request_control();
        } else if self.over == Over::Udp {
            context.request_control();
        } else {
            context.request_channel();
        }
    }

    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        let BitmapAckConfig { when, over, interval } = parameters.read();
        if (when, over) != (self.when, self.over) {
            let fixed = "`when` and `over` cannot change during a session";
            return Err(fixed.to_owned());
        }
        self.interval = interval;
        self.receiver.set_interval(self.interval);
        self.sender.set_interval(self.interval, context);
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        let mut stats = BitmapAckStats::default();
        self.sender.count(&mut stats);
        self.receiver.count(&mut stats);
        report(&stats);
    }
}
