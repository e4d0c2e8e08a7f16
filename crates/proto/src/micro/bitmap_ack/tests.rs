use haul_base::{Machine, Span, Time};
use haul_stack::{Recipe, SourceWait, Stack, StackEvent};
use haul_wire::packet::FeedbackHeader;

use super::packets::FEEDBACK;
use crate::micro::stats::{BitmapAckStats, KeepObjectStats};
use crate::micro::testing::{Pair, Path, T0, compiled, events, object_recipe, receive, stats};

const SEGMENTS: u64 = 50;

fn at(millis: u64) -> Time {
    T0 + Span::from_millis(millis)
}

/// An object of fifty segments, which may all be sent at once.
fn pair(recipe: &Recipe) -> Pair {
    let compiled = compiled(recipe);
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
    crate::micro::registry().set(&mut recipe, "bitmap_ack.when", "round").unwrap();
    crate::micro::registry().set(&mut recipe, "retransmit.probe", "false").unwrap();
    let mut pair = pair(&recipe);
    let mut lose = |packet| packet == 3;
    // One batch of data, and no request yet.
    let mut slot = vec![0; 65_536];
    let sent = pair.a.poll_transmit(T0, &mut slot).unwrap();
    receive(&mut pair.b, T0, &mut slot[..sent.len - 1_200], sent.segment_size);
    while let Some(sent) = pair.b.poll_transmit(at(50), &mut slot) {
        receive(&mut pair.a, at(50), &mut slot[..sent.len], sent.segment_size);
    }
    assert_eq!(known(&pair), (0, 0));
    pair.exchange(at(50), &mut Path { lose: Some(&mut lose), ..Path::default() });
    pair.run_until(at(2_000), &mut Path::default());
    assert_eq!(known(&pair).0, SEGMENTS);
}

/// The clock in packets wraps after 71.6 minutes.
#[test]
fn losses_at_the_start_of_a_round_of_hours_are_repaired() {
    let mut recipe = object_recipe("10kbit").with("liveness");
    let registry = crate::micro::registry();
    registry.set(&mut recipe, "bitmap_ack.when", "round").unwrap();
    registry.set(&mut recipe, "retransmit.probe", "false").unwrap();
    registry.set(&mut recipe, "retransmit.window", "1000000").unwrap();
    for minutes in [40, 80] {
        let (mut pair, came) = Pair::of_object(&recipe, minutes * 60 * 1_250);
        pair.exchange(T0, &mut Path::default());
        pair.run_until(at(5_000), &mut Path::default());
        pair.run_until(at(10_000), &mut Path { cut: [true, false], ..Path::default() });
        pair.run_until(at(3 * 3_600_000), &mut Path::default());
        assert_eq!(came.lock().unwrap().complete_len, Some(minutes * 60 * 1_250));
        let silent = events(&mut pair.a).into_iter().any(|event| matches!(event, StackEvent::Silent(_)));
        assert!(!silent && stats::<KeepObjectStats>(&pair.a).resent > 2);
    }
}

/// Regression test: the round never ended while the source waited for the receiver's requests.
#[test]
fn losses_are_repaired_while_the_source_waits() {
    for wait in [SourceWait::Storage, SourceWait::Work, SourceWait::Receiver] {
        for when in ["round", "segment", "chunk"] {
            let mut recipe = object_recipe("10Gbit").with("liveness");
            crate::micro::registry().set(&mut recipe, "bitmap_ack.when", when).unwrap();
            crate::micro::registry().set(&mut recipe, "retransmit.probe", "false").unwrap();
            let mut pair = Pair::of_unfinished_object(&recipe, 60_000, wait, ()).0;
            let mut lose = |packet| packet == 3;
            pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
            pair.run_until(at(60_000), &mut Path::default());
            let (acked, resent) = known(&pair);
            assert_eq!((acked, resent), (pair.a.stats().data_sent - 1, 1), "{wait:?}, {when}");
            let silent = events(&mut pair.a).into_iter().any(|event| matches!(event, StackEvent::Silent(_)));
            assert!(!silent, "{wait:?}, {when}");
        }
    }
}

#[test]
fn an_empty_report_before_any_packet_is_no_violation() {
    let mut recipe = object_recipe("10Mbit");
    crate::micro::registry().set(&mut recipe, "object.first_limit", "1B").unwrap();
    let mut pair = pair(&recipe);
    pair.exchange(T0, &mut Path::default());
    pair.run_until(at(1_000), &mut Path::default());
    assert_eq!((known(&pair).0, pair.a.stats().violations), (SEGMENTS, 0));
}

#[test]
fn while_data_arrives_reports_keep_the_interval() {
    for (interval, expected) in [("2ms", 500), ("20ms", 50)] {
        let mut recipe = object_recipe("8Mbit");
        crate::micro::registry().set(&mut recipe, "bitmap_ack.interval", interval).unwrap();
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
    let (mut pair, arrivals) =
        Pair::of_unfinished_object(&object_recipe("10Gbit"), 60_000, SourceWait::Storage, ());
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

/// Sends what is due at `now`, one report, and returns its fields.
fn report(stack: &mut Stack, recipe: &Recipe, now: Time) -> FeedbackHeader {
    let mut slot = vec![0; 65_536];
    stack.on_deadline(now);
    let sent = stack.poll_transmit(now, &mut slot).expect("a report is due");
    assert_eq!((slot[0], sent.len), (FEEDBACK.0, sent.segment_size), "one packet, a report");
    FeedbackHeader::parse(&slot[compiled(recipe).layout().clear_len()..sent.len]).unwrap()
}

#[test]
fn reports_count_udp_payload_bytes_with_headers_and_duplicates() {
    let recipe = object_recipe("10Gbit");
    // The last packet is shorter.
    let (mut pair, arrivals) = Pair::of_object(&recipe, 10_000);
    let (mut slot, mut packets) = (vec![0; 65_536], Vec::new());
    while let Some(sent) = pair.a.poll_transmit(T0, &mut slot) {
        packets.extend(slot[..sent.len].chunks(sent.segment_size).map(<[u8]>::to_vec));
    }
    packets.retain(|packet| packet.len() > 100);
    let (len, last) = (packets[0].len(), packets.len() - 1);
    assert!(last >= 8 && packets[last].len() < len, "{last} packets before the shorter one");
    // One packet, and the next three in one buffer; after a gap, a packet and a copy of it; and the last one.
    receive(&mut pair.b, T0, &mut packets[0].clone(), len);
    receive(&mut pair.b, T0, &mut packets[1..4].concat(), len);
    receive(&mut pair.b, T0, &mut packets[5].repeat(2), len);
    let short = packets[last].len();
    receive(&mut pair.b, T0, &mut packets[last], short);
    let header = report(&mut pair.b, &recipe, at(50));
    assert_eq!((header.packets, header.duplicates, header.bytes), (7, 1, (6 * len + short) as u64));
    // The packets of the object's bytes have headers, and one packet is a copy.
    assert!(arrivals.lock().unwrap().bytes < header.bytes - len as u64);
    // A copy of an old packet counts in the next report.
    receive(&mut pair.b, at(60), &mut packets[0], len);
    let header = report(&mut pair.b, &recipe, at(500));
    assert_eq!((header.packets, header.duplicates, header.bytes), (8, 2, (7 * len + short) as u64));
}
