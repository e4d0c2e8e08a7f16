use std::cell::RefCell;

use haul_base::{Probability, Rate, Span};
use haul_sim::{BottleneckSpec, Limit, QueueSpec, StageSpec};
use proptest::prelude::*;

use super::*;
use crate::link::PathDirection;

/// Capacity of the bottleneck of [`path`].
fn queue(rtt_ms: u64, mbps: u64) -> Bytes {
    Bytes(Rate::from_mbps(mbps).bytes_in(Span::from_millis(rtt_ms)).max(96_000))
}

/// One direction, with half of this round-trip time.
pub(in crate::relay) fn path(rtt_ms: u64, mbps: u64, loss: f64) -> PathSpec {
    let queue = QueueSpec::TailDrop(Limit::Bytes(queue(rtt_ms, mbps)));
    let stages = vec![
        StageSpec::Mtu(1_500),
        StageSpec::Bottleneck(BottleneckSpec { rate: Rate::from_mbps(mbps), queue }),
        StageSpec::Loss(Probability::new(loss).unwrap()),
        StageSpec::Delay(Span::from_millis(rtt_ms) / 2),
    ];
    PathSpec { stages }
}

fn at(micros: u64) -> Time {
    Time::ZERO + Span::from_micros(micros)
}

/// A direction and the packets that have left it.
struct Bench {
    direction: Direction,
    delivered: Vec<Vec<u8>>,
}

impl Bench {
    fn new(spec: &PathSpec) -> Self {
        let direction = Direction::new(spec, 1).unwrap();
        Self { direction, delivered: Vec::new() }
    }

    /// Offers packets of these sizes at the same time.
    fn offer(&mut self, micros: u64, sizes: &[usize]) {
        let packets: Vec<Vec<u8>> = sizes.iter().map(|size| vec![*size as u8; *size]).collect();
        let packets = packets.iter().map(Vec::as_slice);
        self.direction.offer(packets, at(micros), (3, Ecn::NotEct));
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.direction.counts.drops.of(reason)
    }

    /// Returns the number of packets that have left by then.
    fn delivered_by(&mut self, micros: u64) -> usize {
        self.direction.advance(at(micros));
        let delivered = RefCell::new(&mut self.delivered);
        assert!(self.direction.deliver(|batch, bytes| {
            delivered.borrow_mut().extend(bytes.chunks(batch.segment.max(1)).map(<[u8]>::to_vec));
            Ok(batch.packets)
        }));
        self.delivered.len()
    }
}

#[test]
fn a_lone_packet_takes_its_serialisation_and_half_the_round_trip() {
    let mut bench = Bench::new(&path(100, 12, 0.0));
    // 1,500 bytes at 12 Mbit/s take 1 ms.
    bench.offer(500, &[1_472, 1_472]);
    assert_eq!(bench.delivered_by(51_499), 0);
    assert_eq!(bench.delivered_by(51_500), 1);
    assert_eq!(bench.delivered_by(52_499), 1);
    assert_eq!(bench.delivered_by(52_500), 2);
    bench.offer(900_000, &[1_472]);
    assert_eq!((bench.delivered_by(950_999), bench.delivered_by(951_000)), (2, 3));
    assert_eq!(bench.direction.next_event(), None);
}

#[test]
fn the_queue_holds_one_bandwidth_delay_product_and_drops_the_rest() {
    let mut bench = Bench::new(&path(100, 120, 0.0));
    for _ in 0..30 {
        bench.offer(0, &[1_472; 50]);
    }
    assert_eq!(bench.dropped(DropReason::QueueFull), 500);
    // After 1 ms of draining, ten more packets fit.
    bench.offer(1_000, &[1_472; 20]);
    assert_eq!(bench.dropped(DropReason::QueueFull), 510);
    assert_eq!(bench.delivered_by(1_000_000), 1_010);
}

#[test]
fn packets_dropped_by_a_full_queue_use_no_memory() {
    let mut bench = Bench::new(&path(10, 10, 0.0));
    // Ten times the memory, in the time of one packet.
    for _ in 0..10_000 {
        bench.offer(0, &[1_472; 4]);
    }
    let lost = [DropReason::Carrier, DropReason::QueueFull].map(|reason| bench.dropped(reason));
    assert_eq!(lost, [0, 40_000 - 64]);
}

#[test]
fn packets_beyond_the_mtu_do_not_pass() {
    let mut bench = Bench::new(&path(10, 100, 0.0));
    bench.offer(0, &[1_473, 1_472]);
    assert_eq!(bench.delivered_by(100_000), 1);
    assert_eq!(bench.dropped(DropReason::TooLarge), 1);
}

