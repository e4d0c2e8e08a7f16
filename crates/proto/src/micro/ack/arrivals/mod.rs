//! `positive_ack` and `cumulative_ack`: the receiver acknowledges the sequence number below which everything
//! has arrived and echoes the sender's timestamp; the sender measures the round trip by it and times
//! outstanding segments.

mod receiving;
mod sending;
mod wire;

use std::any::Any;

use haul_base::Span;
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, EventId, Kind, MicroProtocol, Order, PATH_ANSWERED,
    Part, ProtocolStats, RENUMBERED, Resolution, U48, configuration, parameter,
};

use self::receiving::{Attributes, Next, Receiving, When};
use self::sending::{OVERDUE, Policy, Sending};
use self::wire::Abandoned;
use super::bindings::Bindings;
use crate::micro::attributes::{AHEAD, SENT_AT, SEQUENCE};
use crate::micro::stats::AckStats;

/// Timer of a delayed acknowledgement.
const DELAYED: u8 = 1;

parameter!(granularity: Span = "500us", "minimum difference between the timeout and the mean round trip");
parameter!(linear: u16 in (1, 1_000) = "6", "timeouts of a segment before they start to double");

configuration! {
    /// Parameters of `positive_ack`.
    pub struct PositiveAckConfig: "positive_ack" {
        granularity: Span = granularity;
        linear: u16 = linear;
    }
}

configuration! {
    /// Parameters of `cumulative_ack`.
    pub struct CumulativeAckConfig: "cumulative_ack" {
        packets: u32 in (1, 1_000_000) = "2", "maximum number of segments per acknowledgement";
        delay: Span = "10ms", "maximum delay of an acknowledgement";
        granularity: Span = granularity;
        linear: u16 = linear;
    }
}

#[derive(Clone, Copy, Debug)]
struct Declared {
    sent_at: Attribute<u32>,
    /// Distance of the segment from its sender's oldest outstanding one: nothing missing below that will
    /// arrive.
    ahead: Attribute<u16>,
    bindings: Bindings,
}

/// State of either micro-protocol.
#[derive(Debug)]
pub(super) struct Acknowledging {
    kind: Kind,
    /// Whether the receiver delays acknowledgements.
    is_delayed: bool,
    receiving: Receiving,
    sending: Sending,
    declared: Option<Declared>,
    sequence: Option<Attribute<U48>>,
    acknowledgements: u64,
}

impl Acknowledging {
    /// Creates one that acknowledges at once, and reports ranges beyond gaps.
    pub(super) fn at_once(kind: Kind, parameters: &Part) -> Self {
        Self::new(kind, false, parameters)
    }

    /// Creates one that delays acknowledgements, and reports only the number below which everything has
    /// arrived.
    pub(super) fn delayed(kind: Kind, parameters: &Part) -> Self {
        Self::new(kind, true, parameters)
    }

    fn new(kind: Kind, is_delayed: bool, parameters: &Part) -> Self {
        let (when, policy) = read(is_delayed, parameters);
        Self {
            kind,
            is_delayed,
            receiving: Receiving::new(when),
            sending: Sending::new(policy),
            declared: None,
            sequence: None,
            acknowledgements: 0,
        }
    }

    fn declared(&self) -> Declared {
        self.declared.expect("a stack declares before it runs")
    }

    fn sequence(&self) -> Attribute<U48> {
        self.sequence.expect("a stack binds before it runs")
    }

    fn stamp(&self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let Declared { sent_at, ahead, bindings } = self.declared();
        let (now, sequence) = (context.now().as_wrapped_micros(), self.sequence());
        let scoreboard = context.shared(bindings.scoreboard);
        // With nothing outstanding, the first new segment is the oldest.
        let first_new = batch.live().find(|&i| !batch.is_resent(i)).map(|i| batch.get(i, sequence));
        let oldest =
            if scoreboard.open() > 0 { scoreboard.base() } else { first_new.unwrap_or(scoreboard.base()) };
        for i in batch.live() {
            batch.set(i, sent_at, now);
            let distance = batch.get(i, sequence).saturating_sub(oldest);
            batch.set(i, ahead, u16::try_from(distance).unwrap_or(u16::MAX));
        }
    }

    fn receive(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        let Declared { sent_at, ahead, bindings } = self.declared();
        let (was_due, sequence) = (self.receiving.is_due(), self.sequence());
        let attributes = Attributes { sequence, sent_at, ahead };
        match self.receiving.take(batch, attributes, bindings.received, context) {
            Next::Now => context.request_control(),
            Next::At(at) if !was_due => context.set_timer(DELAYED, at),
            Next::At(_) => {}
        }
    }
}

fn read(is_delayed: bool, parameters: &Part) -> (When, Policy) {
    if is_delayed {
        let CumulativeAckConfig { packets, delay, granularity, linear } = parameters.read();
        (When::Every { packets, delay }, Policy { granularity, linear, delay, oldest_only: true })
    } else {
        let PositiveAckConfig { granularity, linear } = parameters.read();
        (When::AtOnce, Policy { granularity, linear, delay: Span::ZERO, oldest_only: false })
    }
}

impl MicroProtocol for Acknowledging {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        declaration.kind(self.kind);
        self.declared = Some(Declared {
            sent_at: declaration.attribute(SENT_AT),
            ahead: declaration.attribute(AHEAD),
            bindings: Bindings::declare(declaration),
        });
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.sequence = Some(resolution.attribute(SEQUENCE));
        resolution.on_batch(BatchEvent::SEGMENT_FROM_USER, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::LATE);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::EARLY);
        resolution.on_event(PATH_ANSWERED, Order::NORMAL);
        resolution.on_event(RENUMBERED, Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        self.sending.start(context);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_FROM_USER {
            self.stamp(batch, context);
        } else if event == BatchEvent::SEGMENT_FROM_NET {
            self.receive(batch, context);
        } else if batch.is_data() {
            self.sending.sent(batch, self.sequence(), context);
        }
    }

    fn on_event(&mut self, event: EventId, _: &mut dyn Any, context: &mut Context<'_>) {
        if PATH_ANSWERED.is(event) {
            self.sending.update_initial_rtt(self.declared().bindings, context);
        } else {
            self.sending.renumber();
            self.receiving.renumber();
        }
    }

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        let bindings = self.declared().bindings;
        if let Some(abandoned) = Abandoned::read(batch.payload(i)) {
            self.receiving.on_abandoned(batch.pn(i), abandoned, bindings.received, context);
            context.request_control();
            context.raise(bindings.abandoned, &mut ());
        } else if !self.sending.acknowledge(batch.pn(i), batch.payload(i), bindings, context) {
            batch.reject(i);
        }
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let bindings = self.declared().bindings;
        self.receiving.write(self.kind, batch, bindings.received, context);
        if batch.is_empty() {
            return self.sending.write(self.kind, batch, bindings, context);
        }
        self.acknowledgements += 1;
        if self.is_delayed {
            context.cancel_timer(DELAYED);
        }
        if self.sending.must_report_abandoned {
            context.request_control();
        }
    }

    fn on_timer(&mut self, timer: u8, context: &mut Context<'_>) {
        match timer {
            OVERDUE => self.sending.on_timer(self.declared().bindings, context),
            _ if self.receiving.is_due() => context.request_control(),
            _ => {}
        }
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        (self.receiving.when, self.sending.policy) = read(self.is_delayed, parameters);
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&AckStats {
            acknowledgements: self.acknowledgements,
            timeouts: self.sending.timeouts,
            rtt: self.sending.rtt().smoothed(),
        });
    }
}
