//! Laws with steps at fixed intervals and one loss per n packets: their rates match those derived in the
//! sources, within 5 %.

use haul_base::Span;

use super::each_nth::Case;

const SYN: Span = Span::from_millis(10);

/// Checks that the mean number of packets per `interval` is as derived.
#[track_caller]
fn has(case: Case<'_>, interval: Span, expected: f64) {
    let found = case.packets_in(interval);
    assert!((found / expected - 1.0).abs() < 0.05, "{found} of {expected} packets: {case:?}");
}

fn case<'a>(preset: &'a str, law: &'a str, set: &'a [(&'a str, &'a str)], every: u64, rtt: u64) -> Case<'a> {
    let [rtt, skipped, measured] = [rtt, 20_000, 30_000].map(Span::from_millis);
    Case { preset, law, set, every, rtt, skipped, measured }
}

/// UDT4 (draft-gg-udt-03, section 6.1): decreases by 1/9 on a loss, and increases by `step` packets per SYN
/// in each other SYN. With `N` packets between losses and `n` per SYN, between 8/9 and 1 of the maximum, `x`:
/// `x / 9 = step (N / n - 1)`, and `n = 17 x / 18`.
#[test]
fn udt_falls_by_a_ninth_at_each_loss_and_rises_by_a_step_in_each_other_syn() {
    // Below 1 Gbit/s of free capacity: 10^9 bits times 1.5e-6, in packets of 1,472 bytes.
    let steps = 8.5 * 1e9 * 1.5e-6 / 1_472.0;
    for (every, rtt) in [(2_000, 20), (10_000, 20), (2_000, 100)] {
        let expected = (f64::sqrt(steps * steps + 4.0 * steps * every as f64) - steps) / 2.0;
        has(case("udt", "udt", &[("capacity", "1Gbit")], every, rtt), SYN, expected);
    }
}

/// The module `sabul` derives this from the authors' constants.
#[test]
fn sabul_has_the_rate_at_which_its_steps_are_equal() {
    for rtt in [20, 100] {
        has(case("sabul", "sabul", &[], 1_000, rtt), SYN, f64::sqrt(200.0 * 1_000.0 - 9_800.0) - 100.0);
    }
}

/// A decrease by the lost share in one round trip of `N / n`, an increase by `rise` in each other:
/// `n = N - 1 / rise`.
#[test]
fn gtps_decrease_equals_its_increases() {
    let set = &[("first_rate", "10Mbit"), ("least", "0")];
    for (every, rtt) in [(300, 100), (1_000, 100), (1_000, 40)] {
        has(case("bulk", "gtp", set, every, rtt), Span::from_millis(rtt), every as f64 - 1.0 / 0.02);
    }
}
