//! Queues that are short or never empty, and lossy media beside a queue or after jitter.

use haul_base::{Bytes, Cause, PathId, Rate, Span, Time};
use haul_sim::tcp::{
    BbrConfig, ControlKind, CubicConfig, TcpReceiver, TcpReceiverConfig, TcpSender, TcpSenderConfig,
};
use haul_sim::{
    AboveMaximum, BottleneckSpec, CodelSpec, Distribution, DropReason, FlowId, JitterSpec, Limit, LinkId,
    Order, PathSpec, QueueSpec, RedSpec, SessionNode, Signal, StageSpec, World,
};

use super::{recipe, share};
use crate::common::Session;

const PORT: PathId = PathId(0);
const RTT: Span = Span::from_millis(10);
/// The cross traffic starts this long before the transfer.
const BEFORE: Span = Span::from_secs(4);
/// Default rate of the transfer.
const RATE: &str = "400Mbit";
const QUEUE: [DropReason; 3] = [DropReason::QueueFull, DropReason::Red, DropReason::Codel];

/// A transfer of 16 s over 500 Mbit/s, beside cross traffic.
struct Competition<'a> {
    rate: &'a str,
    queue: QueueSpec,
    flows: &'a [ControlKind],
    /// Loss and jitter of the medium.
    loss: f64,
    jitter: Span,
}

fn tail_drop(millis: u64) -> QueueSpec {
    QueueSpec::TailDrop(Limit::Time(Span::from_millis(millis)))
}

fn red() -> QueueSpec {
    QueueSpec::Red(RedSpec {
        min: Bytes(160_000),
        max: Bytes(480_000),
        probability: share(0.1),
        weight: 0.002,
        limit: Limit::Time(Span::from_millis(20)),
        above_max: AboveMaximum::default(),
        signal: Signal::Drop,
    })
}

fn codel() -> QueueSpec {
    QueueSpec::Codel(CodelSpec {
        target: Span::from_millis(5),
        interval: Span::from_millis(100),
        limit: Limit::Time(Span::from_millis(20)),
        signal: Signal::Drop,
    })
}

fn cubic() -> ControlKind {
    ControlKind::Cubic(CubicConfig::default())
}

impl Competition<'_> {
    fn path(&self) -> PathSpec {
        let rate = Rate::from_mbps(500);
        let delay = Distribution::Uniform(self.jitter);
        let mut stages =
            vec![StageSpec::Mtu(1_500), StageSpec::Bottleneck(BottleneckSpec { rate, queue: self.queue })];
        if self.loss > 0.0 {
            stages.push(StageSpec::Loss(share(self.loss)));
        }
        if self.jitter > Span::ZERO {
            stages.push(StageSpec::Jitter(JitterSpec { delay, order: Order::Keep }));
        }
        stages.push(StageSpec::Delay(RTT / 2));
        PathSpec { stages }
    }

    fn add_flow(world: &mut World, control: ControlKind, forward: LinkId, back: LinkId) {
        let sender =
            world.add_node("other", SessionNode::new(TcpSender::new(TcpSenderConfig::endless(control))));
        let receiver = TcpReceiver::new(TcpReceiverConfig::default());
        let receiver = world.add_node("other's end", SessionNode::new(receiver));
        world.connect_pair("others", (sender, receiver), &[forward], &[back]).unwrap();
    }

    /// Returns true and diagnosed losses, for the queue and for the medium.
    fn run(&self) -> [(u64, u64); 2] {
        let mut world = World::new(3);
        let forward = world.add_link("there", &self.path()).unwrap();
        let back = world.add_link("back", &PathSpec { stages: vec![StageSpec::Delay(RTT / 2)] }).unwrap();
        for control in self.flows {
            Self::add_flow(&mut world, *control, forward, back);
        }
        world.run_until(Time::ZERO + BEFORE);
        let mut recipe = recipe("fobs", &[("rate", self.rate), ("max_batch", "4"), ("unit_window", "53MB")]);
        haul_proto::micro::registry().set(&mut recipe, "object.chunk", "100MB").unwrap();
        let session = Session::of_recipe(&mut world, &recipe, 1 << 40, RTT);
        let (from, to) = ((session.sender, PORT), (session.receiver, PORT));
        let data: FlowId = world.connect("data", from, to, &[forward]).unwrap();
        world.connect("feedback", to, from, &[back]).unwrap();
        world.run_until(Time::ZERO + BEFORE + Span::from_secs(16));
        let truth = world.truth(data).drops;
        let diagnosed = session.sender(&world).stats().lost_by_cause;
        let by_queue = QUEUE.iter().map(|reason| truth.of(*reason)).sum();
        let by_medium = truth.of(DropReason::Random);
        [(by_queue, diagnosed.of(Cause::Congestion)), (by_medium, diagnosed.of(Cause::Random))]
    }
}

