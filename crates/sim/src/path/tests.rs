use haul_base::{Bytes, Ecn, Probability, Rate, Span};
use proptest::prelude::*;

use super::*;
use crate::parcel::{DropReason, FlowId};
use crate::stage::{
    BottleneckSpec, BurstLossSpec, CodelSpec, CorruptionSpec, Distribution, Effect, JitterSpec, Limit, Order,
    Outage, PolicerSpec, QueueSpec, RedSpec, ReorderingSpec, Signal,
};

fn share(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

fn us(n: u64) -> Span {
    Span::from_micros(n)
}

fn packet(id: u64, bytes: u32) -> PacketInfo {
    PacketInfo { id, flow: FlowId(0), bytes, ecn: Ecn::Ect0 }
}

fn path(stages: &[StageSpec]) -> Path {
    Path::new(&PathSpec { stages: stages.to_vec() }, 7).unwrap()
}

fn bottleneck(mbps: u64, queue: QueueSpec) -> StageSpec {
    StageSpec::Bottleneck(BottleneckSpec { rate: Rate::from_mbps(mbps), queue })
}

fn tail(limit: Limit) -> QueueSpec {
    QueueSpec::TailDrop(limit)
}

/// Runs the path until it is idle. Returns what left it and when, in order.
fn drain(path: &mut Path) -> Vec<(u64, Parcel, Exit)> {
    let mut out = Vec::new();
    while let Some(next) = path.next_event() {
        path.advance(next, &mut |at, parcel, exit| out.push((at.as_nanos(), *parcel, exit)));
    }
    out
}

fn delivered(path: &mut Path) -> Vec<(u64, u64)> {
    let all = drain(path);
    let delivered_packets = all.into_iter().filter(|(_, _, exit)| *exit == Exit::Delivered);
    delivered_packets.map(|(at, parcel, _)| (at, parcel.id())).collect()
}

#[test]
fn a_lone_packet_takes_its_serialisation_and_the_delay() {
    let mut path = path(&[bottleneck(12, tail(Limit::Packets(10))), StageSpec::Delay(Span::from_millis(50))]);
    // 1,500 bytes at 12 Mbit/s take 1 ms.
    path.offer(at(500_000), packet(1, 1_500));
    path.offer(at(500_000), packet(2, 1_500));
    path.offer(at(900_000_000), packet(3, 1_500));
    assert_eq!(delivered(&mut path), [(51_500_000, 1), (52_500_000, 2), (951_000_000, 3)]);
}

#[test]
fn an_odd_rate_is_exact_over_many_packets() {
    let mut path = path(&[bottleneck(7, tail(Limit::Packets(10_000)))]);
    for id in 0..7_000 {
        path.offer(at(0), packet(id, 1_000));
    }
    // 7,000 packets of 8,000 bits at 7 Mbit/s: eight seconds to the nanosecond.
    assert_eq!(delivered(&mut path).last(), Some(&(8_000_000_000, 6_999)));
}

#[test]
fn a_batch_is_served_in_parts_of_100_us() {
    // 1,500 bytes take 10 us at 1.2 Gbit/s: ten packets in 100 us.
    let mut path = path(&[bottleneck(1_200, tail(Limit::Packets(64))), StageSpec::Delay(us(10))]);
    assert!(path.carries_batches());
    path.offer_batch(at(0), Parcel::batch(packet(1, 1_500), 24, 750).unwrap());
    let parts = drain(&mut path).into_iter().map(|(at, parcel, _)| (at, parcel.packets()));
    assert_eq!(parts.collect::<Vec<_>>(), [(110_000, 10), (210_000, 10), (245_000, 4)]);
}

#[test]
fn a_slow_link_sends_packet_by_packet() {
    let mut path = path(&[bottleneck(12, tail(Limit::Packets(10)))]);
    path.offer_batch(at(0), Parcel::batch(packet(1, 1_500), 3, 750).unwrap());
    let parts = drain(&mut path).into_iter().map(|(at, parcel, _)| (at, parcel.present()));
    assert_eq!(parts.collect::<Vec<_>>(), [(1_000_000, 0b001), (2_000_000, 0b010), (2_500_000, 0b100)]);
}

#[test]
fn a_full_queue_accepts_the_front_of_a_batch_and_drops_the_rest() {
    let mut path = path(&[bottleneck(1_200, tail(Limit::Bytes(Bytes(4_500))))]);
    path.offer_batch(at(0), Parcel::batch(packet(1, 1_500), 5, 1_500).unwrap());
    let out = drain(&mut path);
    assert_eq!(out[0].1.present(), 0b11000);
    assert_eq!(out[0].2, Exit::Dropped(DropReason::QueueFull));
    assert_eq!((out[1].0, out[1].1.present()), (30_000, 0b00111));
    assert!(path.counters().adds_up());
}

#[test]
fn capacity_returns_as_the_link_sends() {
    let mut path = path(&[bottleneck(120, tail(Limit::Bytes(Bytes(15_000))))]);
    for id in 0..20 {
        path.offer(at(0), packet(id, 1_500));
    }
    assert_eq!(path.counters().drops.of(DropReason::QueueFull), 10);
    // Five packets of 100 us each have left, and the sixth leaves now.
    for id in 20..30 {
        path.offer(at(600_000), packet(id, 1_500));
    }
    assert_eq!(path.counters().drops.of(DropReason::QueueFull), 14);
    assert_eq!(path.standing_queue(at(650_000)).map(|q| (q.bytes, q.packets)), Some((14_250, 10)));
}

#[test]
fn a_change_of_rate_applies_to_queued_packets() {
    let mut path = path(&[bottleneck(12, tail(Limit::Packets(10)))]);
    for id in 0..3 {
        path.offer(at(0), packet(id, 1_500));
    }
    // Half of the first packet has been sent; the rest is sent at 10 % of the rate.
    path.change(
        at(500_000),
        &StageRef::Name("bottleneck".into()),
        &StageChange::Rate(Rate::from_bps(1_200_000)),
    )
    .unwrap();
    assert_eq!(delivered(&mut path), [(5_500_000, 0), (15_500_000, 1), (25_500_000, 2)]);
}

#[test]
fn a_shortened_delay_reorders_nothing() {
    let mut path = path(&[StageSpec::Delay(us(100))]);
    path.offer(at(0), packet(1, 100));
    path.change(at(10_000), &StageRef::Index(0), &StageChange::Delay(us(10))).unwrap();
    path.offer(at(20_000), packet(2, 100));
    path.offer(at(200_000), packet(3, 100));
    assert_eq!(delivered(&mut path), [(100_000, 1), (100_000, 2), (210_000, 3)]);
}

fn policer(mbps: u64, burst: u64) -> StageSpec {
    StageSpec::Policer(PolicerSpec { rate: Rate::from_mbps(mbps), burst: Bytes(burst) })
}

#[test]
fn a_policer_passes_a_burst_then_its_rate_without_delay() {
    // 8 Mbit/s are a byte per microsecond: a packet of 1,000 bytes per millisecond.
    let mut path = path(&[policer(8, 3_000)]);
    for n in 0..20 {
        path.offer(at(n * 500_000), packet(n, 1_000));
    }
    let passed = delivered(&mut path);
    // Tokens arrive at half the packet rate: after five packets the bucket is empty, and every other one
    // passes.
    let ids: Vec<u64> = passed.iter().map(|(_, id)| *id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18]);
    assert!(passed.iter().all(|(time, id)| *time == id * 500_000), "{passed:?}");
    let counters = path.counters();
    assert_eq!((counters.drops.of(DropReason::Policed), counters.drops.total()), (8, 8));
    // Idle time fills the bucket to its capacity; the packets of a batch that fit pass.
    path.offer_batch(at(60_000_000), Parcel::batch(packet(64, 1_000), 10, 1_000).unwrap());
    drain(&mut path);
    assert_eq!(path.counters().delivered, 12 + 3);
}

