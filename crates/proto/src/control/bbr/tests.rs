//! Tests of the draft's rules, and of the differences, on modelled paths.

use haul_base::{Rate, Span, Time};

use super::{Bbr, BbrConfig};
use crate::control::testing::{
    GOOD, Harness, Loss, PathModel, built, config, measure_together, run_scenario, scenarios,
};
use crate::control::{ControllerConfig, Permit, RateController, law};
use crate::rtt::RttEstimator;

const CAPACITY: Rate = Rate::from_mbps(100);

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

fn path(rtt: Span) -> PathModel {
    PathModel::bottleneck(CAPACITY, rtt, 1.0)
}

fn run_with(settings: &[(&str, &str)], path: PathModel) -> Harness {
    Harness::new(built("bbr", settings, Rate::MAX), path)
}

fn run(path: PathModel) -> Harness {
    run_with(&[], path)
}

/// Share of the capacity that arrives in `span`.
fn share(run: &mut Harness, span: Span) -> f64 {
    run.measure(span).goodput.as_bps() as f64 / CAPACITY.as_bps() as f64
}

/// Phases and pacing rates in `span`, with their start times.
fn phases(run: &mut Harness, span: Span) -> Vec<(Time, &'static str, Rate)> {
    let (end, mut seen) = (run.now + span, Vec::new());
    while run.now < end {
        run.run_for(ms(1));
        let state = run.law.state();
        match seen.last_mut() {
            Some((_, phase, rate)) if *phase == state.phase => *rate = state.rate,
            _ => seen.push((run.now, state.phase, state.rate)),
        }
    }
    seen
}

#[test]
fn startup_doubles_until_the_rate_stops_growing_and_drain_empties_the_queue() {
    let mut run = run(path(ms(40)));
    let seen = phases(&mut run, ms(1_000));
    let order: Vec<_> = seen.iter().map(|(_, phase, _)| *phase).take(3).collect();
    assert_eq!(order, ["startup", "drain", "down"]);
    // From 10 packets per round trip to 340: five or six doublings, and three rounds without growth.
    let duration = seen[1].0.since(seen[0].0);
    assert!((ms(240)..ms(520)).contains(&duration), "{duration}");
    let measured = run.measure(ms(500));
    assert!(measured.mean_rtt < ms(44), "{}", measured.mean_rtt);
}

/// Few packets are sent as a burst and a pause, whose rate over a round trip is underestimated.
#[test]
fn with_few_packets_the_startup_window_grows_by_arrivals() {
    let mut run = run(PathModel::bottleneck(Rate::from_mbps(1_000), ms(50), 1.0));
    let sent: Vec<u64> = (0..6).map(|_| run.measure(ms(50)).sent).collect();
    assert!(sent.iter().sum::<u64>() >= 400, "{sent:?}: by the bandwidth alone 378");
}

#[test]
fn probes_come_every_two_to_three_seconds_and_go_through_the_cycle_at_its_gains() {
    // At 50 ms, 63 round trips exceed the wait of 2 to 3 s, so the wait decides.
    let mut run = run(path(ms(50)));
    run.run_for(ms(5_000));
    let seen = phases(&mut run, ms(40_000));
    let is_cycle = |pair: &[(Time, &str, Rate)]| {
        matches!(
            (pair[0].1, pair[1].1),
            ("down", "cruise" | "refill")
                | ("cruise", "refill" | "probe_rtt")
                | ("refill", "up")
                | ("up", "down")
                | ("probe_rtt", "cruise")
        )
    };
    assert!(seen.windows(2).all(is_cycle), "{seen:?}");
    // The first phase had begun before.
    let downs = seen.iter().skip(1).filter(|(_, phase, _)| *phase == "down");
    let began: Vec<Time> = downs.map(|(at, ..)| *at).collect();
    assert!(began.len() >= 10, "{} probes", began.len());
    for pair in began.windows(2) {
        let gap = pair[1].since(pair[0]);
        assert!((ms(2_000)..ms(4_500)).contains(&gap), "{gap}: the wait, refill and up");
    }
    for (_, phase, rate) in seen {
        let gain = rate.as_bps() as f64 / CAPACITY.as_bps() as f64;
        let expected = match phase {
            "up" => 1.25,
            "down" => 0.9,
            _ => 1.0,
        };
        assert!((0.93 * expected..1.04 * expected).contains(&gain), "{phase}: {gain}");
    }
}

#[test]
fn sixty_three_rounds_trigger_an_earlier_probe() {
    let mut run = run(path(ms(10)));
    run.run_for(ms(3_000));
    let seen = phases(&mut run, ms(10_000));
    let probes = seen.iter().filter(|(_, phase, _)| *phase == "up").count();
    assert!((9..=16).contains(&probes), "{probes} in 10 s: one in 630 ms and its own time");
}

