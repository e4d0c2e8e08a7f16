//! Micro-protocols: one file each, one line each in [`registry`]. The framework is `haul-stack`; what they say to each
//! other is in [`events`], what they share in [`shared`], what they count in [`stats`].

pub mod events;
pub mod shared;
pub mod stats;

mod ack;
mod arrived;
mod bitmap_ack;
mod cumulative_ack;
mod deadline;
mod fec;
mod fixed_rate;
mod fixed_size;
mod in_order;
mod liveness;
mod message_map;
mod negative_ack;
mod object;
mod pacing;
mod path_mtu;
mod positive_ack;
mod priority;
pub(crate) mod rate_control;
mod rate_feedback;
mod rate_stats;
mod reassembly;
mod receiver_report;
mod retransmit;
mod round_trip;
mod scoreboard;
mod seal;
mod selective_transfer;
mod sequenced_segment;
mod statistics;
mod streams;
mod stretches;
mod transport_driver;
mod window;
mod witness;

#[cfg(test)]
mod testing;

use haul_base::{Span, Time};
use haul_stack::{Registry, Resolution};

pub use fec::FEC_KIND;
pub use fixed_rate::SendingRate;
pub use rate_feedback::RATE_KIND;
pub use statistics::STATISTICS_KIND;
pub use streams::StreamLimits;

/// All micro-protocols of this project. Add your own with [`Registry::register`].
pub fn registry() -> Registry {
    let mut registry = Registry::empty();
    registry.register(fixed_size::registration());
    registry.register(transport_driver::registration());
    registry.register(sequenced_segment::registration());
    registry.register(fixed_rate::registration());
    registry.register(retransmit::registration());
    registry.register(positive_ack::registration());
    registry.register(cumulative_ack::registration());
    registry.register(negative_ack::registration());
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

/// Whether what is lost is sent again in this stack: then nothing may be dropped once it has been acknowledged.
fn is_reliable(resolution: &Resolution<'_>) -> bool {
    resolution.has("retransmit")
}

/// The number that `wire` is the lower half of, and that lies nearest to `near`.
fn expand(wire: u32, near: u64) -> u64 {
    let distance = wire.wrapping_sub(near as u32).cast_signed();
    near.checked_add_signed(i64::from(distance)).unwrap_or(u64::from(wire))
}

/// Tells apart two bindings of one micro-protocol to one event. Handlers run in order, so the calls alternate.
#[derive(Debug, Default)]
struct Turns {
    second: bool,
}

impl Turns {
    /// Whether this call is the one with the later order.
    fn is_second(&mut self) -> bool {
        self.second = !self.second;
        !self.second
    }
}

/// Detects that a sender has given up the segments that this receiver waits for. A sender that repeats until it is
/// acknowledged has given up only if it is further ahead than its window allows; one that repeats what is reported
/// missing (`negative_ack`) gives up sooner.
#[derive(Debug, Default)]
struct StallDetector {
    /// Whether senders forget what was not missed in time (`negative_ack`).
    forgetful: bool,
    since: Option<Time>,
    seconds: u32,
}

/// Whether the message with segment `sequence` lies further behind `newest` than the widest window and the longest
/// message together, so that its sender can no longer repeat any of it.
fn is_abandoned(sequence: u64, newest: u64) -> bool {
    newest.saturating_sub(sequence) > arrived::SPAN
}

impl StallDetector {
    /// Seconds with refusals and without progress after which a forgetful sender has forgotten: it would have sent what
    /// is missing again. Seconds in which nothing comes at all do not count.
    const LONGEST: u32 = 10;

    /// Something could not be taken in at `now`; whether it is time to give up what is in the way.
    fn is_stalled(&mut self, now: Time) -> bool {
        if self.since.is_none_or(|since| now.since(since) >= Span::from_secs(1)) {
            self.since = Some(now);
            self.seconds += 1;
        }
        let over = self.forgetful && self.seconds > Self::LONGEST;
        if over {
            self.on_progress();
        }
        over
    }

    fn on_progress(&mut self) {
        (self.since, self.seconds) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Rng, Span};
    use haul_stack::{Recipe, SendOptions};
    use proptest::prelude::*;

    use super::testing::{Pair, Path, T0, events};
    use super::{StallDetector, expand};

    #[test]
    fn a_stack_of_the_first_five_carries_messages_both_ways_at_its_rate() {
        let recipe = Recipe::new("test")
            .with("fixed_size")
            .with("transport_driver")
            .with("sequenced_segment")
            .with_parameters("fixed_rate", &[("rate", "100Mbit"), ("burst", "10kB")])
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

    #[test]
    fn a_standstill_is_seconds_of_refusals_and_not_of_silence() {
        let mut stall = StallDetector { forgetful: true, ..StallDetector::default() };
        let at = |seconds| T0 + Span::from_secs(seconds);
        assert!(!stall.is_stalled(at(0)));
        assert!(!stall.is_stalled(at(500)));
        assert!((0..100_000).all(|_| !stall.is_stalled(at(500))));
        stall.on_progress();
        assert_eq!((0..100).position(|second| stall.is_stalled(at(600 + second))), Some(10));
    }

    proptest! {
        #[test]
        fn the_lower_half_is_enough_for_numbers_that_are_near(near in 0u64..1 << 48, distance in -(1i64 << 30)..1 << 30) {
            prop_assume!(near.checked_add_signed(distance).is_some());
            let number = near.checked_add_signed(distance).unwrap();
            prop_assert_eq!(expand(number as u32, near), number);
        }
    }
}
