//! `rate_feedback`: the receiver sets the sender's rate, also while running. The request is repeated until
//! the sender confirms it; of two requests the newer one counts.

use std::any::Any;

use haul_base::{Rate, Span};
use haul_stack::{
    Batch, Context, Declaration, Event, EventId, Kind, MicroProtocol, Order, ProtocolStats, RATE_REQUESTED,
    Registration, Resolution, StackEvent,
};

use super::events::RATE;
use super::stats::RateFeedbackStats;

/// Kind of the control packets of `rate_feedback`.
pub const RATE_KIND: Kind = Kind(10);

/// Minimum time before the first repetition, which waits for the round trip plus four variations. The time
/// then doubles.
const SHORTEST_REPEAT: Span = Span::from_millis(20);
const LONGEST_REPEAT: Span = Span::from_secs(2);

/// `1 | number u32 | bits per second u64`
const REQUEST: u8 = 1;
/// `2 | number u32`
const CONFIRMED: u8 = 2;

#[derive(Debug, Default)]
struct RateFeedback {
    changed: Option<Event<Rate>>,
    /// Number of this end's newest request.
    number: u32,
    request: Option<RateRequest>,
    /// Number of the peer's newest request; `needs_confirmation`: whether it is still to be confirmed.
    applied: Option<u32>,
    needs_confirmation: bool,
    sent: u64,
}

#[derive(Debug)]
struct RateRequest {
    rate: Rate,
    repeat_after: Span,
    due: bool,
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["fixed_rate", "rate_control"]],
        ..Registration::new("rate_feedback", 1, "the receiver tells the sender its rate", |_, _| {
            Ok(Box::<RateFeedback>::default())
        })
    }
}

impl RateFeedback {
    fn request_rate(&mut self, rate: Rate, context: &mut Context<'_>) {
        self.number = self.number.wrapping_add(1);
        let path = context.path();
        let repeat_after = (path.rtt + path.rtt_variation * 4).max(SHORTEST_REPEAT);
        self.request = Some(RateRequest { rate, repeat_after, due: true });
        context.request_control();
    }

    fn on_request(&mut self, number: u32, rate: Rate, context: &mut Context<'_>) {
        let newer = |known: u32| number.wrapping_sub(known).cast_signed() > 0;
        if self.applied.is_none_or(newer) {
            self.applied = Some(number);
            let mut rate = rate;
            context.raise(self.changed.expect("declared"), &mut rate);
        }
        // An old request is confirmed with the number of the newest one.
        self.needs_confirmation = true;
        context.request_control();
    }

    fn on_confirmed(&mut self, number: u32, context: &mut Context<'_>) {
        if number == self.number
            && let Some(request) = self.request.take()
        {
            context.cancel_timer(0);
            context.emit(StackEvent::User("rate in force at the sender, bit/s", request.rate.as_bps()));
        }
    }
}

fn read(body: &[u8]) -> Option<(u8, u32, u64)> {
    let number = u32::from_be_bytes(body.get(1..5)?.try_into().ok()?);
    match (body[0], body.len()) {
        (REQUEST, 13) => Some((REQUEST, number, u64::from_be_bytes(body[5..].try_into().ok()?))),
        (CONFIRMED, 5) => Some((CONFIRMED, number, 0)),
        _ => None,
    }
}

impl MicroProtocol for RateFeedback {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        declaration.kind(RATE_KIND);
        self.changed = Some(declaration.event(RATE));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(RATE_REQUESTED, Order::NORMAL);
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        if let Some(&mut rate) = RATE_REQUESTED.of(event, argument) {
            self.request_rate(rate, context);
        }
    }

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        match read(batch.payload(i)) {
            Some((REQUEST, number, bps)) => self.on_request(number, Rate::from_bps(bps), context),
            Some((_, number, _)) => self.on_confirmed(number, context),
            None => batch.reject(i),
        }
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let mut body = [0; 13];
        let len = if std::mem::take(&mut self.needs_confirmation) {
            body[0] = CONFIRMED;
            body[1..5].copy_from_slice(&self.applied.unwrap_or(0).to_be_bytes());
            5
        } else if let Some(request) = self.request.as_mut().filter(|request| request.due) {
            request.due = false;
            body[0] = REQUEST;
            body[1..5].copy_from_slice(&self.number.to_be_bytes());
            body[5..].copy_from_slice(&request.rate.as_bps().to_be_bytes());
            context.set_timer(0, context.now() + request.repeat_after);
            request.repeat_after = (request.repeat_after * 2).min(LONGEST_REPEAT);
            13
        } else {
            return;
        };
        if let Some(i) = batch.push(RATE_KIND, len) {
            batch.payload_mut(i).copy_from_slice(&body[..len]);
            self.sent += 1;
        }
        if self.request.as_ref().is_some_and(|request| request.due) {
            context.request_control();
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        if let Some(request) = &mut self.request {
            request.due = true;
            context.request_control();
        }
    }

    fn unfinished(&self) -> usize {
        usize::from(self.request.is_some())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&RateFeedbackStats { requests: u64::from(self.number), packets: self.sent });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Rate, Span};
    use haul_stack::{Recipe, StackEvent};
    use proptest::prelude::*;

    use crate::micro::stats::FixedRateStats;
    use crate::micro::testing::{Pair, Path, T0, events, stats};

    fn pair() -> Pair {
        Pair::new(&Recipe::new("x").with("fixed_size").with("fixed_rate").with("rate_feedback"))
    }

    #[test]
    fn the_receivers_request_takes_effect_after_one_packet() {
        let mut pair = pair();
        pair.b.request_rate(T0, Rate::from_mbps(150));
        assert_eq!(pair.exchange(T0, &mut Path::default()), 2);
        assert_eq!(events(&mut pair.a), [StackEvent::Rate(Rate::from_mbps(150))]);
        assert_eq!(stats::<FixedRateStats>(&pair.a).rate.as_bps(), 150_000_000);
        assert_eq!(pair.b.unfinished(), 0);
        pair.b.request_rate(T0, Rate::from_mbps(100));
        pair.exchange(T0, &mut Path::default());
        assert_eq!(stats::<FixedRateStats>(&pair.a).rate.as_bps(), 100_000_000);
    }

    proptest! {
        #[test]
        fn the_last_request_takes_effect_despite_losses(
            losses in prop::collection::vec(any::<bool>(), 12),
            requests in prop::collection::vec(1u64..1_000, 1..6),
            duplicate: bool,
        ) {
            let mut pair = pair();
            let mut n = 0;
            let mut lose = |_| { n += 1; losses.get(n - 1).copied().unwrap_or(false) };
            let mut path = Path { lose: Some(&mut lose), duplicate, ..Path::default() };
            for (n, &mbps) in requests.iter().enumerate() {
                let now = T0 + Span::from_millis(7 * n as u64);
                pair.b.request_rate(now, Rate::from_mbps(mbps));
                pair.exchange(now, &mut path);
                pair.run_until(now, &mut path);
            }
            pair.run_until(T0 + Span::from_secs(30), &mut path);
            let last = requests.last().unwrap() * 1_000_000;
            prop_assert_eq!(stats::<FixedRateStats>(&pair.a).rate.as_bps(), last);
            prop_assert_eq!(pair.b.unfinished(), 0);
            // Confirmed, hence no timer.
            prop_assert!(pair.b.deadline().is_none());
        }
    }

    use haul_base::Machine;
}
