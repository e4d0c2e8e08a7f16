//! Sender and receiver over a seeded lossy channel in virtual time.

mod common;

use std::sync::Arc;

use common::{Channel, PatternSource, World, link};
use haul_base::{Bytes, Machine, Rate, Span, Time};
use haul_proto::{ControllerConfig, Sender, SenderConfig, build_controller};
use proptest::prelude::*;

const GIGABIT: Rate = Rate::from_mbps(1_000);

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

fn path(rtt: Span, loss: f64) -> (Channel, Channel) {
    let forward = Channel { loss, ..Channel::clean(rtt / 2, GIGABIT) };
    (forward, forward)
}

fn world(seed: u64, len: u64, controller: &str, rate: Option<Rate>, rtt: Span, loss: f64) -> World {
    let (forward, back) = path(rtt, loss);
    World::new(seed, len, controller, rate, forward, back)
}

/// Goodput in Mbit/s up to the time at which the sender knows that everything has arrived.
fn goodput(world: &World, len: u64) -> f64 {
    let time = world.out.delivered_at.expect("delivered").since(Time::ZERO);
    Rate::from_transfer(len, time).as_bps() as f64 / 1e6
}

/// Settings that a peer may have chosen cause an error if out of range, not a panic.
#[test]
fn peer_settings_out_of_bounds_are_an_error() {
    let control = ControllerConfig { ceiling: None, initial_rtt: ms(1), feedback_interval: ms(1) };
    for (chunk, builds) in [(1, true), (1 << 48, true), (u64::MAX, false)] {
        let config = SenderConfig { chunk: Bytes(chunk), ..SenderConfig::default() };
        let controller = build_controller("bbr", &control).unwrap();
        let source = Box::new(PatternSource { len: 0, released: Arc::default() });
        let made = Sender::with_config(Time::ZERO, &config, link(), source, controller, 1 << 20);
        assert_eq!(made.is_ok(), builds, "{chunk}");
    }
}

#[test]
fn an_empty_object_arrives() {
    let mut w = world(1, 0, "bbr", None, ms(50), 0.0);
    w.run(Span::from_secs(5));
    w.assert_complete(0);
}

#[test]
fn objects_of_every_small_size_arrive() {
    for len in [1, 2, 1_160, 1_161, 1_162, 1_433, 1_434, 5_000, 100_001] {
        let mut w = world(len, len, "bbr", None, ms(5), 0.05);
        w.run(Span::from_secs(20));
        w.assert_complete(len);
    }
}

#[test]
fn fixed_keeps_its_rate_at_one_percent_loss_and_retransmits_only_missing_packets() {
    let len = 300_000_000;
    let mut w = world(7, len, "fixed", Some(Rate::from_mbps(950)), ms(20), 0.01);
    w.run(Span::from_secs(30));
    w.assert_complete(len);
    let stats = w.sender.stats();
    let ideal = (stats.packets - stats.resent) as f64 / 0.99;
    let share = stats.packets as f64 / ideal;
    assert!(share <= 1.005, "sent {share} of the ideal; {stats:?}");
    let g = goodput(&w, len);
    // Three round trips at the end are allowed.
    assert!(g >= 0.95 * 950.0 * 0.99, "{g} Mbit/s; {stats:?}");
}

#[test]
fn the_default_fills_a_long_lossy_gigabit() {
    let len = 600_000_000;
    let mut w = world(11, len, "bbr", None, ms(50), 0.001);
    w.run(Span::from_secs(60));
    w.assert_complete(len);
    let g = goodput(&w, len);
    assert!(g > 800.0, "{g} Mbit/s; {:?}", w.sender.stats());
}

#[test]
fn start_up_does_not_flood_a_queue_of_one_bandwidth_delay_product() {
    let len = 100_000_000;
    for rtt in [20, 50, 100] {
        let (mut forward, back) = path(ms(rtt), 0.0);
        forward.queue = ms(rtt);
        let mut w = World::new(43, len, "bbr", None, forward, back);
        w.run(Span::from_secs(60));
        w.assert_complete(len);
        let stats = w.sender.stats();
        let share = stats.resent as f64 / stats.packets as f64;
        assert!(share < 0.01, "rtt {rtt} ms: {share} of the packets resent; {stats:?}");
    }
}

#[test]
fn duplication_reordering_corruption_and_truncation_are_survived() {
    let len = 20_000_000;
    let (mut forward, mut back) = path(ms(30), 0.02);
    for channel in [&mut forward, &mut back] {
        channel.duplicate = 0.02;
        channel.reorder = 0.05;
        channel.corrupt = 0.01;
        channel.truncate = 0.005;
    }
    let mut w = World::new(13, len, "bbr", None, forward, back);
    w.run(Span::from_secs(60));
    w.assert_complete(len);
    assert!(w.receiver.stats().rejected > 0 && w.sender.stats().rejected > 0);
    assert!(w.receiver.stats().duplicates > 0);
}