#[test]
fn a_longer_path_is_found_at_once_and_by_the_drafts_rule_after_ten_seconds() {
    for (rise, least, most) in [("1.25", ms(100), ms(2_500)), ("0", ms(3_000), ms(14_000))] {
        let mut run = run_with(&[("rtt_rise", rise)], path(ms(20)));
        run.run_for(ms(3_000));
        run.path.rtt = ms(120);
        let start = run.now;
        let mut elapsed = None;
        while elapsed.is_none() && run.now.since(start) < ms(30_000) {
            elapsed = (share(&mut run, ms(240)) > 0.9).then(|| run.now.since(start));
        }
        let elapsed = elapsed.expect("it recovers");
        assert!((least..most).contains(&elapsed), "rtt_rise {rise}: {elapsed}");
    }
}

/// Half the path for 200 ms, as in a regular probe, is an eighth of what these two seconds could carry.
#[test]
fn its_own_queue_is_recognised_at_little_cost() {
    for fall in [0.98, 0.95, 0.9] {
        let mut run = run(PathModel { queue: 12_500_000, ..path(ms(50)) });
        run.run_for(Span::from_secs(4));
        let capacity = run.path.capacity.mul_f64(fall);
        run.set_capacity(capacity);
        let measured = run.measure(Span::from_secs(3));
        let share = measured.goodput.as_bps() as f64 / capacity.as_bps() as f64;
        let queue = measured.mean_rtt.saturating_sub(ms(50));
        println!("{fall}: {share:.3}, queue {queue}");
        assert!(share > 0.95 && queue < ms(20), "{fall}: {share}, {queue}");
    }
}

#[test]
fn the_paths_losses_are_tolerated_except_by_the_drafts_rule() {
    let lossy = || PathModel { loss: Loss::Random(0.03), ..path(ms(40)) };
    let mut ours = run(lossy());
    ours.run_for(ms(3_000));
    let ours = share(&mut ours, ms(10_000));
    let mut drafts = run_with(&[("tolerates", "0")], lossy());
    drafts.run_for(ms(3_000));
    let drafts = share(&mut drafts, ms(10_000));
    assert!(ours > 0.93 && drafts < 0.8 * ours, "{ours} and {drafts}");
}

#[test]
fn a_shallow_queue_bounds_the_packets_in_flight_with_little_loss() {
    let mut run = run(PathModel { queue: 20 * 1_472, ..path(ms(40)) });
    run.run_for(ms(3_000));
    let measured = run.measure(ms(20_000));
    assert!(measured.loss_rate() < 0.01, "{}", measured.loss_rate());
    assert!(measured.goodput >= CAPACITY.mul_f64(0.9), "{}", measured.goodput);
}

#[test]
fn an_idle_sender_resumes_at_the_known_rate_without_a_burst() {
    let mut run = run(path(ms(40)));
    run.run_for(ms(4_000));
    run.has_data = false;
    run.run_for(ms(3_000));
    run.has_data = true;
    let measured = run.measure(ms(400));
    assert_eq!(measured.lost, 0);
    assert!(run.law.state().rate <= CAPACITY.mul_f64(1.3), "{:?}", run.law.state());
    run.run_for(ms(500));
    assert!(share(&mut run, ms(2_000)) > 0.9);
}

#[test]
fn an_outage_does_not_change_the_model_of_the_path() {
    let mut run = run(path(ms(40)));
    run.run_for(ms(4_000));
    run.outage(ms(8_000));
    run.run_for(ms(9_000));
    assert!(share(&mut run, ms(1_000)) > 0.9);
}

#[test]
fn bbr_takes_over_the_rate_of_the_previous_law_and_cruises() {
    let mut rtt = RttEstimator::new(ms(40));
    rtt.on_sample(Time::ZERO, ms(40));
    let mut law = Bbr::new(&BbrConfig::default(), &config(None));
    law.take_over(Rate::from_mbps(80), &rtt);
    let Permit::Go(limits) = law.permit() else { panic!("the law is on hold") };
    assert_eq!((law.state().phase, limits.rate), ("cruise", Rate::from_mbps(80)));
    let bdp = Rate::from_mbps(80).bytes_in(ms(40));
    assert!((2 * bdp..3 * bdp).contains(&limits.window.unwrap()), "{limits:?}");
}

#[test]
fn the_ceiling_is_never_exceeded() {
    let ceiling = Rate::from_mbps(30);
    let mut run = Harness::new(law("bbr").unwrap().build(&[], &config(Some(ceiling))).unwrap(), path(ms(40)));
    for _ in 0..8_000 {
        run.run_for(ms(1));
        assert!(run.law.state().rate <= ceiling);
    }
    assert!(run.measure(ms(2_000)).goodput >= ceiling.mul_f64(0.95));
}

/// `cargo test -p haul-proto --lib bbr -- --nocapture` prints the table.
#[test]
fn bbr_uses_changing_paths() {
    for scenario in scenarios() {
        for law in ["delivery", "bbr"] {
            let outcomes = run_scenario(law, &[], &scenario);
            println!("{:<40} {law:<9}{outcomes}", scenario.name);
            assert!(law != "bbr" || outcomes.least_share() >= GOOD, "{}: {outcomes}", scenario.name);
        }
    }
}

