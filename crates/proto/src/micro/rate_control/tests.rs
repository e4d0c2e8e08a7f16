mod model;
mod windows;

use std::sync::{Arc, Mutex};

use haul_base::{Cause, Ecn, HostSample, Machine, PathId, Rate, Received, Span, Time, Verdict};
use haul_stack::{Recipe, SourceWait, Stack, StackEvent};

use crate::control::{Boundary, FeedbackSample, Limits, Permit, RateController, RateState, Unit, law_names};
use crate::micro;
use crate::micro::events::{HOST_SAMPLE, PAUSE_NEEDED, Pause, QUOTA, Quota, VERDICT};
use crate::micro::stats::RateControlStats;
use crate::micro::testing::{Pair, Path, T0, compiled, events, object_recipe, stats};

fn at(millis: u64) -> Time {
    T0 + Span::from_millis(millis)
}

fn started(recipe: &Recipe) -> Pair {
    let mut pair = Pair::of_object(recipe, 100_000_000).0;
    pair.exchange(T0, &mut Path::default());
    // The first burst is over.
    pair.run_until(at(100), &mut Path::default());
    pair
}

/// Bits per second that `a` sends between `from` and `to`.
fn sent(pair: &mut Pair, from: u64, to: u64) -> u64 {
    let before = pair.a.stats().bytes_sent;
    pair.run_until(at(to), &mut Path::default());
    (pair.a.stats().bytes_sent - before) * 8_000 / (to - from)
}

fn is_near(found: u64, expected: u64) -> bool {
    found.abs_diff(expected) <= expected / 25
}

#[test]
fn the_sent_rate_follows_the_law_and_its_changes() {
    for rate in [1_000_000, 8_000_000, 200_000_000] {
        let mut pair = started(&object_recipe(&format!("{rate}bit")));
        let found = sent(&mut pair, 100, 1_000);
        assert!(is_near(found, rate), "{found} for {rate}");
        pair.a.reconfigure(at(1_000), &object_recipe(&format!("{}bit", rate / 2))).unwrap();
        let found = sent(&mut pair, 1_000, 2_000);
        assert!(is_near(found, rate / 2), "{found} for half of {rate}");
    }
}

#[test]
fn changes_of_the_ceiling_are_counted() {
    let mut pair = started(&object_recipe("8Mbit"));
    let steps = [(200, "8Mbit", 0), (400, "2Mbit", 1), (600, "2Mbit", 1), (800, "8Mbit", 2)];
    for (millis, rate, changes) in steps {
        pair.run_until(at(millis), &mut Path::default());
        pair.a.reconfigure(at(millis), &object_recipe(rate)).unwrap();
        assert_eq!(stats::<RateControlStats>(&pair.a).ceiling_changes, changes, "{rate}");
    }
}

#[test]
fn a_higher_rate_ends_the_pause_of_a_low_one() {
    let mut pair = started(&object_recipe("1kbit"));
    pair.run_until(at(1_000), &mut Path::default());
    pair.a.reconfigure(at(1_000), &object_recipe("8Mbit")).unwrap();
    let found = sent(&mut pair, 1_000, 2_000);
    assert!(is_near(found, 8_000_000), "{found}");
}

/// Regression test: it continued at 1 kbit/s, and would have needed minutes.
#[test]
fn a_law_that_takes_over_from_a_stopped_one_starts_as_in_a_new_session() {
    let mut pair = started(&object_recipe("1kbit"));
    let mut other = object_recipe("100Mbit");
    micro::registry().set(&mut other, "rate_control.controller", "rapid_plus").unwrap();
    pair.a.reconfigure(at(200), &other).unwrap();
    let found = sent(&mut pair, 200, 1_200);
    assert!(found > 40_000_000, "{found}");
}

/// Sends for a second; returns the bytes and how often the sender woke for them.
fn second(mut pair: Pair) -> (u64, u32) {
    pair.exchange(T0, &mut Path::default());
    pair.run_until(at(100), &mut Path::default());
    let (before, mut wakes) = (pair.a.stats().bytes_sent, 0);
    while let Some(next) = [pair.a.deadline(), pair.b.deadline()].into_iter().flatten().map(|d| d.at).min()
        && next <= at(1_100)
    {
        let before = pair.a.stats().bytes_sent;
        pair.run_until(next, &mut Path::default());
        wakes += u32::from(pair.a.stats().bytes_sent > before);
    }
    (pair.a.stats().bytes_sent - before, wakes)
}