#[test]
fn random_losses_follow_the_seed_and_the_direction() {
    let delivered_packets = |seed, way| {
        let spec = path(10, 1_000, 0.01);
        let direction = Direction::new(&spec, PathDirection::seed(way, seed)).unwrap();
        let mut bench = Bench { direction, delivered: Vec::new() };
        let mut lost = Vec::new();
        for i in 0..20_000u64 {
            bench.offer(i * 100, &[1_000]);
            bench.delivered_by(i * 100);
            lost.push(bench.dropped(DropReason::Random));
        }
        lost
    };
    let first = delivered_packets(1, PathDirection::Forth);
    // 200 expected, standard deviation 14.1; tolerance 5 standard deviations.
    assert!((130..270).contains(&first[19_999]), "{}", first[19_999]);
    assert_eq!(first, delivered_packets(1, PathDirection::Forth));
    assert_ne!(first, delivered_packets(2, PathDirection::Forth));
    assert_ne!(first, delivered_packets(1, PathDirection::Back));
}

#[test]
fn a_full_socket_delays_and_a_closed_one_loses() {
    let mut bench = Bench::new(&path(0, 1_000, 0.0));
    bench.offer(0, &[1_000; 5]);
    bench.direction.advance(at(1_000));
    let full = |_: &Batch, _: &[u8]| Err(SendError::WouldBlock(haul_udp::FullQueue::SocketBuffer));
    assert!(!bench.direction.deliver(full));
    // One call may accept only a part.
    assert!(bench.direction.deliver(|_, _| Ok(1)));
    let counts = bench.direction.counts;
    assert_eq!((counts.received.packets, counts.received.bytes, counts.drops.total()), (5, 5_000, 0));
    bench.offer(2_000, &[1_000; 5]);
    bench.direction.advance(at(3_000));
    assert!(bench.direction.deliver(|_, _| Err(SendError::Refused)));
    assert_eq!(bench.dropped(DropReason::Carrier), 5);
}

#[test]
fn only_equal_consecutive_datagrams_of_one_client_are_batched() {
    let mut bench = Bench::new(&path(0, 1_000, 0.0));
    for (len, flow) in [(100, 1), (100, 1), (40, 1), (100, 1), (100, 2), (120, 2), (0, 2), (0, 2)] {
        bench.direction.offer([&vec![1; len][..]].into_iter(), at(0), (flow, Ecn::NotEct));
    }
    bench.direction.advance(at(1_000));
    let seen = RefCell::new(Vec::new());
    assert!(bench.direction.deliver(|batch, bytes| {
        seen.borrow_mut().push((batch.packets, batch.segment, bytes.len(), batch.flow));
        Ok(batch.packets)
    }));
    let expected = [(3, 100, 240, 1), (1, 100, 100, 1), (1, 100, 100, 2), (1, 120, 120, 2)];
    assert_eq!(seen.borrow()[..4], expected);
    assert_eq!(seen.borrow()[4..], [(1, 0, 0, 2), (1, 0, 0, 2)]);
}

#[test]
fn packets_beyond_the_memory_are_counted_and_later_ones_pass() {
    // Nothing leaves the relay while its socket is full.
    let mut bench = Bench::new(&path(0, 100_000, 0.0));
    for i in 0..400 {
        bench.offer(i * 1_000, &[1_000; 16]);
        bench.direction.advance(at(i * 1_000 + 999));
    }
    let lost = bench.dropped(DropReason::Carrier);
    assert!((1_000..6_400).contains(&lost), "{lost}");
    let delivered = bench.delivered_by(1_000_000) as u64;
    assert_eq!(delivered + lost, 6_400);
    bench.offer(2_000_000, &[1_000; 16]);
    assert_eq!(
        (bench.delivered_by(3_000_000) as u64, bench.dropped(DropReason::Carrier)),
        (delivered + 16, lost)
    );
}

proptest! {
    #[test]
    fn every_packet_is_delivered_in_order_or_counted_and_the_rate_is_never_exceeded(
        steps in prop::collection::vec((0u64..3_000, 1usize..1_600, 1usize..80), 1..100),
        mbps in 1u64..2_000,
        loss in 0.0f64..0.3,
    ) {
        let mut bench = Bench::new(&path(20, mbps, loss));
        let (rate, rtt) = (Rate::from_mbps(mbps), Span::from_millis(20));
        let (mut now, mut offered) = (0, 0);
        for (step, size, count) in steps {
            now += step;
            bench.offer(now, &vec![size; count]);
            offered += count as u64;
            let before = bench.delivered.len();
            let delivered = bench.delivered_by(now);
            let bytes: u64 = bench.delivered.iter().map(|packet| packet.len() as u64 + 28).sum();
            let busy = at(now).since(Time::ZERO + rtt / 2);
            prop_assert!(delivered >= before && rate.bytes_in(busy) + 1 >= bytes);
        }
        // No packet stays longer than a full queue takes to drain.
        let most = rate.time_for(queue(20, mbps).0) + rtt;
        bench.delivered_by(now + most.as_nanos() / 1_000 + 1);
        let counts = bench.direction.counts;
        prop_assert_eq!(counts.sent.packets, offered);
        prop_assert_eq!(counts.received.packets + counts.drops.total(), offered);
        prop_assert_eq!(counts.received.packets, bench.delivered.len() as u64);
        prop_assert!(bench.delivered.iter().all(|packet| packet.iter().all(|byte| *byte == packet.len() as u8)));
        prop_assert_eq!(counts.drops.of(DropReason::Carrier), 0);
    }
}
