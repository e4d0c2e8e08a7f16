//! Tests that apply to every registered law, and tests of the registry.

use haul_base::{Cause, HostSample, Verdict};
use haul_stack::{Configuration as _, RecipeError, configuration};
use proptest::prelude::*;

use super::held_rate::Mode;
use super::registry::built_in_laws;
use super::testing::{self, Harness, PathModel, config, feedback, lost_packet};
use super::*;
use crate::register_law;
use crate::rtt::RttEstimator;

#[test]
fn bursts_are_no_larger_than_paths_tolerate() {
    for (mbps, burst) in
        [(1, 3_000), (10, 3_750), (50, 14_720), (200, 14_720), (1_000, 62_500), (9_000, 65_507)]
    {
        assert_eq!(burst_for(Rate::from_mbps(mbps)), burst, "{mbps} Mbit/s");
    }
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let error = build_controller("warp", &config(None)).unwrap_err().to_string();
    assert!(error.contains("warp") && law_names().iter().all(|name| error.contains(name)), "{error}");
}

#[test]
fn fixed_without_a_rate_reports_the_missing_parameter() {
    let error = build_controller("fixed", &config(None)).unwrap_err();
    assert_eq!(error, ControllerError::NeedsRate("fixed"));
}

#[test]
fn a_rate_of_zero_is_refused_by_every_law() {
    for law in built_in_laws() {
        let error = law.build(&[], &config(Some(Rate::ZERO))).unwrap_err();
        assert_eq!(error, ControllerError::ZeroRate, "{}", law.name);
    }
}

#[test]
fn registered_laws_are_complete() {
    for law in laws() {
        let texts = [law.name, law.summary, law.source];
        assert!(texts.iter().all(|text| !text.is_empty()) && !law.summary.ends_with('.'), "{law:?}");
        assert!(law.parameters.iter().all(|parameter| !parameter.help.is_empty()), "{law:?}");
        law.parameters(&[]).expect("its defaults are allowed");
        let error = law.build(&[("no_such", "1")], &config(None)).unwrap_err().to_string();
        assert!(
            error.contains("no_such") && law.parameters.iter().all(|p| error.contains(p.name)),
            "{error}"
        );
    }
}

/// A law of another crate that holds from time to time.
#[derive(Debug)]
struct Pauses(Span, Option<Time>);

impl RateController for Pauses {
    fn permit(&self) -> Permit {
        self.1.map_or(Permit::Go(Limits::at_rate(Rate::from_mbps(1))), Permit::Pause)
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.1 = Some(sample.now + self.0);
    }

    fn on_silence(&mut self, _: Time, _: u32) {}

    fn on_deadline(&mut self, now: Time) {
        self.1 = self.1.filter(|&until| until > now);
    }

    fn ceiling(&self) -> Option<Rate> {
        None
    }

    fn state(&self) -> RateState {
        RateState { phase: "paused", rate: Rate::from_mbps(1) }
    }
}

configuration! {
    /// Parameters of `pauses`.
    pub struct PausesConfig: "pauses" {
        pause: Span in (Span::from_millis(1), Span::from_secs(1)) = "5ms", "how long";
    }
}

configuration! {
    /// One of the names is taken.
    pub struct ClashesConfig: "clashes" {
        debt: bool = "true", "taken";
    }
}

static PAUSES: LawRegistration = LawRegistration {
    name: "pauses",
    version: 1,
    summary: "stops for a while after each feedback",
    source: "this test",
    parameters: PausesConfig::PARAMETERS,
    build: |parameters, _| Ok(Box::new(Pauses(parameters.read::<PausesConfig>().pause, None))),
};

/// A law with a parameter whose name is taken.
static CLASHES: LawRegistration =
    LawRegistration { name: "clashes", parameters: ClashesConfig::PARAMETERS, ..PAUSES };

#[test]
fn a_law_of_another_crate_is_registered_once_and_its_parameters_are_checked() {
    register_law(&PAUSES).unwrap();
    assert!(matches!(register_law(&PAUSES), Err(ControllerError::Taken { .. })));
    let built = law("pauses").unwrap().build(&[("pause", "7ms")], &config(None));
    assert_eq!(format!("{:?}", built.unwrap()), format!("{:?}", Pauses(Span::from_millis(7), None)));
    let error = PAUSES.build(&[("pause", "2s")], &config(None)).unwrap_err();
    let is_value =
        matches!(&error, ControllerError::Parameter(why) if matches!(**why, RecipeError::Value { .. }));
    assert!(is_value, "{error}");
    assert!(error.to_string().contains("1.000 ms to 1.000 s"), "{error}");
    let error = register_law(&CLASHES).unwrap_err().to_string();
    assert!(error.contains("`debt`"), "{error}");
}

