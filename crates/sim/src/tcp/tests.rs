//! Flows over a bottleneck with a tail-drop queue, random loss and propagation delay.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use haul_base::{Ecn, Machine, PathId, Rate, Received, Rng, Span, Time};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
struct Net {
    rate: Rate,
    rtt: Span,
    /// Capacity of the bottleneck's queue, packets.
    queue: u64,
    loss: f64,
    reverse_loss: f64,
    seed: u64,
}

/// A datagram in transit: arrival time, number, whether it goes forward, bytes.
type InTransit = Reverse<(Time, u64, bool, Vec<u8>)>;

struct Bench {
    net: Net,
    sender: TcpSender,
    receiver: TcpReceiver,
    in_transit: BinaryHeap<InTransit>,
    launched: u64,
    free_at: Time,
    rng: Rng,
    now: Time,
    dropped: u64,
    complete: Option<Time>,
}

impl Bench {
    fn new(net: Net, config: TcpSenderConfig) -> Self {
        Self {
            net,
            sender: TcpSender::new(config),
            receiver: TcpReceiver::new(TcpReceiverConfig::default()),
            in_transit: BinaryHeap::new(),
            launched: 0,
            free_at: Time::ZERO,
            rng: Rng::from_seed(net.seed),
            now: Time::ZERO,
            dropped: 0,
            complete: None,
        }
    }

    fn launch(&mut self, at: Time, forward: bool, bytes: &[u8]) {
        // The payload need not be carried.
        let bytes = bytes[..bytes.len().min(64)].to_vec();
        self.in_transit.push(Reverse((at, self.launched, forward, bytes)));
        self.launched += 1;
    }

    fn drain(&mut self) {
        let mut slot = vec![0; 65_536];
        while let Some(transmit) = self.sender.poll_transmit(self.now, &mut slot) {
            for datagram in slot[..transmit.len].chunks(transmit.segment_size) {
                let wire = datagram.len() as u64 + u64::from(OVERHEAD);
                let backlog = self.net.rate.bytes_in(self.free_at.since(self.now));
                if backlog + wire > self.net.queue * wire || self.rng.chance(self.net.loss) {
                    self.dropped += 1;
                    continue;
                }
                self.free_at = self.free_at.max(self.now) + self.net.rate.time_for(wire);
                self.launch(self.free_at + self.net.rtt / 2, true, datagram);
            }
        }
        while let Some(transmit) = self.receiver.poll_transmit(self.now, &mut slot) {
            if !self.rng.chance(self.net.reverse_loss) {
                self.launch(self.now + self.net.rtt / 2, false, &slot[..transmit.len]);
            }
        }
        while let Some(TcpEvent::Complete { at }) = self.sender.poll_event() {
            assert!(self.complete.replace(at).is_none(), "completed twice");
        }
    }

    fn run(&mut self, until: Time) {
        self.drain();
        loop {
            let deadlines = [self.sender.deadline(), self.receiver.deadline()];
            let deadline = deadlines.into_iter().flatten().map(|deadline| deadline.at.max(self.now)).min();
            let arrival = self.in_transit.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = [deadline, arrival].into_iter().flatten().min().filter(|&at| at <= until) else {
                break;
            };
            self.now = next;
            if arrival == Some(next) {
                let Some(Reverse((_, _, forward, mut data))) = self.in_transit.pop() else { break };
                let (stride, path, ecn) = (data.len(), PathId::default(), Ecn::NotEct);
                let data = &mut data[..];
                let mut batch = Received { data, stride, arrival: None, path, ecn, socket_drops: None };
                if forward {
                    self.receiver.on_receive(next, &mut batch);
                } else {
                    self.sender.on_receive(next, &mut batch);
                }
            } else {
                self.sender.on_deadline(next);
                self.receiver.on_deadline(next);
            }
            self.drain();
        }
        self.now = until;
    }

    /// Returns the segments that arrive between two times, as a share of the bottleneck's capacity.
    fn share(&mut self, from: u64, to: u64) -> f64 {
        self.run(at(from));
        let before = self.receiver.segments();
        self.run(at(to));
        let bytes = (self.receiver.segments() - before) as f64 * 1_500.0;
        bytes * 8.0 / ((to - from) as f64 * self.net.rate.as_bps() as f64)
    }
}

fn at(secs: u64) -> Time {
    Time::ZERO + Span::from_secs(secs)
}

