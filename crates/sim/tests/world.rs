//! The simulated world: traffic, cross traffic, determinism, and the balance of packets.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::{Arc, Mutex};

use haul_base::{Bytes, PathId, Probability, Rate, Span, Time};
use haul_sim::{
    Aggregate, AggregateSpec, BottleneckSpec, Distribution, DropReason, Ended, Exit, FlowId, JitterSpec,
    Limit, NodeId, Order, PathSpec, Pattern, Place, QueueSpec, Sink, StageChange, StageRef, StageSpec,
    Summary, UdpSource, UdpSourceSpec, World, WorldError,
};

fn bottleneck(mbps: u64, limit: Limit) -> StageSpec {
    let (rate, queue) = (Rate::from_mbps(mbps), QueueSpec::TailDrop(limit));
    StageSpec::Bottleneck(BottleneckSpec { rate, queue })
}

fn secs(n: u64) -> Time {
    Time::ZERO + Span::from_secs(n)
}

fn share(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

/// A world with one link and a sink at its end.
fn world(seed: u64, stages: Vec<StageSpec>) -> (World, haul_sim::LinkId, NodeId) {
    println!("seed {seed}");
    let mut world = World::new(seed);
    let link = world.add_link("link", &PathSpec { stages }).unwrap();
    let sink = world.add_node("sink", Sink::new());
    (world, link, sink)
}

fn add_source(
    world: &mut World,
    name: &str,
    spec: UdpSourceSpec,
    link: haul_sim::LinkId,
    sink: NodeId,
) -> FlowId {
    let seed = world.seed_for(name.len() as u64 + 1_000);
    let node = world.add_node(name, UdpSource::new(spec, seed));
    world.connect(name, (node, PathId(0)), (sink, PathId(0)), &[link]).unwrap()
}

fn add_aggregate(world: &mut World, spec: AggregateSpec, link: haul_sim::LinkId, sink: NodeId) -> FlowId {
    let seed = world.seed_for(77);
    let node = world.add_node("others", Aggregate::new(spec, seed));
    world.connect("others", (node, PathId(0)), (sink, PathId(0)), &[link]).unwrap()
}

fn aggregate(load: u64) -> AggregateSpec {
    AggregateSpec {
        load: Rate::from_mbps(load),
        mean_size: Bytes(60_000),
        shape: 1.8,
        access: Rate::from_mbps(50),
        packet: 1_500,
        start: Span::ZERO,
        length: None,
    }
}

#[test]
fn a_constant_source_keeps_its_rate_to_the_packet() {
    let (mut world, link, sink) = world(1, vec![StageSpec::Delay(Span::from_millis(1))]);
    let spec =
        UdpSourceSpec { length: Some(Span::from_secs(3)), ..UdpSourceSpec::constant(Rate::from_mbps(7)) };
    let flow = add_source(&mut world, "steady", spec, link, sink);
    world.run_until(secs(5));
    // 7 Mbit/s in packets of 12,000 bits for 3 s; the first one is sent immediately.
    assert_eq!(world.truth(flow).delivered, 1_750);
    assert_eq!(world.node::<Sink>(sink).unwrap().packets(), 1_750);
}

#[test]
fn an_on_off_source_sends_its_share_of_the_time() {
    let (mut world, link, sink) = world(2, Vec::new());
    let on = Distribution::Exponential(Span::from_millis(50));
    let off = Distribution::Exponential(Span::from_millis(150));
    let pattern = Pattern::OnOff { on, off };
    let spec = UdpSourceSpec { pattern, ..UdpSourceSpec::constant(Rate::from_mbps(100)) };
    let flow = add_source(&mut world, "bursty", spec, link, sink);
    world.run_until(secs(400));
    let mbps = world.truth(flow).delivered_bytes as f64 * 8.0 / 400.0 / 1e6;
    // 2,000 cycles; the standard deviation of their mean is about 3 %.
    assert!((mbps / 25.0 - 1.0).abs() < 0.1, "{mbps}");
}

#[test]
fn an_aggregate_has_its_load() {
    let (mut world, link, sink) = world(3, Vec::new());
    let flow = add_aggregate(&mut world, aggregate(200), link, sink);
    world.run_until(secs(200));
    let mbps = world.truth(flow).delivered_bytes as f64 * 8.0 / 200.0 / 1e6;
    // 83,000 flows with heavy tails.
    assert!((mbps / 200.0 - 1.0).abs() < 0.1, "{mbps}");
}

fn busy_world(seed: u64) -> Summary {
    let stages = vec![
        bottleneck(100, Limit::Bytes(Bytes(100_000))),
        StageSpec::Loss(share(0.01)),
        StageSpec::Duplication(share(0.01)),
        StageSpec::Jitter(JitterSpec {
            delay: Distribution::Exponential(Span::from_micros(300)),
            order: Order::Free,
        }),
        StageSpec::Delay(Span::from_millis(10)),
    ];
    let (mut world, link, sink) = world(seed, stages);
    add_aggregate(&mut world, aggregate(60), link, sink);
    let poisson = UdpSourceSpec { pattern: Pattern::Poisson, ..UdpSourceSpec::constant(Rate::from_mbps(30)) };
    add_source(&mut world, "random", poisson, link, sink);
    add_source(&mut world, "even", UdpSourceSpec::constant(Rate::from_mbps(25)), link, sink);
    world.record_every(Span::from_millis(100));
    world.at(secs(2), move |world| {
        let half = StageChange::Rate(Rate::from_mbps(50));
        world.change_link(link, &StageRef::Name("bottleneck".into()), &half).unwrap();
    });
    for tenth in 1..=40 {
        world.run_until(Time::ZERO + Span::from_millis(100) * tenth);
        assert!(world.adds_up(), "{:#?}", world.summary());
    }
    world.summary()
}

#[test]
fn equal_seeds_give_equal_bytes_and_the_truth_always_adds_up() {
    let bytes = |seed| serde_json::to_string(&busy_world(seed)).unwrap();
    let first = bytes(11);
    assert_eq!(first, bytes(11));
    assert_ne!(first, bytes(12));
}

/// Summary of one run, frozen: it must be equal on every platform. A change here changes every recorded
/// simulation and must be intentional.
#[test]
fn the_worlds_results_never_change() {
    let summary = busy_world(11);
    let truth_counts: Vec<[u64; 4]> = summary
        .flows
        .iter()
        .map(|f| {
            [f.truth.offered, f.truth.delivered, f.truth.copies, f.truth.drops.of(DropReason::QueueFull)]
        })
        .collect();
    assert_eq!(
        truth_counts,
        [[22_149, 13_213, 126, 8_904], [10_108, 6_527, 63, 3_523], [8_334, 4_499, 40, 3_793]]
    );
}

#[test]
fn rates_over_time_show_a_change() {
    let summary = busy_world(11);
    let rates = summary.rates.unwrap();
    let all = |tenth: usize| rates.delivered_bps.iter().map(|flow| flow[tenth]).sum::<u64>() as f64 / 1e6;
    let mean = |range: std::ops::Range<usize>| {
        let n = range.len() as f64;
        range.map(all).sum::<f64>() / n
    };
    assert_eq!(rates.queue_bytes[0].len(), 40);
    assert!((90.0..101.0).contains(&mean(10..20)), "{}", mean(10..20));
    assert!((47.0..51.0).contains(&mean(25..40)), "{}", mean(25..40));
}

#[test]
fn drops_over_time_are_split_by_reason() {
    let summary = busy_world(11);
    let rates = summary.rates.unwrap();
    for (flow, (all, reasons)) in summary.flows.iter().zip(rates.dropped.iter().zip(&rates.dropped_by)) {
        assert!(reasons.len() >= 2, "{reasons:?}");
        for (tenth, total) in all.iter().enumerate() {
            assert_eq!(reasons.values().map(|list| list[tenth]).sum::<u64>(), *total, "{tenth}");
        }
        for (reason, list) in reasons {
            let sum: u64 = list.iter().sum();
            let of = flow.truth.drops.iter().find(|(known, _)| known.name() == *reason).map(|(_, n)| n);
            assert!(of.is_some_and(|of| sum <= of && of - sum < 100), "{reason}: {sum} of {of:?}");
        }
    }
}

#[test]
fn the_trace_contains_every_packet() {
    let (mut world, link, sink) =
        world(5, vec![StageSpec::Loss(share(0.2)), StageSpec::Delay(Span::from_millis(3))]);
    let seen: Arc<Mutex<[u64; 3]>> = Arc::default();
    let notes = Arc::clone(&seen);
    world.set_trace(move |event| {
        let mut notes = notes.lock().unwrap();
        match (event.place, event.exit) {
            (Place::Link(_), Exit::Dropped(DropReason::Random)) => {
                notes[0] += u64::from(event.parcel.packets());
            }
            (Place::Node(_), Exit::Delivered) => {
                notes[1] += u64::from(event.parcel.packets());
                assert_eq!(event.arrived, event.at, "without a host it is read on arrival");
            }
            (Place::Source(_), Exit::Delivered) => notes[2] += u64::from(event.parcel.packets()),
            _ => {}
        }
    });
    let flow = add_source(&mut world, "steady", UdpSourceSpec::constant(Rate::from_mbps(10)), link, sink);
    world.run_until(secs(2));
    let truth = world.truth(flow);
    assert_eq!(*seen.lock().unwrap(), [truth.drops.total(), truth.delivered, truth.offered]);
    assert!(truth.drops.total() > 200);
}

#[test]
fn a_world_without_events_reports_idle() {
    let (mut world, link, sink) = world(6, Vec::new());
    let spec =
        UdpSourceSpec { length: Some(Span::from_millis(10)), ..UdpSourceSpec::constant(Rate::from_mbps(10)) };
    add_source(&mut world, "short", spec, link, sink);
    world.record_every(Span::from_millis(1));
    assert_eq!(world.run_while(secs(1), |_| true), Ended::Idle);
    assert_eq!(world.now(), secs(1));
}

#[test]
fn impossible_connections_are_refused() {
    let (mut world, link, sink) = world(7, Vec::new());
    let node = world.add_node("source", UdpSource::new(UdpSourceSpec::constant(Rate::from_mbps(1)), 1));
    let (from, to) = ((node, PathId(0)), (sink, PathId(0)));
    assert_eq!(world.connect("none", from, to, &[]), Err(WorldError::NoLink("none".into())));
    assert_eq!(world.connect("twice", from, to, &[link, link]), Err(WorldError::Loop("twice".into())));
    assert!(world.connect("first", from, to, &[link]).is_ok());
    assert!(matches!(world.connect("second", from, to, &[link]), Err(WorldError::PortTaken { .. })));
    let unknown = world.connect("lost", (NodeId(99), PathId(0)), to, &[link]);
    assert_eq!(unknown, Err(WorldError::Unknown("node", 99)));
}