#[derive(Clone, Debug)]
enum Op {
    Sent(u64),
    Feedback(PeerFeedback),
    Silence(u32),
    Boundary {
        unit: usize,
        packets: u64,
        lost: u64,
    },
    Deadline,
    /// Nothing happens for this many microseconds.
    Pause(u64),
}

/// Feedback of a peer, true or not.
#[derive(Clone, Debug)]
struct PeerFeedback {
    counts: (u64, u64, u64),
    rtt_us: u64,
    rates: (Option<u64>, Option<u64>),
    in_flight: u64,
    marks: (u64, u64, u64),
    delays: (Option<u64>, f64),
    share: f64,
    app_limited: bool,
}

/// Counts are bounded by what was sent before a law gets them.
fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..5_000, 1 => Just(0), 1 => 0u64..1 << 40]
}

fn peer_feedback() -> impl Strategy<Value = PeerFeedback> {
    let delays = (prop::option::of(any_count()), prop_oneof![Just(0.0), -1e9..1e9, Just(f64::MAX)]);
    (
        (any_count(), any_count(), any_count()),
        prop_oneof![8 => 1u64..2_000_000, 1 => Just(1u64), 1 => Just(59_000_000u64)],
        (prop::option::of(any::<u64>()), prop::option::of(any::<u64>())),
        any::<u64>(),
        (any_count(), any_count(), any_count()),
        delays,
        0.0..1.0f64,
        any::<bool>(),
    )
        .prop_map(|(counts, rtt_us, rates, in_flight, marks, delays, share, app_limited)| PeerFeedback {
            counts,
            rtt_us,
            rates,
            in_flight,
            marks,
            delays,
            share,
            app_limited,
        })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u64..70_000).prop_map(Op::Sent),
        6 => peer_feedback().prop_map(Op::Feedback),
        1 => (1u32..40).prop_map(Op::Silence),
        2 => (0usize..4, any_count(), any_count())
            .prop_map(|(unit, packets, lost)| Op::Boundary { unit, packets, lost: lost.min(packets) }),
        1 => Just(Op::Deadline),
        1 => prop_oneof![Just(1u64), Just(3_600_000_000), 0u64..100_000].prop_map(Op::Pause),
    ]
}

fn sample<'a>(
    now: Time,
    sent: u64,
    feedback: &PeerFeedback,
    rtt: &'a RttEstimator,
    loss: &'a LossRuns,
) -> FeedbackSample<'a> {
    FeedbackSample {
        now,
        acked_packets: feedback.counts.0,
        lost_packets: feedback.counts.1,
        host_lost_packets: 0,
        loss,
        in_flight: feedback.in_flight,
        datagram: 1_472,
        sent_bytes: sent * 1_472,
        sent_packets: sent,
        next_pn: sent,
        largest_acked_pn: feedback.counts.2.min(sent),
        rtt,
        arrival_rate: feedback.rates.0.map(Rate::from_bps),
        drain_rate: feedback.rates.1.map(Rate::from_bps),
        read_delay: feedback.delays.0.map(Span::from_micros),
        queue_delay: feedback.delays.0.map(Span::from_micros),
        delay_trend: feedback.delays.1,
        gro_run: Some(1.0 + feedback.share),
        duplicates: feedback.marks.0,
        socket_drops: feedback.marks.1,
        ecn_ce: feedback.marks.2,
        host: Some(HostSample {
            run_delay: feedback.delays.0.map(Span::from_micros),
            ..HostSample::default()
        }),
        verdict: Verdict::mixed(&[(Cause::ReceiverHost, feedback.share)]),
        app_limited: feedback.app_limited,
        sender_absent: false,
        report_interval: Span::from_millis(2),
    }
}

