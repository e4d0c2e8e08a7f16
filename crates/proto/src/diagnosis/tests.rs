mod windows;

use haul_base::{HostSample, Span, Time};
use haul_stack::{ParameterKind, ParameterType as _};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::control::testing::{boundary, feedback, lost_packet};
use crate::control::{LossRuns, LostPacket, Unit};
use crate::micro::events::DroppedGap;
use crate::rtt::RttEstimator;

const PACKETS: u64 = 71_000;

fn at(millis: u64) -> Time {
    Time::ZERO + Span::from_millis(millis)
}

fn measured(rtt_ms: u64) -> RttEstimator {
    let mut rtt = RttEstimator::new(Span::from_millis(100));
    rtt.on_sample(Time::ZERO, Span::from_millis(rtt_ms));
    rtt
}

#[test]
fn every_kind_of_evidence_has_a_description() {
    let ParameterKind::Choice(words) = Evidence::KIND else { panic!("it is a choice") };
    assert_eq!(words, EVIDENCE.map(|(word, _)| word));
}

/// A feedback on 100 packets with these reports of the receiver's kernel and of the path.
fn feed(of: &mut Diagnostician, millis: u64, lost: u64, drops: u64, queue_ms: u64) -> Option<Verdict> {
    let rtt = measured(20 + queue_ms);
    of.on_feedback(&FeedbackSample {
        socket_drops: drops,
        gro_run: Some(10.0),
        queue_delay: Some(Span::from_millis(queue_ms)),
        in_flight: 1_472_000,
        ..feedback(at(millis), &rtt, 100, lost, None)
    })
}

fn window(of: &mut Diagnostician, signature: &Signature) -> WindowFindings {
    let mut end = boundary(Unit::Window, 0, signature.lost_packets());
    let findings = of.on_window(&mut end, signature);
    assert!(findings.counts.total() == 0 || end.verdict == findings.counts.verdict(), "{:?}", end.verdict);
    findings
}

#[test]
fn dropped_kernel_buffers_explain_only_the_packets_they_held() {
    let mut of = Diagnostician::new(Evidence::All);
    assert_eq!(feed(&mut of, 1, 0, 3, 0), None);
    // 30 packets were in the buffers that it dropped; 12 more have another cause.
    assert_eq!(feed(&mut of, 2, 20, 0, 0), Some(Verdict::of(Cause::ReceiverHost)));
    feed(&mut of, 3, 22, 0, 0);
    assert_eq!((of.counts().of(Cause::ReceiverHost), of.counts().of(Cause::Random)), (30, 12));
    // No loss corresponds to these drops, and 500 ms later nothing is attributed to them.
    feed(&mut of, 4, 0, 5, 0);
    feed(&mut of, 600, 10, 0, 0);
    assert_eq!(of.counts().of(Cause::ReceiverHost), 30);
}

fn gap(first_pn: u64, packets: u64, missing: u64, drops: u32) -> DroppedGap {
    DroppedGap { first_pn, packets, missing, drops }
}

/// Losses of a feedback by cause, and the likeliest cause of each run: `named` by the receiver, with this
/// mean number of packets per buffer and these counted drops.
fn attribute(
    named: &[DroppedGap],
    per_buffer: f64,
    drops: u64,
    lost: &[(u64, u64)],
) -> (CauseCounts, Vec<(u64, Cause)>) {
    let mut of = Diagnostician::new(Evidence::All);
    of.list_runs(true);
    let rtt = measured(20);
    let sample = |now, lost, loss, socket_drops| FeedbackSample {
        loss,
        socket_drops,
        gro_run: Some(per_buffer),
        in_flight: 14_720_000,
        ..feedback(now, &rtt, 100, lost, None)
    };
    of.on_feedback(&sample(at(1), 0, LossRuns::none(), 0));
    for gap in named {
        of.on_gap(at(2), *gap);
    }
    let mut runs = LossRuns::default();
    lost.iter()
        .flat_map(|(first, packets)| *first..first + packets)
        .for_each(|pn| runs.push(lost_packet(pn)));
    of.on_feedback(&sample(at(2), runs.packets(), &runs, drops));
    let (counts, list) = of.present.take();
    let mut list: Vec<_> = list.iter().map(|one| (one.run.first_pn, one.causes.likeliest())).collect();
    list.sort_by_key(|(first, _)| *first);
    (counts, list)
}

