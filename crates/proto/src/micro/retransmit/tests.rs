//! Two stacks and a lossy path without delay: lost messages are retransmitted and delivered exactly once.

use std::any::Any;
use std::sync::Arc;

use haul_base::{Machine, Rate, Rng, Span, Time};
use haul_stack::{
    Context, Declaration, EventId, MESSAGE_SETTLED, MicroProtocol, Order, RATE_REQUESTED, Recipe,
    Registration, Resolution, SendOptions, Settled, Stack, StackEvent,
};
use proptest::prelude::*;

use crate::micro::stats::{KeepCopiesStats, SequencedSegmentStats};
use crate::micro::testing::{Pair, Path, T0, events, part, receive, setup, stats};

const ACKS: [&str; 2] = ["positive_ack", "cumulative_ack"];

fn recipe(acks: &'static str, retransmit: &[(&str, &str)]) -> Recipe {
    Recipe::new("test")
        .with("fixed_size")
        .with("transport_driver")
        .with("sequenced_segment")
        .with(part("retransmit", retransmit))
        .with(acks)
        .with("seal")
}

fn message(n: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![n as u8; len.max(4)];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    bytes
}

fn settled(pair: &mut Pair) -> Vec<(u64, bool)> {
    let settled = |event| match event {
        StackEvent::Settled { message, arrived } => Some((message, arrived)),
        _ => None,
    };
    events(&mut pair.a).into_iter().filter_map(settled).collect()
}

#[test]
fn a_clean_path_carries_and_reports_every_message_once() {
    for acks in ACKS {
        let mut pair = Pair::new(&recipe(acks, &[]));
        for n in 0..200 {
            pair.a.send(T0, &message(n, 10), SendOptions::default()).unwrap();
        }
        pair.exchange(T0, &mut Path::default());
        pair.run_until(T0 + Span::from_secs(5), &mut Path::default());
        assert_eq!(pair.received_by_b().len(), 200);
        assert_eq!(settled(&mut pair), (0..200).map(|n| (n, true)).collect::<Vec<_>>());
        assert_eq!((pair.a.stats().data_resent, pair.a.unfinished(), pair.a.deadline()), (0, 0, None));
        assert_eq!(pair.b.stats().violations + pair.a.stats().violations, 0);
    }
}

#[test]
fn kept_copies_keep_their_attributes_across_recipes() {
    for acks in ["positive_ack", "cumulative_ack", "negative_ack"] {
        let plain = recipe(acks, &[]);
        let mut protected = Recipe::new("test").with("fixed_size").with("transport_driver").with("fec");
        protected.parts.extend(plain.clone().without("fixed_size").without("transport_driver").parts);
        let mut pair = Pair::new(&plain);
        let mut now = T0;
        for (round, change) in [protected.clone(), plain, protected].iter().enumerate() {
            let mut lose = |packet| packet % 3 == 1;
            for n in 0..10 {
                pair.a.send(now, &message(10 * round as u32 + n, 10), SendOptions::default()).unwrap();
            }
            pair.exchange(now, &mut Path { lose: Some(&mut lose), ..Path::default() });
            pair.run_until(now + Span::from_secs(20), &mut Path::default());
            now += Span::from_secs(20);
            pair.a.reconfigure(now, change).unwrap();
            pair.exchange(now, &mut Path::default());
            pair.run_until(now + Span::from_secs(20), &mut Path::default());
            now += Span::from_secs(20);
            assert!(pair.b.recipe().same_stack(change), "{acks}, change {round}");
            assert_eq!(pair.received_by_b().len(), 10, "{acks}, before change {round}");
        }
        assert_eq!(pair.a.stats().violations + pair.b.stats().violations, 0);
    }
}

#[test]
fn a_better_initial_rtt_applies_to_sent_packets_until_measured() {
    for (acks, delay) in [("positive_ack", Span::ZERO), ("cumulative_ack", Span::from_millis(10))] {
        let mut pair = Pair::new(&recipe(acks, &[]));
        let mut lost = |_| true;
        let due_after = |pair: &mut Pair| pair.a.deadline().map(|deadline| deadline.at.since(T0));
        // The initial estimate is 10 ms.
        for (guess, expected) in [(10, 30), (1, 3), (400, 1_200), (2, 6)] {
            let mut pair = Pair::new(&recipe(acks, &[]));
            pair.a.send(T0, &message(1, 10), SendOptions::default()).unwrap();
            pair.exchange(T0, &mut Path { lose: Some(&mut lost), ..Path::default() });
            assert_eq!(due_after(&mut pair), Some(Span::from_millis(30) + delay));
            pair.a.path_answered(T0, Span::from_millis(guess));
            assert_eq!(due_after(&mut pair), Some(Span::from_millis(expected) + delay), "{acks}");
            assert_eq!(pair.a.path().rtt, Span::from_millis(guess));
        }
        pair.a.send(T0, &message(1, 10), SendOptions::default()).unwrap();
        pair.exchange(T0, &mut Path::default());
        pair.run_until(T0 + delay, &mut Path::default());
        pair.a.send(T0 + delay, &message(2, 10), SendOptions::default()).unwrap();
        pair.exchange(T0 + delay, &mut Path { lose: Some(&mut lost), ..Path::default() });
        let measured = due_after(&mut pair);
        pair.a.path_answered(T0 + delay, Span::from_millis(400));
        assert_eq!(due_after(&mut pair), measured, "{acks}: the measured round trip is not used");
    }
}