fn drive(controller: &mut dyn RateController, ops: &[Op], mut check: impl FnMut(Time, Permit)) {
    let mut now = Time::ZERO;
    let mut rtt = RttEstimator::new(Span::from_millis(20));
    let mut sent = 0;
    for (n, op) in ops.iter().enumerate() {
        now += Span::from_micros(700);
        match op {
            Op::Sent(bytes) => {
                let packets = bytes.div_ceil(1_472);
                sent += packets;
                controller.on_sent(&SentBatch { now, packets, bytes: *bytes, in_flight: *bytes });
            }
            Op::Silence(count) => controller.on_silence(now, *count),
            Op::Feedback(feedback) => {
                rtt.on_sample(now, Span::from_micros(feedback.rtt_us));
                let mut loss = LossRuns::default();
                (0..feedback.counts.1.min(100)).for_each(|n| loss.push(lost_packet(n * 2 + n / 3)));
                controller.on_feedback(&sample(now, sent, feedback, &rtt, &loss));
            }
            Op::Boundary { unit, packets, lost } => controller.on_boundary(&Boundary {
                unit: Unit::ALL[*unit],
                number: n as u64,
                first_pn: sent.saturating_sub(*packets),
                packets: *packets,
                bytes: packets.saturating_mul(1_472),
                lost: *lost,
                began: now - Span::from_millis(1),
                ended: now,
                now,
                verdict: None,
            }),
            Op::Deadline => controller.on_deadline(now),
            Op::Pause(micros) => now += Span::from_micros(*micros),
        }
        if controller.deadline().is_some_and(|at| at <= now) {
            controller.on_deadline(now);
        }
        if let Permit::Pause(until) = controller.permit()
            && until <= now
        {
            controller.on_deadline(now);
        }
        check(now, controller.permit());
    }
}

const MODES: [Mode; 3] = [Mode::Law, Mode::Window, Mode::Rate];

fn built(law: &LawRegistration, ceiling: Rate, cause_aware: bool) -> Box<dyn RateController> {
    built_in(Mode::Law, law, ceiling, cause_aware)
}

fn built_in(mode: Mode, law: &LawRegistration, ceiling: Rate, cause_aware: bool) -> Box<dyn RateController> {
    let controller = mode.hold(law.build(&[], &config(Some(ceiling))).unwrap(), Span::from_millis(20));
    if cause_aware { Box::new(CauseAware::new(controller)) } else { controller }
}

proptest! {
    #[test]
    fn every_controller_has_sane_limits(
        ops in prop::collection::vec(op(), 1..200), aware: bool, mode in prop::sample::select(&MODES[..]),
    ) {
        for ceiling in [Rate::from_mbps(950), Rate::from_bps(20_000)] {
            for law in built_in_laws() {
                let mut controller = built_in(mode, law, ceiling, aware);
                let name = law.name;
                drive(controller.as_mut(), &ops, |now, permit| match permit {
                    Permit::Go(limits) => {
                        assert!(limits.rate > Rate::ZERO && limits.rate <= ceiling, "{name}: {limits:?}");
                        assert!((1_472..=65_507).contains(&limits.burst), "{name}: {limits:?}");
                        assert!(limits.window.is_none_or(|w| w >= MIN_WINDOW), "{name}: {limits:?}");
                    }
                    Permit::Pause(until) => {
                        assert!(until > now && until <= now + MAX_PAUSE, "{name} holds until {until:?} at {now:?}");
                    }
                });
                let rate = controller.state().rate;
                assert!(rate > Rate::ZERO && rate <= ceiling, "{name}: {rate}");
            }
        }
    }

    #[test]
    fn equal_inputs_give_equal_traces(ops in prop::collection::vec(op(), 1..60)) {
        for law in built_in_laws() {
            let trace = || {
                let mut out = Vec::new();
                let mut c = built(law, Rate::from_mbps(500), false);
                drive(c.as_mut(), &ops, |_, permit| out.push(permit));
                out
            };
            prop_assert_eq!(trace(), trace());
        }
    }
}

#[test]
fn every_law_uses_a_quiet_path_and_does_so_again_after_an_outage() {
    let capacity = Rate::from_mbps(100);
    for law in built_in_laws() {
        let controller = built(law, capacity.mul_f64(0.95), false);
        let mut run = Harness::new(controller, PathModel { capacity, ..PathModel::default() });
        run.run_for(Span::from_secs(20));
        let before = run.measure(Span::from_secs(5)).goodput;
        run.outage(Span::from_secs(2));
        run.run_for(Span::from_secs(2) + Span::from_secs(3));
        let after = run.measure(Span::from_secs(5)).goodput;
        assert!(before >= capacity.mul_f64(0.5), "{}: {before} before", law.name);
        assert!(after >= before.mul_f64(0.8), "{}: {before} before, {after} after", law.name);
    }
}

