//! Retransmission from copies: payload and attributes of every outstanding segment, in buffers of the stack's
//! pool.

mod buffer;

use std::any::Any;

use haul_stack::{
    Batch, BatchEvent, Context, Declaration, EventId, MESSAGE_SETTLED, MicroProtocol, Order, Part,
    ProtocolStats, RETRANSMIT_TIMEOUT, Resolution, SEND_PERMIT,
};

use self::buffer::{Attributes, Declared, Limits, RetransmitBuffer};
use super::keep::RetransmitConfig;
use crate::micro::attributes::{MESSAGE, PLACE, REST_OF_LIFE, SEQUENCE};
use crate::micro::events::{ACKNOWLEDGED, DISCARDED};
use crate::micro::scoreboard::Scoreboard;
use crate::micro::stats::KeepCopiesStats;

/// State of the retransmission from copies. The buffer is allocated by the first segment sent: many stacks
/// only receive.
#[derive(Debug)]
pub(super) struct KeepCopies {
    limits: Limits,
    declared: Option<Declared>,
    attributes: Option<Attributes>,
    copies: Option<Box<RetransmitBuffer>>,
}

impl KeepCopies {
    pub(super) fn new(parameters: &RetransmitConfig) -> Result<Self, String> {
        Ok(Self { limits: Limits::read(parameters)?, declared: None, attributes: None, copies: None })
    }

    fn declared(&self) -> Declared {
        self.declared.expect("a stack declares before it binds")
    }

    fn copies(&mut self) -> &mut RetransmitBuffer {
        let (limits, declared) = (self.limits, self.declared());
        let attributes = self.attributes.expect("a stack binds before it runs");
        self.copies.get_or_insert_with(|| Box::new(RetransmitBuffer::new(limits, declared, attributes)))
    }
}

impl MicroProtocol for KeepCopies {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.declared = Some(Declared {
            scoreboard: declaration.shared(Scoreboard::default),
            acknowledged: declaration.event(ACKNOWLEDGED),
            discarded: declaration.event(DISCARDED),
        });
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        let message = resolution.find_attribute(MESSAGE);
        let message = message.zip(resolution.find_attribute(PLACE));
        // Both of these wait for every segment.
        let needs_all = resolution.has("in_order") || resolution.has("negative_ack");
        let lifetime = resolution.find_attribute(REST_OF_LIFE).filter(|_| !needs_all);
        let attributes = Attributes { sequence: resolution.attribute(SEQUENCE), message, lifetime };
        let declared = self.declared();
        self.attributes = Some(attributes);
        if let Some(copies) = &mut self.copies {
            // Another recipe has them at other offsets.
            (copies.declared, copies.attributes) = (declared, attributes);
        }
        resolution.on_batch(BatchEvent::FILL, Order::EARLY);
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::NORMAL);
        resolution.on_event(SEND_PERMIT, Order::NORMAL);
        resolution.on_event(declared.acknowledged, Order::NORMAL);
        resolution.on_event(declared.discarded, Order::NORMAL);
        resolution.on_event(RETRANSMIT_TIMEOUT, Order::NORMAL);
        resolution.on_event(MESSAGE_SETTLED, Order::NORMAL);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::FILL {
            if let Some(copies) = &mut self.copies {
                copies.repeat(batch, context);
                copies.publish(context);
            }
        } else if batch.is_data() {
            self.copies().with_scoreboard(context, |copies, scoreboard, context| {
                copies.record(batch, scoreboard, context);
            });
        }
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        let acknowledged = self.declared().acknowledged;
        if let Some(copies) = &mut self.copies {
            copies.on_event(event, argument, context);
        } else if let Some(permit) = SEND_PERMIT.of(event, argument) {
            permit.at_most(self.limits.space(0, 0, permit.datagram));
        } else if let Some(ack) = acknowledged.of(event, argument) {
            ack.outcome.nothing_outstanding = true;
        }
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.limits = Limits::read(&parameters.read())?;
        if let Some(copies) = &mut self.copies {
            copies.limits = self.limits;
        }
        Ok(())
    }

    fn release_idle(&mut self, context: &mut Context<'_>) {
        context.shared(self.declared().scoreboard).release_idle();
        if let Some(copies) = &mut self.copies {
            copies.release_idle();
        }
    }

    fn unfinished(&self) -> usize {
        self.copies.as_ref().map_or(0, |copies| copies.held)
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        let copies = self.copies.as_ref();
        report(&KeepCopiesStats {
            outstanding: self.unfinished() as u64,
            in_flight_bytes: copies.map_or(0, |copies| copies.in_flight),
            given_up: copies.map_or(0, |copies| copies.given_up),
        });
    }
}