/// As after a pause of the receiving process: everything queued in its socket would be retransmitted at each
/// timeout.
#[test]
fn during_silence_few_segments_are_retransmitted_and_the_first_arrival_reveals_the_others() {
    let mut pair = Pair::new(&recipe("positive_ack", &[]));
    for n in 0..200 {
        pair.a.send(T0, &message(n, 10), SendOptions::default()).unwrap();
    }
    let mut dead = Path { cut: [true, false], ..Path::default() };
    pair.exchange(T0, &mut dead);
    pair.run_until(T0 + Span::from_millis(200), &mut dead);
    assert_eq!(pair.a.stats().data_resent, 6 * 10, "six timeouts of 30 ms");
    pair.run_until(T0 + Span::from_millis(240), &mut Path::default());
    assert_eq!((pair.received_by_b().len(), pair.a.stats().data_resent), (200, 6 * 10 + 200));
    assert_eq!((pair.a.unfinished(), pair.a.deadline()), (0, None));
}

/// However long the path was down: once it has answered, losses are repaired faster.
#[test]
fn timeouts_double_only_until_an_acknowledgement() {
    for acks in ACKS {
        let mut pair = Pair::new(&recipe(acks, &[]));
        let mut dead = Path { cut: [true, true], ..Path::default() };
        pair.a.send(T0, &message(1, 10), SendOptions::default()).unwrap();
        pair.exchange(T0, &mut dead);
        let mut now = T0 + Span::from_secs(100);
        pair.run_until(now, &mut dead);
        let due_in = |pair: &mut Pair, now| pair.a.deadline().unwrap().at.since(now);
        assert!(due_in(&mut pair, now) > Span::from_secs(1), "{acks}");
        // Another segment arrives and is acknowledged; the retransmission that this causes is lost.
        now += Span::from_millis(1);
        pair.a.send(now, &message(2, 30), SendOptions::default()).unwrap();
        let mut packets = 0;
        let mut lose = |_| {
            packets += 1;
            packets > 2
        };
        let mut path = Path { lose: Some(&mut lose), ..Path::default() };
        pair.exchange(now, &mut path);
        pair.run_until(now + Span::from_millis(20), &mut path);
        now += Span::from_millis(20);
        assert_eq!(pair.received_by_b().len(), 1, "{acks}");
        assert!(due_in(&mut pair, now) < Span::from_millis(100), "{acks}: {:?}", due_in(&mut pair, now));
        pair.run_until(now + Span::from_secs(1), &mut Path::default());
        assert_eq!((pair.received_by_b().len(), pair.a.unfinished()), (1, 0), "{acks}");
    }
}

/// Packets that a stack sends now.
fn packets(stack: &mut Stack, now: Time) -> Vec<Vec<u8>> {
    let mut slot = vec![0; 65_536];
    let mut packets = Vec::new();
    while let Some(sent) = stack.poll_transmit(now, &mut slot) {
        packets.extend(slot[..sent.len].chunks(sent.segment_size).map(<[u8]>::to_vec));
    }
    packets
}

#[test]
fn acknowledging_a_pending_retransmission_keeps_the_timer_of_the_rest() {
    for acks in ACKS {
        let mut pair = Pair::new(&recipe(acks, &[]));
        let late = T0 + Span::from_millis(100);
        let send = |pair: &mut Pair, n| {
            pair.a.send(T0, &message(n, 1_000), SendOptions::default()).unwrap();
            packets(&mut pair.a, T0)
        };
        let [mut first] = send(&mut pair, 1).try_into().unwrap();
        send(&mut pair, 2);
        let stride = first.len();
        receive(&mut pair.b, T0, &mut first, stride);
        pair.b.on_deadline(late);
        let [mut acknowledgement] = packets(&mut pair.b, late).try_into().unwrap();
        // Both have timed out, or the first. Before any retransmission, the first turns out to have arrived.
        pair.a.on_deadline(late);
        let stride = acknowledgement.len();
        receive(&mut pair.a, late, &mut acknowledgement, stride);
        pair.exchange(late, &mut Path::default());
        pair.run_until(late + Span::from_secs(1), &mut Path::default());
        assert_eq!((pair.received_by_b().len(), pair.a.unfinished()), (2, 0), "{acks}");
    }
}

