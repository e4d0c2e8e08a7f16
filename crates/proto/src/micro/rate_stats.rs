//! `rate_stats`: measures the throughput, loss and jitter of received packets (wu-h-ctp section 4.1).

use std::any::Any;

use haul_base::{Rate, Span, Time};
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, EventId, MicroProtocol, Order, Part, ProtocolStats,
    RENUMBERED, Registration, Resolution, U48, configuration,
};

use super::attributes::SEQUENCE;
use super::stats::{ArrivalStats, PacketCount};

/// Divisor: a new value's weight in the smoothed ones is one over this (RFC 3550 section 6.4.1).
const SMOOTHING: u64 = 16;

#[derive(Debug)]
struct RateStats {
    interval: Span,
    sequence: Option<Attribute<U48>>,
    packets: u64,
    bytes: u64,
    /// One more than the highest sequence number received.
    expected: u64,
    /// Sum of `expected` over earlier numberings.
    expected_before: u64,
    arrivals: Arrivals,
    measurement: Measurement,
}

/// Spacing of arrivals. Packets that arrive together count as one arrival.
#[derive(Debug, Default)]
struct Arrivals {
    last: Option<Time>,
    spacing: Span,
    jitter: Span,
}

impl Arrivals {
    fn on_arrival(&mut self, now: Time) {
        if let Some(last) = self.last {
            let spacing = now.since(last);
            if self.spacing == Span::ZERO {
                self.spacing = spacing;
            }
            let deviation = spacing.as_nanos().abs_diff(self.spacing.as_nanos());
            self.spacing = smoothed(self.spacing, spacing.as_nanos());
            self.jitter = smoothed(self.jitter, deviation);
        }
        self.last = Some(now);
    }
}

fn smoothed(old: Span, new: u64) -> Span {
    let old = old.as_nanos();
    Span::from_nanos(old - old / SMOOTHING + new / SMOOTHING)
}

/// Interval over which throughput is measured.
#[derive(Debug, Default)]
struct Measurement {
    since: Option<Time>,
    bytes: u64,
    rate: Rate,
}

impl Measurement {
    fn on_bytes(&mut self, now: Time, bytes: u64, interval: Span) {
        let since = *self.since.get_or_insert(now);
        let passed = now.since(since);
        if passed >= interval {
            self.rate = Rate::from_transfer(self.bytes, passed);
            (self.since, self.bytes) = (Some(now), 0);
        }
        self.bytes += bytes;
    }
}

configuration! {
    /// Parameters of `rate_stats`.
    pub struct RateStatsConfig: "rate_stats" {
        interval: Span = "100ms", "time over which throughput is measured";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["sequenced_segment"]],
        ..Registration::of::<RateStatsConfig>(
            1,
            "measures throughput, loss and jitter of received packets",
            |parameters, _| {
                Ok(Box::new(RateStats {
                    interval: parameters.read::<RateStatsConfig>().interval,
                    sequence: None,
                    packets: 0,
                    bytes: 0,
                    expected: 0,
                    expected_before: 0,
                    arrivals: Arrivals::default(),
                    measurement: Measurement::default(),
                }))
            },
        )
    }
}

impl MicroProtocol for RateStats {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.sequence = Some(resolution.attribute(SEQUENCE));
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::NORMAL);
        resolution.on_event(RENUMBERED, Order::NORMAL);
    }

    fn on_batch(&mut self, _: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let sequence = self.sequence.expect("bound");
        let before = self.packets;
        let mut bytes = 0;
        for i in batch.live() {
            self.packets += 1;
            bytes += batch.size(i) as u64;
            self.expected = self.expected.max(batch.get(i, sequence) + 1);
        }
        if self.packets == before {
            return;
        }
        self.bytes += bytes;
        self.arrivals.on_arrival(context.now());
        self.measurement.on_bytes(context.now(), bytes, self.interval);
    }

    fn on_event(&mut self, _: EventId, _: &mut dyn Any, _: &mut Context<'_>) {
        self.expected_before += std::mem::take(&mut self.expected);
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.interval = parameters.read::<RateStatsConfig>().interval;
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&ArrivalStats {
            received: PacketCount { packets: self.packets, bytes: self.bytes },
            missing: (self.expected_before + self.expected).saturating_sub(self.packets),
            rate: self.measurement.rate,
            spacing: self.arrivals.spacing,
            jitter: self.arrivals.jitter,
        });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Span;
    use haul_stack::{Recipe, SendOptions};

    use crate::micro::stats::ArrivalStats;
    use crate::micro::testing::{Pair, Path, T0, stats};

    #[test]
    fn rate_loss_and_jitter_match_the_path() {
        let mut pair =
            Pair::new(&Recipe::new("x").with("fixed_size").with("sequenced_segment").with("rate_stats"));
        let mut sent = 0;
        // One packet of 1,000 bytes a millisecond is 8 Mbit/s; every tenth is lost.
        for n in 0..1_000u64 {
            let mut lose = |_| n % 10 == 3;
            let before = pair.a.stats().bytes_sent;
            pair.a.send(T0, &[0; 1_000 - 21], SendOptions::default()).unwrap();
            pair.exchange(T0 + Span::from_millis(n), &mut Path { lose: Some(&mut lose), ..Path::default() });
            sent = pair.a.stats().bytes_sent - before;
        }
        assert_eq!(sent, 1_000);
        let arrivals = stats::<ArrivalStats>(&pair.b);
        assert_eq!((arrivals.received.packets, arrivals.missing), (900, 100));
        assert!((7_000_000..=7_400_000).contains(&arrivals.rate.as_bps()), "{arrivals:?}");
        // Nine gaps of 1 ms and one of 2: a mean deviation of about 0.2 ms.
        assert!((50..500).contains(&arrivals.jitter.as_micros()), "{arrivals:?}");
    }

    #[test]
    fn losses_before_and_after_renumbering_add_up() {
        let recipe = Recipe::new("x").with("fixed_size").with("sequenced_segment").with("rate_stats");
        let mut pair = Pair::new(&recipe);
        let send = |pair: &mut Pair, now, lost| {
            for _ in 0..10 {
                pair.a.send(now, &[0; 900], SendOptions::default()).unwrap();
            }
            let mut lose = |packet| packet < lost;
            pair.exchange(now, &mut Path { lose: Some(&mut lose), ..Path::default() });
        };
        send(&mut pair, T0, 3);
        let mut changed = recipe.with("in_order");
        crate::micro::registry().set(&mut changed, "sequenced_segment.window", "100000").unwrap();
        pair.a.reconfigure(T0, &changed).unwrap();
        let now = T0 + Span::from_secs(1);
        pair.run_until(now, &mut Path::default());
        assert!(pair.b.recipe().has("in_order"));
        send(&mut pair, now, 2);
        let arrivals = stats::<ArrivalStats>(&pair.b);
        assert_eq!((arrivals.received.packets, arrivals.missing), (15, 5));
    }

    #[test]
    fn an_even_stream_has_no_jitter() {
        let mut pair =
            Pair::new(&Recipe::new("x").with("fixed_size").with("sequenced_segment").with("rate_stats"));
        for n in 0..200 {
            pair.a.send(T0, &[0; 100], SendOptions::default()).unwrap();
            pair.exchange(T0 + Span::from_millis(n), &mut Path::default());
        }
        assert!(stats::<ArrivalStats>(&pair.b).jitter.as_nanos() < 1_000);
    }
}
