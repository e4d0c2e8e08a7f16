//! Two stacks and a lossy path without delay.

use haul_base::{Machine, Rng, Span, Time};
use haul_stack::{PACKET_HEADER_LEN, Recipe, SendOptions, Stack, StackEvent};
use proptest::prelude::*;

use super::NACK;
use super::wire::{self, Message};
use crate::micro;
use crate::micro::stats::NegativeAckStats;
use crate::micro::testing::{Pair, Path, T0, compiled, events, part, receive, setup, stats};

fn recipe(window: &str, nack: &[(&str, &str)]) -> Recipe {
    Recipe::new("test")
        .with("fixed_size")
        .with("transport_driver")
        .with("sequenced_segment")
        .with(part("retransmit", &[("window", window)]))
        .with(part("negative_ack", nack))
        .with("seal")
}

fn at(ms: u64) -> Time {
    T0 + Span::from_millis(ms)
}

fn send(pair: &mut Pair, now: Time, n: u32) {
    pair.a.send(now, &n.to_be_bytes(), SendOptions::default()).unwrap();
}

fn got(pair: &mut Pair) -> Vec<u32> {
    let number = |(_, m): (u64, Vec<u8>)| u32::from_be_bytes(m[..].try_into().unwrap());
    let mut got: Vec<u32> = pair.received_by_b().into_iter().map(number).collect();
    got.sort_unstable();
    got
}

#[test]
fn readings_cost_one_packet_each_and_are_finally_released() {
    let mut pair = Pair::new(&recipe("1024", &[]));
    for n in 0..1_000 {
        send(&mut pair, at(u64::from(n) * 1_000), n);
        pair.exchange(at(u64::from(n) * 1_000), &mut Path::default());
        pair.run_until(at(u64::from(n) * 1_000 + 999), &mut Path::default());
    }
    assert_eq!((pair.a.stats().data_sent, pair.a.stats().control_sent), (1_000, 0));
    assert_eq!((pair.b.stats().data_sent, pair.b.stats().control_sent), (0, 0));
    assert_eq!(got(&mut pair), (0..1_000).collect::<Vec<_>>());
    // The segments of the last two minutes are stored.
    assert!((119..=121).contains(&pair.a.unfinished()), "{}", pair.a.unfinished());
}

#[test]
fn a_gap_is_reported_once_and_repaired() {
    let mut pair = Pair::new(&recipe("1024", &[]));
    for n in 0..10 {
        let mut lose = |_| (3..6).contains(&n);
        send(&mut pair, at(0), n);
        pair.exchange(at(0), &mut Path { lose: Some(&mut lose), ..Path::default() });
    }
    assert_eq!(pair.b.stats().control_sent, 0);
    pair.run_until(at(5), &mut Path::default());
    assert_eq!(got(&mut pair), (0..10).collect::<Vec<_>>());
    assert_eq!((pair.b.stats().control_sent, pair.a.stats().data_resent), (1, 3));
}

#[test]
fn a_gap_longer_than_one_range_is_reported_completely() {
    let recipe = recipe("1024", &[]).without("seal").without("transport_driver");
    let mut b = Stack::new(compiled(&recipe), setup(false)).unwrap();
    let number = |n: u64| n.to_be_bytes()[2..].to_vec();
    // The sender holds the first 100,000 segments, and requests a report.
    let mut packet = [vec![NACK.0], number(1), vec![2, 1], number(0), number(100_000)].concat();
    let len = packet.len();
    receive(&mut b, T0, &mut packet, len);
    let mut slot = vec![0; 65_536];
    let sent = b.poll_transmit(T0, &mut slot).unwrap();
    let Some(Message::Report(report, ranges)) = wire::read(&slot[PACKET_HEADER_LEN..sent.len]) else {
        panic!("{:?}", &slot[..sent.len])
    };
    // Sequence numbers outside of all ranges count as arrived if the list is not full.
    let missing: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    assert_eq!((report.below, report.next, missing), (0, 100_000, 100_000));
    assert!(!ranges.is_full());
}

