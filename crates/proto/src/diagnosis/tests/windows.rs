//! Tests of the end of a transmission window: signatures beside the other evidence.

use super::*;

#[test]
fn short_windows_are_classified_together() {
    // With jumbo frames, 11,000 packets are 100 MB.
    let gap = Signature::of_lost(11_000, 5_000..5_100);
    let mut of = Diagnostician::new(Evidence::Signature);
    let causes: Vec<Cause> = (0..8).map(|_| window(&mut of, &gap).by_signature.cause()).collect();
    let mut expected = [Cause::Inconclusive; 8];
    (expected[3], expected[7]) = (Cause::ReceiverHost, Cause::ReceiverHost);
    assert_eq!(causes, expected);
    assert_eq!(of.windows(), WindowCounts { host: 2, out_of_range: 6, ..WindowCounts::default() });
}

/// Half of the paper's window has a usable loss rate with half of the required losses.
#[test]
fn a_window_with_three_losses_is_classified_with_the_next() {
    let mut of = Diagnostician::new(Evidence::Signature);
    let gap = |len: u64| Signature::of_lost(36_006, 19_306..19_306 + len);
    assert_eq!(window(&mut of, &gap(3)).by_signature, Diagnosis::NOTHING);
    assert_eq!(window(&mut of, &gap(23)).by_signature.cause(), Cause::ReceiverHost);
    assert_eq!((of.windows().network, of.windows().host), (0, 1));
}

#[test]
fn old_signatures_do_not_apply_to_new_losses() {
    let gap = Signature::of_lost(PACKETS, 5_000..5_300);
    // A tenth is lost, more than the model covers; or nothing for a long time, in windows of any size.
    let much = Signature::of_lost(PACKETS, (0..7_100).map(|n| n * 10));
    let [none, short] = [PACKETS, 1_000].map(|packets| Signature::of_lost(packets, []));
    for (later, windows) in [(&much, 11), (&none, 11), (&short, 711)] {
        let mut of = Diagnostician::new(Evidence::All);
        feed(&mut of, 1, 300, 0, 0);
        assert_eq!(window(&mut of, &gap).by_signature.cause(), Cause::ReceiverHost);
        assert_eq!(feed(&mut of, 100, 20, 0, 0), Some(Verdict::of(Cause::ReceiverHost)), "of the same time");
        for n in 0..windows {
            feed(&mut of, 1_000 + 100 * n, later.lost_packets(), 0, 0);
            window(&mut of, later);
        }
        assert_eq!(feed(&mut of, 100_000, 20, 0, 0), Some(Verdict::of(Cause::Random)), "{windows}");
    }
}

#[test]
fn disabled_evidence_is_not_used() {
    for (evidence, expected) in [
        (Evidence::None, None),
        (Evidence::Kernel, Some(Cause::ReceiverHost)),
        (Evidence::Delay, Some(Cause::Random)),
        (Evidence::All, Some(Cause::ReceiverHost)),
        (Evidence::Signature, Some(Cause::Inconclusive)),
    ] {
        let mut of = Diagnostician::new(evidence);
        assert_eq!(feed(&mut of, 1, 10, 1, 0), expected.map(Verdict::of), "{evidence:?}");
        assert_eq!(of.needs_signatures(), expected.is_some());
    }
    let mut of = Diagnostician::new(Evidence::All);
    feed(&mut of, 1, 10, 1, 0);
    of.set_evidence(Evidence::None);
    assert_eq!(feed(&mut of, 2, 10, 1, 0), None);
    // One gap of 300: the host's, if signatures are used.
    let gap = Signature::of_lost(PACKETS, 5_000..5_300);
    for (evidence, expected) in [
        (Evidence::Signature, Cause::ReceiverHost),
        (Evidence::All, Cause::ReceiverHost),
        (Evidence::Kernel, Cause::Random),
        (Evidence::Delay, Cause::Random),
    ] {
        let mut of = Diagnostician::new(evidence);
        feed(&mut of, 1, 300, 0, 0);
        assert_eq!(window(&mut of, &gap).counts.of(expected), 300, "{evidence:?}");
        assert_eq!(of.counts().of(expected), 300, "{evidence:?}");
    }
}

#[test]
fn the_queue_overrides_a_signature() {
    let gap = Signature::of_lost(PACKETS, 5_000..5_300);
    let mut of = Diagnostician::new(Evidence::All);
    feed(&mut of, 1, 0, 0, 0);
    feed(&mut of, 100, 100, 0, 15);
    for n in 1..20 {
        feed(&mut of, 100 + 10 * n, 0, 0, 0);
    }
    feed(&mut of, 400, 200, 0, 0);
    let findings = window(&mut of, &gap);
    assert_eq!(findings.by_signature.cause(), Cause::ReceiverHost);
    assert_eq!((findings.counts.of(Cause::Congestion), findings.counts.of(Cause::Random)), (100, 200));
    // Nor for what comes after it.
    feed(&mut of, 410, 10, 0, 0);
    assert_eq!(of.counts().of(Cause::ReceiverHost), 0);
}

#[test]
fn a_signature_adds_nothing_where_the_kernel_counts() {
    // 200 packets of one gap that the kernel counted, and 60 that it did not.
    let mixed = Signature::of_lost(PACKETS, (5_000..5_200).chain((0..60).map(|n| 6_000 + 1_000 * n)));
    let mut of = Diagnostician::new(Evidence::All);
    let mut millis = 0;
    for _ in 0..3 {
        millis += 1_000;
        feed(&mut of, millis, 200, 20, 0);
        feed(&mut of, millis + 600, 60, 0, 0);
        let findings = window(&mut of, &mixed);
        assert_eq!(findings.by_signature.cause(), Cause::ReceiverHost);
        assert_eq!((findings.counts.of(Cause::ReceiverHost), findings.counts.of(Cause::Random)), (200, 60));
    }
}

