//! The emulated path as pure arithmetic: when does a packet come out at the other end, or why not.

use haul_base::{Bytes, Probability, Rate, Rng, Span, Time};

/// Bytes of IPv4 and UDP header that each datagram has on the path besides its payload (RFC 791, RFC 768).
const HEADERS: u64 = 28;
/// The least number of packets that the bottleneck's queue holds.
const MIN_QUEUE_PACKETS: u64 = 64;

/// What kind of path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathSpec {
    /// Round-trip time without queueing, half of it in each direction.
    pub rtt: Span,
    /// Rate of the bottleneck in each direction, counting IP packets.
    pub rate: Rate,
    /// Share of the packets that get lost at random, in each direction.
    pub loss: Probability,
    /// Longest IP packet that passes.
    pub mtu: u16,
    /// Seed of the losses.
    pub seed: u64,
}

impl PathSpec {
    /// What the bottleneck's queue holds: one bandwidth-delay product, and at least 64 packets.
    pub fn queue(&self) -> Bytes {
        let least = MIN_QUEUE_PACKETS * u64::from(self.mtu);
        Bytes(self.rate.bytes_in(self.rtt).max(least))
    }
}

/// Why a packet does not come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The bottleneck's queue was full.
    QueueFull,
    /// Bad luck, at the chosen probability.
    Random,
    /// Longer than the path's MTU.
    TooLarge,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It comes out at this time.
    Deliver(Time),
    /// It does not.
    Drop(DropReason),
}

/// One direction of a path: a queue that drops at its tail, a bottleneck, random loss, and propagation delay,
/// in this order. It reads no clock: arrivals say what time it is.
#[derive(Debug, Clone)]
pub struct PathModel {
    one_way: Span,
    rate: Rate,
    queue: Bytes,
    loss: Probability,
    longest: u64,
    rng: Rng,
    /// When the bottleneck has sent all that it has taken.
    free_at: Time,
    last_arrival: Time,
}