const KINDS: [fn() -> ControlKind; 3] = [
    || ControlKind::Reno,
    || ControlKind::Cubic(CubicConfig::default()),
    || ControlKind::Bbr(BbrConfig::default()),
];

fn clean(mbps: u64, rtt_ms: u64) -> Net {
    let (rate, rtt) = (Rate::from_mbps(mbps), Span::from_millis(rtt_ms));
    let queue = rate.bytes_in(rtt).div_ceil(1_500).max(10);
    Net { rate, rtt, queue, loss: 0.0, reverse_loss: 0.0, seed: 1 }
}

#[test]
fn every_law_fills_a_clean_bottleneck() {
    for kind in KINDS {
        for (mbps, rtt, from) in [(10, 20, 5), (100, 50, 20)] {
            let mut bench = Bench::new(clean(mbps, rtt), TcpSenderConfig::endless(kind()));
            let share = bench.share(from, from + 40);
            let stats = bench.sender.stats();
            println!("{} on {mbps} Mbit/s, {rtt} ms: {share:.4}", bench.sender.control_name());
            assert!((0.9..=1.001).contains(&share), "{:?} {mbps} Mbit/s: {share} {stats:?}", kind());
        }
    }
}

/// Returns the throughput in segments per second under random loss, limited by the window only.
fn under_loss(kind: ControlKind, p: f64, rtt: Span, secs: u64, seed: u64) -> f64 {
    let net = Net { rate: Rate::from_mbps(100_000), rtt, queue: 1 << 20, loss: p, reverse_loss: 0.0, seed };
    let mut bench = Bench::new(net, TcpSenderConfig::endless(kind));
    bench.run(at(secs / 10));
    let before = bench.receiver.segments();
    bench.run(at(secs + secs / 10));
    (bench.receiver.segments() - before) as f64 / secs as f64
}

#[test]
fn reno_follows_the_inverse_square_root_of_loss() {
    // Mathis et al. 1997: sqrt(3/2) / (rtt sqrt(p)).
    for (p, secs) in [(1e-4, 800), (1e-3, 300), (1e-2, 300)] {
        let rtt = Span::from_millis(50);
        let rate = under_loss(ControlKind::Reno, p, rtt, secs, 7);
        let theory = 1.5f64.sqrt() / (rtt.as_secs_f64() * p.sqrt());
        let ratio = rate / theory;
        println!("reno p {p}: {rate:.0} segments/s, theory {theory:.0}, ratio {ratio:.3}");
        assert!((0.75..=1.25).contains(&ratio), "p {p}: {rate} segments/s, theory {theory}");
    }
}

#[test]
fn cubic_follows_its_response_function() {
    // RFC 9438, equation 6: W = (C (3 + beta) / (4 (1 - beta)))^(1/4) (rtt / p)^(3/4), where above Reno's.
    let (rtt, p) = (Span::from_millis(100), 1e-4f64);
    let kind = ControlKind::Cubic(CubicConfig { hystart: None, ..CubicConfig::default() });
    let rate = under_loss(kind, p, rtt, 1_000, 3);
    let window = (0.4f64 * 3.7 / 1.2).powf(0.25) * (rtt.as_secs_f64() / p).powf(0.75);
    let theory = window / rtt.as_secs_f64();
    println!("cubic p {p}: {rate:.0} segments/s, theory {theory:.0}, ratio {:.3}", rate / theory);
    assert!((0.75..=1.25).contains(&(rate / theory)), "{rate} segments/s, theory {theory}");
}

#[test]
fn bbr_fills_the_bottleneck_at_a_loss_that_stops_others() {
    let mut shares = Vec::new();
    for kind in KINDS {
        let net = Net { loss: 1e-3, ..clean(100, 50) };
        let mut bench = Bench::new(net, TcpSenderConfig::endless(kind()));
        shares.push(bench.share(10, 70));
    }
    println!("share of 100 Mbit/s, 50 ms, 0.1 % loss: {shares:?}");
    assert!(shares[2] > 0.88, "{shares:?}");
    assert!(shares[0] < 0.2 && shares[1] < 0.25, "{shares:?}");
}

#[test]
fn bbr_keeps_the_queue_short_and_cubic_fills_it() {
    let rtt = |kind: ControlKind| {
        let mut bench = Bench::new(Net { queue: 2_000, ..clean(100, 50) }, TcpSenderConfig::endless(kind));
        bench.run(at(60));
        bench.sender.stats().srtt.unwrap()
    };
    let (cubic, bbr) = (rtt(KINDS[1]()), rtt(KINDS[2]()));
    assert!(bbr < Span::from_millis(75) && cubic > Span::from_millis(150), "{bbr} {cubic}");
}

