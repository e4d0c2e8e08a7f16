//! The laws that may be the default, beside each other. `cargo test -p haul-proto --lib comparison -- --nocapture` prints the table.

use haul_base::{Rate, Span};

use super::testing::{GOOD, Harness, PathModel, measure_together, run_scenario, scenarios};
use super::{ControllerConfig, law};

#[test]
fn candidates_for_the_default_on_paths_that_change() {
    for scenario in scenarios() {
        for law in ["delivery", "bbr"] {
            let outcomes = run_scenario(law, &[], &scenario);
            println!("{:<40} {law:<9}{outcomes}", scenario.name);
            assert!(law != "bbr" || outcomes.least_share() >= GOOD, "{}: {outcomes}", scenario.name);
        }
    }
}

/// Two flows over 100 Mbit/s: law, round trip in milliseconds, and how much later the second one begins. Their shares, and how
/// much of all packets was lost.
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
fn bbr_shares_with_itself_and_leaves_reno_something() {
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
