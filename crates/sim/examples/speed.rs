//! Speed of the simulator: one bulk session over a path of three stages at 10 Gbit/s.
//! `cargo run --release -p haul-sim --example speed -- SECONDS RTT MODE`, for example `600 20ms plain`, where
//! SECONDS is simulated time. Modes: `plain` does not touch the payload, `payload` writes and reads every
//! byte of it, and `single` adds a stage that needs every packet singly.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it measures the simulator from outside"
)]

use std::fs;
use std::time::Instant;

use haul_base::{Bytes, Piece, Probability, Rate, Span, Time};
use haul_proto::{
    Available, ControllerConfig, Link, ObjectSink, ObjectSource, Open, Receiver, ReceiverConfig, Seal,
    Sender, SenderConfig, Unauthentic, build_controller,
};
use haul_sim::{
    BottleneckSpec, Distribution, JitterSpec, Limit, Order, PathSpec, QueueSpec, SessionNode, StageSpec,
    World,
};

/// All-zero tag: the run measures machines and simulator without a cipher.
#[derive(Debug)]
struct Plain;

const TAG: usize = 8;

impl Seal for Plain {
    fn tag_len(&self) -> usize {
        TAG
    }

    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, _: usize, _: u64) {
        for packet in batch.chunks_mut(stride) {
            let at = packet.len() - TAG;
            packet[at..].fill(0);
        }
    }
}

impl Open for Plain {
    fn open(&mut self, packet: &mut [u8], header_len: usize, _: u64) -> Result<usize, Unauthentic> {
        packet.len().checked_sub(header_len + TAG).ok_or(Unauthentic)
    }
}

/// What the run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Plain,
    Payload,
    Single,
}

/// An endless stream of bytes.
struct Endless {
    mode: Mode,
    sum: u64,
}

impl Endless {
    fn new(mode: Mode) -> Self {
        Self { mode, sum: 0 }
    }
}

impl ObjectSource for Endless {
    fn available(&mut self) -> Available {
        Available { upto: 1 << 47, end: false }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        if self.mode == Mode::Payload {
            into.fill(offset as u8);
        }
    }

    fn release(&mut self, _: u64) {}
}

impl ObjectSink for Endless {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        if self.mode == Mode::Payload {
            let bytes = pieces.iter().flat_map(|piece| &data[piece.range.clone()]);
            self.sum = self.sum.wrapping_add(bytes.map(|byte| u64::from(*byte)).sum());
        }
    }

    fn limit(&mut self) -> u64 {
        u64::MAX >> 16
    }

    fn complete(&mut self, _: u64) {}
}

fn link() -> Link {
    Link::new(Box::new(Plain), Box::new(Plain), 0)
}

fn world(
    seed: u64,
    rate: Rate,
    rtt: Span,
    loss: f64,
    mode: Mode,
) -> Result<World, Box<dyn std::error::Error>> {
    let mut world = World::new(seed);
    let queue = QueueSpec::TailDrop(Limit::Bytes(Bytes(rate.bytes_in(rtt))));
    let mut forward = PathSpec {
        stages: vec![
            StageSpec::Delay(rtt / 2),
            StageSpec::Bottleneck(BottleneckSpec { rate, queue }),
            StageSpec::Loss(Probability::new(loss).ok_or("loss must be a share")?),
        ],
    };
    if mode == Mode::Single {
        let delay = Distribution::Uniform(Span::from_micros(100));
        forward.stages.push(StageSpec::Jitter(JitterSpec { delay, order: Order::Keep }));
    }
    let back = PathSpec { stages: vec![StageSpec::Delay(rtt / 2)] };
    let interval = Span::from_millis(2);
    let ceiling = Some(rate.mul_f64(0.95));
    let config = ControllerConfig { ceiling, initial_rtt: rtt, feedback_interval: interval };
    let datagram = 1_472;
    let sender_config = SenderConfig {
        initial_rtt: rtt,
        feedback_interval: interval,
        datagram,
        likely_datagram: datagram,
        max_datagram: datagram,
        ..SenderConfig::default()
    };
    let receiver_config = ReceiverConfig {
        feedback_interval: interval,
        feedback_datagram: 1_200,
        silence: Span::from_secs(15),
    };
    let controller = build_controller("fixed", &config)?;
    let source = Box::new(Endless::new(mode));
    let sender = Sender::new(Time::ZERO, &sender_config, link(), source, controller, u64::MAX >> 16);
    let receiver = Receiver::new(Time::ZERO, receiver_config, link(), Box::new(Endless::new(mode)));
    let a = world.add_node("sender", SessionNode::new(sender));
    let received = |machine: &Receiver| Some(machine.stats().object_bytes);
    let b = world.add_node("receiver", SessionNode::new(receiver).with_progress(received));
    let forward_link = world.add_link("there", &forward)?;
    let back = world.add_link("back", &back)?;
    world.connect_pair("bulk", (a, b), &[forward_link], &[back])?;
    world.record_every(Span::from_millis(100));
    Ok(world)
}

/// Returns the peak memory of this process, MiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) / 1_024
}

/// Returns the CPU time of this process, seconds.
fn core_time() -> f64 {
    let status = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    status.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(20), |text| text.parse())?;
    let rtt = std::env::args().nth(2).map_or(Ok(Span::from_millis(20)), |text| text.parse())?;
    let mode = match std::env::args().nth(3).as_deref() {
        None | Some("plain") => Mode::Plain,
        Some("payload") => Mode::Payload,
        Some("single") => Mode::Single,
        Some(other) => return Err(format!("mode `{other}`: plain, payload or single").into()),
    };
    let (rate, seed) = (Rate::from_mbps(10_000), 1);
    println!("seed {seed}, {rate}, RTT {rtt}, loss 0.1 %, {seconds} simulated seconds, {mode:?}");
    let mut world = world(seed, rate, rtt, 0.001, mode)?;
    let (start, core) = (Instant::now(), core_time());
    world.run_until(Time::ZERO + Span::from_secs(seconds));
    let wall = start.elapsed().as_secs_f64();
    let summary = world.summary();
    let packets: u64 = summary.flows.iter().map(|flow| flow.truth.offered).sum();
    let goodput = summary.nodes[1].goodput_bps.map(Rate::from_bps).unwrap_or_default();
    let core = core_time() - core;
    println!(
        "{packets} packets in {wall:.2} s of wall time, {core:.2} s of core time: {:.2} million packets/s of wall time, {:.2} of core time",
        packets as f64 / wall / 1e6,
        packets as f64 / core / 1e6
    );
    println!(
        "goodput {goodput}, peak memory {} MiB, all packets accounted for: {}",
        peak_memory(),
        world.adds_up()
    );
    Ok(())
}