#[test]
fn a_changed_policer_keeps_its_bucket_deficit() {
    let mut path = path(&[policer(8, 3_000)]);
    path.offer_batch(at(0), Parcel::batch(packet(0, 1_000), 3, 1_000).unwrap());
    let StageSpec::Policer(spec) = policer(80, 6_000) else { unreachable!() };
    path.change(at(0), &StageRef::Name("policer".to_owned()), &StageChange::Policer(spec)).unwrap();
    path.offer_batch(at(0), Parcel::batch(packet(64, 1_000), 6, 1_000).unwrap());
    drain(&mut path);
    // The bucket lacked all of its 3,000 bytes, and now holds 6,000.
    assert_eq!(path.counters().delivered, 3 + 3);
}

#[test]
fn outages_are_exact_to_the_nanosecond() {
    let schedule = vec![
        Outage { at: us(10), length: us(5), every: None },
        Outage { at: us(100), length: us(1), every: Some(us(50)) },
    ];
    let mut path = path(&[StageSpec::Outages(schedule)]);
    let times = [9_999, 10_000, 14_999, 15_000, 99_999, 100_000, 101_000, 150_999, 151_000, 500_500];
    for (id, nanos) in times.into_iter().enumerate() {
        path.offer(at(nanos), packet(id as u64, 100));
    }
    let passed: Vec<u64> = delivered(&mut path).into_iter().map(|(at, _)| at).collect();
    assert_eq!(passed, [9_999, 15_000, 99_999, 101_000, 151_000]);
    assert_eq!(path.counters().drops.of(DropReason::Outage), 5);
}