#[test]
fn only_packets_named_by_the_receiver_are_its_hosts() {
    let (host, random) = (Cause::ReceiverHost, Cause::Random);
    let of = |counts: &CauseCounts| [host, random].map(|cause| counts.of(cause));
    // The longer runs are not named.
    let lost = [(10, 9), (40, 2), (60, 1), (90, 30)];
    let (counts, each) = attribute(&[gap(40, 2, 2, 2), gap(60, 1, 1, 1)], 1.0, 3, &lost);
    assert_eq!(of(&counts), [3, 39]);
    assert_eq!(each, [(10, random), (40, host), (60, host), (90, random)]);
    // Two drops more than it has named: a report was lost, and the longest run may be theirs.
    let (counts, _) = attribute(&[gap(40, 2, 2, 2), gap(60, 1, 1, 1)], 1.0, 5, &lost);
    assert_eq!(of(&counts), [5, 37]);
    // Of a gap of 30 packets the kernel has dropped 4, and the path the others.
    let (counts, each) = attribute(&[gap(90, 30, 30, 4)], 1.0, 4, &lost);
    assert_eq!((of(&counts), each[3]), ([4, 38], (90, random)));
    // It is unknown how many packets 4 buffers of about 5 had.
    let (counts, each) = attribute(&[gap(90, 30, 30, 4)], 5.0, 4, &lost);
    assert_eq!((of(&counts), each[3]), ([30, 12], (90, host)));
}

#[test]
fn each_of_many_runs_in_a_report_is_attributed_to_its_cause() {
    let lost: Vec<(u64, u64)> = (0..200).map(|n| (n * 5, 1)).collect();
    let (counts, each) = attribute(&[gap(0, 996, 200, 200)], 1.0, 200, &lost);
    assert_eq!((counts.of(Cause::ReceiverHost), counts.total()), (200, 200));
    assert!(each.len() == 200 && each.iter().all(|(_, cause)| *cause == Cause::ReceiverHost), "{each:?}");
    // Half of them have another cause.
    let (counts, each) = attribute(&[gap(0, 496, 100, 100)], 1.0, 100, &lost);
    assert_eq!((counts.of(Cause::ReceiverHost), counts.total()), (100, 200));
    assert!(each.iter().all(|(pn, cause)| (*cause == Cause::ReceiverHost) == (*pn < 496)), "{each:?}");
}

proptest! {
    /// Whatever is named and counted, no more is attributed than was lost, and each packet's causes add up.
    #[test]
    fn gaps_of_a_lying_receiver_explain_at_most_the_losses(
        named in vec((0u64..2_000, 1u64..100, 1u64..100, any::<u32>()), 0..20),
        drops in 0u64..5_000,
        per_buffer in 0.0f64..64.0,
        lost in vec((1u64..60, 1u64..40), 0..50),
    ) {
        let named: Vec<_> = named.into_iter().map(|(first, packets, missing, drops)| gap(first, packets, missing.min(packets), drops)).collect();
        let mut next = 0;
        let lost: Vec<(u64, u64)> = lost.into_iter().map(|(after, packets)| {
            let first = next + after;
            next = first + packets;
            (first, packets)
        }).collect();
        let (counts, _) = attribute(&named, per_buffer, drops, &lost);
        prop_assert_eq!(counts.total(), lost.iter().map(|(_, packets)| packets).sum::<u64>());
    }
}

/// A feedback on 100 packets, with the host's report of drops before a socket.
fn feed_early(
    of: &mut Diagnostician,
    millis: u64,
    lost: u64,
    early_drops: Option<u32>,
    queue_ms: u64,
) -> Option<Verdict> {
    let rtt = measured(20 + queue_ms);
    of.on_feedback(&FeedbackSample {
        host: Some(HostSample { early_drops, ..HostSample::default() }),
        queue_delay: Some(Span::from_millis(queue_ms)),
        in_flight: 1_472_000,
        ..feedback(at(millis), &rtt, 100, lost, None)
    })
}

