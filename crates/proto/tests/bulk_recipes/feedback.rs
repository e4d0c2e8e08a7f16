//! Every kind of feedback with every law.

use haul_proto::law_names;
use haul_stack::Recipe;
use haul_wire::packet::{FEEDBACK_HEADER_LEN, FeedbackHeader, FeedbackWriter};
use proptest::prelude::*;

use super::*;

const WHEN_VALUES: [&str; 5] = ["interval", "law", "segment", "chunk", "round"];
const OVER_VALUES: [&str; 2] = ["udp", "control"];
const MODES: [&str; 3] = ["law", "window", "rate"];

/// `law` with this feedback, at most 80 Mbit/s.
fn recipe(law: &str, when: &str, over: &str) -> Recipe {
    let mut recipe = shipped("bulk");
    let is_requested = !matches!(when, "interval" | "law");
    for (key, value) in [
        ("rate_control.controller", law),
        ("rate_control.rate", "80Mbit"),
        ("rate_control.unit_window", "300kB"),
        ("object.chunk", "500kB"),
        ("bitmap_ack.when", when),
        ("bitmap_ack.over", over),
        ("retransmit.probe", if is_requested { "false" } else { "true" }),
    ] {
        registry().set(&mut recipe, key, value).unwrap();
    }
    recipe
}

/// How long a transfer of `len` bytes takes: at most an hour, as some laws fall to very low rates.
fn transfer_time(recipe: &Recipe, len: u64, faults: Faults, seed: u64) -> Span {
    let mut path = Path::new(recipe, len, faults.loss, seed);
    path.faults = faults;
    path.run(Span::from_secs(3_600));
    path.assert_complete(len);
    path.now.since(Time::ZERO)
}