/// Share of 20 Mbit/s from 3 to 8 s after the round-trip time has grown from 20 to 200 ms.
fn share_of_longer_path(law: &LawRegistration, settings: &[(&str, &str)]) -> f64 {
    let capacity = Rate::from_mbps(20);
    let path = PathModel { queue: 150_000, ..PathModel::bottleneck(capacity, Span::from_millis(20), 1.0) };
    let mut run = Harness::new(law.build(settings, &config(None)).unwrap(), path);
    run.run_for(Span::from_secs(20));
    run.path.rtt = Span::from_millis(200);
    run.run_for(Span::from_secs(3));
    run.measure(Span::from_secs(5)).goodput.as_bps() as f64 / capacity.as_bps() as f64
}

#[test]
fn a_path_ten_times_as_long_is_filled_within_three_seconds_unlike_by_the_sources_laws() {
    for name in ["reno", "cubic", "scalable", "tfrc", "highspeed"] {
        let [ours, sources] = ["true", "false"]
            .map(|settings| share_of_longer_path(law(name).unwrap(), &[("longer_path", settings)]));
        println!("{name}: {ours:.2}, by its source {sources:.2}");
        assert!(ours >= 0.8 && sources < 0.6, "{name}: {ours}, by its source {sources}");
    }
}

#[test]
fn losses_of_the_host_do_not_slow_a_cause_aware_law_below_what_the_host_drains() {
    // A law that halves with each loss, with a host that reads 50 of 100 Mbit/s.
    #[derive(Debug)]
    struct Halves(Rate);
    impl RateController for Halves {
        fn permit(&self) -> Permit {
            Permit::Go(Limits::at_rate(self.0))
        }
        fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
            if sample.lost_packets > 0 {
                self.0 = self.0.mul_f64(0.5).max(MIN_RATE);
            }
        }
        fn on_silence(&mut self, _: Time, _: u32) {}
        fn ceiling(&self) -> Option<Rate> {
            None
        }
        fn state(&self) -> RateState {
            RateState { phase: "halves", rate: self.0 }
        }
    }
    let path = PathModel {
        capacity: Rate::from_mbps(100),
        drain: Some(Rate::from_mbps(50)),
        verdict: Some(Verdict::of(Cause::ReceiverHost)),
        ..PathModel::default()
    };
    let start = || Box::new(Halves(Rate::from_mbps(90)));
    let mut plain = Harness::new(start(), path.clone());
    plain.run_for(Span::from_secs(5));
    assert!(plain.measure(Span::from_secs(5)).goodput < Rate::from_mbps(40));
    let mut aware = Harness::new(Box::new(CauseAware::new(start())), path);
    aware.run_for(Span::from_secs(5));
    let measured = aware.measure(Span::from_secs(5));
    assert!(measured.goodput >= Rate::from_mbps(48), "{measured:?}");
    assert!(measured.mean_rate <= Rate::from_mbps(62), "{measured:?}");
}

