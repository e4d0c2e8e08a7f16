//! `pacing`: limits what is sent back to back to a short interval's worth of the rate in force, so that
//! packets are spaced evenly instead of in the largest batches. It costs more system calls, and is useful
//! where jitter matters. A sender that wakes late makes up for it with one batch: the packets are back to
//! back anyway, and a busy host has no time for many calls.

use std::any::Any;

use haul_base::{Rate, Span};
use haul_stack::{
    Context, Declaration, EventId, MicroProtocol, Order, Part, Registration, Resolution, SEND_PERMIT,
    SharedValue, configuration,
};

use super::SendingRate;

#[derive(Debug)]
struct Pacing {
    interval: Span,
    rate: Option<SharedValue<SendingRate>>,
}

configuration! {
    /// Parameters of `pacing`.
    pub struct PacingConfig: "pacing" {
        interval: Span = "100us", "burst sent back to back, as time at the current rate";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["fixed_rate", "rate_control"]],
        ..Registration::of::<PacingConfig>(1, "spaces packets evenly within the rate", |parameters, _| {
            Ok(Box::new(Pacing { interval: parameters.read::<PacingConfig>().interval, rate: None }))
        })
    }
}

impl MicroProtocol for Pacing {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.rate = Some(declaration.shared(|| SendingRate(Rate::MAX)));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(SEND_PERMIT, Order::LATE);
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        if let Some(permit) = SEND_PERMIT.of(event, argument) {
            let SendingRate(rate) = *context.shared(self.rate.expect("declared"));
            permit.burst = permit.burst.min(rate.bytes_in(self.interval + permit.late));
        }
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.interval = parameters.read::<PacingConfig>().interval;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Machine, Rate, Span};
    use haul_stack::{Recipe, SendOptions};

    use crate::config::{FixedRateConfig, PacingConfig};
    use crate::micro::testing::{Pair, T0};

    /// Packets of each batch sent within 100 ms.
    fn batches(recipe: &Recipe) -> Vec<usize> {
        late_batches(recipe, Span::ZERO)
    }

    /// As [`batches`], for a sender that always wakes late by `late`.
    fn late_batches(recipe: &Recipe, late: Span) -> Vec<usize> {
        let mut pair = Pair::new(recipe);
        let (mut slot, mut now, mut sizes) = (vec![0; 65_536], T0, Vec::new());
        for _ in 0..3_000 {
            pair.a.send(T0, &[0; 1_100], SendOptions::default()).unwrap();
        }
        while now < T0 + Span::from_millis(100) {
            while let Some(sent) = pair.a.poll_transmit(now, &mut slot) {
                sizes.push(sent.len.div_ceil(sent.segment_size));
            }
            now = pair.a.deadline().unwrap().at + late;
        }
        sizes
    }

    fn at_200_mbit() -> Recipe {
        Recipe::new("x")
            .with("fixed_size")
            .with(FixedRateConfig { rate: Rate::from_mbps(200), ..FixedRateConfig::default() })
    }

    #[test]
    fn bursts_follow_the_interval_without_changing_the_rate() {
        let plain = at_200_mbit();
        let total = |sizes: &[usize]| sizes.iter().sum::<usize>();
        let rough = batches(&plain);
        let even = batches(&plain.clone().with(PacingConfig { interval: Span::from_micros(200) }));
        // 200 us of 200 Mbit/s are 5,000 bytes: four packets.
        assert!(rough.iter().all(|&n| n > 40) && even.iter().all(|&n| n <= 4), "{rough:?} {even:?}");
        assert!(total(&rough).abs_diff(total(&even)) <= 64, "{} {}", total(&rough), total(&even));
        let single = batches(&plain.with("pacing"));
        assert!(single.iter().all(|&n| n <= 2), "{single:?}");
    }

    #[test]
    fn overdue_packets_are_sent_in_one_batch() {
        let even = batches(&at_200_mbit().with("pacing"));
        // 1 ms of 200 Mbit/s are 25,000 bytes.
        let late = late_batches(&at_200_mbit().with("pacing"), Span::from_millis(1));
        let total = |sizes: &[usize]| sizes.iter().sum::<usize>();
        assert!(total(&late) * 100 > total(&even) * 97, "{} {}", total(&late), total(&even));
        // At most 100 wake-ups, and another batch for the rest after some of them.
        assert!(late.len() <= 200, "{late:?}");
        // Lateness does not add up to more than `fixed_rate` allows back to back.
        let later = late_batches(&at_200_mbit().with("pacing"), Span::from_millis(50));
        assert!(later.iter().all(|&n| n <= 65_536 / 1_100), "{later:?}");
    }
}
