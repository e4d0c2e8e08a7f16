//! Recovery of every law from events in applications and machines: an hour without data, a jump of the clock.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::process::Command;

use serde_json::Value;

/// Returns a scenario with a path of 20 Mbit/s and 20 ms, and a session with the event `what` at 10 s.
fn scenario(law: &str, seconds: u64, what: &str) -> String {
    let time = seconds - 10;
    format!(
        "cap = '{seconds}s'\nexpect_cap = true\nrecord = '1s'\n\
         path = [{{ name = 'wan', forward = [{{ mtu = 1500 }}, {{ bottleneck = {{ rate = '20Mbit', \
         queue = {{ tail_drop = '40ms' }} }} }}, {{ delay = '10ms' }}], back = [{{ delay = '10ms' }}] }}]\n\
         session = [{{ name = 'bulk', path = 'wan', time = '{time}s', controller = '{law}', rate = '19Mbit', {what} }}]\n"
    )
}

/// Returns the receiver's mean goodput in these seconds, Mbit/s.
fn goodput(run: &Value, seconds: std::ops::Range<usize>) -> f64 {
    let lists = run["rates"]["goodput_bps"].as_array().unwrap();
    let list = lists.iter().filter_map(Value::as_array).find(|list| !list.is_empty()).unwrap();
    let count = seconds.len() as f64;
    list[seconds].iter().map(|rate| rate.as_f64().unwrap()).sum::<f64>() / count / 1e6
}

/// Runs a law and returns its goodput in these seconds, Mbit/s.
fn run(law: &str, seconds: u64, what: &str, look: std::ops::Range<usize>) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("recovery.toml");
    fs::write(&file, scenario(law, seconds, what)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_haul-lab")).arg("sim").arg(&file).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{law}: {stderr}"));
    let silences = &all["runs"][0]["sessions"][0]["silences"];
    assert!(*silences == 0 || what.contains("pause"), "{law}, {what}");
    goodput(&all["runs"][0], look)
}

/// Runs all laws. Returns those with less than `least` Mbit/s in these seconds, with their goodput.
fn slow(seconds: u64, what: &str, look: std::ops::Range<usize>, least: f64) -> Vec<(&'static str, f64)> {
    let names = haul_proto::law_names().into_iter();
    let found: Vec<_> = names.map(|law| (law, run(law, seconds, what, look.clone()))).collect();
    println!("{what}: {found:?}");
    found.into_iter().filter(|(_, rate)| *rate < least).collect()
}

/// 0.8 of the object bytes that 20 Mbit/s carry in packets of 1,500 bytes.
const ENOUGH: f64 = 0.8 * 19.0;

#[test]
fn every_law_recovers_within_three_seconds_after_an_idle_hour() {
    let pause = "pause = [{ at = '10s', length = '3600s' }]";
    assert!(
        slow(3_635, pause, 20..1_000, 1e-9).len() == haul_proto::law_names().len(),
        "nothing is sent meanwhile"
    );
    assert_eq!(slow(3_635, pause, 3_613..3_623, ENOUGH), []);
}

#[test]
fn every_law_recovers_within_three_seconds_after_the_round_trip_grew_tenfold() {
    let event = "}]\nevent = [{ at = '10s', path = 'wan', stage = 'delay', change = { delay = '100ms' }";
    assert_eq!(slow(35, event, 13..18, ENOUGH), []);
}

/// At every point of the cycle in which `bbr` probes for bandwidth, most importantly just after a probe:
/// deliveries limited by a window that was too small do not show the path's capacity.
#[test]
fn the_default_law_recovers_from_a_tenfold_round_trip_at_any_time() {
    let rates = (0..24).map(|n| {
        let event = format!(
            "}}]\nevent = [{{ at = '{}ms', path = 'wan', stage = 'delay', change = {{ delay = '100ms' }}",
            10_000 + n * 125
        );
        (n, run("bbr", 35, &event, 16..21))
    });
    let rates: Vec<_> = rates.filter(|(_, rate)| *rate < ENOUGH).collect();
    assert_eq!(rates, []);
}

/// A longer path may also have more capacity, which is probed immediately, not when the next probe would be
/// due.
#[test]
fn the_default_law_recovers_from_a_longer_and_wider_path_at_any_time() {
    let bottleneck = "path = 'wan', direction = 'forward', stage = 'bottleneck'";
    let slow = (0..24).filter_map(|n| {
        let at = 10_000 + n * 125;
        let events = format!(
            "}}]\nevent = [{{ at = '1ms', {bottleneck}, change = {{ rate = '5Mbit' }} }}, \
             {{ at = '{at}ms', path = 'wan', stage = 'delay', change = {{ delay = '50ms' }} }}, \
             {{ at = '{at}ms', {bottleneck}, change = {{ rate = '20Mbit' }}"
        );
        let from = (at + 3_000_usize).div_ceil(1_000);
        let rate = run("bbr", 35, &events, from..from + 4);
        (rate < ENOUGH).then_some((at, rate))
    });
    assert_eq!(slow.collect::<Vec<_>>(), []);
}

#[test]
fn every_law_recovers_within_three_seconds_after_a_clock_jump_of_an_hour() {
    for end in ["sender", "receiver"] {
        let jump = format!("clock_jump = [{{ at = '10s', by = '3600s', end = '{end}' }}]");
        assert_eq!(slow(35, &jump, 13..23, ENOUGH), [], "{end}");
    }
}
