//! `negative_ack`: the sender stores segments for `retention` after sending them, then drops them. It learns
//! of their arrival only incidentally, from reports; so most messages never settle. It requests a
//! confirmation only where it must: when half of the window of `retransmit` is in use, when nothing has
//! followed the last segments for long, when the recipe is about to change, and once at the start if it did
//! not open the session, because only the end that did not open it listens from the start.

mod receiving;
mod sending;
#[cfg(test)]
mod tests;
mod timing;
mod wire;

use std::any::Any;

use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, EventId, Kind, MicroProtocol, Order, Part,
    ProtocolStats, RENUMBERED, Resolution, SEND_PERMIT, U48,
};

use self::receiving::Receiving;
use self::sending::Sending;
pub use self::timing::NegativeAckConfig;
use self::timing::{CONFIRM, GAP, SILENCE};
use self::wire::Message;
use super::bindings::Bindings;
use crate::micro::attributes::SEQUENCE;
use crate::micro::stats::NegativeAckStats;

/// Kind of its control packets.
pub(super) const NACK: Kind = Kind(9);

/// Control packets to be sent: at most one of each type.
#[derive(Debug, Default)]
struct PendingControl {
    report: bool,
    sender_state: bool,
}

#[derive(Debug)]
pub(super) struct NegativeAck {
    limits: NegativeAckConfig,
    receiving: Receiving,
    sending: Sending,
    bindings: Option<Bindings>,
    sequence: Option<Attribute<U48>>,
    pending: PendingControl,
    stats: NegativeAckStats,
}

impl NegativeAck {
    pub(super) fn new(parameters: &Part) -> Result<Self, String> {
        Ok(Self {
            limits: NegativeAckConfig::checked(parameters)?,
            receiving: Receiving::default(),
            sending: Sending::default(),
            bindings: None,
            sequence: None,
            pending: PendingControl::default(),
            stats: NegativeAckStats::default(),
        })
    }

    fn bindings(&self) -> Bindings {
        self.bindings.expect("a stack declares before it runs")
    }

    fn note_sent(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        let sequence = self.sequence.expect("a stack binds before it runs");
        let next = batch.live().map(|i| batch.get(i, sequence) + 1).max().unwrap_or(0);
        self.sending.sent(next, self.bindings(), &self.limits, context);
    }
}

impl MicroProtocol for NegativeAck {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        declaration.kind(NACK);
        self.bindings = Some(Bindings::declare(declaration));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.sequence = Some(resolution.attribute(SEQUENCE));
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::LATE);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::EARLY);
        resolution.on_event(SEND_PERMIT, Order::NORMAL);
        resolution.on_event(RENUMBERED, Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        self.sending.start(context);
        if !context.is_initiator() {
            self.receiving.listen(&self.limits, context);
        }
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_TO_NET {
            if batch.is_data() {
                self.note_sent(batch, context);
            }
            return;
        }
        self.receiving.take(batch, self.bindings().received, &self.limits, context);
    }

    fn on_event(&mut self, event: EventId, _: &mut dyn Any, context: &mut Context<'_>) {
        if RENUMBERED.is(event) {
            self.sending.renumber();
            return self.receiving.renumber(context);
        }
        self.sending.ask_if_needed(self.bindings(), context);
    }

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        let bindings = self.bindings();
        match wire::read(batch.payload(i)) {
            Some(Message::Report(report, ranges)) => {
                match self.sending.on_report(&report, ranges, bindings, context) {
                    Some(true) => self.want(Control::SenderState, context),
                    Some(false) => {}
                    None => batch.reject(i),
                }
            }
            Some(Message::SenderState(sender_state)) => {
                if self.receiving.on_sender_state(&sender_state, bindings.received, &self.limits, context) {
                    self.want(Control::Report, context);
                }
                context.raise(bindings.abandoned, &mut ());
            }
            None => batch.reject(i),
        }
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let bindings = self.bindings();
        if std::mem::take(&mut self.pending.report) {
            self.receiving.write(NACK, batch, bindings.received, context);
            self.stats.reports += 1;
            if self.pending.sender_state {
                context.request_control();
            }
        } else if std::mem::take(&mut self.pending.sender_state) {
            self.sending.write(NACK, batch, bindings, context);
            self.stats.answers += 1;
        }
    }

    fn on_timer(&mut self, timer: u8, context: &mut Context<'_>) {
        let bindings = self.bindings();
        let wanted = match timer {
            GAP => self.receiving.on_gap(bindings.received, &self.limits, context).then_some(Control::Report),
            SILENCE => self.receiving.on_silence(&self.limits, context).then_some(Control::Report),
            CONFIRM => {
                self.sending.on_confirm(bindings, &self.limits, context).then_some(Control::SenderState)
            }
            _ => {
                self.sending.on_discard(bindings, &self.limits, context);
                None
            }
        };
        if let Some(wanted) = wanted {
            self.want(wanted, context);
        }
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.limits = NegativeAckConfig::checked(parameters)?;
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&self.stats);
    }
}

/// The two types of control packets.
#[derive(Clone, Copy, Debug)]
enum Control {
    Report,
    SenderState,
}

impl NegativeAck {
    fn want(&mut self, control: Control, context: &mut Context<'_>) {
        match control {
            Control::Report => self.pending.report = true,
            Control::SenderState => self.pending.sender_state = true,
        }
        context.request_control();
    }
}