#[test]
fn early_drops_explain_only_otherwise_unexplained_losses_up_to_their_count() {
    let mut of = Diagnostician::new(Evidence::All);
    feed_early(&mut of, 1, 0, Some(12), 0);
    assert_eq!(feed_early(&mut of, 2, 10, Some(0), 0), Some(Verdict::of(Cause::ReceiverHost)));
    feed_early(&mut of, 3, 10, None, 0);
    assert_eq!((of.counts().of(Cause::ReceiverHost), of.counts().of(Cause::Random)), (12, 8));
    // The host is sampled after its losses were detected: the unexplained ones of this window.
    feed_early(&mut of, 40, 0, Some(5), 0);
    assert_eq!((of.counts().of(Cause::ReceiverHost), of.counts().of(Cause::Random)), (17, 3));
    let findings = window(&mut of, &Signature::of_lost(PACKETS, (0..20).map(|n| n * 3_000)));
    assert!((findings.counts.verdict().unwrap().share(Cause::ReceiverHost) - 0.85).abs() < 1e-9);
    // Drops without corresponding losses are soon forgotten, as they were not of this session.
    feed_early(&mut of, 50, 0, Some(u32::MAX / 2), 0);
    feed_early(&mut of, 700, 10, Some(0), 0);
    assert_eq!(of.counts().of(Cause::ReceiverHost), 17);
}

#[test]
fn early_drops_do_not_override_queues_outages_or_disabled_evidence() {
    let mut of = Diagnostician::new(Evidence::All);
    feed_early(&mut of, 1, 0, Some(0), 0);
    assert_eq!(feed_early(&mut of, 50, 5, Some(100), 15), Some(Verdict::of(Cause::Congestion)));
    assert_eq!(of.counts().of(Cause::ReceiverHost), 0);
    let mut of = Diagnostician::new(Evidence::Signature);
    feed_early(&mut of, 1, 5, Some(100), 0);
    assert_eq!(of.counts().of(Cause::ReceiverHost), 0);
}

#[test]
fn early_drops_are_not_attributed_to_the_medium_when_a_queue_appears() {
    let causes_with = |early: Option<u32>| {
        let mut of = Diagnostician::new(Evidence::All);
        (0..40).for_each(|n| _ = feed_early(&mut of, n * 10, 1, early, 0));
        (40..60).for_each(|n| _ = feed_early(&mut of, n * 10, 1, Some(0), 15));
        of.counts()
    };
    // The medium loses one of 100 packets throughout.
    assert_eq!((causes_with(None).of(Cause::Random), causes_with(None).of(Cause::Congestion)), (60, 0));
    assert_eq!(
        (causes_with(Some(1)).of(Cause::ReceiverHost), causes_with(Some(1)).of(Cause::Congestion)),
        (40, 20)
    );
}

#[test]
fn only_a_recently_full_queue_explains_losses() {
    let mut of = Diagnostician::new(Evidence::All);
    feed(&mut of, 1, 0, 0, 0);
    assert_eq!(feed(&mut of, 50, 5, 0, 15), Some(Verdict::of(Cause::Congestion)));
    for n in 1..20 {
        feed(&mut of, 50 + 10 * n, 0, 0, 0);
    }
    assert_eq!(feed(&mut of, 300, 5, 0, 0), Some(Verdict::of(Cause::Random)));
    assert_eq!(feed(&mut of, 302, 0, 0, 0), Some(Verdict::of(Cause::Random)), "of the losses before");
}

/// Two clocks with a drift of 200 ppm differ by 2 ms more after the 10 s for which the minimum is remembered,
/// and a clock may be set. The round trip is measured by one clock.
#[test]
fn clock_drift_and_jumps_are_not_queues() {
    let (mut of, rtt) = (Diagnostician::new(Evidence::All), measured(20));
    for n in 0..400 {
        let apart = if n < 200 { 2 } else { 30 };
        let lost = u64::from(n % 5 == 0);
        of.on_feedback(&FeedbackSample {
            queue_delay: Some(Span::from_millis(apart)),
            ..feedback(at(n * 10), &rtt, 100, lost, None)
        });
    }
    assert_eq!(of.counts().of(Cause::Random), 80, "{:?}", of.counts());
}

/// A queue drops 200 packets at once, and a medium one of 700 packets for 25 s afterwards, all in one window.
#[test]
fn old_queue_drops_are_not_attributed_to_the_medium() {
    let mut of = Diagnostician::new(Evidence::All);
    (0..=20).for_each(|n| _ = feed(&mut of, 10 * n, if n > 15 { 40 } else { 0 }, 0, n));
    (21..2_500).for_each(|n| _ = feed(&mut of, 10 * n, u64::from(n % 7 == 0), 0, n % 9));
    let counts = window(&mut of, &Signature::of_lost(PACKETS, [])).counts;
    let [queue, medium] = [Cause::Congestion, Cause::Random].map(|cause| counts.of(cause));
    assert!((200..230).contains(&queue) && medium > 300, "{counts:?}");
}

