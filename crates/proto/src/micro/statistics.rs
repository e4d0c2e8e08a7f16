//! `statistics`: counts sent and received packets, and reports to the peer from time to time what has
//! arrived.

use super::stats::{PacketCount, TrafficStats};
use haul_base::Span;
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, Kind, MicroProtocol, Order, Part, ProtocolStats, Registration,
    Resolution, StackEvent, configuration,
};

/// Kind of the control packets of `statistics`.
pub const STATISTICS_KIND: Kind = Kind(13);

/// Length of a report: `data packets u64 | bytes u64`, since the start.
const REPORT_LEN: usize = 16;

impl PacketCount {
    fn add(&mut self, batch: &Batch<'_>) {
        for i in batch.live() {
            self.packets += 1;
            self.bytes += batch.size(i) as u64;
        }
    }
}

#[derive(Debug)]
struct Statistics {
    interval: Span,
    sent: PacketCount,
    received: PacketCount,
    /// Arrivals that the peer reports.
    arrived: PacketCount,
    scheduled: bool,
}

configuration! {
    /// Parameters of `statistics`.
    pub struct StatisticsConfig: "statistics" {
        interval: Span = "1s", "report interval";
    }
}

pub(super) fn registration() -> Registration {
    Registration::of::<StatisticsConfig>(
        1,
        "counts packets of both directions and reports arrivals",
        |parameters, _| {
            Ok(Box::new(Statistics {
                interval: parameters.read::<StatisticsConfig>().interval,
                sent: PacketCount::default(),
                received: PacketCount::default(),
                arrived: PacketCount::default(),
                scheduled: false,
            }))
        },
    )
}

fn word(body: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&body[at..at + 8]);
    u64::from_be_bytes(word)
}

impl MicroProtocol for Statistics {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        declaration.kind(STATISTICS_KIND);
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::EARLY);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_TO_NET {
            if batch.is_data() {
                self.sent.add(batch);
            }
            return;
        }
        self.received.add(batch);
        if !self.scheduled {
            self.scheduled = true;
            context.set_timer(0, context.now() + self.interval);
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        self.scheduled = false;
        context.request_control();
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, _: &mut Context<'_>) {
        if let Some(i) = batch.push(STATISTICS_KIND, REPORT_LEN) {
            let body = batch.payload_mut(i);
            body[..8].copy_from_slice(&self.received.packets.to_be_bytes());
            body[8..].copy_from_slice(&self.received.bytes.to_be_bytes());
        }
    }

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        let body = batch.payload(i);
        if body.len() != REPORT_LEN {
            return batch.reject(i);
        }
        let reported = PacketCount { packets: word(body, 0), bytes: word(body, 8) };
        // Ignores an older report that arrived late.
        if reported.packets > self.arrived.packets {
            self.arrived = reported;
            context.emit(StackEvent::User("data packets arrived at the other side", reported.packets));
        }
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.interval = parameters.read::<StatisticsConfig>().interval;
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&TrafficStats { sent: self.sent, received: self.received, arrived: self.arrived });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Machine, Span};
    use haul_stack::{Recipe, SendOptions, StackEvent};

    use crate::micro::stats::TrafficStats;
    use crate::micro::testing::{Pair, Path, T0, events, stats};

    #[test]
    fn the_sender_learns_how_much_arrived_and_then_there_is_silence() {
        let mut pair = Pair::new(&Recipe::new("x").with("fixed_size").with("statistics"));
        for _ in 0..50 {
            pair.a.send(T0, b"reading", SendOptions::default()).unwrap();
        }
        let mut lose = |packet: usize| packet < 20;
        pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
        pair.run_until(T0 + Span::from_secs(5), &mut Path::default());
        assert_eq!(events(&mut pair.a), [StackEvent::User("data packets arrived at the other side", 30)]);
        let TrafficStats { sent, arrived, .. } = stats(&pair.a);
        assert_eq!((sent.packets, arrived.packets), (50, 30));
        assert_eq!(arrived.bytes * 50, sent.bytes * 30);
        assert_eq!((pair.a.deadline(), pair.b.deadline()), (None, None));
    }
}
