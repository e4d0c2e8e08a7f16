//! `bitmap_ack`: the receiver states what has arrived, as one bitmap per 10,000 segments, at intervals or at the end of
//! a round (counters and the limit of flow control come at intervals in either case); the sender takes the statements, measures the round trip and says which segments count as lost.
//!
//! Bitmaps instead of acknowledgements of packets are FOBS's (dickens-system-aware-fobs, section on bitmap
//! acknowledgements), reports at the end of a round are RBUDP's (he-rbudp, section 2); both sent them over TCP, here
//! they go over UDP, and a lost one costs nothing because the next one says it all again.

pub(crate) mod arrivals;
mod receiver;
mod report;
mod report_interval;
mod sender;
#[cfg(test)]
mod tests;

use std::any::Any;

use haul_base::{Span, Time};
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, EventId, Kind, MicroProtocol, Order, ParameterKind,
    ParameterSpec, Parameters, Registration, Resolution, SEND_PERMIT, Setup,
};

use receiver::Receiver;
use report::When;
use sender::Sender;

/// What has arrived, and counters of the receiver.
pub(crate) const FEEDBACK: Kind = Kind(3);
/// The sender has nothing more to send before it knows what is missing; the body is its timestamp.
pub(crate) const ROUND: Kind = Kind(16);
/// The sender asks for another interval of reports; the body is microseconds, u32.
pub(crate) const REPORT_INTERVAL: Kind = Kind(17);

/// The timer of the next report.
const REPORT_TIMER: u8 = 0;
/// The timer that repeats the word of a round's end.
const ROUND_TIMER: u8 = 1;

/// See the module's text.
#[derive(Debug)]
struct BitmapAck {
    interval: Span,
    when: When,
    sent_at: Option<Attribute<u32>>,
    sender: Sender,
    receiver: Receiver,
}

/// The line of the registry.
pub(super) fn registration() -> Registration {
    Registration {
        parameters: &[
            ParameterSpec {
                name: "when",
                kind: ParameterKind::Choice(&["interval", "round"]),
                default: "interval",
                help: "when the receiver reports",
            },
            ParameterSpec {
                name: "interval",
                kind: ParameterKind::Span,
                default: "2ms",
                help: "least time between reports; the sender may ask for more",
            },
        ],
        needs: &[&["object"], &["sequenced_segment"], &["retransmit"]],
        conflicts: &[
            ("positive_ack", "both say what has arrived"),
            ("negative_ack", "both say what has arrived"),
            ("cumulative_ack", "both say what has arrived"),
        ],
        ..Registration::new("bitmap_ack", 3, "reports what has arrived as bitmaps", build)
    }
}

fn build(parameters: &Parameters, setup: &mut Setup) -> Result<Box<dyn MicroProtocol>, String> {
    let interval = interval(parameters)?;
    let when = when(parameters);
    let receiver = Receiver::new(setup.now, when, interval);
    let sender = Sender::new(setup, when == When::Round, interval);
    Ok(Box::new(BitmapAck { interval, when, sent_at: None, sender, receiver }))
}

fn when(parameters: &Parameters) -> When {
    if parameters.text("when") == "round" { When::Round } else { When::Interval }
}

fn interval(parameters: &Parameters) -> Result<Span, String> {
    match parameters.span("interval") {
        Span::ZERO => Err("the interval must be more than nothing, for example 2ms".to_owned()),
        interval => Ok(interval),
    }
}

impl BitmapAck {
    /// Calls for a report now, or sets the timer of the next one.
    fn schedule(&mut self, context: &mut Context<'_>) {
        let Some(due) = self.receiver.due() else { return };
        if due <= context.now() {
            context.want_control();
        }
        context.set_timer(REPORT_TIMER, due.max(context.now()));
    }

    fn stamp(&self, batch: &mut Batch<'_>, now: Time) {
        let sent_at = self.sent_at.expect("declared before it is used");
        batch.set_all(sent_at, now.as_wrapped_micros());
    }
}

impl MicroProtocol for BitmapAck {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.sent_at = Some(declaration.attribute("sent_at"));
        declaration.kind(FEEDBACK);
        declaration.kind(REPORT_INTERVAL);
        if self.when == When::Round {
            declaration.kind(ROUND);
        }
        self.sender.declare(declaration);
        self.receiver.declare(declaration);
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_FROM_USER, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::NORMAL);
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
            let ended = self.sender.on_filled(batch, context);
            if ended {
                context.want_control();
            }
        } else if let Some(sent_at) = self.sent_at {
            self.receiver.on_segments(batch, sent_at, context);
            self.schedule(context);
        }
    }

    fn on_event(&mut self, event: EventId, notice: &mut dyn Any, context: &mut Context<'_>) {
        if let Some(grant) = SEND_PERMIT.of(event, notice) {
            return self.sender.on_permit(grant, context);
        }
        self.receiver.on_event(event, notice, context);
        self.schedule(context);
    }

    fn on_control(&mut self, kind: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        let understood = match kind {
            ROUND => self.receiver.on_round(batch, i, context),
            REPORT_INTERVAL => self.receiver.on_interval(batch.payload(i)),
            _ => self.sender.on_feedback(batch, i, context),
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
        if self.receiver.write(batch, context) && self.receiver.has_more() {
            context.want_control();
        }
        self.schedule(context);
    }

    fn on_timer(&mut self, timer: u8, context: &mut Context<'_>) {
        if timer == ROUND_TIMER {
            self.sender.on_round_timer();
        }
        context.want_control();
    }

    fn on_parameters(&mut self, parameters: &Parameters, context: &mut Context<'_>) -> Result<(), String> {
        if when(parameters) != self.when {
            return Err(
                "it reports either at intervals or at the end of rounds for the life of a session".to_owned()
            );
        }
        self.interval = interval(parameters)?;
        self.receiver.set_interval(self.interval);
        self.sender.set_interval(self.interval, context);
        Ok(())
    }

    fn statistics(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.sender.statistics(each);
        self.receiver.statistics(each);
    }
}