#[test]
fn kernel_drop_counts_are_trusted_if_available() {
    let gap = Signature::of_lost(PACKETS, 5_000..5_300);
    let (counts, stolen) = (Some(0), Some(Span::from_millis(10)));
    for (early_drops, steal, cause) in [
        (None, None, Cause::ReceiverHost),
        (counts, None, Cause::Random),
        (counts, Some(Span::ZERO), Cause::Random),
        (counts, stolen, Cause::ReceiverHost),
    ] {
        let mut of = Diagnostician::new(Evidence::All);
        let host = Some(HostSample { early_drops, steal, ..HostSample::default() });
        let rtt = measured(20);
        for _ in 0..2 {
            let sample = feedback(at(1), &rtt, 100, 300, None);
            of.on_feedback(&FeedbackSample { host, gro_run: Some(10.0), in_flight: 1_472_000, ..sample });
            let findings = window(&mut of, &gap);
            assert_eq!(findings.by_signature.cause(), Cause::ReceiverHost);
            assert_eq!(findings.counts.of(cause), 300, "{early_drops:?}, {steal:?}");
        }
    }
}

#[test]
fn losses_of_a_window_without_a_signature_do_not_count_for_the_next() {
    let mut of = Diagnostician::new(Evidence::All);
    feed(&mut of, 1, 100, 10, 0);
    let unsigned = window(&mut of, &Signature::new());
    assert_eq!(unsigned.counts.verdict(), Some(Verdict::of(Cause::ReceiverHost)));
    feed(&mut of, 700, 6, 0, 0);
    let findings = window(&mut of, &Signature::of_lost(PACKETS, (0..6).map(|n| n * 9_000)));
    assert_eq!((findings.counts.total(), of.counts().total()), (6, 106));
    let empty = window(&mut of, &Signature::new());
    assert_eq!(
        (empty.counts.total(), empty.by_signature, of.windows().out_of_range),
        (0, Diagnosis::NOTHING, 0)
    );
}

#[test]
fn windows_with_one_loss_each_are_classified_together() {
    let mut of = Diagnostician::new(Evidence::Signature);
    let lone = Signature::of_lost(PACKETS, [9]);
    for n in 1..=6 {
        let findings = window(&mut of, &lone);
        let expected = if n < 6 { Cause::Inconclusive } else { Cause::Congestion };
        assert_eq!(findings.by_signature.cause(), expected, "{n}");
        // A window without losses changes nothing.
        let none = window(&mut of, &Signature::of_lost(1_000, []));
        assert_eq!((none.by_signature, none.counts.total()), (Diagnosis::NOTHING, 0));
    }
    assert_eq!(of.windows(), WindowCounts { network: 1, out_of_range: 5, ..WindowCounts::default() });
}

proptest! {
    #[test]
    fn every_loss_has_one_cause_for_any_peer_input(
        evidence in prop::sample::select(vec![Evidence::None, Evidence::Signature, Evidence::Kernel, Evidence::Delay, Evidence::All]),
        early in prop::sample::select(vec![None, Some(0), Some(3), Some(u32::MAX)]),
        feedbacks in vec((0u64..3_000, 0u64..500, prop::sample::select(vec![0, 1, 7, u64::MAX >> 12]), 0u64..300, any::<bool>()), 1..80),
    ) {
        let mut of = Diagnostician::new(evidence);
        let (mut lost_so_far, mut now) = (0, 0);
        for (gap, lost, drops, queue_ms, ends) in feedbacks {
            now += gap;
            lost_so_far += lost;
            let verdict = feed(&mut of, now, lost, drops, queue_ms);
            feed_early(&mut of, now, 0, early, queue_ms);
            if let Some(verdict) = verdict {
                let sum: f64 = Cause::ALL.iter().map(|cause| verdict.share(*cause)).sum();
                prop_assert!((sum - 1.0).abs() < 1e-9, "{:?}", verdict);
            }
            if ends {
                window(&mut of, &Signature::of_lost(PACKETS, (0..lost).map(|n| n * 3)));
            }
            let expected = if evidence == Evidence::None { 0 } else { lost_so_far };
            prop_assert_eq!(of.counts().total(), expected);
        }
    }
}

/// Diagnoses by the signatures of windows into which a range of packets is divided.
fn causes_of_pieces(lost: impl Fn(u64) -> bool, sizes: &[u64]) -> Vec<Cause> {
    let mut of = Diagnostician::new(Evidence::Signature);
    let mut first = 0;
    let next_piece = |packets: &u64| {
        let piece = Signature::of_lost(*packets, (0..*packets).filter(|n| lost(first + n)));
        first += packets;
        window(&mut of, &piece).by_signature.cause()
    };
    sizes.iter().map(next_piece).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn windows_can_be_split_anywhere(sizes in vec(prop_oneof![1u64..3_000, 30_000u64..80_000], 1..30), gap in 50u64..600, at in 0u64..PACKETS) {
        // A gap per 71,000 packets; and as many losses at random.
        let gaps = |n: u64| (n + at) % PACKETS < gap;
        let scattered = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 32 < (gap << 32) / PACKETS;
        let of_host = causes_of_pieces(gaps, &sizes);
        prop_assert!(!of_host.contains(&Cause::Congestion), "{:?}", of_host);
        let of_network = causes_of_pieces(scattered, &sizes);
        prop_assert!(!of_network.contains(&Cause::ReceiverHost), "{:?}", of_network);
    }
}
