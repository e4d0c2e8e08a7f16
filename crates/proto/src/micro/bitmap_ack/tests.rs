use haul_base::{Machine, Span, Time};
use haul_stack::Recipe;

use crate::micro::stats::{BitmapAckStats, KeepObjectStats};
use crate::micro::testing::{Pair, Path, T0, object_recipe, stats};

const SEGMENTS: u64 = 50;

fn at(millis: u64) -> Time {
    T0 + Span::from_millis(millis)
}

/// An object of fifty segments, which may all be sent at once.
fn pair(recipe: &Recipe) -> Pair {
    let compiled = crate::micro::testing::compiled(recipe);
    let segment = 1_200 - compiled.layout().data_overhead() as u64;
    Pair::of_object(recipe, SEGMENTS * segment).0
}

fn known(pair: &Pair) -> (u64, u64) {
    (stats::<KeepObjectStats>(&pair.a).acked, stats::<KeepObjectStats>(&pair.a).resent)
}

#[test]
fn reports_are_exact_and_only_missing_packets_are_retransmitted() {
    let mut pair = pair(&object_recipe("10Gbit"));
    let mut lose = |packet| packet < SEGMENTS as usize && (packet % 10 == 3 || packet == 7);
    pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
    pair.run_until(at(2), &mut Path { cut: [true, false], ..Path::default() });
    assert_eq!(known(&pair), (SEGMENTS - 6, 0));
    pair.run_until(at(1_000), &mut Path::default());
    // Two more may be sent because there was no answer for a while: a lost probe is lost.
    let (acked, resent) = known(&pair);
    assert_eq!(acked, SEGMENTS);
    assert!((6..=8).contains(&resent), "{resent}");
}

#[test]
fn lost_reports_cause_no_retransmissions() {
    let mut pair = pair(&object_recipe("10Gbit"));
    pair.exchange(T0, &mut Path { cut: [false, true], ..Path::default() });
    pair.run_until(at(20), &mut Path { cut: [false, true], ..Path::default() });
    assert_eq!(known(&pair).0, 0);
    // While nothing arrives they are reported every 100 ms.
    pair.run_until(at(150), &mut Path::default());
    assert_eq!(known(&pair).0, SEGMENTS);
}

#[test]
fn in_round_mode_gaps_are_reported_only_on_request() {
    let mut recipe = object_recipe("10Gbit");
    recipe.set("bitmap_ack.when", "round").unwrap();
    recipe.set("retransmit.probe", "false").unwrap();
    let mut pair = pair(&recipe);
    let mut lose = |packet| packet == 3;
    // One batch of data, and no request yet.
    let mut slot = vec![0; 65_536];
    let sent = pair.a.poll_transmit(T0, &mut slot).unwrap();
    crate::micro::testing::receive(&mut pair.b, T0, &mut slot[..sent.len - 1_200], sent.segment_size);
    while let Some(sent) = pair.b.poll_transmit(at(50), &mut slot) {
        crate::micro::testing::receive(&mut pair.a, at(50), &mut slot[..sent.len], sent.segment_size);
    }
    assert_eq!(known(&pair), (0, 0));
    pair.exchange(at(50), &mut Path { lose: Some(&mut lose), ..Path::default() });
    pair.run_until(at(2_000), &mut Path::default());
    assert_eq!(known(&pair).0, SEGMENTS);
}

#[test]
fn an_empty_report_before_any_packet_is_no_violation() {
    let mut recipe = object_recipe("10Mbit");
    recipe.set("object.first_limit", "1B").unwrap();
    let mut pair = pair(&recipe);
    pair.exchange(T0, &mut Path::default());
    pair.run_until(at(1_000), &mut Path::default());
    assert_eq!((known(&pair).0, pair.a.stats().violations), (SEGMENTS, 0));
}

#[test]
fn while_data_arrives_reports_keep_the_interval() {
    for (interval, expected) in [("2ms", 500), ("20ms", 50)] {
        let mut recipe = object_recipe("8Mbit");
        recipe.set("bitmap_ack.interval", interval).unwrap();
        let mut pair = Pair::of_object(&recipe, 10_000_000).0;
        pair.exchange(T0, &mut Path::default());
        pair.run_until(at(1_000), &mut Path::default());
        let reports = stats::<BitmapAckStats>(&pair.a).reports_received;
        assert!((expected * 8 / 10..=expected * 12 / 10).contains(&reports), "{reports} at {interval}");
    }
}

/// Threads of both ends sleep until their deadlines. Every 5 ms would be 2,000 calls.
#[test]
fn while_idle_neither_end_wakes_without_need() {
    let (mut pair, arrivals) = Pair::of_unfinished_object(&object_recipe("10Gbit"), 60_000);
    pair.exchange(T0, &mut Path::default());
    pair.run_until(at(2_000), &mut Path::default());
    let arrived = arrivals.lock().unwrap().bytes;
    assert!(arrived > 50_000, "all but the last segment, which has room for more: {arrived}");
    let sent = stats::<BitmapAckStats>(&pair.b).reports_sent;
    let (mut now, mut calls) = (at(2_000), 0);
    while now < at(12_000) {
        calls += 1;
        let deadlines = [pair.a.deadline(), pair.b.deadline()].into_iter().flatten();
        now = deadlines.map(|deadline| deadline.at).min().unwrap();
        pair.run_until(now, &mut Path::default());
    }
    let reports = stats::<BitmapAckStats>(&pair.b).reports_sent - sent;
    assert!(reports <= 101 && calls < 500, "{calls} calls and {reports} reports in ten seconds");
    assert_eq!(arrivals.lock().unwrap().bytes, arrived);
}