#[test]
fn an_outage_of_three_seconds_delays_by_little_more() {
    let len = 200_000_000;
    let run = |outage| {
        let mut w = world(17, len, "bbr", None, ms(40), 0.0);
        w.outage = outage;
        w.run(Span::from_secs(60));
        w.assert_complete(len);
        // An outage is no black hole: the datagrams are as large as before, within the search's resolution.
        assert!(w.sender.stats().datagram >= 1_452, "{:?}", w.sender.stats());
        w.out.elapsed
    };
    let from = Time::ZERO + ms(1_000);
    let (plain, broken) = (run(None), run(Some((from, from + ms(3_000)))));
    assert!(broken <= plain + ms(7_000), "{plain} without, {broken} with");
}

#[test]
fn lost_feedback_causes_no_retransmissions() {
    let len = 50_000_000;
    let (forward, mut back) = path(ms(30), 0.0);
    back.loss = 0.3;
    let mut w = World::new(19, len, "fixed", Some(Rate::from_mbps(500)), forward, back);
    w.run(Span::from_secs(30));
    w.assert_complete(len);
    let stats = w.sender.stats();
    assert!(stats.resent <= 4, "{stats:?}");
}

#[test]
fn the_receivers_limit_is_never_overrun() {
    let len = 30_000_000;
    // 200 kB every 10 ms: 160 Mbit/s where the sender would go at 900.
    let channels = path(ms(10), 0.0);
    let mut w = World::with_drain(23, len, "fixed", Some(Rate::from_mbps(900)), channels, Some(200_000));
    w.run(Span::from_secs(30));
    w.assert_complete(len);
    assert!(w.out.elapsed >= ms(1_480), "{}", w.out.elapsed);
    // The receiver refuses data above the limit that it announced.
    assert_eq!(w.receiver.stats().rejected, 0);
    assert_eq!(w.sender.stats().resent, 0, "{:?}", w.sender.stats());
    assert!(w.sender.stats().waiting.receiver > ms(1_000), "{:?}", w.sender.stats());
}

#[test]
fn jumbo_frames_are_found_while_running_and_used() {
    let len = 100_000_000;
    let (mut forward, back) = path(ms(10), 0.0);
    forward.mtu = 8_972;
    let mut w = World::new(29, len, "bbr", None, forward, back);
    w.run(Span::from_secs(30));
    w.assert_complete(len);
    assert_eq!(w.sender.stats().datagram, 8_972);
}

#[test]
fn a_path_whose_mtu_shrinks_is_survived() {
    let len = 150_000_000;
    for (before, after) in [(8_972, 1_472), (1_472, 1_300), (8_972, 1_200)] {
        let (mut forward, back) = path(ms(20), 0.001);
        forward.mtu = before;
        let mut w = World::new(41, len, "bbr", None, forward, back);
        w.shrink = Some((Time::ZERO + ms(700), after));
        w.run(Span::from_secs(60));
        w.assert_complete(len);
        let size = usize::from(w.sender.stats().datagram);
        assert!(size <= after, "{before} -> {after}: {size}");
        assert!(w.out.elapsed < Span::from_secs(8), "{}", w.out.elapsed);
    }
}

#[test]
fn silence_of_the_peer_is_reported_once_and_the_session_recovers() {
    let len = 40_000_000;
    let mut w = world(31, len, "bbr", None, ms(20), 0.0);
    let from = Time::ZERO + ms(100);
    w.outage = Some((from, from + ms(20_000)));
    w.run(Span::from_secs(60));
    w.assert_complete(len);
    let silent = w.out.events.iter().filter(|e| e.starts_with("Silent")).count();
    assert_eq!(silent, 2, "one on each side: {:?}", w.out.events);
}