#[test]
fn a_gap_is_repaired_after_renumbering() {
    let recipe = recipe("1024", &[("silence", "1s"), ("retention", "40s")]);
    let mut pair = Pair::new(&recipe);
    (0..20).for_each(|n| send(&mut pair, at(0), n));
    pair.exchange(at(0), &mut Path::default());
    let mut changed = recipe.with("rate_stats");
    micro::registry().set(&mut changed, "sequenced_segment.window", "100000").unwrap();
    pair.a.reconfigure(at(0), &changed).unwrap();
    // Silence is reported, and answered with the sender's state.
    pair.run_until(at(5_000), &mut Path::default());
    assert!(pair.b.recipe().has("rate_stats"));
    for n in 20..30 {
        let mut lose = |_| (23..26).contains(&n);
        send(&mut pair, at(5_000), n);
        pair.exchange(at(5_000), &mut Path { lose: Some(&mut lose), ..Path::default() });
    }
    pair.run_until(at(10_000), &mut Path::default());
    assert_eq!(got(&mut pair), (0..30).collect::<Vec<_>>());
    assert_eq!((pair.a.stats().violations, pair.b.stats().violations), (0, 0));
}

#[test]
fn reordering_within_the_tolerance_is_no_gap() {
    let mut pair = Pair::new(&recipe("1024", &[]));
    (0..10).for_each(|n| send(&mut pair, at(0), n));
    pair.exchange(at(0), &mut Path { reverse: true, ..Path::default() });
    pair.run_until(at(1_000), &mut Path::default());
    assert_eq!((got(&mut pair).len(), pair.b.stats().control_sent), (10, 0));
}

#[test]
fn a_lost_last_reading_is_requested_after_silence_and_idle_requests_stop() {
    let mut pair = Pair::new(&recipe("1024", &[("silence", "1s"), ("retention", "40s")]));
    send(&mut pair, at(0), 0);
    pair.exchange(at(0), &mut Path::default());
    let mut lose = |_| true;
    send(&mut pair, at(10), 1);
    pair.exchange(at(10), &mut Path { lose: Some(&mut lose), ..Path::default() });
    pair.run_until(at(999), &mut Path::default());
    assert_eq!((got(&mut pair), pair.b.stats().control_sent), (vec![0], 0));
    pair.run_until(at(1_000), &mut Path::default());
    assert_eq!((got(&mut pair), pair.b.stats().control_sent), (vec![1], 1));
    pair.run_until(at(1_000_000), &mut Path::default());
    // The interval doubles up to a quarter of the retention: 1, 2, 4, 8, and then every ten seconds.
    let reports = stats::<NegativeAckStats>(&pair.b).reports;
    assert!((100..=106).contains(&reports), "{reports}");
    assert_eq!(stats::<NegativeAckStats>(&pair.a).answers, reports - 1);
    assert_eq!(pair.a.stats().data_resent, 1);
}

#[test]
fn permanently_lost_data_is_not_requested_forever() {
    let mut pair = Pair::new(&recipe("1024", &[("silence", "1s"), ("retention", "8s")]));
    let mut lose = |_| true;
    for n in 0..60 {
        send(&mut pair, at(n * 500), n as u32);
        pair.exchange(at(n * 500), &mut Path { lose: Some(&mut lose), ..Path::default() });
        pair.run_until(at(n * 500 + 499), &mut Path { lose: Some(&mut lose), ..Path::default() });
    }
    send(&mut pair, at(30_000), 60);
    pair.exchange(at(30_000), &mut Path::default());
    pair.run_until(at(61_000), &mut Path::default());
    // The messages of the last eight seconds are still stored.
    assert_eq!(got(&mut pair), (45..61).collect::<Vec<_>>());
    let reports = stats::<NegativeAckStats>(&pair.b).reports;
    pair.run_until(at(62_000), &mut Path::default());
    assert!(stats::<NegativeAckStats>(&pair.b).reports <= reports + 1);
}

#[test]
fn an_accepting_side_probes_once() {
    let mut pair = Pair::new(&recipe("1024", &[]));
    let mut lose = |_| true;
    pair.b.send(at(0), b"base", SendOptions::default()).unwrap();
    pair.exchange(at(0), &mut Path { lose: Some(&mut lose), ..Path::default() });
    pair.run_until(at(1_000), &mut Path::default());
    assert_eq!(pair.a.recv().unwrap().1[..], b"base"[..]);
    let said = pair.b.stats().control_sent;
    for n in 1..10 {
        pair.b.send(at(1_000 + n), b"base", SendOptions::default()).unwrap();
        pair.exchange(at(1_000 + n), &mut Path::default());
    }
    pair.run_until(at(1_100), &mut Path::default());
    assert_eq!(pair.b.stats().control_sent, said);
}