#[test]
fn every_message_is_abandoned_on_a_dead_path() {
    for acks in ACKS {
        let mut pair = Pair::new(&recipe(acks, &[("attempts", "2")]));
        let mut dead = Path { cut: [true, true], ..Path::default() };
        for n in 0..3 {
            pair.a.send(T0, &message(n, 10), SendOptions::default()).unwrap();
            pair.exchange(T0, &mut dead);
        }
        pair.run_until(T0 + Span::from_secs(10), &mut dead);
        assert_eq!(settled(&mut pair), [(0, false), (1, false), (2, false)], "{acks}");
        assert_eq!(pair.a.deadline(), None, "{acks}");
    }
}

#[test]
fn acknowledgements_of_one_batch_share_a_packet() {
    let mut pair = Pair::new(&recipe("positive_ack", &[]));
    for n in 0..64 {
        pair.a.send(T0, &message(n, 10), SendOptions::default()).unwrap();
    }
    pair.exchange(T0, &mut Path::default());
    assert_eq!(pair.b.stats().control_sent, 1);
}

#[test]
fn a_cumulative_acknowledgement_is_immediate_while_anything_is_missing() {
    let mut pair = Pair::new(&recipe("cumulative_ack", &[]));
    for n in 0..5 {
        let mut lose = |_| n % 2 == 1;
        pair.a.send(T0, &message(n, 10), SendOptions::default()).unwrap();
        pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
    }
    let said = pair.b.stats().control_sent;
    let mut now = T0;
    while pair.a.stats().data_resent == 0 {
        now += Span::from_millis(1);
        pair.run_until(now, &mut Path::default());
    }
    assert!(pair.b.stats().control_sent > said, "the second gap remains after the first is filled");
    pair.run_until(now + Span::from_secs(1), &mut Path::default());
    assert_eq!((pair.received_by_b().len(), pair.a.unfinished()), (5, 0));
}

#[test]
fn a_cumulative_acknowledgement_waits_for_a_second_packet_or_ten_milliseconds() {
    let mut pair = Pair::new(&recipe("cumulative_ack", &[]));
    let at = |ms| T0 + Span::from_millis(ms);
    pair.a.send(T0, &message(0, 10), SendOptions::default()).unwrap();
    pair.exchange(T0, &mut Path::default());
    assert_eq!(pair.b.stats().control_sent, 0);
    pair.run_until(at(9), &mut Path::default());
    assert_eq!(pair.b.stats().control_sent, 0);
    pair.run_until(at(10), &mut Path::default());
    assert_eq!((pair.b.stats().control_sent, pair.a.unfinished()), (1, 0));
    // Lengths differ, so that the two do not form a batch.
    for len in [20, 30] {
        pair.a.send(at(20), &message(0, len), SendOptions::default()).unwrap();
        pair.exchange(at(20), &mut Path::default());
    }
    assert_eq!((pair.b.stats().control_sent, pair.a.unfinished(), pair.a.stats().data_resent), (2, 0, 0));
}

#[test]
fn the_window_delays_new_messages_but_not_retransmissions() {
    for acks in ACKS {
        let mut pair = Pair::new(&recipe(acks, &[("window", "10")]));
        for n in 0..100 {
            pair.a.send(T0, &message(n, 10), SendOptions::default()).unwrap();
        }
        let mut lose = |_| true;
        pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
        assert_eq!(pair.a.stats().data_sent, 10);
        pair.run_until(T0 + Span::from_millis(500), &mut Path { lose: Some(&mut lose), ..Path::default() });
        assert!(pair.a.stats().data_resent > 0);
        assert_eq!(stats::<SequencedSegmentStats>(&pair.a).sent, 10);
        pair.run_until(T0 + Span::from_secs(60), &mut Path::default());
        assert_eq!(pair.received_by_b().len(), 100);
    }
}

