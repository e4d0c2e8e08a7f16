use haul_base::Span;
use proptest::prelude::*;

use super::*;

fn filled(n: u64) -> SentPackets {
    let mut out = SentPackets::new(39);
    for pn in 0..n {
        let new = New { offset: pn * 1000, len: 1000, fin: false, pn };
        out.push(new, pn as u32 * 10);
    }
    out
}

fn rule(largest_pn: u64, reordering_us: u64) -> LossBoundary {
    LossBoundary { largest_pn, sent_at: largest_pn as u32 * 10, reordering: Span::from_micros(reordering_us) }
}

fn on_word(out: &mut SentPackets, place: (u64, usize), bits: u64, rule: LossBoundary) -> Change {
    let mut change = Change::default();
    out.on_word(place.0, place.1, (bits, u64::MAX), &rule, &mut change);
    change
}

fn on_complete_below(out: &mut SentPackets, seq: u64) -> Change {
    let mut change = Change::default();
    out.on_complete_below(seq, &mut change);
    change
}

#[test]
fn a_report_can_start_anywhere_and_cross_words_and_segments() {
    for first in [0, 5, 63, 9_950, 9_983, 9_999, 10_000] {
        let mut out = filled(12_000);
        let received = 0xF0F0_1234_5678_9ABD;
        let known = 0xFFFF_FFFF_0FFF_FFFF;
        let mut change = Change::default();
        out.on_statement(&Statement { first, received, known }, &rule(11_999, 0), &mut change);
        let acked: Vec<u64> = (0..12_000).filter(|&seq| out.unacked(seq).is_none()).collect();
        let expected: Vec<u64> =
            (0..64).filter(|bit| received & known & 1 << bit != 0).map(|bit| first + bit).collect();
        assert_eq!(acked, expected, "from {first}");
        assert_eq!(change.lost_packets, u64::from((known & !received).count_ones()), "from {first}");
    }
}

#[test]
fn a_run_is_equivalent_to_single_packets() {
    let (mut rows, mut singly) = (SentPackets::new(39), SentPackets::new(39));
    for first in (0..20_100).step_by(67) {
        let offsets: Vec<u64> = (first..first + 67).map(|pn| pn * 1_000).collect();
        rows.push_row(first, 1_000, &offsets, first as u32);
        for (pn, offset) in (first..).zip(offsets) {
            singly.push(New { offset, len: 1_000, fin: false, pn }, first as u32);
        }
    }
    let all = |out: &SentPackets| (0..20_100).map(|seq| *out.unacked(seq).unwrap()).collect::<Vec<_>>();
    assert_eq!(all(&rows), all(&singly));
    assert_eq!((rows.next_seq(), rows.in_flight()), (singly.next_seq(), singly.in_flight()));
}

#[test]
fn exactly_the_missing_packets_are_queued_once() {
    let mut out = filled(64);
    let received = !(1u64 << 5 | 1 << 20);
    let change = on_word(&mut out, (0, 0), received & !(1 << 63), rule(62, 100));
    // Packet 63 is not older than what arrived.
    assert_eq!((change.acked_packets, change.lost_packets), (61, 2));
    let again = on_word(&mut out, (0, 0), received & !(1 << 63), rule(62, 100));
    assert_eq!(again, Change::default());
    let first = out.peek_lost().unwrap();
    assert_eq!((first.0, first.1.offset), (5, 5_000));
    out.resent(64, 640);
    assert_eq!(out.peek_lost().unwrap().0, 20);
    out.resent(65, 641);
    assert!(out.peek_lost().is_none());
    // Not lost again until something newer than the retransmission arrives.
    assert_eq!(on_word(&mut out, (0, 0), received, rule(64, 0)).lost_packets, 0);
}

#[test]
fn reordering_within_the_window_is_no_loss() {
    let mut out = filled(64);
    let change = on_word(&mut out, (0, 0), 1 << 40, rule(40, 300));
    // 300 us = 30 packets: only those at least that much older.
    assert_eq!(change.lost_packets, 11);
}