#[test]
fn host_losses_are_subtracted_only_with_a_verdict() {
    #[derive(Debug)]
    struct Counts(u64, u64);
    impl RateController for Counts {
        fn permit(&self) -> Permit {
            Permit::Go(Limits::at_rate(Rate::from_mbps(1)))
        }
        fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
            self.0 += sample.lost_packets;
            self.1 += sample.host_lost_packets;
        }
        fn on_silence(&mut self, _: Time, _: u32) {}
        fn ceiling(&self) -> Option<Rate> {
            None
        }
        fn state(&self) -> RateState {
            // Reports the inputs, for the test.
            RateState { phase: "counts", rate: Rate::from_bps(self.0 * 1_000 + self.1) }
        }
    }
    let attributed = |verdict: Option<Verdict>| {
        let mut law = CauseAware::new(Box::new(Counts(0, 0)));
        let rtt = RttEstimator::new(Span::from_millis(20));
        let feedback = PeerFeedback {
            counts: (90, 3, 0),
            rtt_us: 1,
            rates: (None, None),
            in_flight: 0,
            marks: (0, 0, 0),
            delays: (None, 0.0),
            share: 0.0,
            app_limited: false,
        };
        for n in 0..100 {
            let now = Time::ZERO + Span::from_millis(n);
            law.on_feedback(&FeedbackSample { verdict, ..sample(now, 1, &feedback, &rtt, LossRuns::none()) });
        }
        let both = law.state().rate.as_bps();
        (both / 1_000, both % 1_000)
    };
    assert_eq!(attributed(None), (300, 0));
    assert_eq!(attributed(Some(Verdict::of(Cause::Congestion))), (300, 0));
    assert_eq!(attributed(Some(Verdict::of(Cause::ReceiverHost))), (0, 300));
    let mixed = Verdict::mixed(&[(Cause::ReceiverHost, 0.4), (Cause::Congestion, 0.6)]);
    assert_eq!(attributed(mixed), (180, 120));
    let certain = Verdict::mixed(&[(Cause::ReceiverHost, 0.96)]);
    assert_eq!(attributed(certain), (0, 300), "from 0.95 on all is the host's");
}

#[test]
fn a_peer_that_claims_a_busy_host_gets_no_more_than_it_acknowledges() {
    // The peer claims that its host drains 10 Gbit/s and causes all losses; 100 packets of 1,472 bytes arrive
    // every 10 ms. It reports losses each time or from time to time; arrivals at once or in batches of 60 ms.
    for (losses_each, reported_every) in [(1, 1), (7, 1), (1, 6), (30, 6)] {
        let mut law = CauseAware::new(build_fixed(Rate::from_mbps(1_000)));
        let mut rtt = RttEstimator::new(Span::from_millis(20));
        for n in 1..300 {
            let is_lossy = n % losses_each == 0;
            let arrived = if n % reported_every == 0 { 100 * reported_every } else { 0 };
            let feedback = PeerFeedback {
                counts: (arrived, if is_lossy { 100 } else { 0 }, 0),
                rtt_us: 20_000,
                rates: (Some(10_000_000_000), Some(10_000_000_000)),
                in_flight: 0,
                marks: (0, 0, 0),
                delays: (Some(0), 0.0),
                share: 1.0,
                app_limited: false,
            };
            let now = Time::ZERO + Span::from_millis(10 * n);
            rtt.on_sample(now, Span::from_millis(20));
            let verdict = Some(Verdict::of(Cause::ReceiverHost));
            law.on_feedback(&FeedbackSample {
                verdict,
                ..sample(now, n * 200, &feedback, &rtt, LossRuns::none())
            });
            let (Permit::Go(limits), true) = (law.permit(), is_lossy && n > 50) else { continue };
            let acknowledged = 100.0 * 1_472.0 * 8.0 / 0.01;
            let times = limits.rate.as_bps() as f64 / acknowledged;
            let most = if reported_every == 1 { 1.05 } else { 1.3 };
            assert!((0.5..most).contains(&times), "{losses_each} {reported_every}: {times} at {n}");
        }
    }
}

fn build_fixed(rate: Rate) -> Box<dyn RateController> {
    Box::new(Fixed::new(rate))
}

/// Losses found by the probe timer are reported before the next arrival. The window was lowered for them when
/// the silence began.
#[test]
fn losses_during_silence_do_not_change_the_path_model() {
    let (mut rtt, now) = (RttEstimator::new(Span::from_millis(40)), Time::ZERO + Span::from_secs(1));
    rtt.on_sample(now, Span::from_millis(40));
    for name in ["reno", "cubic", "scalable"] {
        let mut law = testing::built(name, &[], Rate::from_mbps(10_000));
        law.take_over(Rate::from_mbps(100), &rtt);
        (1..=2).for_each(|count| law.on_silence(now, count));
        let mut runs = LossRuns::default();
        (0..50).for_each(|pn| runs.push(lost_packet(pn)));
        let lost = FeedbackSample { loss: &runs, next_pn: 52, ..feedback(now, &rtt, 0, 50, None) };
        law.on_feedback(&lost);
        let arrived = feedback(now, &rtt, 1, 0, None);
        law.on_feedback(&FeedbackSample { next_pn: 53, largest_acked_pn: 51, ..arrived });
        assert_eq!(law.state().phase, "slow start", "{name}");
    }
}