#[test]
fn copies_use_limited_memory_and_one_message_is_always_sent() {
    for acks in ["positive_ack", "cumulative_ack", "negative_ack"] {
        for (memory, sent) in [("20000B", 19), ("10B", 1)] {
            let mut pair = Pair::new(&recipe(acks, &[("memory", memory)]));
            for n in 0..100 {
                pair.a.send(T0, &message(n, 1_000), SendOptions::default()).unwrap();
            }
            let mut lose = |_| true;
            pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
            let (data_sent, outstanding) = (pair.a.stats().data_sent, pair.a.unfinished() as u64);
            assert!(data_sent.abs_diff(sent) <= 1, "{acks}, {memory}: {data_sent} packets");
            assert_eq!(outstanding, 100);
            pair.run_until(T0 + Span::from_secs(100), &mut Path::default());
            assert_eq!((pair.received_by_b().len(), pair.a.stats().messages_submitted), (100, 100), "{acks}");
        }
    }
}

#[test]
fn memory_for_silent_peers_is_bounded_as_documented() {
    let preset = |name| crate::presets::preset(name).unwrap().unwrap();
    let mut pair = Pair::new(&preset("msg"));
    let mut lose = |_| true;
    for round in 0..20 {
        let now = T0 + Span::from_millis(round);
        // Rejected once the queue is full.
        let _ = (0..1_000)
            .try_for_each(|n| pair.a.send(now, &message(n, 1_000), SendOptions::default()).map(drop));
        pair.exchange(now, &mut Path { lose: Some(&mut lose), ..Path::default() });
        pair.run_until(now, &mut Path { lose: Some(&mut lose), ..Path::default() });
    }
    let data_sent = stats::<SequencedSegmentStats>(&pair.a).sent;
    assert!(
        (7_900..=8_389).contains(&data_sent),
        "{data_sent} messages of 1,000 bytes are kept by `msg`, of 8 MiB"
    );
    assert_eq!(preset("sensor").text("retransmit", "memory").as_deref(), Some("16MiB"), "docs/security.md");
}

#[test]
fn a_window_beyond_the_receivers_memory_is_refused() {
    let registry = Arc::new(crate::micro::registry());
    let compile = |window| registry.compile(&recipe("positive_ack", &[("window", window)]), 8);
    assert!(compile("32768").is_ok());
    let error = compile("32769").unwrap_err().to_string();
    assert!(error.contains("at most 32768 packets"), "{error}");
}

#[test]
fn a_message_is_abandoned_after_the_maximum_attempts_and_others_continue() {
    for acks in ACKS {
        let mut pair = Pair::new(&recipe(acks, &[("attempts", "3")]));
        let lost = |n: u32| n % 7 == 3;
        let mut now = T0;
        for n in 0..100 {
            pair.a.send(now, &message(n, 10), SendOptions::default()).unwrap();
            let before = pair.a.stats().data_sent;
            let mut lose = |_| lost(n);
            let mut path = Path { lose: Some(&mut lose), ..Path::default() };
            pair.exchange(now, &mut path);
            now += Span::from_secs(100);
            pair.run_until(now, &mut path);
            let attempts = if lost(n) { 3 } else { 1 };
            assert_eq!(pair.a.stats().data_sent, before + attempts, "{acks} {n}");
        }
        let mut got = settled(&mut pair);
        got.sort_unstable();
        assert_eq!(got, (0..100).map(|n| (n, !lost(n as u32))).collect::<Vec<_>>(), "{acks}");
        assert_eq!(pair.a.unfinished(), 0);
    }
}

#[test]
fn a_message_is_abandoned_with_its_first_abandoned_segment() {
    let mut pair = Pair::new(&recipe("positive_ack", &[("attempts", "2")]));
    // 20 segments, one of which never arrives: the rest of the message is dropped.
    pair.a.send(T0, &message(1, 20_000), SendOptions::default()).unwrap();
    let mut lose = |packet| packet > 0;
    pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
    pair.run_until(T0 + Span::from_secs(10), &mut Path { lose: Some(&mut lose), ..Path::default() });
    assert_eq!(settled(&mut pair), [(0, false)]);
    assert_eq!((pair.a.unfinished(), pair.a.deadline()), (0, None));
}

/// Gives up message 0 when another rate is requested: an event that a test can raise from outside.
#[derive(Debug)]
struct GiveUp;

impl MicroProtocol for GiveUp {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(RATE_REQUESTED, Order::NORMAL);
    }

    fn on_event(&mut self, _: EventId, _: &mut dyn Any, context: &mut Context<'_>) {
        context.raise(MESSAGE_SETTLED, &mut Settled { message: 0, arrived: false });
    }
}