#[test]
fn a_lost_tail_is_found_from_the_highest_received() {
    let mut out = filled(100);
    let _ = on_complete_below(&mut out, 90);
    assert_eq!(out.expire_oldest(1), 1);
    out.resent(100, 5_000);
    let rule = LossBoundary { largest_pn: 100, sent_at: 5_000, reordering: Span::from_micros(100) };
    let mut change = Change::default();
    out.on_missing_from(91, &rule, &mut change);
    assert_eq!(change.lost_packets, 9);
}

/// Four packets were sent; the timer has repeated the first two, as numbers 4 and 5.
fn repeated() -> SentPackets {
    let mut out = filled(4);
    out.expire_oldest(2);
    out.resent(4, 5_000);
    out.resent(5, 5_000);
    out
}

/// Packet numbers that a report shows to be lost. The report has the packets received, the number of
/// duplicates, and the newest packet number received.
fn found(out: &mut SentPackets, received: u64, duplicates: u64, largest_pn: u64) -> Vec<u64> {
    let sent_at = if largest_pn < 4 { largest_pn as u32 * 10 } else { 5_000 };
    let rule = LossBoundary { largest_pn, sent_at, reordering: Span::from_micros(10) };
    let mut change = Change::default();
    out.on_word(0, 0, (received, u64::MAX), &rule, &mut change);
    out.settle_expired(&rule, duplicates, &mut change);
    let lost: Vec<u64> = out.take_losses().map(|lost| lost.pn).collect();
    assert_eq!((change.lost_packets, change.lost_bytes), (lost.len() as u64, lost.len() as u64 * 1_000));
    lost
}

#[test]
fn a_packet_repeated_by_the_probe_timer_was_lost_if_received_once() {
    assert_eq!(found(&mut repeated(), 0b0011, 0, 5), [2, 3, 0, 1]);
    // The repetition of the first has not arrived yet.
    assert_eq!(found(&mut repeated(), 0b0010, 0, 5), [2, 3, 0, 1]);
    // Packets sent after them have arrived, so they have too, and their repetitions were lost.
    assert_eq!(found(&mut repeated(), 0b1111, 0, 5), [4, 5]);
    // They were only late: each arrived twice, or one did.
    assert_eq!(found(&mut repeated(), 0b1111, 2, 5), [0; 0]);
    assert_eq!(found(&mut repeated(), 0b0011, 1, 5), [2, 3, 0]);
    // They arrived before their repetitions could, which were lost.
    let mut out = repeated();
    assert_eq!(found(&mut out, 0b1111, 0, 3), [0; 0]);
    assert_eq!(found(&mut out, 0b1111, 0, 6), [4, 5]);
}

