//! The transport of `haul-proto` over simulated paths; seeds are printed.

mod common;
mod diagnosis;
mod feedback;
mod hosts;
mod longer_path;
mod moving;
mod policer;
mod reverse_path;
mod senses;
mod steady;
mod switching;

use common::{Channel, Job, Run, Session};
use haul_base::{PathId, Rate, Span, Time};
use haul_sim::{DropReason, Outage, StageChange, StageRef, World};
use proptest::prelude::*;

const GIGABIT: Rate = Rate::from_mbps(1_000);

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

fn channel(rtt: Span, loss: f64) -> Channel {
    Channel { loss, ..Channel::clean(rtt / 2, GIGABIT) }
}

fn run(seed: u64, len: u64, controller: &str, rate: Option<Rate>, rtt: Span, loss: f64) -> Run {
    let channel = channel(rtt, loss);
    Run::new(seed, len, controller, rate, &channel, &channel)
}

#[test]
fn an_empty_object_arrives() {
    let mut r = run(1, 0, "bbr", None, ms(50), 0.0);
    r.run(Span::from_secs(5));
    r.assert_complete();
}

#[test]
fn objects_of_every_small_size_arrive() {
    for len in [1, 2, 1_160, 1_161, 1_162, 1_433, 1_434, 5_000, 100_001] {
        let mut r = run(len, len, "bbr", None, ms(5), 0.05);
        r.run(Span::from_secs(20));
        r.assert_complete();
    }
}

#[test]
fn fixed_keeps_its_rate_at_one_percent_loss_and_retransmits_only_missing_packets() {
    let mut r = run(7, 300_000_000, "fixed", Some(Rate::from_mbps(950)), ms(20), 0.01);
    r.run(Span::from_secs(30));
    r.assert_complete();
    let stats = r.sent();
    let ideal = (stats.packets - stats.resent) as f64 / 0.99;
    let share = stats.packets as f64 / ideal;
    assert!(share <= 1.005, "sent {share} of the ideal; {stats:?}");
    let g = r.session.goodput(&r.world);
    // Tolerates three round trips at the end.
    assert!(g >= 0.95 * 950.0 * 0.99, "{g} Mbit/s; {stats:?}");
    let truth = r.world.path(r.forward).unwrap().counters();
    // Only path MTU probes that are too large are dropped in addition.
    let known = truth.drops.of(DropReason::Random) + truth.drops.of(DropReason::TooLarge);
    assert_eq!(truth.drops.total(), known, "{truth:?}");
}

#[test]
fn the_default_fills_a_long_lossy_gigabit() {
    let mut r = run(11, 600_000_000, "bbr", None, ms(50), 0.001);
    r.run(Span::from_secs(60));
    r.assert_complete();
    let g = r.session.goodput(&r.world);
    assert!(g > 800.0, "{g} Mbit/s; {:?}", r.sent());
}

#[test]
fn duplication_reordering_corruption_and_truncation_are_survived() {
    let bad =
        Channel { duplicate: 0.02, reorder: 0.05, corrupt: 0.01, truncate: 0.005, ..channel(ms(30), 0.02) };
    let mut r = Run::new(13, 20_000_000, "bbr", None, &bad, &bad);
    r.run(Span::from_secs(60));
    r.assert_complete();
    let received = r.session.receiver(&r.world).stats();
    assert!(received.rejected > 0 && r.sent().rejected > 0);
    assert!(received.duplicates > 0);
    // Every damaged packet that arrived was detected, and no other was rejected.
    let forward = r.world.path(r.forward).unwrap().counters();
    assert!(received.rejected <= forward.damaged + forward.copies, "{received:?} {forward:?}");
    assert!(received.rejected as f64 >= 0.8 * forward.damaged as f64, "{received:?} {forward:?}");
}

#[test]
fn an_outage_of_three_seconds_delays_by_little_more() {
    let time = |outages: Vec<Outage>| {
        let channel = Channel { outages, ..channel(ms(40), 0.0) };
        let mut r = Run::new(17, 200_000_000, "bbr", None, &channel, &channel);
        r.run(Span::from_secs(60));
        r.assert_complete();
        r.elapsed()
    };
    let outage = Outage { at: ms(1_000), length: ms(3_000), every: None };
    let (plain, broken) = (time(Vec::new()), time(vec![outage]));
    assert!(broken <= plain + ms(7_000), "{plain} without, {broken} with");
}

#[test]
fn lost_feedback_causes_no_retransmissions() {
    let (forth, back) = (channel(ms(30), 0.0), channel(ms(30), 0.3));
    let mut r = Run::new(19, 50_000_000, "fixed", Some(Rate::from_mbps(500)), &forth, &back);
    r.run(Span::from_secs(30));
    r.assert_complete();
    assert!(r.sent().resent <= 4, "{:?}", r.sent());
}

#[test]
fn the_receivers_limit_is_never_overrun() {
    let (len, per_tick) = (30_000_000, 200_000);
    // 200 kB every 10 ms: 160 Mbit/s, while the sender would send at 900.
    let channel = channel(ms(10), 0.0);
    let law = ("fixed", Some(Rate::from_mbps(900)));
    let mut r = Run::with_limit(23, len, law, &channel, &channel, per_tick);
    for tick in 1..=len / per_tick {
        let (sink_state, receiver) = (r.session.sink_state.clone(), r.session.receiver);
        r.world.at(Time::ZERO + ms(10) * tick, move |world| {
            sink_state.lock().unwrap().limit = per_tick * (tick + 1);
            // A sink with free space wakes its machine.
            let _ = world.node_mut::<common::ReceiverNode>(receiver);
        });
    }
    r.run(Span::from_secs(30));
    r.assert_complete();
    assert!(r.elapsed() >= ms(1_480), "{}", r.elapsed());
    // The receiver rejects data above the limit that it has announced.
    assert_eq!(r.session.receiver(&r.world).stats().rejected, 0);
    assert_eq!(r.sent().resent, 0, "{:?}", r.sent());
    assert!(r.sent().waiting.receiver > ms(1_000), "{:?}", r.sent());
}