#[test]
fn a_message_abandoned_elsewhere_is_not_retransmitted() {
    let mut registry = crate::micro::registry();
    registry.register(Registration::new("give_up", 1, "gives up", |_, _| Ok(Box::new(GiveUp))));
    let recipe = recipe("positive_ack", &[]).with("give_up");
    let compiled = Arc::new(registry).compile(&recipe, 8).unwrap();
    let mut pair = Pair::new(&recipe.without("give_up"));
    pair.a = Stack::new(compiled, setup(true)).unwrap();
    let mut lose = |_| true;
    for n in 0..2 {
        pair.a.send(T0, &message(n, 3_000), SendOptions::default()).unwrap();
    }
    pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
    pair.a.request_rate(T0, Rate::from_mbps(1));
    assert_eq!(pair.a.unfinished(), 3);
    pair.run_until(T0 + Span::from_secs(5), &mut Path::default());
    assert_eq!(pair.received_by_b(), [(1, message(1, 3_000))]);
    assert_eq!((pair.a.unfinished(), pair.a.stats().data_resent), (0, 3));
}

/// What a random path loses, duplicates and reorders.
#[derive(Debug, Clone)]
struct Bad {
    loss: f64,
    duplicate: bool,
    reverse: bool,
    seed: u64,
}

fn bad() -> impl Strategy<Value = Bad> {
    (0.0..0.5, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(|(loss, duplicate, reverse, seed)| Bad {
        loss,
        duplicate,
        reverse,
        seed,
    })
}

fn run(acks: &'static str, bad: &Bad, lens: &[usize], both: bool) {
    let mut pair = Pair::new(&recipe(acks, &[("window", "64")]));
    let mut rng = Rng::from_seed(bad.seed);
    let mut lose = |_| rng.chance(bad.loss);
    let mut path =
        Path { lose: Some(&mut lose), duplicate: bad.duplicate, reverse: bad.reverse, ..Path::default() };
    let mut now = T0;
    for (n, &len) in lens.iter().enumerate() {
        pair.a.send(now, &message(n as u32, len), SendOptions::default()).unwrap();
        if both {
            pair.b.send(now, &message(n as u32, len), SendOptions::default()).unwrap();
        }
        pair.exchange(now, &mut path);
        now += Span::from_millis(3);
        pair.run_until(now, &mut path);
    }
    pair.run_until(now + Span::from_secs(3_600), &mut path);
    let mut got = pair.received_by_b();
    got.sort();
    let sent: Vec<_> = (0..).zip(lens).map(|(n, &len)| (n, message(n as u32, len))).collect();
    assert_eq!(got, sent, "{acks}");
    if both {
        assert_eq!(std::iter::from_fn(|| pair.a.recv()).count(), lens.len());
    }
    let mut outcomes = settled(&mut pair);
    outcomes.sort_unstable();
    assert_eq!(outcomes, (0..lens.len() as u64).map(|n| (n, true)).collect::<Vec<_>>());
    assert_eq!((pair.a.unfinished(), pair.b.unfinished(), pair.a.stats().violations), (0, 0, 0));
    assert_eq!((stats::<KeepCopiesStats>(&pair.a).in_flight_bytes, pair.a.deadline()), (0, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_message_arrives_exactly_once(
        bad in bad(), lens in prop::collection::vec(0usize..6_000, 1..40), cumulative: bool, both: bool,
    ) {
        run(ACKS[usize::from(cumulative)], &bad, &lens, both);
    }

    #[test]
    fn a_lying_authenticated_peer_harms_only_its_session(
        body in prop::collection::vec(any::<u8>(), 0..80), below in 0u64..8, ranges in 0usize..10,
    ) {
        // Kinds 8 and 11 with any body: a stack without keys accepts them as authentic.
        for (acks, kind) in ACKS.into_iter().zip([8, 11]) {
            let mut pair = Pair::new(&recipe(acks, &[]).without("seal").without("transport_driver"));
            pair.a.send(T0, &message(1, 3_000), SendOptions::default()).unwrap();
            let mut lose = |_| true;
            pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
            let mut packet = vec![kind, 0, 0, 0, 0, 0, 9];
            packet.extend_from_slice(&body);
            let mut plausible = vec![kind, 0, 0, 0, 0, 0, 10];
            plausible.extend_from_slice(&[0; 19]);
            plausible.push(below as u8);
            plausible.extend(body.iter().cycle().take(ranges * 4));
            for mut bytes in [packet, plausible] {
                let len = bytes.len();
                receive(&mut pair.a, T0, &mut bytes, len);
            }
            prop_assert!(!pair.a.has_failed());
            prop_assert!(pair.a.unfinished() <= 3);
        }
    }
}
