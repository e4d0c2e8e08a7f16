use haul_base::{Machine, Span, Time};
use haul_stack::{Recipe, SendOptions};

use crate::config::ReceiverReportConfig;
use crate::micro::stats::{RateControlStats, ReceiverReportStats};
use crate::micro::testing::{Pair, Path, T0, part, stats};

fn recipe(law: &[(&str, &str)]) -> Recipe {
    Recipe::new("test")
        .with("fixed_size")
        .with("sequenced_segment")
        .with(ReceiverReportConfig { interval: Span::from_millis(5) })
        .with(part("rate_control", law))
        .with("seal")
}

/// Sends a one-packet message per millisecond over a path with a delay of 10 ms; every tenth is lost if
/// `loses`. Returns the packets sent.
fn second(pair: &mut Pair, loses: bool) -> u64 {
    let before = pair.a.stats().data_sent;
    for n in 0..1_000u64 {
        let now = T0 + Span::from_millis(n);
        let _ = pair.a.send(now, &[7; 1_000], SendOptions::default());
        let mut lose = |_| loses && n % 10 == 3;
        let mut path = Path { lose: Some(&mut lose), ..Path::default() };
        pair.a.on_deadline(now);
        pair.b.on_deadline(now);
        pair.exchange(now, &mut path);
    }
    pair.a.stats().data_sent - before
}

fn settle(pair: &mut Pair) -> Time {
    let end = T0 + Span::from_secs(60);
    pair.run_until(end, &mut Path::default());
    end
}

#[test]
fn every_packet_is_either_acknowledged_or_lost() {
    for loses in [false, true] {
        let mut pair = Pair::new(&recipe(&[("controller", "fixed"), ("rate", "100Mbit")]));
        let sent = second(&mut pair, loses);
        settle(&mut pair);
        let sender = stats::<ReceiverReportStats>(&pair.a);
        let arrived = stats::<ReceiverReportStats>(&pair.b).packets_received;
        assert_eq!((sent, arrived), (1_000, if loses { 900 } else { 1_000 }));
        assert_eq!((sender.packets_lost, sender.in_flight_bytes), (sent - arrived, 0));
        // At most one in five milliseconds, some of which are lost.
        assert!((100..=202).contains(&sender.reports_received), "{sender:?}");
        assert_eq!(pair.a.stats().violations + pair.b.stats().violations, 0);
    }
}

#[test]
fn duplicates_are_counted_and_change_nothing_else() {
    let mut pair = Pair::new(&recipe(&[("controller", "fixed"), ("rate", "100Mbit")]));
    for n in 0..100 {
        let now = T0 + Span::from_millis(n);
        pair.a.send(now, &[7; 1_000], SendOptions::default()).unwrap();
        pair.exchange(now, &mut Path { duplicate: true, reverse: true, ..Path::default() });
    }
    settle(&mut pair);
    assert_eq!(stats::<ReceiverReportStats>(&pair.a).packets_lost, 0);
    assert_eq!(stats::<ReceiverReportStats>(&pair.a).in_flight_bytes, 0);
}

/// If a sender receives no reports for very long, the oldest packets count as lost, for the law and the
/// diagnosis too.
#[test]
fn packets_abandoned_in_silence_are_attributed_to_a_cause() {
    let mut pair = Pair::new(&recipe(&[("controller", "fixed"), ("rate", "10Gbit")]));
    let mut send = |n: u64, is_cut: bool| {
        let now = T0 + Span::from_millis(n);
        let _ = pair.a.send(now, &[7; 1_000], SendOptions::default());
        pair.a.on_deadline(now);
        pair.b.on_deadline(now);
        pair.exchange(now, &mut Path { cut: [is_cut, false], ..Path::default() });
    };
    (0..100).for_each(|n| send(n, false));
    (100..66_000).for_each(|n| send(n, true));
    (66_000..66_100).for_each(|n| send(n, false));
    settle(&mut pair);
    let lost = stats::<ReceiverReportStats>(&pair.a).packets_lost;
    assert_eq!(lost, 65_900);
    let told: u64 = stats::<RateControlStats>(&pair.a).lost_by_cause.total();
    assert_eq!(told, lost);
}

#[test]
fn a_window_opens_again_after_an_outage_and_an_idle_session_falls_silent() {
    let mut pair = Pair::new(&recipe(&[("controller", "reno")]));
    let mut cut = Path { cut: [true, true], ..Path::default() };
    for _ in 0..200 {
        pair.a.send(T0, &[7; 1_000], SendOptions::default()).unwrap();
    }
    pair.exchange(T0, &mut cut);
    pair.run_until(T0 + Span::from_secs(8), &mut cut);
    let sent = pair.a.stats().data_sent;
    assert!((10..60).contains(&sent), "{sent} packets without an answer");
    pair.run_until(T0 + Span::from_secs(40), &mut Path::default());
    assert_eq!(pair.a.stats().data_sent, 200);
    assert!(pair.received_by_b().len() >= 140);
    settle(&mut pair);
    assert_eq!((pair.a.deadline(), pair.b.deadline()), (None, None));
}

#[test]
fn an_impossible_recipe_reports_the_reason() {
    use std::sync::Arc;
    let refused =
        |recipe: &Recipe| Arc::new(crate::micro::registry()).compile(recipe, 8).unwrap_err().to_string();
    let plain = recipe(&[]);
    for (recipe, words) in [
        (plain.clone().without("receiver_report"), "bitmap_ack or receiver_report"),
        (plain.clone().without("rate_control"), "rate_control"),
        (plain.clone().with("fixed_rate"), "both control the sending rate"),
        (plain.clone().with("fec"), "repair packets"),
        (plain.without("fixed_size").with("object"), "fixed_size"),
    ] {
        let error = refused(&recipe);
        assert!(error.contains(words), "{error}");
    }
}