/// As `CoDel`, which drops a packet from time to time while its queue is short.
#[test]
fn a_queue_that_drops_early_explains_losses() {
    let verdict_at = |queue_ms| {
        let mut of = Diagnostician::new(Evidence::All);
        feed(&mut of, 1, 0, 0, 0);
        feed(&mut of, 50, 0, 0, 12);
        (1..10).for_each(|n| _ = feed(&mut of, 50 + 20 * n, 0, 0, queue_ms));
        feed(&mut of, 250, 5, 0, queue_ms)
    };
    assert_eq!(verdict_at(4), Some(Verdict::of(Cause::Congestion)));
    assert_eq!(verdict_at(1), Some(Verdict::of(Cause::Random)));
}

/// A lost packet sent at this time.
fn lost_packet_at(pn: u64, millis: u32) -> LostPacket {
    LostPacket { sent_at: 1_000 * millis, ..lost_packet(pn) }
}

/// Diagnosis of these losses, each a packet number and its send time in milliseconds, one second after the
/// first was sent, with a full queue.
fn causes_beside_a_queue(lost: impl IntoIterator<Item = (u64, u32)>) -> CauseCounts {
    let mut of = Diagnostician::new(Evidence::All);
    feed(&mut of, 1, 0, 0, 0);
    feed(&mut of, 990, 0, 0, 15);
    let (rtt, mut loss) = (measured(35), LossRuns::default());
    lost.into_iter().for_each(|(pn, millis)| loss.push(lost_packet_at(pn, millis)));
    of.on_feedback(&FeedbackSample { loss: &loss, ..feedback(at(1_000), &rtt, 100, loss.packets(), None) });
    of.counts()
}

#[test]
fn packets_sent_during_an_outage_are_the_outages_even_with_a_full_queue() {
    let counts = |counts: CauseCounts| [Cause::Outage, Cause::Congestion].map(|cause| counts.of(cause));
    // A window of 40 packets within 10 ms, and the probes, which are found lost first.
    let window = (100..140).map(|pn| (pn, (pn as u32 - 100) / 4));
    let probes = [(140, 100), (141, 100), (142, 240), (143, 240)];
    let outage: Vec<_> = probes.into_iter().chain(window.clone()).collect();
    assert_eq!(counts(causes_beside_a_queue(outage.clone())), [44, 0]);
    // The queue has dropped every other packet before.
    let before = (0..48).map(|n| (2 * n, 0));
    assert_eq!(counts(causes_beside_a_queue(before.chain(outage))), [44, 48]);
    // A whole window is lost at once: no outage, however late the next packet is.
    assert_eq!(counts(causes_beside_a_queue(window)), [0, 40]);
    // Every third packet arrives.
    assert_eq!(
        counts(causes_beside_a_queue((0..300).filter(|n| n % 3 > 0).map(|n| (n, n as u32)))),
        [0, 200]
    );
    // Three packets in 200 ms.
    assert_eq!(counts(causes_beside_a_queue((0..3).map(|n| (n, 100 * n as u32)))), [0, 3]);
}

#[test]
fn a_signature_does_not_blame_the_host_for_medium_losses_near_an_outage() {
    let (mut of, rtt, mut loss) = (Diagnostician::new(Evidence::All), measured(20), LossRuns::default());
    (5_000..5_300).for_each(|pn| loss.push(lost_packet_at(pn, pn as u32 - 4_900)));
    let outage = feedback(at(450), &rtt, 10, loss.packets(), None);
    of.on_feedback(&FeedbackSample { loss: &loss, ..outage });
    feed(&mut of, 500, 20, 0, 0);
    let findings = window(&mut of, &Signature::of_lost(PACKETS, 5_000..5_300));
    assert_eq!(findings.by_signature.cause(), Cause::ReceiverHost);
    let counts = [Cause::Outage, Cause::Random, Cause::ReceiverHost].map(|cause| findings.counts.of(cause));
    assert_eq!(counts, [300, 20, 0]);
    feed(&mut of, 600, 10, 0, 0);
    assert_eq!(of.counts().of(Cause::ReceiverHost), 0, "nor what comes after it");
}

