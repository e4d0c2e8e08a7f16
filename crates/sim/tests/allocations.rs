//! In steady state packets cause no allocations, neither on a path nor in a world.

use std::alloc::System;

use haul_base::{Bytes, Ecn, PathId, Probability, Rate, Span, Time};
use haul_sim::{
    BottleneckSpec, Distribution, FlowId, JitterSpec, Limit, Order, PacketInfo, Parcel, Path, PathSpec,
    QueueSpec, RedSpec, ReorderingSpec, Signal, Sink, StageSpec, UdpSource, UdpSourceSpec, World,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn share(p: f64) -> Probability {
    Probability::new(p).expect("a share")
}

fn stages() -> Vec<StageSpec> {
    let red = RedSpec {
        min: Bytes(50_000),
        max: Bytes(150_000),
        probability: share(0.1),
        weight: 0.002,
        limit: Limit::Bytes(Bytes(500_000)),
        above_max: haul_sim::AboveMaximum::Gentle,
        signal: Signal::Mark,
    };
    let free = JitterSpec { delay: Distribution::Exponential(Span::from_micros(200)), order: Order::Free };
    vec![
        StageSpec::Mtu(1_500),
        StageSpec::Bottleneck(BottleneckSpec { rate: Rate::from_mbps(1_000), queue: QueueSpec::Red(red) }),
        StageSpec::Loss(share(0.01)),
        StageSpec::Duplication(share(0.01)),
        StageSpec::Reordering(ReorderingSpec {
            share: share(0.01),
            extra: Distribution::Uniform(Span::from_millis(1)),
        }),
        StageSpec::Jitter(free),
        StageSpec::Delay(Span::from_millis(5)),
    ]
}

/// Offers batches to the path until `end`, at slightly more than its rate.
fn drive(path: &mut Path, from: u64, end: u64) {
    let mut delivered = 0;
    for id in from..end {
        let now = Time::from_nanos(id * 120_000);
        let first = PacketInfo { id, flow: FlowId(0), bytes: 1_500, ecn: Ecn::Ect0 };
        path.offer_batch(now, Parcel::batch(first, 11, 700).expect("at most 64"));
        path.advance(now, &mut |_, parcel, _| delivered += parcel.packets());
    }
    assert!(delivered > 0);
}

fn count(what: &str, mut work: impl FnMut()) {
    let region = Region::new(ALLOCATOR);
    work();
    let change = region.change();
    assert_eq!(change.allocations + change.reallocations, 0, "{what}: {change:?}");
    println!("{what}: no allocation");
}

fn main() {
    let mut path = Path::new(&PathSpec { stages: stages() }, 1).expect("a valid path");
    drive(&mut path, 0, 40_000);
    count("a path of seven stages", || drive(&mut path, 40_000, 80_000));

    let mut world = World::new(1);
    let link = world.add_link("link", &PathSpec { stages: stages() }).expect("a valid path");
    let source = UdpSource::new(UdpSourceSpec::constant(Rate::from_mbps(1_050)), 1);
    let source = world.add_node("source", source);
    let sink = world.add_node("sink", Sink::new());
    world.connect("flow", (source, PathId(0)), (sink, PathId(0)), &[link]).expect("both nodes exist");
    world.run_until(Time::ZERO + Span::from_secs(4));
    count("a world with one flow", || world.run_until(Time::ZERO + Span::from_secs(8)));
}
