//! Every law after what applications and machines do: an hour without anything to send, a clock that jumps.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

use std::fs;
use std::process::Command;

use serde_json::Value;

/// A path of 20 Mbit/s and 20 ms, and a session that meets `what` at 10 s; then one second passes before 9 s are looked
/// at.
fn scenario(law: &str, seconds: u64, what: &str) -> String {
    let time = seconds - 10;
    format!(
        "cap = '{seconds}s'\nexpect_cap = true\nrecord = '1s'\n\
         path = [{{ name = 'wan', forward = [{{ mtu = 1500 }}, {{ bottleneck = {{ rate = '20Mbit', \
         queue = {{ tail_drop = '40ms' }} }} }}, {{ delay = '10ms' }}], back = [{{ delay = '10ms' }}] }}]\n\
         session = [{{ name = 'bulk', path = 'wan', time = '{time}s', controller = '{law}', rate = '19Mbit', {what} }}]\n"
    )
}

/// Mean goodput of the receiver in these seconds, Mbit/s.
fn goodput(run: &Value, seconds: std::ops::Range<usize>) -> f64 {
    let lists = run["rates"]["goodput_bps"].as_array().unwrap();
    let list = lists.iter().filter_map(Value::as_array).find(|list| !list.is_empty()).unwrap();
    let count = seconds.len() as f64;
    list[seconds].iter().map(|rate| rate.as_f64().unwrap()).sum::<f64>() / count / 1e6
}

/// What the law has in these seconds, Mbit/s.
fn run(law: &str, seconds: u64, what: &str, look: std::ops::Range<usize>) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("recovery.toml");
    fs::write(&file, scenario(law, seconds, what)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_haul-lab")).arg("sim").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{law}: {said}"));
    let silences = &all["runs"][0]["sessions"][0]["silences"];
    assert!(*silences == 0 || what.contains("pause"), "{law}, {what}");
    goodput(&all["runs"][0], look)
}

/// Runs all laws; those that have less than `least` Mbit/s in these seconds, with what they have.
fn slow(seconds: u64, what: &str, look: std::ops::Range<usize>, least: f64) -> Vec<(&'static str, f64)> {
    let names = haul_proto::law_names().into_iter();
    let found: Vec<_> = names.map(|law| (law, run(law, seconds, what, look.clone()))).collect();
    println!("{what}: {found:?}");
    found.into_iter().filter(|(_, rate)| *rate < least).collect()
}

/// 0.8 of what 20 Mbit/s of packets of 1,500 bytes carry of an object.
const ENOUGH: f64 = 0.8 * 19.0;

#[test]
fn every_law_is_back_three_seconds_after_an_hour_without_anything_to_send() {
    let pause = "pause = [{ at = '10s', length = '3600s' }]";
    assert!(
        slow(3_635, pause, 20..1_000, 1e-9).len() == haul_proto::law_names().len(),
        "nothing is sent meanwhile"
    );
    assert_eq!(slow(3_635, pause, 3_613..3_623, ENOUGH), []);
}

#[test]
fn every_law_is_back_three_seconds_after_the_round_trip_has_become_ten_times_as_long() {
    let event = "}]\nevent = [{ at = '10s', path = 'wan', stage = 'delay', change = { delay = '100ms' }";
    assert_eq!(slow(35, event, 13..18, ENOUGH), []);
}

/// At every point of the cycle in which `bbr` probes for bandwidth, and where a probe has just ended most of all: what
/// was delivered through a window that was too small is not what the path takes.
#[test]
fn the_default_law_is_back_whenever_the_round_trip_becomes_ten_times_as_long() {
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

/// A path that is longer can also take more: that is looked for at once, not when the next probe would have been due.
#[test]
fn the_default_law_is_back_whenever_the_path_becomes_longer_and_wider() {
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
fn every_law_is_back_three_seconds_after_either_clock_has_jumped_by_an_hour() {
    for end in ["sender", "receiver"] {
        let jump = format!("clock_jump = [{{ at = '10s', by = '3600s', end = '{end}' }}]");
        assert_eq!(slow(35, &jump, 13..23, ENOUGH), [], "{end}");
    }
}