fn f1((truth, diagnosed): (u64, u64)) -> f64 {
    2.0 * truth.min(diagnosed) as f64 / (truth + diagnosed).max(1) as f64
}

/// The path always has a queue, or drops far below its maximum length.
#[test]
fn queues_that_never_empty_or_drop_early_are_recognised() {
    let reno = ControlKind::Reno;
    for (name, queue, flows) in [
        ("six Reno flows", tail_drop(20), &[reno; 6][..]),
        ("CUBIC", tail_drop(20), &[cubic()]),
        ("two CUBIC flows and a deep queue", tail_drop(50), &[cubic(); 2]),
        ("RED", red(), &[cubic(), reno]),
        ("CoDel", codel(), &[cubic(), reno]),
    ] {
        let [queue, medium] = Competition { rate: RATE, queue, flows, loss: 0.0, jitter: Span::ZERO }.run();
        println!("{name}: queue (true, told) {queue:?}, medium {medium:?}");
        assert!(queue.0 > 200 && f1(queue) >= 0.985, "{name}: {queue:?}, {medium:?}");
    }
}

/// `CoDel` cannot slow down a sender that ignores losses: its queue stays constant, neither full nor short.
#[test]
fn a_permanently_overloaded_codel_is_a_queue() {
    for rate in ["493Mbit", "496Mbit"] {
        let transfer = Competition { rate, queue: codel(), flows: &[], loss: 0.0, jitter: Span::ZERO };
        let [queue, medium] = transfer.run();
        println!("{rate}: queue (true, told) {queue:?}, medium {medium:?}");
        assert!(queue.0 > 200 && f1(queue) >= 0.99, "{rate}: {queue:?}, {medium:?}");
    }
}

/// The delay varies independently of losses.
#[test]
fn medium_losses_beside_jitter_or_a_queue_are_not_congestion() {
    let bbr = ControlKind::Bbr(BbrConfig::default());
    for (name, flows, millis) in [
        ("jitter of 1 ms", &[][..], 1),
        ("jitter of 20 ms", &[], 20),
        ("the queue of two BBR flows", &[bbr; 2], 0),
    ] {
        let jitter = Span::from_millis(millis);
        let [queue, medium] =
            Competition { rate: RATE, queue: tail_drop(200), flows, loss: 0.002, jitter }.run();
        println!("{name}: queue (true, told) {queue:?}, medium {medium:?}");
        assert!(queue.0 == 0 && medium.0 > 800 && f1(medium) >= 0.95, "{name}: {queue:?}, {medium:?}");
    }
}

/// Two BBR flows fill a queue repeatedly, and 0.2 % of the packets are damaged.
#[test]
fn a_medium_and_a_queue_get_their_shares() {
    let flows = [ControlKind::Bbr(BbrConfig::default()); 2];
    let [queue, medium] =
        Competition { rate: RATE, queue: tail_drop(20), flows: &flows, loss: 0.002, jitter: Span::ZERO }
            .run();
    let share = |of: fn((u64, u64)) -> u64| of(queue) as f64 / (of(queue) + of(medium)) as f64;
    let (truth, diagnosed) = (share(|(truth, _)| truth), share(|(_, diagnosed)| diagnosed));
    println!("queue (true, told) {queue:?}, medium {medium:?}: {truth:.3}, {diagnosed:.3}");
    assert!(queue.0 > 100 && medium.0 > 100 && (truth - diagnosed).abs() <= 0.1, "{queue:?}, {medium:?}");
}
