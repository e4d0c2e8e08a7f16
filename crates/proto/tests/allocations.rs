//! After the start, neither machine allocates, neither per packet nor per segment. Both run in one thread
//! without a harness, so that every allocation counted is theirs.

use std::alloc::System;

use haul_base::{Ecn, Machine, PathId, Piece, Rate, Received, Span, Time};
use haul_proto::{
    Available, ControllerConfig, Link, ObjectSink, ObjectSource, Open, Receiver, ReceiverConfig, Seal,
    Sender, SenderConfig, Unauthentic, build_controller,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[derive(Debug)]
struct Plain;

impl Seal for Plain {
    fn tag_len(&self) -> usize {
        8
    }

    fn seal_batch(&mut self, _: &mut [u8], _: usize, _: usize, _: u64) {}
}

impl Open for Plain {
    fn open(&mut self, packet: &mut [u8], header_len: usize, _: u64) -> Result<usize, Unauthentic> {
        packet.len().checked_sub(header_len + 8).ok_or(Unauthentic)
    }
}

struct EndlessSource;

impl ObjectSource for EndlessSource {
    fn available(&mut self) -> Available {
        Available { upto: 1 << 40, end: false }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        into.fill(offset as u8);
    }

    fn release(&mut self, _: u64) {}
}

struct DiscardingSink;

impl ObjectSink for DiscardingSink {
    fn deliver(&mut self, _: &[u8], _: &[Piece]) {}

    fn limit(&mut self) -> u64 {
        1 << 40
    }

    fn complete(&mut self, _: u64) {}
}

struct Pair {
    now: Time,
    sender: Sender,
    receiver: Receiver,
    slot: Vec<u8>,
    batches: u64,
}

impl Pair {
    fn new() -> Self {
        let link = || Link::new(Box::new(Plain), Box::new(Plain), 0);
        let interval = Span::from_millis(2);
        let config = ControllerConfig {
            ceiling: Some(Rate::from_mbps(2_000)),
            initial_rtt: Span::from_millis(1),
            feedback_interval: interval,
        };
        let controller = build_controller("fixed", &config).expect("`fixed` with a rate");
        let receiver_config = ReceiverConfig {
            feedback_interval: interval,
            feedback_datagram: 1_200,
            silence: Span::from_secs(15),
        };
        let now = Time::ZERO;
        Self {
            now,
            sender: Sender::new(
                now,
                &SenderConfig::default(),
                link(),
                Box::new(EndlessSource),
                controller,
                1 << 40,
            ),
            receiver: Receiver::new(now, receiver_config, link(), Box::new(DiscardingSink)),
            slot: vec![0; 65_536],
            batches: 0,
        }
    }

    /// Runs both machines for `packets` data packets; every 50th batch is lost.
    fn run(&mut self, packets: u64) {
        let until = self.sender.stats().packets + packets;
        while self.sender.stats().packets < until {
            self.now += Span::from_micros(20);
            self.sender.on_deadline(self.now);
            self.receiver.on_deadline(self.now);
            while let Some(t) = self.sender.poll_transmit(self.now, &mut self.slot) {
                self.batches += 1;
                if !self.batches.is_multiple_of(50) {
                    let mut batch = received(&mut self.slot[..t.len], t.segment_size);
                    self.receiver.on_receive(self.now, &mut batch);
                }
            }
            while let Some(t) = self.receiver.poll_transmit(self.now, &mut self.slot) {
                let mut batch = received(&mut self.slot[..t.len], t.segment_size);
                self.sender.on_receive(self.now, &mut batch);
            }
            while self.sender.poll_event().is_some() {}
            while self.receiver.poll_event().is_some() {}
        }
    }
}

fn received(data: &mut [u8], stride: usize) -> Received<'_> {
    Received { data, stride, arrival: None, path: PathId::default(), ecn: Ecn::NotEct, socket_drops: None }
}

fn main() {
    let mut pair = Pair::new();
    // The start: pools fill, and the path MTU search runs.
    pair.run(100_000);
    let region = Region::new(ALLOCATOR);
    pair.run(500_000);
    let change = region.change();
    let stats = pair.sender.stats();
    assert!(stats.resent > 5_000, "losses were to be repaired: {stats:?}");
    assert_eq!(change.allocations + change.reallocations, 0, "{change:?} in 500,000 packets");
    println!("0 allocations in 500,000 packets, of which {} were repeated", stats.resent);
}