impl PathModel {
    /// One direction of the path; `direction` (0 or 1) keeps the losses of the two independent.
    pub fn new(spec: &PathSpec, direction: u64) -> Self {
        Self {
            one_way: spec.rtt / 2,
            rate: spec.rate,
            queue: spec.queue(),
            loss: spec.loss,
            longest: u64::from(spec.mtu),
            rng: Rng::from_seed(spec.seed ^ direction.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            free_at: Time::ZERO,
            last_arrival: Time::ZERO,
        }
    }

    /// A datagram with `payload` bytes arrives. Arrivals that seem to go back in time count as simultaneous
    /// with the one before, and deliveries never overtake each other.
    pub fn offer(&mut self, arrival: Time, payload: usize) -> Fate {
        let now = arrival.max(self.last_arrival);
        self.last_arrival = now;
        let size = payload as u64 + HEADERS;
        if size > self.longest {
            return Fate::Drop(DropReason::TooLarge);
        }
        let backlog = self.rate.bytes_in(self.free_at.since(now));
        if backlog + size > self.queue.0 {
            return Fate::Drop(DropReason::QueueFull);
        }
        self.free_at = self.free_at.max(now) + self.rate.time_for(size);
        // A packet that is damaged on the way has used its time at the bottleneck.
        if self.rng.chance(self.loss.get()) {
            return Fate::Drop(DropReason::Random);
        }
        Fate::Deliver(self.free_at + self.one_way)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(rtt_ms: u64, mbps: u64, loss: f64) -> PathSpec {
        PathSpec {
            rtt: Span::from_millis(rtt_ms),
            rate: Rate::from_mbps(mbps),
            loss: Probability::new(loss).unwrap(),
            mtu: 1_500,
            seed: 1,
        }
    }

    fn at(micros: u64) -> Time {
        Time::ZERO + Span::from_micros(micros)
    }

    #[test]
    fn a_lone_packet_takes_its_serialisation_and_half_the_round_trip() {
        let mut model = PathModel::new(&spec(100, 12, 0.0), 0);
        // 1,500 bytes at 12 Mbit/s take 1 ms.
        assert_eq!(model.offer(at(500), 1_472), Fate::Deliver(at(51_500)));
        assert_eq!(model.offer(at(500), 1_472), Fate::Deliver(at(52_500)));
        assert_eq!(model.offer(at(900_000), 1_472), Fate::Deliver(at(951_000)));
    }

    #[test]
    fn the_queue_holds_one_bandwidth_delay_product_and_drops_the_rest() {
        let spec = spec(100, 120, 0.0);
        assert_eq!(spec.queue(), Bytes(1_500_000));
        let mut model = PathModel::new(&spec, 0);
        let fates: Vec<Fate> = (0..1_500).map(|_| model.offer(at(0), 1_472)).collect();
        assert!(fates[..1_000].iter().all(|fate| matches!(fate, Fate::Deliver(_))));
        assert!(fates[1_000..].iter().all(|fate| *fate == Fate::Drop(DropReason::QueueFull)));
        // After 1 ms of draining there is room for ten packets again.
        let again = (0..20).filter(|_| model.offer(at(1_000), 1_472) != Fate::Drop(DropReason::QueueFull));
        assert_eq!(again.count(), 10);
    }

    #[test]
    fn a_short_path_still_has_a_queue() {
        assert_eq!(spec(0, 1_000, 0.0).queue(), Bytes(96_000));
    }

    #[test]
    fn packets_beyond_the_mtu_do_not_pass() {
        let mut model = PathModel::new(&spec(10, 100, 0.0), 0);
        assert_eq!(model.offer(at(0), 1_473), Fate::Drop(DropReason::TooLarge));
        assert!(matches!(model.offer(at(0), 1_472), Fate::Deliver(_)));
    }

    #[test]
    fn random_losses_follow_the_seed_and_the_probability() {
        let losses = |seed, direction| {
            let spec = PathSpec { seed, ..spec(10, 1_000, 0.01) };
            let mut model = PathModel::new(&spec, direction);
            let lost = |i: &u64| model.offer(at(i * 100), 1_000) == Fate::Drop(DropReason::Random);
            (0..100_000).filter(lost).collect::<Vec<_>>()
        };
        let first = losses(1, 0);
        // 1,000 expected, deviation 31.5: five of them.
        assert!((843..1_157).contains(&first.len()), "{}", first.len());
        assert_eq!(first, losses(1, 0));
        assert_ne!(first, losses(2, 0));
        assert_ne!(first, losses(1, 1));
    }

    proptest! {
        #[test]
        fn deliveries_keep_their_order_and_the_rate_is_never_exceeded(
            packets in prop::collection::vec((0u64..3_000, 0usize..1_472), 1..300),
            mbps in 1u64..2_000,
            loss in 0.0f64..0.3,
        ) {
            let spec = spec(20, mbps, loss);
            let mut model = PathModel::new(&spec, 0);
            let (mut now, mut last, mut bytes) = (0, None, 0);
            for (step, payload) in packets {
                now += step;
                if let Fate::Deliver(due) = model.offer(at(now), payload) {
                    let least = at(now) + spec.rtt / 2 + spec.rate.time_for(payload as u64 + HEADERS);
                    prop_assert!(due >= least);
                    if let Some(last) = last {
                        prop_assert!(due > last);
                    }
                    // Nothing leaves later than a full queue takes to drain.
                    let most = spec.rate.time_for(spec.queue().0) + spec.rtt / 2 + Span::from_micros(1);
                    prop_assert!(due <= at(now) + most);
                    last = Some(due);
                    bytes += payload as u64 + HEADERS;
                }
            }
            if let Some(last) = last {
                let busy = last.since(at(0) + spec.rtt / 2);
                prop_assert!(spec.rate.bytes_in(busy) + 1 >= bytes);
            }
        }
    }
}