#[test]
fn a_recipe_can_change_without_acknowledgements() {
    let mut pair = Pair::new(&recipe("1024", &[]));
    (0..10).for_each(|n| send(&mut pair, at(0), n));
    let mut lose = |packet| packet == 0;
    pair.exchange(at(0), &mut Path { lose: Some(&mut lose), ..Path::default() });
    let new = pair.a.recipe().clone().without("negative_ack").with("positive_ack");
    pair.a.reconfigure(at(1), &new).unwrap();
    pair.exchange(at(1), &mut Path::default());
    pair.run_until(at(2_000), &mut Path::default());
    assert!(pair.a.recipe().has("positive_ack") && pair.b.recipe().has("positive_ack"));
    (10..20).for_each(|n| send(&mut pair, at(2_000), n));
    pair.exchange(at(2_000), &mut Path::default());
    assert_eq!(got(&mut pair), (0..20).collect::<Vec<_>>());
    assert_eq!((pair.a.unfinished(), pair.a.stats().violations, pair.b.stats().violations), (0, 0, 0));
}

#[test]
fn retention_shorter_than_the_silence_timeout_is_refused() {
    let recipe = recipe("1024", &[("silence", "10s"), ("retention", "60s")]);
    let registry = std::sync::Arc::new(micro::registry());
    let error = registry.compile(&recipe, 8).unwrap_err().to_string();
    assert!(error.contains("at least 8 times"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_message_arrives_exactly_once(
        loss in 0.0..0.3, duplicate: bool, reverse: bool, seed: u64,
        messages in 1u32..120, window in 8u32..100, both: bool,
    ) {
        let mut pair = Pair::new(&recipe(&window.to_string(), &[]));
        let mut rng = Rng::from_seed(seed);
        let mut lose = |_| rng.chance(loss);
        let mut path = Path { lose: Some(&mut lose), duplicate, reverse, ..Path::default() };
        for n in 0..messages {
            let now = at(3 * u64::from(n));
            send(&mut pair, now, n);
            if both {
                pair.b.send(now, &[n as u8], SendOptions::default()).unwrap();
            }
            pair.exchange(now, &mut path);
            pair.run_until(now + Span::from_millis(2), &mut path);
        }
        pair.run_until(at(600_000), &mut path);
        prop_assert_eq!(got(&mut pair), (0..messages).collect::<Vec<_>>());
        let back = std::iter::from_fn(|| pair.a.recv()).count();
        prop_assert_eq!(back, if both { messages as usize } else { 0 });
        prop_assert_eq!(pair.a.stats().violations + pair.b.stats().violations, 0);
        prop_assert_eq!(pair.a.unfinished() + pair.b.unfinished(), 0);
        if !both {
            // Nothing followed the last segments, so a report confirms that all have arrived.
            let settled = events(&mut pair.a).into_iter().filter(|event| matches!(event, StackEvent::Settled { arrived: true, .. }));
            prop_assert_eq!(settled.count(), messages as usize);
        }
    }

    #[test]
    fn a_lying_authenticated_peer_harms_only_its_session(
        word in 1u8..3, flag in 0u8..2, numbers in prop::collection::vec(0u64..20, 3), rest in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let recipe = recipe("1024", &[]).without("seal").without("transport_driver");
        let mut a = Stack::new(compiled(&recipe), setup(true)).unwrap();
        for n in 0..5u32 {
            a.send(T0, &n.to_be_bytes(), SendOptions::default()).unwrap();
        }
        let mut slot = vec![0; 65_536];
        while a.poll_transmit(T0, &mut slot).is_some() {}
        let mut packet = vec![9, 0, 0, 0, 0, 0, 9, word, flag];
        for number in numbers.iter().take(if word == 1 { 3 } else { 2 }) {
            packet.extend_from_slice(&number.to_be_bytes()[2..]);
        }
        packet.extend_from_slice(&rest[..if word == 1 { rest.len() / 4 * 4 } else { 0 }]);
        for n in 0..3 {
            let len = packet.len();
            receive(&mut a, at(n), &mut packet, len);
            a.on_deadline(at(n));
            while a.poll_transmit(at(n), &mut slot).is_some() {}
        }
        prop_assert!(!a.has_failed() && a.unfinished() <= 5);
    }
}