#[test]
fn an_outage_on_demand_starts_at_once() {
    let mut path = path(&[StageSpec::Outages(Vec::new())]);
    path.change(at(1_000), &StageRef::Index(0), &StageChange::Outage(us(2))).unwrap();
    for nanos in [1_000, 2_999, 3_000] {
        path.offer(at(nanos), packet(nanos, 100));
    }
    assert_eq!(delivered(&mut path), [(3_000, 3_000)]);
}

#[test]
fn jitter_keeps_the_order_unless_configured_otherwise() {
    let run = |order| {
        let spec = JitterSpec { delay: Distribution::Uniform(us(1_000)), order };
        let mut path = path(&[StageSpec::Jitter(spec)]);
        for id in 0..1_000 {
            path.offer(at(id * 10_000), packet(id, 100));
        }
        let out = delivered(&mut path);
        assert!(out.windows(2).all(|w| w[0].0 <= w[1].0));
        assert!(out.iter().all(|(at, id)| *at >= id * 10_000 && *at <= id * 10_000 + 1_000_000 + 10_000_000));
        out.windows(2).filter(|w| w[0].1 > w[1].1).count()
    };
    assert_eq!(run(Order::Keep), 0);
    assert!(run(Order::Free) > 100);
}

#[test]
fn only_the_chosen_packets_are_delayed() {
    let spec = ReorderingSpec { share: share(0.1), extra: Distribution::Constant(us(35)) };
    let mut path = path(&[StageSpec::Reordering(spec)]);
    for id in 0..10_000 {
        path.offer(at(id * 10_000), packet(id, 100));
    }
    let out = delivered(&mut path);
    let late = out.iter().filter(|(at, id)| *at == id * 10_000 + 35_000).count();
    assert_eq!(out.iter().filter(|(at, id)| *at == id * 10_000).count() + late, 10_000);
    // 1,000 expected, standard deviation 30; tolerance 5 standard deviations.
    assert!((850..1_150).contains(&late), "{late}");
}

#[test]
fn the_mtu_removes_long_packets_from_a_batch() {
    let mut path = path(&[StageSpec::Mtu(1_000)]);
    path.offer_batch(at(0), Parcel::batch(packet(1, 1_001), 3, 1_000).unwrap());
    path.offer_batch(at(0), Parcel::batch(packet(2, 1_000), 3, 20).unwrap());
    let out = drain(&mut path);
    assert_eq!((out[0].1.present(), out[0].2), (0b011, Exit::Dropped(DropReason::TooLarge)));
    assert_eq!((out[1].1.present(), out[1].2), (0b100, Exit::Delivered));
    assert_eq!((out[2].1.present(), out[2].2), (0b111, Exit::Delivered));
}

