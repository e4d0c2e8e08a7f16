//! Candidates for the default law on changing paths, in the whole transport: share of each phase's capacity
//! used after 3 s or ten round trips. `cargo test -p haul-sim --test transfer moving -- --nocapture` prints
//! the table.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use haul_base::{PathId, Rate, Rng, Span, Time};
use haul_sim::tcp::{
    ControlKind, CubicConfig, MSS, TcpReceiver, TcpReceiverConfig, TcpSender, TcpSenderConfig,
};
use haul_sim::{LinkId, Outage, SessionNode, StageChange, StageRef, World};

use crate::common::{Channel, Run};

/// Minimum share of each phase's capacity.
const GOOD: f64 = 0.85;

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

/// Converts a rate of whole packets to object bytes: 1,433 of 1,500.
fn object(mbps: f64) -> f64 {
    mbps * 1_433.0 / 1_500.0
}

/// A phase of a scenario: changes of both links at its start, and the path's capacity afterwards.
struct Phase {
    name: &'static str,
    duration: Span,
    offered: f64,
    changes: Vec<(&'static str, StageChange)>,
}

fn phase(name: &'static str, seconds: u64, offered: f64) -> Phase {
    Phase { name, duration: Span::from_secs(seconds), offered, changes: Vec::new() }
}

impl Phase {
    fn with(mut self, stage: &'static str, change: StageChange) -> Self {
        self.changes.push((stage, change));
        self
    }

