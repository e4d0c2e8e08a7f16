//! TCP flows in the world, compared with Linux on the emulator over the same paths (`haul-lab compare`,
//! docs/simulator.md).

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use haul_base::{Bytes, PathId, Rate, Span, Time};
use haul_sim::tcp::{
    BbrConfig, ControlKind, CubicConfig, MSS, TcpReceiver, TcpReceiverConfig, TcpSender, TcpSenderConfig,
};
use haul_sim::{
    BottleneckSpec, Limit, LinkId, NodeId, PathSpec, QueueSpec, SessionNode, StageSpec, UdpSource,
    UdpSourceSpec, World,
};

const PORT: PathId = PathId(0);

/// A world with a bottleneck whose queue holds `queue` percent of the bandwidth-delay product.
fn world(seed: u64, rate: Rate, rtt: Span, queue: u64) -> (World, LinkId, LinkId) {
    println!("seed {seed}");
    let mut world = World::new(seed);
    let limit = Limit::Bytes(Bytes(rate.bytes_in(rtt) * queue / 100));
    let bottleneck = StageSpec::Bottleneck(BottleneckSpec { rate, queue: QueueSpec::TailDrop(limit) });
    let delay = StageSpec::Delay(rtt / 2);
    let forward = world.add_link("there", &PathSpec { stages: vec![bottleneck, delay.clone()] }).unwrap();
    let back = world.add_link("back", &PathSpec { stages: vec![delay] }).unwrap();
    (world, forward, back)
}

fn add(world: &mut World, control: ControlKind, forward: LinkId, back: LinkId) -> NodeId {
    let sender = TcpSender::new(TcpSenderConfig::endless(control));
    let sender = world.add_node("sender", SessionNode::new(sender));
    let receiver = TcpReceiver::new(TcpReceiverConfig::default());
    let receiver = world.add_node("receiver", SessionNode::new(receiver));
    world.connect("data", (sender, PORT), (receiver, PORT), &[forward]).unwrap();
    world.connect("acks", (receiver, PORT), (sender, PORT), &[back]).unwrap();
    sender
}

fn delivered(world: &World, sender: NodeId) -> u64 {
    world.node::<SessionNode<TcpSender>>(sender).unwrap().machine().stats().delivered * u64::from(MSS)
}

fn cubic() -> ControlKind {
    ControlKind::Cubic(CubicConfig::default())
}

fn bbr() -> ControlKind {
    ControlKind::Bbr(BbrConfig::default())
}

/// Returns the payload of one flow in its first 20 s, Mbit/s.
fn goodput(control: ControlKind, mbps: u64, rtt_ms: u64, queue: u64) -> f64 {
    let (mut world, forward, back) = world(1, Rate::from_mbps(mbps), Span::from_millis(rtt_ms), queue);
    let sender = add(&mut world, control, forward, back);
    world.run_until(Time::ZERO + Span::from_secs(20));
    Rate::from_transfer(delivered(&world, sender), Span::from_secs(20)).as_bps() as f64 / 1e6
}

#[test]
fn single_flows_get_what_linux_gets() {
    // Law, Mbit/s, round-trip time in ms, queue in percent of the product, and the result of Linux 6.18 in
    // Mbit/s.
    let measured = [
        (ControlKind::Reno, 100, 10, 100, 95.6),
        (ControlKind::Reno, 50, 50, 25, 41.5),
        (ControlKind::Reno, 100, 100, 25, 69.1),
        (cubic(), 100, 100, 25, 91.9),
        (cubic(), 100, 100, 100, 93.4),
        (bbr(), 100, 10, 100, 95.3),
        (bbr(), 100, 100, 25, 90.3),
    ];
    for (control, mbps, rtt, queue, linux) in measured {
        let got = goodput(control, mbps, rtt, queue);
        println!("{control:?}, {mbps} Mbit/s, {rtt} ms, queue {queue} %: {got:.1}, Linux {linux}");
        assert!((got / linux - 1.0).abs() < 0.05, "{got} {linux}");
    }
}

/// Returns the rate of each of two flows from the 20th to the 60th second, Mbit/s. A few random packets
/// prevent the flows from alternating for ever.
fn shares(controls: [ControlKind; 2], rtt_ms: u64, seed: u64) -> [f64; 2] {
    let (mut world, forward, back) = world(seed, Rate::from_mbps(50), Span::from_millis(rtt_ms), 100);
    let flows = controls.map(|control| add(&mut world, control, forward, back));
    let pattern = haul_sim::Pattern::Poisson;
    let spec = UdpSourceSpec { pattern, ..UdpSourceSpec::constant(Rate::from_bps(200_000)) };
    let noise_seed = world.seed_for(99);
    let noise = world.add_node("noise", UdpSource::new(spec, noise_seed));
    let end = world.add_node("noise end", haul_sim::Sink::new());
    world.connect("noise", (noise, PORT), (end, PORT), &[forward]).unwrap();
    world.run_until(Time::ZERO + Span::from_secs(20));
    let before = flows.map(|flow| delivered(&world, flow));
    world.run_until(Time::ZERO + Span::from_secs(60));
    let after = flows.map(|flow| delivered(&world, flow));
    [0, 1].map(|i| Rate::from_transfer(after[i] - before[i], Span::from_secs(40)).as_bps() as f64 / 1e6)
}

#[test]
fn equal_flows_share_and_bbr_beats_cubic_as_on_linux() {
    for rtt in [20, 100] {
        for control in [cubic(), bbr()] {
            let mut part = 0.0;
            for seed in 1..=4 {
                let [one, two] = shares([control, control], rtt, seed);
                println!("{control:?} twice, {rtt} ms: {one:.1} and {two:.1}");
                assert!(one + two > 45.0, "{one} {two}");
                part += one / (one + two) / 4.0;
            }
            assert!((0.35..=0.65).contains(&part), "{part}");
        }
        // Linux: 5.4 and 42.1 at 20 ms, 6.9 and 40.2 at 100 ms.
        let [cubic, bbr] = shares([cubic(), bbr()], rtt, 1);
        println!("CUBIC and BBR, {rtt} ms: {cubic:.1} and {bbr:.1}");
        assert!((3.5..=8.5).contains(&cubic) && bbr > 37.0, "{cubic} {bbr}");
    }
}
