//! `fixed_rate`: limits the rate, counted in UDP payload bytes of all packets.

use std::any::Any;

use haul_base::{Bytes, Rate, Span};
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, Event, EventId, MicroProtocol, Order, Part, ProtocolStats,
    Registration, Resolution, SEND_PERMIT, SharedValue, StackEvent, configuration,
};

use super::events::RATE;
use super::stats::FixedRateStats;
use crate::Pacer;

/// Maximum lateness that is made up for afterwards.
const DEBT: Span = Span::from_millis(100);

/// Rate in force; written by the micro-protocol that limits it, read by those that space packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendingRate(pub Rate);

#[derive(Debug)]
struct FixedRate {
    rate: Rate,
    burst: u64,
    pacer: Pacer,
    shared: Option<SharedValue<SendingRate>>,
    changed: Option<Event<Rate>>,
    changes: u64,
}

configuration! {
    /// Parameters of `fixed_rate`.
    pub struct FixedRateConfig: "fixed_rate" {
        rate: Rate = "unlimited", "UDP payload bits per second, control packets included";
        burst: Bytes = "64KiB", "burst sent back to back; at least one packet";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["fixed_size", "object"]],
        ..Registration::of::<FixedRateConfig>(1, "sends no faster than a given rate", |parameters, _| {
            let parameters: FixedRateConfig = parameters.read();
            Ok(Box::new(FixedRate {
                rate: parameters.rate,
                burst: parameters.burst.0,
                pacer: Pacer::new(DEBT),
                shared: None,
                changed: None,
                changes: 0,
            }))
        })
    }
}

impl FixedRate {
    fn set_rate(&mut self, rate: Rate, context: &mut Context<'_>) {
        if rate != self.rate {
            self.rate = rate;
            self.changes += 1;
            // After a much slower rate, the old schedule would delay the new rate or let it run ahead:
            // restart it.
            self.pacer = Pacer::new(DEBT);
            self.pacer.on_idle(context.now());
        }
        self.publish(context);
    }

    /// Publishes the rate. A driver that wakes late may send at once what the burst allows anyway.
    fn publish(&mut self, context: &mut Context<'_>) {
        self.pacer.set_slack(self.rate.time_for(self.burst).min(DEBT));
        let shared = self.shared.expect("declared");
        *context.shared(shared) = SendingRate(self.rate);
    }
}

impl MicroProtocol for FixedRate {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let rate = self.rate;
        self.shared = Some(declaration.shared(|| SendingRate(rate)));
        self.changed = Some(declaration.event(RATE));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(SEND_PERMIT, Order::NORMAL);
        resolution.on_event(self.changed.expect("declared"), Order::NORMAL);
        resolution.on_batch(BatchEvent::FILL, Order::LAST);
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        self.publish(context);
        self.pacer.on_idle(context.now());
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        if let Some(permit) = SEND_PERMIT.of(event, argument) {
            permit.burst = permit.burst.min(self.burst);
            let release = self.pacer.release_at();
            permit.late = context.now().since(release);
            if self.rate == Rate::ZERO {
                // Until the peer requests another rate.
                permit.at_most(0);
            } else if release > context.now() {
                permit.at_most(0);
                context.resume_at(release);
            }
        } else if let Some(&mut rate) = self.changed.expect("declared").of(event, argument) {
            self.set_rate(rate, context);
            context.emit(StackEvent::Rate(rate));
        }
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_TO_NET {
            self.pacer.on_sent(context.now(), batch.bytes() as u64, self.rate);
        } else if batch.is_empty() {
            self.pacer.on_idle(context.now());
        }
    }

    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        let parameters: FixedRateConfig = parameters.read();
        self.burst = parameters.burst.0;
        self.set_rate(parameters.rate, context);
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&FixedRateStats { rate: self.rate, changes: self.changes });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Bytes, Machine, Rate, Span, Time};
    use haul_stack::{Recipe, SendOptions, Stack};

    use crate::config::FixedRateConfig;
    use crate::micro::testing::{Pair, T0};

    /// Sends whenever allowed until `until`; returns the UDP payload bytes sent.
    fn send_until(stack: &mut Stack, mut now: Time, until: Time) -> u64 {
        let (mut slot, before) = (vec![0; 65_536], stack.stats().bytes_sent);
        while now < until {
            while stack.queued_bytes() < 1_000_000 {
                stack.send(now, &[1; 1_000], SendOptions::default()).unwrap();
            }
            while let Some(sent) = stack.poll_transmit(now, &mut slot) {
                assert!(sent.len <= 8_000, "a burst of {} bytes", sent.len);
            }
            now = stack.deadline().unwrap().at.max(now);
            stack.on_deadline(now);
        }
        stack.stats().bytes_sent - before
    }

    #[test]
    fn the_rate_is_kept_before_and_after_a_change() {
        let recipe = Recipe::new("test")
            .with("fixed_size")
            .with(FixedRateConfig { rate: Rate::from_mbps(80), burst: Bytes(8_000) });
        let mut pair = Pair::new(&recipe);
        let sent = send_until(&mut pair.a, T0, T0 + Span::from_secs(1));
        assert!((9_990_000..=10_008_000).contains(&sent), "{sent}");
        let mut slower = recipe.clone();
        crate::micro::registry().set(&mut slower, "fixed_rate.rate", "8Mbit").unwrap();
        let second = T0 + Span::from_secs(1);
        pair.a.reconfigure(second, &slower).unwrap();
        let sent = send_until(&mut pair.a, second, second + Span::from_secs(1));
        let expected = Rate::from_mbps(8).bytes_in(Span::from_secs(1));
        assert!((expected - 10_000..=expected + 10_000).contains(&sent), "{sent}");
    }

    /// As on a busy machine.
    #[test]
    fn an_always_late_sender_keeps_the_rate_within_its_burst() {
        let rate = Rate::from_mbps(80);
        let plain = Recipe::new("test")
            .with("fixed_size")
            .with(FixedRateConfig { rate: Rate::from_mbps(80), ..FixedRateConfig::default() });
        for recipe in [plain.clone(), plain.with("pacing")] {
            let mut pair = Pair::new(&recipe);
            let (mut slot, mut now) = (vec![0; 65_536], T0);
            while now < T0 + Span::from_secs(2) {
                while pair.a.queued_bytes() < 1_000_000 {
                    pair.a.send(now, &[1; 1_000], SendOptions::default()).unwrap();
                }
                while pair.a.poll_transmit(now, &mut slot).is_some() {}
                // 64 KiB are 6.5 ms.
                now = pair.a.deadline().unwrap().at.max(now) + Span::from_millis(5);
                pair.a.on_deadline(now);
            }
            let (sent, expected) = (pair.a.stats().bytes_sent, rate.bytes_in(Span::from_secs(2)));
            assert!((expected * 98 / 100..=expected + 65_536).contains(&sent), "{sent} of {expected}");
        }
    }

    #[test]
    fn an_idle_sender_accumulates_no_credit() {
        let recipe = Recipe::new("test")
            .with("fixed_size")
            .with(FixedRateConfig { rate: Rate::from_mbps(80), burst: Bytes(8_000) });
        let mut pair = Pair::new(&recipe);
        let mut slot = vec![0; 65_536];
        let later = T0 + Span::from_secs(10);
        assert!(pair.a.poll_transmit(later, &mut slot).is_none());
        let sent = send_until(&mut pair.a, later, later + Span::from_millis(10));
        assert!(sent <= 100_000 + 16_000, "{sent}");
    }
}