    /// Sets the delay to half of this round-trip time in each direction.
    fn with_rtt(self, rtt: u64) -> Self {
        self.with("delay", StageChange::Delay(ms(rtt) / 2))
    }
}

struct Scenario {
    name: &'static str,
    path: Channel,
    rtt: Span,
    phases: Vec<Phase>,
}

fn path(mbps: f64, rtt: u64, queue: u64) -> Channel {
    let rate = Rate::from_bps((mbps * 1e6) as u64);
    Channel { queue: ms(queue), ..Channel::clean(ms(rtt) / 2, rate) }
}

fn steady(name: &'static str, path: Channel, seconds: u64, offered: f64) -> Scenario {
    let rtt = path.delay * 2;
    Scenario { name, path, rtt, phases: vec![phase("steady", seconds, offered)] }
}

/// An outage of this many seconds, starting one second into the second phase.
fn outage(name: &'static str, seconds: u64) -> Scenario {
    let outage = Outage { at: ms(10_000), length: Span::from_secs(seconds), every: None };
    let path = Channel { outages: vec![outage], ..path(100.0, 40, 50) };
    let phases = vec![phase("before", 9, 100.0), phase("outage", seconds + 1, 0.0), phase("after", 8, 100.0)];
    Scenario { name, path, rtt: ms(40), phases }
}

fn scenarios() -> Vec<Scenario> {
    let rates = |mbps| StageChange::Rate(Rate::from_mbps(mbps));
    vec![
        Scenario {
            name: "RTT 10 -> 60 ms, 500 Mbit/s",
            path: path(500.0, 10, 40),
            rtt: ms(10),
            phases: vec![phase("10 ms", 8, 500.0), phase("60 ms", 8, 500.0).with_rtt(60)],
        },
        Scenario {
            name: "RTT 80 -> 20 -> 80 ms, 100 Mbit/s",
            path: path(100.0, 80, 80),
            rtt: ms(80),
            phases: vec![
                phase("80 ms", 8, 100.0),
                phase("20 ms", 8, 100.0).with_rtt(20),
                phase("80 ms", 8, 100.0).with_rtt(80),
            ],
        },
        Scenario {
            name: "capacity 20 -> 200 -> 20 Mbit/s, 40 ms",
            path: path(20.0, 40, 50),
            rtt: ms(40),
            phases: vec![
                phase("20", 8, 20.0),
                phase("200", 8, 200.0).with("bottleneck", rates(200)),
                phase("20", 8, 20.0).with("bottleneck", rates(20)),
            ],
        },
        outage("outage of 2 s, 100 Mbit/s, 40 ms", 2),
        outage("outage of 8 s, 100 Mbit/s, 40 ms", 8),
        steady("1 % loss, 100 Mbit/s, 40 ms", Channel { loss: 0.01, ..path(100.0, 40, 50) }, 13, 99.0),
        steady("8 % loss, 100 Mbit/s, 40 ms", Channel { loss: 0.08, ..path(100.0, 40, 50) }, 13, 92.0),
        steady("15 % loss, 100 Mbit/s, 40 ms", Channel { loss: 0.15, ..path(100.0, 40, 50) }, 13, 85.0),
        steady("satellite 20 Mbit/s, 600 ms", path(20.0, 600, 300), 30, 20.0),
        steady(
            "satellite 200 Mbit/s, 600 ms, 0.1 % loss",
            Channel { loss: 0.001, ..path(200.0, 600, 300) },
            30,
            199.8,
        ),
        steady("56 kbit/s, 100 ms", path(0.056, 100, 1_700), 60, 0.056),
        steady("queue of 5 ms, 100 Mbit/s, 40 ms", path(100.0, 40, 5), 13, 100.0),
        steady("queue of 400 ms, 100 Mbit/s, 40 ms", path(100.0, 40, 400), 13, 100.0),
        steady(
            "reordering of 5 %, 100 Mbit/s, 40 ms",
            Channel { reorder: 0.05, ..path(100.0, 40, 50) },
            13,
            100.0,
        ),
        steady("1 Gbit/s, 20 ms", path(1_000.0, 20, 20), 6, 1_000.0),
    ]
}

/// Returns the share of each phase's capacity that a law uses; `None` for phases without capacity.
fn shares(law: &str, scenario: &Scenario) -> Vec<Option<f64>> {
    let len = 4 << 30;
    let mut run = Run::new(11, len, law, None, &scenario.path, &scenario.path);
    let mut now = Span::ZERO;
    let mut rtt = scenario.rtt;
    let phases = scenario.phases.iter().map(|phase| {
        for (stage, change) in &phase.changes {
            if let StageChange::Delay(delay) = change {
                rtt = *delay * 2;
            }
            for link in [run.forward, run.back] {
                run.world.change_link(link, &StageRef::Name((*stage).into()), change).unwrap();
            }
        }
        let settled = now + ms(3_000).max(rtt * 10);
        now = now + phase.duration;
        let mut received = |until| {
            run.run(until);
            run.session.receiver(&run.world).stats().object_bytes
        };
        let before = received(settled.min(now));
        let mbps =
            (received(now) - before) as f64 * 8.0 / now.saturating_sub(settled).as_secs_f64().max(1e-9) / 1e6;
        (phase.offered > 0.0).then(|| mbps / object(phase.offered))
    });
    phases.collect()
}

#[test]
fn bbr_uses_the_capacity_of_each_phase_of_a_path() {
    let mut missed = Vec::new();
    for scenario in scenarios() {
        for law in ["delivery", "bbr"] {
            let shares = shares(law, &scenario);
            let figures: Vec<String> = std::iter::zip(&scenario.phases, &shares)
                .filter_map(|(phase, share)| {
                    share.map(|share| format!("{} {:5.1} %", phase.name, share * 100.0))
                })
                .collect();
            println!("TABLE {:<42} {law:<9} {}", scenario.name, figures.join(" | "));
            if law == "bbr" && shares.iter().flatten().any(|&share| share < GOOD) {
                missed.push(format!("{}: {}", scenario.name, figures.join(" | ")));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn varying_delays_do_not_end_startup() {
    for seed in 1..=6 {
        let forward = Channel { jitter: ms(20), ..path(100.0, 40, 40) };
        let mut run = Run::new(seed, 4 << 30, "bbr", None, &forward, &path(100.0, 40, 40));
        let mut received = |until| {
            run.run(ms(until));
            run.session.receiver(&run.world).stats().object_bytes
        };
        let before = received(1_000);
        let mbps = (received(3_000) - before) as f64 * 8.0 / 2.0 / 1e6;
        println!("TABLE jitter of 20 ms, seed {seed}: {mbps:.1} Mbit/s from 1 to 3 s");
        assert!(mbps > 0.75 * object(100.0), "{seed}: {mbps} Mbit/s");
    }
}

/// Returns the Mbit/s received in the second that starts at `from`, in milliseconds.
fn mbit_in_a_second(run: &mut Run, from: u64) -> f64 {
    let mut received = |until| {
        run.run(ms(until));
        run.session.receiver(&run.world).stats().object_bytes
    };
    let before = received(from);
    (received(from + 1_000) - before) as f64 * 8.0 / 1e6
}

/// Returns the Mbit/s from 3 to 4 s after the round-trip time has grown from 20 to 200 ms at `at`.
fn on_longer_path(mbps: f64, at: u64) -> f64 {
    let path = path(mbps, 20, 40);
    let mut run = Run::new(1, 4 << 30, "bbr", None, &path, &path);
    let links = [run.forward, run.back];
    run.world.at(Time::ZERO + ms(at), move |world| {
        for link in links {
            world.change_link(link, &StageRef::Name("delay".into()), &StageChange::Delay(ms(100))).unwrap();
        }
    });
    mbit_in_a_second(&mut run, at + 3_000)
}

#[test]
fn a_tenfold_round_trip_is_filled_within_three_seconds_in_any_phase() {
    let moments = [10_000, 10_100, 10_250, 10_500, 11_000, 11_600, 12_300, 13_000, 13_700];
    for (mbps, at) in [20.0, 100.0].into_iter().flat_map(|mbps| moments.map(|at| (mbps, at))) {
        let got = on_longer_path(mbps, at);
        println!("TABLE {mbps} Mbit/s, longer at {at} ms: {got:.1} Mbit/s");
        assert!(got >= 0.8 * object(mbps), "{mbps} Mbit/s, at {at} ms: {got} Mbit/s");
    }
}

/// Returns the shares of 100 Mbit/s in the last 40 of 60 s: ours, and that of a TCP flow that starts at the
/// same time or later.
fn beside_tcp(law: &str, control: ControlKind, rtt: u64, queue: u64) -> [f64; 2] {
    let path = path(100.0, rtt, queue);
    let mut run = Run::new(17, 4 << 30, law, None, &path, &path);
    let tcp = add_tcp(&mut run.world, control, run.forward, run.back);
    let mut taken = |until: u64| {
        run.run(Span::from_secs(until));
        let ours = run.session.receiver(&run.world).stats().object_bytes;
        let theirs = run.world.node::<SessionNode<TcpSender>>(tcp).unwrap().machine().stats().delivered;
        [ours, theirs * u64::from(MSS)]
    };
    let (before, after) = (taken(20), taken(60));
    [0, 1].map(|n| (after[n] - before[n]) as f64 * 8.0 / 40.0 / 1e8)
}

pub(crate) fn add_tcp(
    world: &mut World,
    control: ControlKind,
    forward: LinkId,
    back: LinkId,
) -> haul_sim::NodeId {
    let port = PathId::default();
    let sender = world.add_node("tcp", SessionNode::new(TcpSender::new(TcpSenderConfig::endless(control))));
    let receiver = TcpReceiver::new(TcpReceiverConfig::default());
    let receiver = world.add_node("tcp receiver", SessionNode::new(receiver));
    world.connect("tcp data", (sender, port), (receiver, port), &[forward]).unwrap();
    world.connect("tcp acks", (receiver, port), (sender, port), &[back]).unwrap();
    sender
}

#[test]
fn bbr_leaves_a_cubic_flow_more_than_delivery_does() {
    for (rtt, queue) in [(20, 20), (40, 40), (40, 160)] {
        let mut remaining_shares = Vec::new();
        for law in ["delivery", "bbr"] {
            let [ours, theirs] = beside_tcp(law, ControlKind::Cubic(CubicConfig::default()), rtt, queue);
            println!(
                "TABLE {law:<9} {:4.1} beside CUBIC {:4.1} Mbit/s, {rtt} ms, queue {queue} ms",
                ours * 100.0,
                theirs * 100.0
            );
            assert!(ours + theirs > 0.85, "{law}: the path is not full");
            remaining_shares.push(theirs);
        }
        assert!(
            remaining_shares[1] > remaining_shares[0],
            "{rtt} ms, queue {queue} ms: {remaining_shares:?}"
        );
    }
}

/// Returns the Mbit/s from 1 to 2 s after the capacity of a 2 ms path has grown from 20 to 80 Mbit/s at `at`.
fn on_wider_path(at: u64) -> f64 {
    let path = path(20.0, 2, 10);
    let mut run = Run::new(1, 4 << 30, "bbr", None, &path, &path);
    let forward = run.forward;
    run.world.at(Time::ZERO + ms(at), move |world| {
        let wider = StageChange::Rate(Rate::from_mbps(80));
        world.change_link(forward, &StageRef::Name("bottleneck".into()), &wider).unwrap();
    });
    mbit_in_a_second(&mut run, at + 1_000)
}

/// Regression: when rounds included the wait for reports, the next probe came after two or three seconds.
#[test]
fn a_small_path_is_probed_often_despite_rare_reports() {
    for at in [4_000, 4_400, 4_800, 5_200, 5_600, 6_000] {
        let got = on_wider_path(at);
        println!("TABLE 20 to 80 Mbit/s at {at} ms: {got:.1} Mbit/s");
        assert!(got >= 0.8 * object(80.0), "at {at} ms: {got} Mbit/s");
    }
}

/// Returns the Mbit/s received from 3 to 13 s on a path whose capacity changes after each `step` to a random
/// one of `mbps`.
fn on_varying_path(path: &Channel, step: u64, mbps: &[u64], seed: u64) -> f64 {
    let mut run = Run::new(seed, 4 << 30, "bbr", None, path, path);
    let mut rng = Rng::from_seed(seed);
    let forward = run.forward;
    let mut now = 0;
    let mut received = |until| {
        while now < until {
            let capacity = Rate::from_mbps(mbps[rng.below(mbps.len() as u64) as usize]);
            let change = StageChange::Rate(capacity);
            run.world.change_link(forward, &StageRef::Name("bottleneck".into()), &change).unwrap();
            now += step;
            run.run(ms(now));
        }
        run.session.receiver(&run.world).stats().object_bytes
    };
    let before = received(3_000);
    (received(13_000) - before) as f64 * 8.0 / 10.0 / 1e6
}

/// The mean capacity is 62.5 Mbit/s. With bounds that stay until the next probe the law reached 33 to 38.
#[test]
fn varying_capacity_is_used_beyond_its_minimum() {
    let steps = [25, 50, 75, 100];
    for (name, rtt, queue, step) in [
        ("a short queue, steps of 50 ms", 10, 10, 50),
        ("a short queue, steps of 50 ms", 20, 20, 50),
        ("a queue of 100 ms, steps of 500 ms", 40, 100, 500),
    ] {
        let got =
            (1..=4).map(|seed| on_varying_path(&path(100.0, rtt, queue), step, &steps, seed)).sum::<f64>()
                / 4.0;
        println!("TABLE {rtt} ms, {name}: {got:.1} Mbit/s");
        assert!(got >= 42.0, "{rtt} ms, {name}: {got} Mbit/s");
    }
}