#[test]
fn every_law_transfers_an_object_with_every_feedback() {
    let faults = Faults { loss: 0.01, ..Faults::default() };
    for (seed, law) in (100..).zip(law_names()) {
        for (when, over) in
            WHEN_VALUES.iter().flat_map(|when| OVER_VALUES.iter().map(move |over| (when, over)))
        {
            let duration = transfer_time(&recipe(law, when, over), 700_000, faults, seed);
            assert!(duration < Span::from_secs(30), "{law}, {when} over {over}: {duration}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn an_object_arrives_complete_with_any_feedback_law_mode_and_path(
        law in prop::sample::select(law_names()), when in prop::sample::select(&WHEN_VALUES[..]),
        over in prop::sample::select(&OVER_VALUES[..]), mode in prop::sample::select(&MODES[..]),
        loss in 0.0..0.08f64, duplication in 0.0..0.1f64, reordering in 0.0..0.3f64,
        len in 0u64..1_500_000, seed: u64,
    ) {
        let mut recipe = recipe(law, when, over);
        registry().set(&mut recipe, "rate_control.mode", mode).unwrap();
        transfer_time(&recipe, len, Faults { loss, duplication, reordering }, seed);
    }
}

/// Number of reports sent.
fn reports_over(path: &Path, over: &str) -> usize {
    match over {
        "udp" => places(path, false, 3).len(),
        _ => path.messages,
    }
}

#[test]
fn over_the_control_channel_no_report_is_a_packet_and_over_udp_none_is_a_message() {
    for (over, other) in [("udp", "control"), ("control", "udp")] {
        let mut recipe = shipped("fobs");
        registry().set(&mut recipe, "bitmap_ack.over", over).unwrap();
        registry().set(&mut recipe, "rate_control.rate", "80Mbit").unwrap();
        let mut path = Path::new(&recipe, 5_000_000, 0.02, 5);
        path.run(Span::from_secs(20));
        path.assert_complete(5_000_000);
        // 0.5 s at an interval of 10 ms.
        assert!(reports_over(&path, over) > 30, "{over}: {}", reports_over(&path, over));
        assert_eq!(reports_over(&path, other), 0);
    }
}

/// Number of data packets sent at each request for a report.
fn requests_at(when: &str, len: u64) -> Vec<u64> {
    let mut recipe = recipe("fixed", when, "udp");
    registry().set(&mut recipe, "object.chunk", "5MB").unwrap();
    let mut path = Path::new(&recipe.without("path_mtu"), len, 0.0, 3);
    path.run(Span::from_secs(60));
    path.assert_complete(len);
    let data = |at: usize| path.kinds[..at].iter().filter(|sent| sent.0 && sent.1 <= 2).count() as u64;
    places(&path, true, 16).into_iter().map(data).collect()
}

#[test]
fn a_report_is_requested_after_each_segment_chunk_or_round() {
    // 1,169 bytes per packet: 24,000 packets.
    let len = 24_000 * 1_169;
    let segments = requests_at("segment", len);
    assert_eq!(segments.len(), 3, "{segments:?}");
    assert!(
        (10_000..10_200).contains(&segments[0]) && (20_000..20_200).contains(&segments[1]),
        "{segments:?}"
    );
    let chunks = requests_at("chunk", len);
    assert_eq!(chunks.len(), 6, "five ends of 5 MB, and the end: {chunks:?}");
    assert!(
        chunks.iter().zip(1..).take(5).all(|(&at, n)| (4_278 * n..4_278 * n + 200).contains(&at)),
        "{chunks:?}"
    );
    assert_eq!(requests_at("round", len).len(), 1);
    assert_eq!(requests_at("interval", 1_000_000), []);
}

#[test]
fn the_law_sets_the_report_interval() {
    for interval in [30, 100] {
        let mut recipe = recipe("asynch", "law", "udp");
        registry().set(&mut recipe, "rate_control.interval", &format!("{interval}ms")).unwrap();
        let mut path = Path::new(&recipe, 20_000_000, 0.01, 9);
        path.run(Span::from_secs(60));
        path.assert_complete(20_000_000);
        // Reports that only count contain no bitmap: arrivals are in other reports.
        let seconds = path.now.since(Time::ZERO).as_secs_f64();
        let least = 7 + FEEDBACK_HEADER_LEN + 8;
        let stating =
            path.kinds.iter().filter(|sent| !sent.0 && sent.1 == 3 && sent.2 > least).count() as f64;
        let expected = seconds * 1_000.0 / f64::from(interval);
        assert!((0.8..1.3).contains(&(stating / expected)), "{stating} in {seconds} s at {interval} ms");
    }
}

#[test]
fn acknowledging_unsent_packets_on_the_control_channel_ends_the_session_by_name() {
    let mut path = Path::new(&recipe("cubic", "interval", "control"), 50_000_000, 0.0, 1);
    path.run(Span::from_millis(100));
    let lie = FeedbackHeader {
        largest_pn: 1 << 40,
        packets: 1 << 40,
        complete_below: 1 << 40,
        highest: 1 << 40,
        limit: 1 << 40,
        ..FeedbackHeader::default()
    };
    let mut message = vec![0; 1 + FEEDBACK_HEADER_LEN + 64];
    let len = FeedbackWriter::new(&mut message[1..], &lie).unwrap().finish();
    message.truncate(1 + len);
    message[0] = 3;
    for _ in 0..100 {
        let now = path.now;
        path.ends[0].on_channel(now, &message);
    }
    path.send();
    let ended = path.events[0]
        .iter()
        .any(|event| matches!(event, StackEvent::Failed { protocol, message } if protocol == "recipe" && message.ends_with("the last for `bitmap_ack`")));
    assert!(ended, "{:?}", path.events);
}

#[test]
fn invalid_channel_messages_are_counted_and_end_the_session() {
    for message in [&b""[..], b"\x03", b"\x03\x00\x01", b"\x10\x00\x00\x00\x00", b"\x7f", b"\x12\x00"] {
        for over in OVER_VALUES {
            let mut path = Path::new(&recipe("bbr", "interval", over), 5_000_000, 0.0, 1);
            path.run(Span::from_millis(20));
            for n in 0..40 {
                let now = path.now;
                path.ends[0].on_channel(now, message);
                assert_eq!(path.ends[0].stats().violations, n + 1, "{message:?} over {over}");
            }
            path.run(Span::from_secs(20));
            path.assert_complete(5_000_000);
        }
    }
}

#[test]
fn old_and_repeated_reports_change_nothing() {
    let mut path = Path::new(&recipe("delivery", "interval", "control"), 5_000_000, 0.02, 21);
    path.repeat_messages = true;
    path.run(Span::from_secs(30));
    path.assert_complete(5_000_000);
    assert_eq!(path.ends[0].stats().violations, 0);
}

/// A receiver with little memory, whose bytes leave it at once.
fn rounds(gaps: &str, loss: f64, memory: u64) -> (usize, u64) {
    let mut recipe = shipped("rbudp");
    for (key, value) in
        [("rate_control.rate", "40Mbit"), ("object.first_limit", "250kB"), ("object.gaps", gaps)]
    {
        registry().set(&mut recipe, key, value).unwrap();
    }
    let len = 40_000_000;
    let mut path = Path::up_to(memory, &recipe, len, loss, 17);
    while path.now < Time::ZERO + Span::from_secs(60) && path.sink_state.lock().unwrap().complete.is_none() {
        path.step();
        let mut sink_state = path.sink_state.lock().unwrap();
        sink_state.limit = sink_state.delivered + memory;
    }
    path.run(Span::from_secs(60));
    path.assert_complete(len);
    assert_eq!(path.ends[1].stats().violations, 0);
    (places(&path, true, 16).len(), path.ends[0].stats().data_sent)
}

#[test]
fn a_round_covers_the_whole_set_with_any_losses() {
    // A tenth is lost, sixteen times the receiver's memory. Then a hundredth, a thousandth ...
    let (held, _) = rounds("held", 0.1, 250_000);
    let (free, sent) = rounds("free", 0.1, 250_000);
    println!("TABLE rounds: held {held}, free {free}");
    assert!(held > 2 * free, "the limit cuts rounds: {held}, {free}");
    // The end of a round is repeated if it or the report on it is lost.
    assert!((4..=12).contains(&free), "{free}");
    let least = 40_000_000 / 1_169;
    assert!((sent as f64) < least as f64 / 0.9 * 1.02, "{sent} packets for {least}");
}

#[test]
fn memory_stays_bounded_when_gaps_are_filled_faster_than_the_sink_reads() {
    let mut recipe = shipped("rbudp");
    for (key, value) in
        [("rate_control.rate", "400Mbit"), ("object.first_limit", "1MB"), ("object.gaps", "free")]
    {
        registry().set(&mut recipe, key, value).unwrap();
    }
    let (len, memory) = (10_000_000, 1_000_000);
    let mut path = Path::up_to(memory, &recipe, len, 0.2, 19);
    let mut most = 0;
    while path.now < Time::ZERO + Span::from_secs(60) && path.sink_state.lock().unwrap().complete.is_none() {
        path.step();
        let mut sink_state = path.sink_state.lock().unwrap();
        // A disk at 40 Mbit/s, a tenth of the incoming rate.
        let written = path.now.since(Time::ZERO).as_micros() * 5;
        most = most.max(sink_state.delivered.saturating_sub(written.min(sink_state.delivered)));
        sink_state.limit = written.min(sink_state.delivered) + memory;
    }
    path.run(Span::from_secs(60));
    path.assert_complete(len);
    assert!(most <= memory, "{most}");
    assert_eq!(path.ends[1].stats().violations, 0);
}
