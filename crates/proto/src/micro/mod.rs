//! Micro-protocols: one file and one [`registry`] entry each. The framework is `haul-stack`. [`events`] and
//! [`attributes`] are their interfaces to each other, [`shared`] has the values that they share, [`stats`]
//! their counters.

pub mod attributes;
pub(crate) mod config;
pub mod events;
pub mod shared;
pub mod stats;

mod ack;
mod bitmap_ack;
#[cfg(test)]
mod counted_ranges;
mod deadline;
mod fec;
mod fixed_rate;
mod fixed_size;
mod in_order;
mod liveness;
mod message_map;
mod object;
mod pacing;
mod path_mtu;
mod priority;
mod ranges;
pub(crate) mod rate_control;
mod rate_feedback;
mod rate_stats;
mod reassembly;
mod received_set;
mod receiver_report;
mod retransmit;
mod round_trip;
mod scoreboard;
mod seal;
mod selective_transfer;
mod sequenced_segment;
mod stall;
mod statistics;
mod streams;
mod transport_driver;
mod truncated;
mod turns;
mod witness;

#[cfg(test)]
mod testing;

use haul_stack::Registry;

pub use fec::FEC_KIND;
pub use fixed_rate::SendingRate;
pub use rate_feedback::RATE_KIND;
pub use statistics::STATISTICS_KIND;
pub use streams::StreamLimits;

/// Returns a registry of this project's micro-protocols. Add your own with [`Registry::register`].
pub fn registry() -> Registry {
    let mut registry = Registry::empty();
    registry.register(fixed_size::registration());
    registry.register(transport_driver::registration());
    registry.register(sequenced_segment::registration());
    registry.register(fixed_rate::registration());
    registry.register(retransmit::registration());
    for mode in ack::registrations() {
        registry.register(mode);
    }
    registry.register(selective_transfer::registration());
    registry.register(pacing::registration());
    registry.register(rate_stats::registration());
    registry.register(rate_feedback::registration());
    registry.register(in_order::registration());
    registry.register(priority::registration());
    registry.register(deadline::registration());
    registry.register(statistics::registration());
    registry.register(streams::registration());
    registry.register(fec::registration());
    registry.register(object::registration());
    registry.register(bitmap_ack::registration());
    registry.register(receiver_report::registration());
    registry.register(witness::registration());
    registry.register(rate_control::registration());
    registry.register(path_mtu::registration());
    registry.register(liveness::registration());
    registry.register(seal::registration());
    registry
}

#[cfg(test)]
mod tests {
    use haul_base::{Bytes, Rate, Rng, Span};
    use haul_stack::{Recipe, SendOptions};

    use super::testing::{Pair, Path, T0, events};
    use crate::config::FixedRateConfig;

    #[test]
    fn a_minimal_stack_carries_messages_both_ways_at_its_rate() {
        let recipe = Recipe::new("test")
            .with("fixed_size")
            .with("transport_driver")
            .with("sequenced_segment")
            .with(FixedRateConfig { rate: Rate::from_mbps(100), burst: Bytes(10_000) })
            .with("seal");
        let mut pair = Pair::new(&recipe);
        let mut rng = Rng::from_seed(11);
        let mut sent = Vec::new();
        for id in 0..200 {
            let mut message = vec![0; rng.below(5_000) as usize];
            rng.fill(&mut message);
            pair.a.send(T0, &message, SendOptions::default()).unwrap();
            pair.b.send(T0, &message, SendOptions::default()).unwrap();
            sent.push((id, message));
        }
        let mut path = Path { duplicate: true, reverse: true, ..Path::default() };
        pair.exchange(T0, &mut path);
        pair.run_until(T0 + Span::from_millis(20), &mut path);
        assert!(pair.a.queued_bytes() > 0, "faster than its rate");
        pair.run_until(T0 + Span::from_secs(1), &mut path);
        let mut got = pair.received_by_b();
        got.sort();
        assert!(got == sent, "{} of {} messages", got.len(), sent.len());
        assert_eq!(pair.a.waiting_messages(), 200);
        assert_eq!((pair.a.stats().unauthentic, pair.b.stats().violations), (0, 0));
        assert!(!events(&mut pair.b).is_empty());
    }
}