#[test]
fn feedback_without_progress_is_silence() {
    let len = 40_000_000;
    let (mut forward, back) = path(ms(20), 0.0);
    forward.loss = 1.0;
    let mut w = World::new(47, len, "bbr", None, forward, back);
    w.run(Span::from_secs(30));
    assert!(w.out.events.iter().any(|e| e.starts_with("Silent")), "{:?}", w.out.events);
    assert!(w.out.delivered_at.is_none() && w.sender.stats().feedback > 0, "{:?}", w.sender.stats());
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed| {
        let mut w = world(seed, 5_000_000, "bbr", None, ms(30), 0.01);
        w.run(Span::from_secs(30));
        (w.out.elapsed, w.out.sent_wire, w.out.dropped, w.sender.stats())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn hostile_bytes_are_counted_and_change_nothing() {
    let mut w = world(37, 1_000_000, "bbr", None, ms(10), 0.0);
    let mut rng = haul_base::Rng::from_seed(37);
    for n in 0..2_000u64 {
        let mut junk = vec![0; 7 + (n % 1_500) as usize];
        rng.fill(&mut junk);
        junk[0] = (n % 8) as u8;
        let stride = junk.len();
        let mut batch = haul_base::Received {
            data: &mut junk,
            stride,
            arrival: None,
            path: haul_base::PathId::default(),
            ecn: haul_base::Ecn::NotEct,
            socket_drops: None,
        };
        w.sender.on_receive(Time::ZERO, &mut batch);
        w.receiver.on_receive(Time::ZERO, &mut batch);
    }
    assert_eq!(w.sender.stats().rejected, 2_000);
    assert_eq!(w.receiver.stats().rejected, 2_000);
    w.run(Span::from_secs(10));
    w.assert_complete(1_000_000);
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
        let forward = Channel { loss, duplicate, reorder, corrupt, ..Channel::clean(one_way, rate) };
        let back = Channel { loss: back_loss, ..forward };
        let (name, ceiling) = if fixed { ("fixed", Some(rate)) } else { ("bbr", None) };
        let mut w = World::new(seed, len, name, ceiling, forward, back);
        w.run(Span::from_secs(120));
        w.assert_complete(len);
    }
}

/// Rate in Mbit/s at which bytes of the object arrive at the sink until `until`.
fn throughput(w: &mut World, until: u64) -> f64 {
    let delivered = |w: &World| w.sink_state.lock().expect("no panic elsewhere").delivered;
    let (before, from) = (delivered(w), w.now);
    w.run(ms(until));
    Rate::from_transfer(delivered(w) - before, w.now.since(from)).as_bps() as f64 / 1e6
}

#[test]
fn an_assigned_quota_is_not_reported_as_the_path() {
    let mut w = world(53, 1 << 40, "bbr", None, ms(50), 0.0);
    let quota = Rate::from_mbps(20);
    w.sender.set_quota(w.now, quota);
    let slow = throughput(&mut w, 5_000);
    assert!((17.0..20.0).contains(&slow), "{slow}");
    assert!(w.sender.rate_state().rate <= quota);
    let waiting = w.sender.stats().waiting;
    assert!(waiting.quota > ms(4_500), "{waiting:?}");
    // The other senders have left: a second later the path is full.
    w.sender.set_quota(w.now, Rate::MAX);
    throughput(&mut w, 6_000);
    let fast = throughput(&mut w, 7_000);
    assert!(fast > 850.0, "{fast}");
    assert!(w.sender.stats().waiting.quota <= waiting.quota + ms(10));
}

#[test]
fn time_at_the_ceiling_and_at_the_path_rate_are_distinguished() {
    let ceiling = Rate::from_mbps(20);
    for controller in ["bbr", "fixed"] {
        let mut w = world(67, 1 << 40, controller, Some(ceiling), ms(50), 0.0);
        throughput(&mut w, 5_000);
        let held = w.sender.stats().waiting;
        assert!(held.ceiling > ms(4_000), "{controller}: {held:?}");
    }
    let mut w = world(71, 1 << 40, "bbr", Some(Rate::from_mbps(5_000)), ms(50), 0.0);
    throughput(&mut w, 5_000);
    let free = w.sender.stats().waiting;
    assert!(free.ceiling < ms(100), "{free:?}");
}

#[test]
fn a_path_slower_than_the_assigned_quota_is_detected() {
    let mut w = world(59, 1 << 40, "bbr", None, ms(50), 0.0);
    throughput(&mut w, 2_000);
    w.sender.set_quota(w.now, Rate::from_mbps(500));
    w.forward.rate = Rate::from_mbps(100);
    throughput(&mut w, 5_000);
    let (before, dropped) = (w.sender.stats().packets, w.out.dropped);
    throughput(&mut w, 8_000);
    let (sent, lost) = (w.sender.stats().packets - before, w.out.dropped - dropped);
    assert!(lost * 10 < sent, "{lost} of {sent} packets were lost");
}

#[test]
fn a_raised_quota_ends_the_pause_of_a_small_one() {
    let mut w = world(61, 1 << 40, "bbr", None, ms(50), 0.0);
    throughput(&mut w, 1_000);
    w.sender.set_quota(w.now, Rate::ZERO);
    let held = throughput(&mut w, 5_000);
    assert!(held < 20.0, "{held}");
    w.sender.set_quota(w.now, Rate::from_mbps(500));
    let free = throughput(&mut w, 6_000);
    assert!(free > 400.0, "{free}");
}
