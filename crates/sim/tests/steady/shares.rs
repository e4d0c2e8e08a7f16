//! Laws that evaluate the share of lost packets, with a constant share: their steady rates, and their
//! increase without losses. Within 5 %.

use haul_base::Span;

use super::each_nth::{Case, assert_shares};

const SECOND: Span = Span::from_secs(1);

/// Converts Mbit/s to packets per second.
fn packets(mbps: f64) -> f64 {
    mbps * 1e6 / 8.0 / 1_472.0
}

fn case<'a>(
    preset: &'a str,
    law: &'a str,
    set: &'a [(&'a str, &'a str)],
    every: u64,
    skipped: u64,
) -> Case<'a> {
    let [rtt, skipped, measured] = [20, skipped, 20_000].map(Span::from_millis);
    Case { preset, law, set, every, rtt, skipped, measured }
}

/// dickens-system-aware-fobs, section 2.2.1: losses above 0.5 % of a chunk lower the rate by a step, 5 % of
/// the capacity, down to the minimum rate; lower losses raise it to the capacity.
#[test]
fn non_aggressive_is_at_its_minimum_above_half_a_percent_and_at_capacity_below() {
    let set = [("rate", "100Mbit"), ("first_rate", "50Mbit"), ("object.chunk", "1MB")];
    let cases = [(150, 5.0), (250, 100.0)].map(|(every, mbps)| {
        (case("fobs-gentle", "non_aggressive", &set, every, 40_000), SECOND, packets(mbps))
    });
    assert_shares(&cases);
}

/// dickens-system-aware-fobs, section 2.2.2, with the limits of the registry: each state falls to its minimum
/// rate with a loss that does not make it change, and Green rises to the capacity with a tolerated one.
#[test]
fn state_based_is_at_the_limit_of_the_losss_state() {
    let set = [("rate", "100Mbit"), ("first_rate", "80Mbit")];
    let cases = [(1_000, 100.0), (100, 70.0), (20, 40.0), (8, 5.0)]
        .map(|(every, mbps)| (case("fobs-state", "state_based", &set, every, 40_000), SECOND, packets(mbps)));
    assert_shares(&cases);
}

/// Returns the factor by which packets per second grow in `seconds`.
fn growth(law: &str, seconds: u64) -> f64 {
    let set = [("first_rate", "20Mbit")];
    let [first, last] = [2, 2 + seconds].map(|second| {
        let skipped = SECOND * second;
        Case { skipped, measured: SECOND, ..case("bulk", law, &set, u64::MAX, 0) }.packets_in(SECOND)
    });
    last / first
}

/// datta-rapid-plus, section 6, with the registry's probe of 2 %, `k` = 3 and an interval of 100 ms: an
/// increase every fourth interval. asynch, section 3, with its step of 5 % and `k` = 3: one every third.
#[test]
fn rapid_plus_and_asynch_rise_by_their_steps_without_loss() {
    for (law, step, intervals) in [("rapid_plus", 1.02_f64, 4), ("asynch", 1.05, 3)] {
        let found = growth(law, 2 * intervals);
        let expected = step.powi(20);
        println!("{law}: {found:.3} of {expected:.3}");
        assert!((found / expected - 1.0).abs() < 0.05, "{law}: {found:.3} of {expected:.3}");
    }
}