#[test]
fn simultaneous_packets_keep_their_order_through_splitting_stages() {
    let corruption = CorruptionSpec { share: share(0.3), effect: Effect::Flip };
    let mut path = path(&[StageSpec::Corruption(corruption), StageSpec::Delay(us(5))]);
    path.offer_batch(at(0), Parcel::batch(packet(1, 100), 64, 100).unwrap());
    let order: Vec<usize> = drain(&mut path).iter().flat_map(|(_, parcel, _)| parcel.indices()).collect();
    assert_eq!(order, (0..64).collect::<Vec<_>>());
}

#[test]
fn invalid_changes_are_refused_with_the_valid_ones() {
    let mut path = path(&[StageSpec::Delay(us(5)), StageSpec::Delay(us(6))]);
    let change = StageChange::Rate(Rate::from_mbps(1));
    let wrong = path.change(at(0), &StageRef::Name("delay-2".into()), &change).unwrap_err().to_string();
    assert!(wrong.contains("delay-2") && wrong.contains("takes: delay"), "{wrong}");
    let missing = path.change(at(0), &StageRef::Name("loss".into()), &change).unwrap_err().to_string();
    assert!(missing.contains("delay, delay-2"), "{missing}");
    let zero = StageChange::Queue(tail(Limit::Packets(0)));
    let refused = path.change(at(0), &StageRef::Index(0), &zero).unwrap_err().to_string();
    assert!(refused.contains("above zero"), "{refused}");
}

#[test]
fn a_spec_round_trips_through_toml() {
    let text = r#"
        stages = [
            { bottleneck = { rate = "1Gbit", queue = { red = { min = "100KiB", max = "300KiB", limit = "1MB", signal = "mark" } } } },
            { bottleneck = { rate = "800Mbit", queue = { tail_drop = "100packets" } } },
            { bottleneck = { rate = "1.5Gbit", queue = { codel = { limit = "50ms" } } } },
            { loss = "0.1%" },
            { gilbert_elliott = { to_bad = 0.001, to_good = "20%" } },
            { burst_loss = { share = "1%", mean_run = 4.0 } },
            { outages = [{ at = "1s", length = "3s" }, { at = "10s", length = "1ms", every = "1s" }] },
            { jitter = { delay = { normal = { mean = "1ms", deviation = "100us" } }, order = "free" } },
            { reordering = { share = "5%", extra = { uniform = "5ms" } } },
            { duplication = "0.5%" },
            { corruption = { share = "1%", effect = "drop" } },
            { mtu = 1500 },
            { delay = "25ms" },
        ]
    "#;
    let spec: PathSpec = toml::from_str(text).unwrap();
    assert_eq!(spec.stages.len(), 13);
    let again: PathSpec = toml::from_str(&toml::to_string(&spec).unwrap()).unwrap();
    assert_eq!(spec, again);
    assert!(Path::new(&spec, 1).is_ok());
}

#[test]
fn an_invalid_spec_is_reported_with_its_position_and_what_is_allowed() {
    let read = |text: &str| toml::from_str::<PathSpec>(text).unwrap_err().to_string();
    let unit = read("stages = [{ delay = 50 }]");
    assert!(unit.contains("line 1") && unit.contains("50ms"), "{unit}");
    let unknown = read("stages = [{ dealy = \"50ms\" }]");
    assert!(unknown.contains("dealy") && unknown.contains("bottleneck"), "{unknown}");
    let field =
        read("stages = [{ bottleneck = { rate = \"1Gbit\", queue = { tail_drop = \"1MB\" }, x = 1 } }]");
    assert!(field.contains('x') && field.contains("queue"), "{field}");
    let burst =
        PathSpec { stages: vec![StageSpec::BurstLoss(BurstLossSpec { share: share(0.9), mean_run: 2.0 })] };
    let refused = burst.check().unwrap_err().to_string();
    assert!(refused.contains("0.667"), "{refused}");
}