/// Two flows over 100 Mbit/s: law, round trip in milliseconds, and the delay of the second one's start.
/// Returns their shares and the share of packets lost.
fn pair(laws: [&str; 2], rtts: [u64; 2], queue_ms: u64, later: u64) -> ([f64; 2], f64, f64) {
    let capacity = Rate::from_mbps(100);
    let flow = |n: usize| {
        let rtt = Span::from_millis(rtts[n]);
        let queue = capacity.bytes_in(Span::from_millis(queue_ms));
        let config =
            ControllerConfig { ceiling: None, initial_rtt: rtt, feedback_interval: Span::from_millis(2) };
        let law = law(laws[n]).unwrap().build(&[], &config).unwrap();
        Harness::new(
            law,
            PathModel { queue, seed: n as u64 + 1, ..PathModel::bottleneck(capacity, rtt, 1.0) },
        )
    };
    let mut flows = [flow(0), flow(1)];
    flows[1].has_data = false;
    measure_together(&mut flows, Span::from_secs(later));
    flows[1].has_data = true;
    measure_together(&mut flows, Span::from_secs(10));
    let both = measure_together(&mut flows, Span::from_secs(50));
    let share = |n: usize| both[n].goodput.as_bps() as f64 / capacity.as_bps() as f64;
    let lost = (both[0].lost + both[1].lost) as f64 / (both[0].sent + both[1].sent) as f64;
    let queue = both[0].mean_rtt.saturating_sub(Span::from_millis(rtts[0]));
    ([share(0), share(1)], lost, queue.as_millis_f64())
}

#[test]
fn bbr_shares_with_itself_and_does_not_starve_reno() {
    for law in ["delivery", "bbr"] {
        for (other, rtts, queue, later) in [
            (law, [20, 20], 20, 0),
            (law, [20, 20], 20, 7),
            (law, [20, 20], 200, 7),
            (law, [20, 100], 40, 0),
            (law, [100, 20], 40, 7),
            ("reno", [20, 20], 20, 0),
            ("reno", [20, 20], 20, 7),
            ("reno", [40, 40], 200, 7),
        ] {
            let (shares, lost, queued) = pair([law, other], rtts, queue, later);
            println!(
                "{law:<9} beside {other:<9} {rtts:?} ms, queue {queue} ms, {later} s later: {:>5.1} {:>5.1} %, lost {:.1} %, queue {queued:.1} ms",
                shares[0] * 100.0,
                shares[1] * 100.0,
                lost * 100.0
            );
            let least = if other == "reno" { 0.15 } else { 0.25 };
            assert!(law != "bbr" || (shares[0].min(shares[1]) > least && lost < 0.02), "{shares:?}, {lost}");
            assert!(shares[0] + shares[1] > 0.9, "{shares:?}");
        }
    }
}

#[test]
fn late_bbr_flows_on_a_short_queue_get_two_fifths() {
    let mut shares = Vec::new();
    for (rtt, later) in [(20, 7), (20, 10), (40, 7), (40, 10), (40, 13), (60, 10)] {
        let ([first, late], lost, _) = pair(["bbr", "bbr"], [rtt, rtt], rtt, later);
        println!("{rtt} ms, {later} s later: {first:.2} and {late:.2}, {lost:.4} lost");
        assert!(first + late > 0.9 && lost < 0.02, "{first}, {late}, {lost}");
        shares.push(late);
    }
    // With a wait that restarted with each probe of the round trip it was 0.35.
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    assert!(mean > 0.4 && shares.iter().all(|share| *share > 0.25), "{shares:?}");
}

/// If each takes the other's queue for a longer path, the queue fills further: 200 ms, 1 to 3 % loss.
#[test]
fn two_bbr_flows_do_not_fill_a_deep_queue() {
    for (rtts, later) in [([40, 40], 0), ([40, 40], 10), ([40, 100], 0), ([20, 100], 0)] {
        let (shares, lost, queued) = pair(["bbr", "bbr"], rtts, 200, later);
        println!("{rtts:?} ms, {later} s later: {shares:.2?}, {lost:.4} lost, queue {queued:.0} ms");
        assert!(
            shares[0] + shares[1] > 0.9 && shares.iter().all(|share| *share > 0.2),
            "{rtts:?}, {later}: {shares:?}"
        );
        assert!(lost < 0.005 && queued < 120.0, "{rtts:?}, {later}: {lost}, {queued}");
    }
}

/// Share of the mean capacity that arrives while the capacity is a quarter in every second 100 ms.
fn share_of_varying_path(rtt: Span) -> f64 {
    let mut run = run(path(rtt));
    run.run_for(ms(3_000));
    let (mut goodput, halves) = (0.0, 100);
    for half in 0..halves {
        run.path.capacity = if half % 2 == 0 { CAPACITY } else { CAPACITY.mul_f64(0.25) };
        goodput += run.measure(ms(100)).goodput.as_bps() as f64;
    }
    goodput / f64::from(halves) / (CAPACITY.as_bps() as f64 * 0.625)
}

#[test]
fn varying_capacity_is_used_beyond_its_minimum() {
    let measured = share_of_varying_path(ms(10));
    assert!(measured >= 0.65, "{measured:.3}: with bounds that stay until the next probe, 0.56");
}