/// Late packets may have been reordered, so an outage's last packets are found lost slightly later.
#[test]
fn losses_found_late_belong_to_their_outage() {
    let (mut of, rtt) = (Diagnostician::new(Evidence::All), measured(20));
    let mut found = |millis, lost: std::ops::Range<u64>| {
        let mut loss = LossRuns::default();
        lost.for_each(|pn| loss.push(lost_packet_at(pn, pn as u32)));
        of.on_feedback(&FeedbackSample {
            loss: &loss,
            ..feedback(at(millis), &rtt, 10, loss.packets(), None)
        });
        [Cause::Outage, Cause::Random].map(|cause| of.counts().of(cause))
    };
    assert_eq!(found(320, 100..294), [194, 0]);
    assert_eq!(found(325, 294..300), [200, 0]);
    assert_eq!(found(330, 301..304), [200, 3]);
}

#[test]
fn a_long_gap_with_kernel_drops_is_the_hosts_and_no_outage() {
    let rtt = measured(20);
    let mut gap = LossRuns::default();
    (0..500).for_each(|pn| gap.push(lost_packet_at(pn, pn as u32)));
    let verdict_at = |of: &mut Diagnostician, millis, socket_drops| {
        let known = FeedbackSample {
            socket_drops,
            gro_run: Some(10.0),
            loss: &gap,
            ..feedback(at(millis), &rtt, 100, 500, None)
        };
        of.on_feedback(&known)
    };
    let mut of = Diagnostician::new(Evidence::All);
    assert_eq!(verdict_at(&mut of, 1_000, 0), Some(Verdict::of(Cause::Outage)));
    assert_eq!(verdict_at(&mut of, 1_100, 3), Some(Verdict::of(Cause::ReceiverHost)));
    // The rest of the same gap, reported slightly later.
    assert_eq!(verdict_at(&mut of, 1_200, 0), Some(Verdict::of(Cause::ReceiverHost)));
    assert_eq!(verdict_at(&mut of, 2_000, 0), Some(Verdict::of(Cause::Outage)));
}

#[test]
fn a_medium_keeps_its_loss_rate_beside_a_queue() {
    let mut of = Diagnostician::new(Evidence::All);
    // One packet of each 500 is lost; every other second there is a queue, without losses at first.
    let lost = |n: u64| u64::from(n.is_multiple_of(5));
    for n in 0..1_000 {
        feed(&mut of, n * 10, lost(n), 0, if n / 100 % 2 == 1 { 15.min(n % 100 * 5) } else { 0 });
    }
    let counts = of.counts();
    assert_eq!(counts.total(), 200);
    assert!(counts.of(Cause::Random) >= 190, "{counts:?}");
    // Losses beyond that are the queue's.
    feed(&mut of, 10_000, 0, 0, 15);
    feed(&mut of, 10_010, 100, 0, 15);
    assert!(of.counts().of(Cause::Congestion) >= counts.of(Cause::Congestion) + 91, "{:?}", of.counts());
}

/// A queue grows in the first 400 of every 1,000 ms, and is full in the last 40 of them; a medium loses one
/// packet in 500 throughout.
#[test]
fn losses_at_a_queue_too_short_to_drop_are_the_mediums() {
    let mut of = Diagnostician::new(Evidence::All);
    of.list_runs(true);
    let (mut by_medium, mut by_queue, mut runs) = (0, 0, LossRuns::default());
    for n in 0..400 {
        let phase = (n + 60) % 100u64;
        let queue = phase.saturating_sub(60).min(36);
        let rtt = measured(20 + queue);
        let is_full = phase >= 96;
        let first = n * 120;
        let lost = if is_full { 20 } else { u64::from(n % 5 == 0) };
        *(if is_full { &mut by_queue } else { &mut by_medium }) += lost;
        runs.clear();
        (0..lost).for_each(|nth| runs.push(lost_packet(first + 3 * nth)));
        of.on_feedback(&FeedbackSample {
            loss: &runs,
            queue_delay: Some(Span::from_millis(queue)),
            in_flight: 1_472_000,
            largest_acked_pn: first + 119,
            ..feedback(at(n * 10), &rtt, 120 - lost, lost, None)
        });
    }
    let before = of.counts().of(Cause::Random);
    let mut end = Boundary { packets: 400 * 120, ..boundary(Unit::Window, 0, 0) };
    let counts = of.on_window(&mut end, &Signature::of_lost(PACKETS, [])).counts;
    let random = counts.of(Cause::Random);
    // At the full queue the medium has its share, too, one in 500.
    let at_queue = 4 * 4 * 120 / 500 + 2;
    assert!(
        (by_medium - 2..=by_medium + at_queue).contains(&random),
        "{counts:?}, {by_medium} and {by_queue}"
    );
    assert!(before < by_medium && counts.total() == by_medium + by_queue, "{before}, {counts:?}");
}
