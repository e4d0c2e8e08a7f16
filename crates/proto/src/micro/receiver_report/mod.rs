//! `receiver_report`: the receiver of messages reports at intervals which packets have arrived, like RTP
//! receiver reports (RFC 3550, section 6.4.2). The sender derives what a control law needs: round trip,
//! losses, arrival rate, bytes in flight. It deals with packets, not messages: other micro-protocols decide
//! about retransmission.
//!
//! A report repeats the packets of the last reports, so that losing one has no effect.

mod receiving;
mod sending;
#[cfg(test)]
mod tests;
mod wire;

use std::any::Any;

use haul_base::Span;
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, EventId, Kind, MicroProtocol, Order, Part, ProtocolStats,
    Registration, Resolution, configuration,
};

use super::stats::ReceiverReportStats;
use receiving::Receiving;
use sending::{PROBE_TIMER, Sending};
use wire::REPORT;

/// Timer of the next report.
const REPORT_TIMER: u8 = 0;
/// Before other handlers take packets out of the batch: these have arrived too.
const COUNT: Order = Order(Order::FIRST.0 - 1);

configuration! {
    /// Parameters of `receiver_report`.
    pub struct ReceiverReportConfig: "receiver_report" {
        interval: Span in (Span::from_millis(1), Span::from_secs(10)) = "10ms",
            "minimum time between two reports while data arrives";
    }
}

/// State of `receiver_report`; see the module documentation.
#[derive(Debug)]
struct ReceiverReport {
    receiving: Receiving,
    sending: Sending,
}

/// Returns the registry entry.
pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["rate_control"], &["fixed_size"]],
        conflicts: &[
            ("bitmap_ack", "both report what has arrived"),
            ("fec", "its repair packets are not reported, so the control law would not see all that is sent"),
        ],
        ..Registration::of::<ReceiverReportConfig>(
            1,
            "reports which packets of messages have arrived",
            |parameters, setup| {
                let ReceiverReportConfig { interval } = parameters.read();
                let sending = Sending::new(setup.initial_rtt, interval);
                Ok(Box::new(ReceiverReport { receiving: Receiving::new(interval), sending }))
            },
        )
    }
}

impl ReceiverReport {
    /// Requests a control packet for a report that is due, or sets the timer of the next one.
    fn schedule(&self, context: &mut Context<'_>) {
        match self.receiving.due() {
            Some(due) if due <= context.now() => context.request_control(),
            Some(due) => context.set_timer(REPORT_TIMER, due),
            None => {}
        }
    }
}

impl MicroProtocol for ReceiverReport {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        declaration.kind(REPORT);
        self.sending.declare(declaration);
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::FILL, Order::LATE);
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, COUNT);
        self.sending.bind(resolution);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        self.sending.start(context);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_FROM_NET {
            self.receiving.on_arrival(batch, context);
            self.schedule(context);
        } else if event == BatchEvent::FILL {
            self.sending.on_filled(batch, context);
        } else if batch.is_data() {
            self.sending.on_sent(batch, context);
        }
    }

    fn on_event(&mut self, _: EventId, _: &mut dyn Any, _: &mut Context<'_>) {}

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        if self.sending.on_report(batch.pn(i), batch.payload(i), context).is_none() {
            batch.reject(i);
        }
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        self.receiving.write(batch, context);
        self.schedule(context);
    }

    fn on_timer(&mut self, timer: u8, context: &mut Context<'_>) {
        if timer == PROBE_TIMER {
            self.sending.on_probe_timer(context);
        } else {
            self.schedule(context);
        }
    }

    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        let ReceiverReportConfig { interval } = parameters.read();
        self.receiving.set_interval(interval);
        self.sending.set_interval(interval, context);
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        let mut stats = ReceiverReportStats::default();
        self.sending.count(&mut stats);
        self.receiving.count(&mut stats);
        report(&stats);
    }
}