fn limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (1_000u64..100_000).prop_map(|n| Limit::Bytes(Bytes(n))),
        (1u64..50).prop_map(Limit::Packets),
        (1u64..5_000).prop_map(|n| Limit::Time(us(n))),
    ]
}

fn signal() -> impl Strategy<Value = Signal> {
    prop_oneof![Just(Signal::Drop), Just(Signal::Mark)]
}

fn queue() -> impl Strategy<Value = QueueSpec> {
    let red = (limit(), signal(), 1u64..20_000, 1u64..20_000, 0.001f64..1.0).prop_map(
        |(limit, signal, min, more, weight)| {
            QueueSpec::Red(RedSpec {
                min: Bytes(min),
                max: Bytes(min + more),
                probability: share(0.2),
                weight,
                limit,
                above_max: crate::AboveMaximum::Gentle,
                signal,
            })
        },
    );
    let codel =
        (limit(), signal(), 1u64..1_000, 1u64..5_000).prop_map(|(limit, signal, target, interval)| {
            QueueSpec::Codel(CodelSpec { target: us(target), interval: us(interval), limit, signal })
        });
    prop_oneof![limit().prop_map(QueueSpec::TailDrop), red, codel]
}

fn distribution() -> impl Strategy<Value = Distribution> {
    prop_oneof![
        (0u64..500).prop_map(|n| Distribution::Constant(us(n))),
        (0u64..500).prop_map(|n| Distribution::Uniform(us(n))),
        (1u64..500).prop_map(|n| Distribution::Exponential(us(n))),
        (1u64..500).prop_map(|n| Distribution::Normal { mean: us(n), deviation: us(n / 3) }),
        (1u64..500).prop_map(|n| Distribution::Pareto { mean: us(n), shape: 1.5 }),
    ]
}