#[test]
fn jumbo_frames_are_found_while_running_and_used() {
    let back = channel(ms(10), 0.0);
    let forth = Channel { mtu: 8_972, ..back.clone() };
    let mut r = Run::new(29, 100_000_000, "bbr", None, &forth, &back);
    r.run(Span::from_secs(30));
    r.assert_complete();
    assert_eq!(r.sent().datagram, 8_972);
}

#[test]
fn a_path_whose_mtu_shrinks_is_survived() {
    for (before, after) in [(8_972, 1_472), (1_472, 1_300), (8_972, 1_200)] {
        let back = channel(ms(20), 0.001);
        let forth = Channel { mtu: before, ..back.clone() };
        let mut r = Run::new(41, 150_000_000, "bbr", None, &forth, &back);
        let links = [r.forward, r.back];
        r.world.at(Time::ZERO + ms(700), move |world| {
            for link in links {
                world
                    .change_link(link, &StageRef::Name("mtu".into()), &StageChange::Mtu(after + 28))
                    .unwrap();
            }
        });
        r.run(Span::from_secs(60));
        r.assert_complete();
        let size = u32::from(r.sent().datagram);
        assert!(size <= after, "{before} -> {after}: {size}");
        assert!(r.elapsed() < Span::from_secs(4), "{}", r.elapsed());
    }
}

#[test]
fn silence_of_the_peer_is_reported_once_and_the_session_recovers() {
    let outage = Outage { at: ms(100), length: ms(20_000), every: None };
    let channel = Channel { outages: vec![outage], ..channel(ms(20), 0.0) };
    let mut r = Run::new(31, 40_000_000, "bbr", None, &channel, &channel);
    r.run(Span::from_secs(60));
    r.assert_complete();
    assert_eq!(r.session.silences(&r.world), 2, "one on each side");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let bytes = |seed| {
        let bad = Channel { duplicate: 0.01, reorder: 0.02, corrupt: 0.01, ..channel(ms(30), 0.01) };
        let mut r = Run::new(seed, 5_000_000, "bbr", None, &bad, &bad);
        r.world.record_every(ms(10));
        r.run(Span::from_secs(30));
        (serde_json::to_string(&r.world.summary()).unwrap(), r.sent())
    };
    assert_eq!(bytes(5), bytes(5));
    assert_ne!(bytes(5).0.replace("\"seed\":5", ""), bytes(6).0.replace("\"seed\":6", ""));
}

#[test]
fn four_senders_share_a_bottleneck_and_all_objects_arrive() {
    let seed = 43;
    println!("seed {seed}");
    let mut world = World::new(seed);
    let shared = world.add_link("shared", &Channel::clean(ms(10), GIGABIT).spec()).unwrap();
    let port = PathId::default();
    let sessions: Vec<Session> = (0..4)
        .map(|n| {
            let name = format!("session {n}");
            let (rtt, limit) = (ms(20), u64::MAX >> 16);
            let job = Job { name: &name, len: 20_000_000, controller: "bbr", ceiling: None, rtt, limit };
            let session = Session::add(&mut world, job);
            let access = Channel::clean(Span::from_micros(10), Rate::from_mbps(2_500)).spec();
            let access = world.add_link(&format!("access {n}"), &access).unwrap();
            let back = world.add_link(&format!("back {n}"), &Channel::clean(ms(10), GIGABIT).spec()).unwrap();
            let (from, to) = ((session.sender, port), (session.receiver, port));
            world.connect(&format!("data {n}"), from, to, &[access, shared]).unwrap();
            world.connect(&format!("feedback {n}"), to, from, &[back]).unwrap();
            session
        })
        .collect();
    world.run_while(Time::ZERO + Span::from_secs(30), |world| sessions.iter().any(|s| !s.is_over(world)));
    for session in &sessions {
        session.assert_complete(&world);
    }
    assert!(world.adds_up());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_object_arrives_complete_over_every_bad_path(
        seed in any::<u64>(),
        len in 0u64..3_000_000,
        rtt_us in 50u64..200_000,
        loss in 0.0f64..0.2,
        back_loss in 0.0f64..0.2,
        duplicate in 0.0f64..0.05,
        reorder in 0.0f64..0.2,
        corrupt in 0.0f64..0.02,
        mbps in 5u64..2_000,
        fixed in any::<bool>(),
    ) {
        let one_way = Span::from_micros(rtt_us / 2);
        let rate = Rate::from_mbps(mbps);
        let forth = Channel { loss, duplicate, reorder, corrupt, ..Channel::clean(one_way, rate) };
        let back = Channel { loss: back_loss, ..forth.clone() };
        let (name, ceiling) = if fixed { ("fixed", Some(rate)) } else { ("bbr", None) };
        let mut r = Run::new(seed, len, name, ceiling, &forth, &back);
        r.run(Span::from_secs(120));
        r.assert_complete();
    }
}