/// A wake-up costs as much processor time as ten packets.
#[test]
fn a_low_rate_is_kept_with_few_wake_ups() {
    let recipe = object_recipe("50Mbit");
    let mut laws = vec![(recipe.clone(), 1_472, 450), (recipe.clone(), 8_972, 240)];
    let mut delivery = recipe;
    micro::registry().set(&mut delivery, "rate_control.controller", "delivery").unwrap();
    laws.push((delivery, 8_972, 240));
    for (recipe, datagram, most) in laws {
        let (bytes, wakes) = second(Pair::of_object_in(&recipe, 50_000_000, datagram).0);
        let least = if recipe.text("rate_control", "controller").as_deref() == Some("fixed") {
            6_187_500
        } else {
            6_000_000
        };
        assert!((least..=6_312_500).contains(&bytes), "{bytes} bytes in a second, datagrams of {datagram}");
        assert!(wakes <= most, "{wakes} wake-ups a second, datagrams of {datagram}");
    }
}

#[test]
fn the_quota_of_the_receiver_bounds_the_law_and_never_raises_it() {
    let mut pair = started(&object_recipe("8Mbit"));
    pair.a.raise(at(100), QUOTA, &mut Quota(Rate::from_bps(2_000_000)));
    let found = sent(&mut pair, 100, 1_000);
    assert!(is_near(found, 2_000_000), "{found}");
    pair.a.raise(at(1_000), QUOTA, &mut Quota(Rate::from_bps(90_000_000)));
    let found = sent(&mut pair, 1_000, 2_000);
    assert!(is_near(found, 8_000_000), "{found}");
}

#[test]
fn a_batch_respects_the_maximum_size() {
    for (most, rate) in [("1", "2Gbit"), ("7", "2Gbit"), ("64", "2Gbit"), ("64", "1Mbit")] {
        let mut recipe = object_recipe(rate);
        micro::registry().set(&mut recipe, "rate_control.max_batch", most).unwrap();
        let mut pair = Pair::of_object(&recipe, 10_000_000).0;
        let mut slot = vec![0; 65_536];
        let sent = pair.a.poll_transmit(T0, &mut slot).unwrap();
        // At a low rate the law's burst is smaller: 3,000 bytes.
        let packets = if rate == "1Mbit" { 2 } else { most.parse().unwrap() };
        let fits = 65_536 / sent.segment_size;
        assert_eq!(sent.len.div_ceil(sent.segment_size), packets.min(fits));
    }
}

/// What a law has received.
#[derive(Debug, Default)]
struct LawInputs {
    samples: Vec<Sample>,
    boundaries: Vec<Boundary>,
    deadlines: Vec<Time>,
}

/// The parts of a sample that are stored.
#[derive(Clone, Copy, Debug)]
struct Sample {
    acked: u64,
    lost: u64,
    runs: u64,
    ecn_ce: u64,
    gro_run: Option<f64>,
    rtt: Span,
    read_delay: Option<Span>,
    host: Option<HostSample>,
    verdict: Option<Verdict>,
    sent_packets: u64,
    app_limited: bool,
}

/// A law that records its input, and permits what the test sets.
#[derive(Debug)]
struct RecordingLaw {
    inputs: Arc<Mutex<LawInputs>>,
    permit: Permit,
    deadline: Option<Time>,
}

impl RateController for RecordingLaw {
    fn permit(&self) -> Permit {
        self.permit
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.inputs.lock().unwrap().samples.push(Sample {
            acked: sample.acked_packets,
            lost: sample.lost_packets,
            runs: sample.loss.count(),
            ecn_ce: sample.ecn_ce,
            gro_run: sample.gro_run,
            rtt: sample.rtt.latest(),
            read_delay: sample.read_delay,
            host: sample.host,
            verdict: sample.verdict,
            sent_packets: sample.sent_packets,
            app_limited: sample.app_limited,
        });
    }

    fn on_boundary(&mut self, end: &Boundary) {
        self.inputs.lock().unwrap().boundaries.push(*end);
    }

    fn on_silence(&mut self, _: Time, _: u32) {}