fn stage() -> impl Strategy<Value = StageSpec> {
    let p = || (0.0f64..0.5).prop_map(share);
    prop_oneof![
        (0u64..2_000).prop_map(|n| StageSpec::Delay(us(n))),
        (1u64..500, queue()).prop_map(|(mbps, queue)| bottleneck(mbps, queue)),
        (1u64..500, 1_500u64..100_000).prop_map(|(mbps, burst)| policer(mbps, burst)),
        p().prop_map(StageSpec::Loss),
        (0.0f64..0.4, 1.0f64..9.0)
            .prop_map(|(p, mean_run)| StageSpec::BurstLoss(BurstLossSpec { share: share(p), mean_run })),
        (0u64..5_000, 0u64..500).prop_map(|(at, length)| StageSpec::Outages(vec![Outage {
            at: us(at),
            length: us(length),
            every: Some(us(length + 700)),
        }])),
        (distribution(), any::<bool>()).prop_map(|(delay, keep)| StageSpec::Jitter(JitterSpec {
            delay,
            order: if keep { Order::Keep } else { Order::Free }
        })),
        (p(), distribution())
            .prop_map(|(share, extra)| StageSpec::Reordering(ReorderingSpec { share, extra })),
        p().prop_map(StageSpec::Duplication),
        (p(), 0..3).prop_map(|(share, effect)| StageSpec::Corruption(CorruptionSpec {
            share,
            effect: [Effect::Flip, Effect::Truncate, Effect::Drop][effect as usize],
        })),
        (68u32..1_600).prop_map(StageSpec::Mtu),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_truth_adds_up_at_any_moment_on_every_mix_of_stages(
        stages in prop::collection::vec(stage(), 0..6),
        offers in prop::collection::vec((0u64..400, 1usize..=64, 40u32..1_500, 40u32..1_500, 0u64..3), 1..120),
        changes in prop::collection::vec((0usize..6, queue(), 1u64..500), 0..4),
        seed in any::<u64>(),
    ) {
        let spec = PathSpec { stages };
        let mut path = Path::new(&spec, seed).unwrap();
        let mut now = Time::ZERO;
        let mut tally = [0u64; 4];
        let count = |tally: &mut [u64; 4], parcel: &Parcel, exit: Exit| {
            assert!(!parcel.is_empty());
            tally[match exit { Exit::Delivered => 0, Exit::Dropped(_) => 1, Exit::Copied => 2 }] += u64::from(parcel.packets());
        };
        let mut last = Time::ZERO;
        for (n, (step, packets, bytes, last_bytes, pace)) in offers.iter().enumerate() {
            now += us(*step);
            let first = PacketInfo { id: n as u64, flow: FlowId(n as u32 % 3), bytes: *bytes, ecn: Ecn::Ect0 };
            path.offer_batch(now, Parcel::batch(first, *packets, (*last_bytes).min(*bytes)).unwrap());
            tally[3] += *packets as u64;
            prop_assert!(path.counters().adds_up(), "{:?}", path.counters());
            if let Some((index, queue, mbps)) = changes.get(n) {
                let _ = path.change(now, &StageRef::Index(*index), &StageChange::Queue(*queue));
                let _ = path.change(now, &StageRef::Index(*index), &StageChange::Rate(Rate::from_mbps(*mbps)));
                let _ = path.change(now, &StageRef::Index(*index), &StageChange::Delay(us(*mbps)));
            }
            for _ in 0..*pace {
                if let Some(next) = path.next_event() {
                    now = now.max(next);
                    path.advance(now, &mut |at, parcel, exit| {
                        assert!(at >= last && at <= now, "out of order");
                        last = at;
                        count(&mut tally, parcel, exit);
                    });
                }
                prop_assert!(path.counters().adds_up(), "{:?}", path.counters());
            }
        }
        while let Some(next) = path.next_event() {
            prop_assert!(next >= last);
            path.advance(next, &mut |_, parcel, exit| count(&mut tally, parcel, exit));
        }
        let counters = path.counters();
        prop_assert!(counters.adds_up() && counters.inside == 0, "{:?}", counters);
        prop_assert_eq!(counters.delivered, tally[0]);
        prop_assert_eq!(counters.drops.total(), tally[1]);
        prop_assert_eq!(counters.copies, tally[2]);
        prop_assert_eq!(if spec.stages.is_empty() { tally[3] } else { counters.offered }, tally[3]);
        prop_assert_eq!(tally[3] + tally[2], tally[0] + tally[1]);
    }

    #[test]
    fn batches_are_equivalent_to_single_packets(
        seed in any::<u64>(),
        batches in prop::collection::vec((0u64..3_000, 1usize..=64), 1..40),
        limit in limit(),
        loss in 0.0f64..0.3,
    ) {
        // The same packets survive queue, loss and delay, and the last packet of each batch arrives with it.
        let stages = [StageSpec::Loss(share(loss)), bottleneck(100, tail(limit)), StageSpec::Delay(us(50))];
        let spec = PathSpec { stages: stages.to_vec() };
        let mut by_batch = Path::new(&spec, seed).unwrap();
        let mut single = Path::new(&spec, seed).unwrap();
        let (mut now, mut id) = (0, 0);
        for (step, count) in batches {
            now += step * 1_000;
            by_batch.offer_batch(at(now), Parcel::batch(packet(id, 1_000), count, 1_000).unwrap());
            for n in 0..count as u64 {
                single.offer(at(now), packet(id + n, 1_000));
            }
            id += 64;
        }
        let mut survivors = Vec::new();
        let mut last = 0;
        for (time, parcel, exit) in drain(&mut by_batch) {
            if exit == Exit::Delivered {
                survivors.extend(parcel.indices().map(|n| parcel.id() + n as u64));
                last = time;
            }
        }
        let alone = delivered(&mut single);
        prop_assert_eq!(alone.last().map_or(0, |(time, _)| *time), last);
        prop_assert_eq!(survivors, alone.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
    }
}