#[test]
fn hystart_leaves_slow_start_before_the_queue_overflows() {
    let lost = |hystart| {
        let kind = ControlKind::Cubic(CubicConfig { hystart, ..CubicConfig::default() });
        let mut bench = Bench::new(clean(100, 50), TcpSenderConfig::endless(kind));
        // Later it finds the available capacity, growing by 5 % per round trip.
        bench.run(at(1));
        bench.dropped
    };
    let (with, without) = (lost(Some(HystartConfig::default())), lost(None));
    assert_eq!(with, 0);
    assert!(without > 200, "{without}");
}

#[test]
fn a_short_outage_costs_a_timeout_and_no_more() {
    for kind in KINDS {
        let mut bench = Bench::new(clean(10, 40), TcpSenderConfig::endless(kind()));
        bench.run(at(10));
        bench.net.loss = 1.0;
        bench.run(at(12));
        bench.net.loss = 0.0;
        let share = bench.share(20, 30);
        assert!(bench.sender.stats().timeouts >= 1);
        assert!(share > 0.9, "{:?}: {share}", kind());
    }
}

#[test]
fn the_delayed_acknowledgement_of_a_lone_segment_takes_40_ms() {
    let mut receiver = TcpReceiver::new(TcpReceiverConfig { quick: 0, ..TcpReceiverConfig::default() });
    let mut data = [0; HEADER];
    wire::write_data(&mut data, 0);
    let (path, ecn) = (PathId::default(), Ecn::NotEct);
    let mut batch =
        Received { data: &mut data, stride: HEADER, arrival: None, path, ecn, socket_drops: None };
    receiver.on_receive(at(1), &mut batch);
    let mut slot = [0; 100];
    assert_eq!(receiver.poll_transmit(at(1), &mut slot), None);
    let due = at(1) + Span::from_millis(40);
    assert_eq!(receiver.deadline().unwrap().at, due);
    receiver.on_deadline(due);
    assert!(receiver.poll_transmit(due, &mut slot).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Whatever the path loses, a finite flow completes in order, and the counters balance.
    #[test]
    fn a_finite_flow_arrives(
        kind in 0usize..3,
        segments in 1u64..3_000,
        mbps in 1u64..200,
        rtt_ms in 0u64..200,
        queue in 3u64..200,
        loss in 0.0f64..0.2,
        reverse_loss in 0.0f64..0.3,
        seed: u64,
    ) {
        let (rate, rtt) = (Rate::from_mbps(mbps), Span::from_millis(rtt_ms));
        let net = Net { rate, rtt, queue, loss, reverse_loss, seed };
        let config = TcpSenderConfig { segments: Some(segments), ..TcpSenderConfig::endless(KINDS[kind]()) };
        let mut bench = Bench::new(net, config);
        bench.run(at(20_000));
        let stats = bench.sender.stats();
        prop_assert!(bench.complete.is_some(), "{stats:?}");
        prop_assert_eq!(bench.receiver.in_order(), segments);
        prop_assert_eq!(stats.delivered, segments);
        prop_assert_eq!(stats.in_flight, 0);
        prop_assert_eq!(stats.sent, segments + stats.repeated);
        prop_assert_eq!(stats.sent, bench.receiver.segments() + bench.receiver.duplicates() + bench.dropped);
    }

    #[test]
    fn any_bytes_are_harmless(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..60), 1..40)) {
        let mut sender = TcpSender::new(TcpSenderConfig::endless(KINDS[1]()));
        let mut receiver = TcpReceiver::new(TcpReceiverConfig::default());
        let mut slot = vec![0; 65_536];
        for (n, mut chunk) in chunks.into_iter().enumerate() {
            let now = at(n as u64);
            chunk[0] %= 4;
            for _ in 0..2 {
                let stride = chunk.len();
                let (path, ecn) = (PathId::default(), Ecn::NotEct);
                let data = &mut chunk[..];
                let mut batch = Received { data, stride, arrival: None, path, ecn, socket_drops: None };
                sender.on_receive(now, &mut batch);
                receiver.on_receive(now, &mut batch);
            }
            while sender.poll_transmit(now, &mut slot).is_some() {}
            sender.on_deadline(now);
        }
    }
}