    fn on_deadline(&mut self, now: Time) {
        self.inputs.lock().unwrap().deadlines.push(now);
        if self.deadline.is_some_and(|at| at <= now) {
            self.deadline = Some(now + Span::from_millis(50));
        }
        if let Permit::Pause(until) = self.permit
            && until <= now
            && until > T0
        {
            self.permit = go();
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    fn ceiling(&self) -> Option<Rate> {
        None
    }

    fn state(&self) -> RateState {
        RateState { phase: "listens", rate: Rate::from_mbps(80) }
    }
}

fn go() -> Permit {
    Permit::Go(Limits::at_rate(Rate::from_mbps(80)))
}

fn recording(permit: Permit, deadline: Option<Time>) -> (Box<dyn RateController>, Arc<Mutex<LawInputs>>) {
    let inputs = Arc::new(Mutex::new(LawInputs::default()));
    (Box::new(RecordingLaw { inputs: inputs.clone(), permit, deadline }), inputs)
}

/// A pair whose sender runs `RecordingLaw`.
fn listening(recipe: &Recipe, permit: Permit, deadline: Option<Time>) -> (Pair, Arc<Mutex<LawInputs>>) {
    let (law, inputs) = recording(permit, deadline);
    let (pair, _) = Pair::of_object_with(recipe, 100_000_000, law);
    (pair, inputs)
}

#[test]
fn a_holding_law_resumes_exactly_at_its_time() {
    let (mut pair, inputs) = listening(&object_recipe("8Mbit"), Permit::Pause(at(70)), None);
    pair.exchange(T0, &mut Path::default());
    pair.run_until(at(69), &mut Path::default());
    assert_eq!(pair.a.stats().data_sent, 0);
    pair.run_until(at(70), &mut Path::default());
    assert!(pair.a.stats().data_sent > 0 && pair.a.stats().data_sent < 20, "{}", pair.a.stats().data_sent);
    assert_eq!(inputs.lock().unwrap().deadlines, [at(70)]);
    pair.run_until(at(170), &mut Path::default());
    assert!(is_near(sent(&mut pair, 170, 1_170), 80_000_000));
}

#[test]
fn a_laws_deadlines_are_kept_and_past_ones_do_not_spin() {
    let (mut pair, inputs) = listening(&object_recipe("8Mbit"), go(), Some(at(30)));
    pair.exchange(T0, &mut Path::default());
    pair.run_until(at(200), &mut Path::default());
    assert_eq!(inputs.lock().unwrap().deadlines, [at(30), at(80), at(130), at(180)]);
    let (mut pair, inputs) = listening(&object_recipe("8Mbit"), go(), Some(T0));
    // The time never moves: `RecordingLaw` moves only from the time it is called.
    pair.exchange(T0, &mut Path::default());
    pair.run_until(at(10), &mut Path::default());
    assert_eq!(inputs.lock().unwrap().deadlines.len(), 1);
}

#[test]
fn a_law_that_holds_forever_ends_the_session_by_name() {
    let year = T0 + Span::from_secs(31_536_000);
    for until in [T0, year] {
        let (mut pair, _) = listening(&object_recipe("8Mbit"), Permit::Pause(until), None);
        pair.exchange(T0, &mut Path::default());
        let failed = events(&mut pair.a).into_iter().find_map(|event| match event {
            StackEvent::Failed { protocol, message } => Some((protocol, message)),
            _ => None,
        });
        let (protocol, message) = failed.expect("the session has ended");
        assert_eq!(protocol, "rate_control");
        assert!(message.contains("`fixed`") && message.contains("would never send"), "{message}");
    }
}

#[test]
fn packets_sent_before_the_source_waits_are_app_limited() {
    for wait in [SourceWait::Storage, SourceWait::Work, SourceWait::Receiver] {
        for (when, probe) in [("interval", "true"), ("round", "false")] {
            let mut recipe = object_recipe("80Mbit");
            micro::registry().set(&mut recipe, "bitmap_ack.when", when).unwrap();
            micro::registry().set(&mut recipe, "retransmit.probe", probe).unwrap();
            // All is sent before the first report.
            let permit = Permit::Go(Limits::at_rate(Rate::from_mbps(10_000)));
            let (law, inputs) = recording(permit, None);
            let mut pair = Pair::of_unfinished_object(&recipe, 60_000, wait, law).0;
            pair.exchange(T0, &mut Path::default());
            pair.run_until(at(1_000), &mut Path::default());
            let samples = &inputs.lock().unwrap().samples;
            let last = samples.iter().rfind(|sample| sample.acked > 0).unwrap();
            assert!(last.app_limited, "{wait:?}, {when}: {samples:?}");
        }
    }
}

#[test]
fn window_segment_and_chunk_ends_have_exact_losses() {
    let mut recipe = object_recipe("8Mbit");
    micro::registry().set(&mut recipe, "object.chunk", "5MB").unwrap();
    micro::registry().set(&mut recipe, "rate_control.unit_window", "3MB").unwrap();
    let (mut pair, inputs) = listening(&recipe, go(), None);
    let mut count = 0u64;
    // One of each 100 data packets, in sending order; control packets of the reverse direction are not
    // counted.
    let mut lose = |_: usize| {
        count += 1;
        count.is_multiple_of(100)
    };
    let mut path = Path { lose: Some(&mut lose), ..Path::default() };
    pair.exchange(T0, &mut path);
    pair.run_until(at(3_000), &mut path);
    let inputs = inputs.lock().unwrap();
    for unit in [Unit::Window, Unit::Segment, Unit::Chunk] {
        let of: Vec<&Boundary> = inputs.boundaries.iter().filter(|end| end.unit == unit).collect();
        assert!(of.len() >= 2, "{unit:?}: {}", of.len());
        assert!(of.iter().enumerate().all(|(n, end)| end.number == n as u64 && end.packets > 0), "{of:?}");
        let rate = of.iter().map(|end| end.loss_rate()).sum::<f64>() / of.len() as f64;
        assert!((0.005..0.015).contains(&rate), "{unit:?}: {rate}");
        assert!(of.iter().all(|end| end.began < end.ended && end.ended < end.now), "{of:?}");
    }
    let segments: Vec<_> = inputs.boundaries.iter().filter(|end| end.unit == Unit::Segment).collect();
    assert!(segments.iter().all(|end| end.packets == 10_000), "{segments:?}");
    let lost: u64 = inputs.samples.iter().map(|sample| sample.lost).sum();
    assert!(lost > 100 && inputs.samples.iter().all(|sample| sample.runs <= sample.lost), "{lost}");
    let in_windows: u64 =
        inputs.boundaries.iter().filter(|end| end.unit == Unit::Window).map(|end| end.lost).sum();
    assert!(in_windows <= lost && in_windows * 10 >= lost * 8, "{in_windows} of {lost}");
}

/// Sends an object of `len` bytes in rounds over a path that loses some packets, counted from 1; returns the rounds.
fn rounds_of(len: u64, is_lost: impl Fn(usize) -> bool) -> Vec<Boundary> {
    let mut recipe = object_recipe("80Mbit");
    for (parameter, value) in
        [("bitmap_ack.when", "round"), ("retransmit.probe", "false"), ("retransmit.window", "100000")]
    {
        micro::registry().set(&mut recipe, parameter, value).unwrap();
    }
    let (law, inputs) = recording(go(), None);
    let (mut pair, received) = Pair::of_object_with(&recipe, len, law);
    let mut seen = 0;
    // The receiver's reports cross the same path.
    let mut lose = |_: usize| {
        seen += 1;
        is_lost(seen)
    };
    let mut path = Path { lose: Some(&mut lose), ..Path::default() };
    pair.exchange(T0, &mut path);
    pair.run_until(at(20_000), &mut path);
    assert!(received.lock().unwrap().complete_len.is_some());
    let inputs = inputs.lock().unwrap();
    inputs.boundaries.iter().filter(|end| end.unit == Unit::Round).copied().collect()
}

#[test]
fn the_end_of_a_blast_round_has_its_losses() {
    let rounds = rounds_of(1_000_000, |packet| (100..150).contains(&packet));
    assert!(rounds.len() >= 2 && rounds[0].packets > 800, "{rounds:?}");
    assert!((45..=50).contains(&rounds[0].lost), "{rounds:?}");
    assert_eq!(rounds.last().unwrap().lost, 0);
}

/// Regression test: a report about several segments takes as many packets, and the first ended the round.
#[test]
fn the_end_of_a_round_of_several_segments_has_the_losses_of_all() {
    let rounds = rounds_of(45_000_000, |packet| packet < 40_000 && packet % 4 == 0);
    assert!(rounds[0].packets > 30_000, "{rounds:?}");
    assert!(rounds[0].loss_rate() > 0.2, "{rounds:?}");
    let repeated: u64 = rounds[1..].iter().map(|round| round.packets).sum();
    assert!(rounds[0].lost <= repeated, "{rounds:?}");
}

/// Lets `from` send at `now`; its packets arrive in `to`'s kernel at once with these ECN bits and are read
/// later by `read_after`.
fn cross(now: Time, from: &mut Stack, to: &mut Stack, ecn: Ecn, read_after: Span) -> Vec<Ecn> {
    let mut slot = vec![0; 65_536];
    let mut sent = Vec::new();
    while let Some(batch) = from.poll_transmit(now, &mut slot) {
        sent.push(batch.ecn);
        let data = &mut slot[..batch.len];
        let (stride, arrival) = (batch.segment_size, Some(now));
        to.on_receive(
            now + read_after,
            &mut Received { data, stride, arrival, path: PathId::default(), ecn, socket_drops: None },
        );
    }
    sent
}

#[test]
fn the_recipe_enables_ecn_and_marks_are_reported() {
    for (enabled, expected) in [("true", Ecn::Ect0), ("false", Ecn::NotEct)] {
        let mut recipe = object_recipe("8Mbit");
        micro::registry().set(&mut recipe, "rate_control.controller", "sabul").unwrap();
        micro::registry().set(&mut recipe, "rate_control.ecn", enabled).unwrap();
        let (mut pair, inputs) = listening(&recipe, go(), None);
        let sent = cross(T0, &mut pair.a, &mut pair.b, Ecn::Ce, Span::ZERO);
        assert!(!sent.is_empty() && sent.iter().all(|&ecn| ecn == expected), "{sent:?}");
        pair.b.on_deadline(at(5));
        let reports = cross(at(5), &mut pair.b, &mut pair.a, Ecn::NotEct, Span::ZERO);
        assert!(reports.iter().all(|&ecn| ecn == Ecn::NotEct), "reports are not ECN-capable");
        let inputs = inputs.lock().unwrap();
        let marked: u64 = inputs.samples.iter().map(|sample| sample.ecn_ce).sum();
        assert!(marked > 0 && marked == inputs.samples.last().unwrap().sent_packets, "{marked}");
    }
}

#[test]
fn late_reading_at_either_end_is_not_part_of_the_round_trip() {
    let (mut pair, inputs) = listening(&object_recipe("8Mbit"), go(), None);
    let late = Span::from_millis(40);
    cross(T0, &mut pair.a, &mut pair.b, Ecn::NotEct, late);
    pair.b.on_deadline(at(45));
    cross(at(45), &mut pair.b, &mut pair.a, Ecn::NotEct, Span::from_millis(30));
    let first = inputs.lock().unwrap().samples[0];
    assert!(first.rtt < Span::from_millis(1), "{first:?}");
    assert_eq!(first.read_delay, Some(late));
    assert!(first.acked > 0 && first.gro_run.is_some_and(|run| run >= 1.0), "{first:?}");
}

#[test]
fn the_hosts_load_and_the_verdict_reach_the_law() {
    let (mut pair, inputs) = listening(&object_recipe("8Mbit"), go(), None);
    let host = |ms| HostSample {
        run_delay: Some(Span::from_millis(ms)),
        socket_fill: Some(300),
        ..HostSample::default()
    };
    let verdict = Verdict::mixed(&[(Cause::ReceiverHost, 0.7), (Cause::Random, 0.2)]);
    pair.a.raise(T0, VERDICT, &mut verdict.clone());
    pair.exchange(T0, &mut Path::default());
    for (n, ms) in [(1, 10), (2, 17)] {
        pair.b.raise(at(n * 50), HOST_SAMPLE, &mut host(ms));
        pair.run_until(at(n * 50 + 20), &mut Path::default());
    }
    let inputs = inputs.lock().unwrap();
    assert!(inputs.samples.iter().all(|sample| sample.verdict == verdict));
    let hosts: Vec<_> = inputs.samples.iter().filter_map(|sample| sample.host).collect();
    let delays: Vec<_> = hosts.iter().map(|host| host.run_delay).collect();
    assert_eq!(delays, [None, Some(Span::from_millis(7))]);
    assert!(hosts.iter().all(|host| host.socket_fill == Some(300) && host.steal.is_none()));
    // The driver sees totals.
    let known = pair.a.shared::<crate::PeerHost>().unwrap();
    assert_eq!(known.sample, Some(host(17)));
    assert!(known.drain_rate.is_some() && known.read_delay.is_some(), "{known:?}");
    assert!(known.longest_read_delay >= known.read_delay, "{known:?}");
}

#[test]
fn parameters_of_the_law_are_checked_with_the_recipe() {
    let refused = |key: &str, value: &str| {
        let mut recipe = object_recipe("8Mbit");
        let registry = Arc::new(micro::registry());
        let set = registry.set(&mut recipe, key, value);
        set.and_then(|()| registry.compile(&recipe, 8)).unwrap_err().to_string()
    };
    let error = refused("rate_control.no_such", "1");
    assert!(error.contains("no_such") && error.contains("cause_aware"), "{error}");
    let error = refused("rate_control.controller", "warp");
    assert!(law_names().iter().all(|name| error.contains(name)), "{error}");
    for nothing in ["0Mbit", "0"] {
        let error = refused("rate_control.rate", nothing);
        assert!(error.contains("above zero"), "{error}");
    }
    let mut recipe = object_recipe("8Mbit");
    micro::registry().set(&mut recipe, "rate_control.cause_aware", "true").unwrap();
    compiled(&recipe);
}

/// Whether anything is sent in the millisecond that starts then.
fn sends_at(pair: &mut Pair, millis: u64) -> bool {
    let sent = |pair: &Pair| stats::<RateControlStats>(&pair.a).sent.bytes;
    let before = sent(pair);
    pair.run_until(at(millis + 1), &mut Path::default());
    sent(pair) > before
}

#[test]
fn a_guessing_receiver_tells_the_sender_when_and_how_long_to_pause() {
    // Fast enough to send something in each millisecond.
    let mut recipe = object_recipe("400Mbit");
    for (name, value) in [
        ("controller", "stop_and_go"),
        ("guess_at", "receiver"),
        ("waiting", "30ms"),
        ("time_slice", "100ms"),
    ] {
        micro::registry().set(&mut recipe, &format!("rate_control.{name}"), value).unwrap();
    }
    let mut pair = started(&recipe);
    let mut paused = Vec::new();
    for millis in 200..1_200 {
        if millis % 50 == 25 {
            pair.b.raise(at(millis), HOST_SAMPLE, &mut HostSample::default());
        }
        paused.extend((!sends_at(&mut pair, millis)).then_some(millis));
    }
    // A slice of 100 ms starts when the host is sampled and data has arrived, each followed by a pause of 30
    // ms.
    let pauses: Vec<_> = paused.chunk_by(|a, b| a + 1 == *b).collect();
    assert!(pauses.len() >= 6 && pauses[0][0] == 325, "{paused:?}");
    assert!(pauses.iter().all(|pause| (28..=31).contains(&pause.len())), "{paused:?}");
    let apart = |pair: &[&[u64]]| matches!(pair[1][0] - pair[0][0], 100 | 150);
    assert!(pauses.windows(2).all(apart), "{paused:?}");
    assert!(pair.a.stats().violations == 0 && pair.b.stats().violations == 0);
}

#[test]
fn a_pause_is_bounded_single_and_only_for_laws_that_support_it() {
    let duration = |law: &str, micros: u64, duplicate: bool| {
        let mut recipe = object_recipe("400Mbit");
        micro::registry().set(&mut recipe, "rate_control.controller", law).unwrap();
        if law == "stop_and_go" {
            micro::registry().set(&mut recipe, "rate_control.guess_at", "receiver").unwrap();
        }
        let mut pair = started(&recipe);
        pair.b.raise(at(100), PAUSE_NEEDED, &mut Pause(Span::from_micros(micros)));
        pair.exchange(at(100), &mut Path { duplicate, ..Path::default() });
        assert_eq!(pair.a.stats().violations, 0);
        (100..20_000).position(|millis| sends_at(&mut pair, millis)).unwrap()
    };
    assert!((199..=202).contains(&duration("stop_and_go", 200_000, false)));
    assert!((199..=202).contains(&duration("stop_and_go", 200_000, true)));
    assert!((9_999..=10_002).contains(&duration("stop_and_go", u64::MAX / 1_000, false)), "MAX_PAUSE");
    assert!(duration("fixed", 200_000, false) < 2);
}