#[test]
fn each_lost_retransmission_counts_separately() {
    let mut out = filled(1);
    for pn in 1..4 {
        out.expire_oldest(2);
        out.resent(pn, pn as u32 * 1_000);
    }
    let rule = LossBoundary { largest_pn: 3, sent_at: 3_000, reordering: Span::from_micros(10) };
    let mut change = Change::default();
    out.on_word(0, 0, (1, 1), &rule, &mut change);
    out.settle_expired(&rule, 0, &mut change);
    assert_eq!(out.take_losses().map(|lost| lost.pn).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((change.acked_packets, change.lost_packets), (1, 3));
    out.settle_expired(&rule, 0, &mut change);
    assert_eq!(change.lost_packets, 3, "once");
}

/// A packet and the next one arrived before the path went down, and the report about them was lost.
#[test]
fn retransmissions_between_two_received_copies_were_lost() {
    let mut out = filled(2);
    for pn in [2, 3, 4] {
        out.expire_oldest(1);
        out.resent(pn, pn as u32 * 1_000);
    }
    let rule = LossBoundary { largest_pn: 4, sent_at: 4_000, reordering: Span::from_micros(10) };
    let mut change = Change::default();
    out.on_word(0, 0, (3, 3), &rule, &mut change);
    out.settle_expired(&rule, 1, &mut change);
    assert_eq!(out.take_losses().map(|lost| lost.pn).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn segments_are_recycled() {
    let mut out = filled(25_000);
    assert_eq!(on_complete_below(&mut out, 20_000).acked_packets, 20_000);
    assert_eq!(out.released(), Some(20_000_000));
    assert_eq!(out.span(), 5_000);
    assert_eq!(out.free.len(), 2);
    assert_eq!(on_complete_below(&mut out, 25_000).acked_packets, 5_000);
    assert!(out.is_empty());
    assert_eq!(out.in_flight(), 0);
}

#[test]
fn the_span_starts_at_the_oldest_unacknowledged_packet() {
    let mut out = filled(200);
    assert_eq!(out.span(), 200);
    let acknowledge = |out: &mut SentPackets, seq| {
        on_complete_below(out, seq);
        out.retire_complete();
        out.span()
    };
    assert_eq!([64, 100, 200].map(|seq| acknowledge(&mut out, seq)), [136, 100, 0]);
    // In the last segment but one, whose last word is short, and across it.
    let mut out = filled(20_100);
    assert_eq!([9_999, 10_000, 20_050].map(|seq| acknowledge(&mut out, seq)), [10_101, 10_100, 50]);
    let mut out = filled(10_000);
    on_word(&mut out, (0, 1), u64::MAX, rule(0, 0));
    out.retire_complete();
    assert_eq!(out.span(), 10_000);
    on_word(&mut out, (0, 0), u64::MAX, rule(0, 0));
    out.retire_complete();
    assert_eq!(out.span(), 9_872);
}

#[test]
fn reports_about_unsent_packets_are_harmless() {
    let mut out = filled(10);
    assert_eq!(on_word(&mut out, (0, 0), u64::MAX, rule(9, 0)).acked_packets, 10);
    assert_eq!(on_word(&mut out, (7, 3), u64::MAX, rule(9, 0)), Change::default());
    assert_eq!(on_word(&mut out, (0, 400), u64::MAX, rule(9, 0)), Change::default());
    assert_eq!(on_complete_below(&mut out, u64::MAX).acked_packets, 0);
}

proptest! {
    #[test]
    fn bytes_in_flight_always_match_the_records(
        ops in prop::collection::vec((0u8..6, any::<u64>(), 0u64..300), 1..120),
    ) {
        let mut out = SentPackets::new(39);
        let (mut pn, mut overhead) = (0, 39);
        for (op, bits, n) in ops {
            match op {
                0 => for _ in 0..n { out.push(New { offset: pn, len: (pn % 1400) as u16, fin: false, pn }, pn as u32); pn += 1; },
                1 => { out.push_row(pn, bits as u16, &vec![pn; n as usize], pn as u32); pn += n; },
                2 => { on_word(&mut out, (0, (n % 157) as usize), bits, rule(pn / 2, n)); }
                3 => { on_complete_below(&mut out, n); }
                4 => { out.set_overhead(n as usize); overhead = n; },
                _ => while out.peek_lost().is_some() { out.resent(pn, pn as u32); pn += 1; },
            }
            out.retire_complete();
            let mut expected = 0;
            for seq in out.base * PACKETS..out.next_seq {
                if let Some(r) = out.unacked(seq).filter(|r| r.state == PacketState::InFlight) {
                    expected += u64::from(r.len) + overhead;
                }
            }
            prop_assert_eq!(out.in_flight(), expected);
        }
    }
}

#[test]
fn received_packets_are_released_before_their_segment_completes() {
    let mut out = filled(200);
    assert_eq!(out.released(), Some(0));
    for (below, released) in [(1, 1_000), (64, 64_000), (130, 130_000), (199, 199_000), (200, 200_000)] {
        on_complete_below(&mut out, below);
        assert_eq!(out.released(), Some(released));
    }
    assert_eq!(SentPackets::new(39).released(), None);
}
