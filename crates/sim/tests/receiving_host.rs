//! Hosts with a scheduler, and TCP flows, in the simulated world.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use haul_base::{Bytes, PathId, Probability, Rate, Span, Time};
use haul_sim::host::scheduler::{O1Config, SchedulerKind};
use haul_sim::host::{HostConfig, Load, NicConfig, ReceiverConfig, SimulatedHost, SocketConfig};
use haul_sim::tcp::{
    BbrConfig, ControlKind, CubicConfig, OVERHEAD, TcpReceiver, TcpReceiverConfig, TcpSender, TcpSenderConfig,
};
use haul_sim::{
    BottleneckSpec, DropReason, FlowId, Limit, LinkId, NodeId, PathSpec, QueueSpec, SessionNode, Sink,
    StageSpec, UDP_OVERHEAD, UdpSource, UdpSourceSpec, World,
};

fn at(secs: u64) -> Time {
    Time::ZERO + Span::from_secs(secs)
}

fn host(loads: Vec<Load>) -> SimulatedHost {
    let socket = SocketConfig { requested: Bytes(256 << 10), ..SocketConfig::default() };
    let template = ReceiverConfig { socket, per_packet: Span::from_micros(8), ..ReceiverConfig::default() };
    let scheduler = SchedulerKind::O1(O1Config::default());
    let (nic, receivers) = (NicConfig::default(), Vec::new());
    SimulatedHost::new(&HostConfig { scheduler, nic, receivers, loads, seed: 5 }, template)
}

fn path(mbps: u64, rtt_ms: u64, loss: f64) -> PathSpec {
    let (rate, delay) = (Rate::from_mbps(mbps), Span::from_millis(rtt_ms / 2));
    let queue = QueueSpec::TailDrop(Limit::Bytes(Bytes(rate.bytes_in(delay * 2).max(30_000))));
    let mut stages = vec![StageSpec::Bottleneck(BottleneckSpec { rate, queue }), StageSpec::Delay(delay)];
    if loss > 0.0 {
        stages.push(StageSpec::Loss(Probability::new(loss).unwrap()));
    }
    PathSpec { stages }
}

/// Sends packets to a receiver behind a host. Returns packets delivered, and packets dropped by the socket
/// buffer.
fn receive(mbps: u64, loads: Vec<Load>) -> (u64, u64) {
    let mut world = World::new(3);
    let link = world.add_link("link", &path(1_000, 2, 0.0)).unwrap();
    let sink = world.add_node("sink", Sink::new());
    let host = world.add_host(host(loads));
    world.place(sink, host).unwrap();
    let spec = UdpSourceSpec::constant(Rate::from_mbps(mbps));
    let source = world.add_node("source", UdpSource::new(spec, 1));
    let flow = world.connect("flow", (source, PathId(0)), (sink, PathId(0)), &[link]).unwrap();
    world.run_until(at(3));
    assert!(world.adds_up());
    let truth = world.truth(flow);
    assert_eq!(truth.drops.of(DropReason::QueueFull), 0);
    (truth.delivered, truth.drops.of(DropReason::SocketBuffer))
}

#[test]
fn only_a_busy_host_loses_in_its_socket_buffer() {
    let (delivered, lost) = receive(600, Vec::new());
    assert!(delivered > 149_000 && lost == 0, "{delivered} {lost}");
    let (delivered, lost) = receive(600, vec![Load::Memory { processes: 2, slowdown_permille: 1_200 }]);
    assert!(lost > 20_000 && delivered + lost > 148_000, "{delivered} {lost}");
}

type TcpNode = SessionNode<TcpSender>;

fn tcp(
    world: &mut World,
    name: &str,
    control: ControlKind,
    links: (LinkId, LinkId),
) -> (NodeId, NodeId, FlowId) {
    assert_eq!(OVERHEAD, UDP_OVERHEAD);
    let sender = SessionNode::new(TcpSender::new(TcpSenderConfig::endless(control)));
    let receiver = SessionNode::new(TcpReceiver::new(TcpReceiverConfig::default()));
    let (sender, receiver) = (world.add_node(name, sender), world.add_node(name, receiver));
    let (forward, _) = world.connect_pair(name, (sender, receiver), &[links.0], &[links.1]).unwrap();
    (sender, receiver, forward)
}

#[test]
fn tcp_flows_share_a_bottleneck() {
    let mut world = World::new(9);
    let links = (
        world.add_link("there", &path(100, 40, 0.0)).unwrap(),
        world.add_link("back", &path(100, 40, 0.0)).unwrap(),
    );
    let kinds = [ControlKind::Cubic(CubicConfig::default()), ControlKind::Cubic(CubicConfig::default())];
    let flows = kinds.map(|kind| tcp(&mut world, "cubic", kind, links));
    world.run_until(at(20));
    let before = flows.map(|(.., flow)| world.truth(flow).delivered_bytes);
    world.run_until(at(80));
    assert!(world.adds_up());
    let mbps: Vec<f64> = flows
        .iter()
        .zip(before)
        .map(|((.., flow), before)| (world.truth(*flow).delivered_bytes - before) as f64 * 8.0 / 60e6)
        .collect();
    println!("two CUBIC flows on 100 Mbit/s: {mbps:?}");
    assert!(mbps.iter().sum::<f64>() > 90.0);
    assert!(mbps.iter().all(|&rate| rate > 25.0), "{mbps:?}");
}

#[test]
fn bbr_holds_its_rate_under_random_loss() {
    let mut world = World::new(4);
    let links = (
        world.add_link("there", &path(100, 50, 1e-3)).unwrap(),
        world.add_link("back", &path(100, 50, 0.0)).unwrap(),
    );
    let (sender, _, flow) = tcp(&mut world, "bbr", ControlKind::Bbr(BbrConfig::default()), links);
    world.run_until(at(10));
    let before = world.truth(flow).delivered_bytes;
    world.run_until(at(40));
    let mbps = (world.truth(flow).delivered_bytes - before) as f64 * 8.0 / 30e6;
    let stats = world.node::<TcpNode>(sender).unwrap().machine().stats();
    assert!(mbps > 88.0, "{mbps} Mbit/s {stats:?}");
}

#[test]
fn a_flow_to_a_process_without_core_arrives_complete() {
    let mut world = World::new(6);
    let links = (
        world.add_link("there", &path(400, 20, 0.0)).unwrap(),
        world.add_link("back", &path(400, 20, 0.0)).unwrap(),
    );
    let segments = 200_000;
    let config = TcpSenderConfig {
        segments: Some(segments),
        ..TcpSenderConfig::endless(ControlKind::Cubic(CubicConfig::default()))
    };
    let sender = world.add_node("sender", SessionNode::new(TcpSender::new(config)));
    let receiver =
        world.add_node("receiver", SessionNode::new(TcpReceiver::new(TcpReceiverConfig::default())));
    let host = world.add_host(host(vec![Load::of_paper(), Load::system_calls(2)]));
    world.place(receiver, host).unwrap();
    let (forward, _) = world.connect_pair("flow", (sender, receiver), &[links.0], &[links.1]).unwrap();
    let done = |world: &World| !world.node::<TcpNode>(sender).unwrap().events().is_empty();
    world.run_while(at(600), |world| !done(world));
    assert!(done(&world) && world.adds_up());
    let machine = world.node::<SessionNode<TcpReceiver>>(receiver).unwrap().machine();
    assert_eq!(machine.in_order(), segments);
    assert!(world.truth(forward).drops.of(DropReason::SocketBuffer) > 0);
    println!("200,000 segments in {}", world.now().since(Time::ZERO));
}
