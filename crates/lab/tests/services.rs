//! Short runs of `haul-lab services`: viz, msg and sensor between namespaces on the emulator.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_testing::{attempts, privileged};
use rustix::process::{Pid, Signal, kill_process};

/// Measurements run one at a time: the turn-around ends have high priority and busy-poll, which leaves no CPU
/// time for concurrent streams.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

fn services(args: &[&str]) -> String {
    let _alone = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_haul-lab"));
    let output = command.arg("services").args(args).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}");
    text
}

/// Returns the cells of the table rows that start with `name`.
fn rows(text: &str, name: &str) -> Vec<Vec<f64>> {
    let cells = |line: &str| line.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
    text.lines().filter(|line| line.starts_with(&format!("| {name} |"))).map(cells).collect()
}

/// If the hypervisor took CPU time, the points are printed twice: cuts off the second table.
fn all_rounds(text: &str) -> &str {
    let all = text.split_once("\nOnly rounds").map_or(text, |(all, _)| all);
    all.split_once("\nCompared with the ideal").map_or(all, |(all, _)| all)
}

#[test]
fn a_sensor_sends_one_packet_per_reading_and_receives_none() {
    if !privileged("a_sensor_sends_one_packet_per_reading_and_receives_none") {
        return;
    }
    let text = services(&["readings", "--share", "0.2"]);
    let sensor = rows(&text, "sensor");
    // 200 readings; a retransmission of the handshake on a busy machine adds a few packets.
    assert!((0.9..1.1).contains(&sensor[0][0]) && sensor[0][1].abs() < 0.1, "{sensor:?}");
    assert!(
        sensor[1][0].abs() < 0.1 && sensor[1][1].abs() < 0.1,
        "equal readings are suppressed: {sensor:?}"
    );
    let msg = rows(&text, "msg");
    assert!((0.9..1.5).contains(&msg[0][0]) && (0.9..1.5).contains(&msg[0][1]), "{msg:?}");
}

#[test]
fn a_receiver_changes_the_rate_of_a_running_stream() {
    if !privileged("a_receiver_changes_the_rate_of_a_running_stream") {
        return;
    }
    let change = || {
        let text = services(&["change", "--rounds", "1", "--share", "0.4", "--slower", "10"]);
        rows(&text, "viz, 15 then 10")
    };
    // The accuracy of a rate on a busy machine is for benchmarks (late packets arrive in bursts); that the
    // rate changes is checked here.
    let is_changed = |changed: &Vec<Vec<f64>>| {
        let (before, after) = (changed[0][0], changed[0][1]);
        after < 0.9 * before && (1.0..11.0).contains(&after)
    };
    let changed = attempts(change, is_changed);
    assert!(is_changed(&changed), "{changed:?}");
}

#[test]
fn every_small_message_is_answered_despite_losses() {
    if !privileged("every_small_message_is_answered_despite_losses") {
        return;
    }
    let text = services(&["turnaround", "--share", "0.05", "--rounds", "1"]);
    let (points, first_turns) = text.split_once("The first turns without loss").unwrap();
    let points = all_rounds(points);
    // msg, two variants of TCP and plain UDP, at five loss rates.
    assert_eq!((rows(points, "1").len(), rows(points, "60").len()), (20, 20));
    assert_eq!((rows(first_turns, "1").len(), rows(first_turns, "60").len()), (4, 4));
    let unanswered: Vec<_> = text.lines().filter(|line| line.contains("unanswered")).collect();
    assert!(unanswered.iter().all(|line| line.contains("| UDP |")), "{unanswered:?}");
}

#[test]
fn points_of_the_turnaround_can_be_selected() {
    if !privileged("points_of_the_turnaround_can_be_selected") {
        return;
    }
    let args = ["--rtt", "3,5", "--loss", "0.5", "--messages", "20", "--carriers", "udp,msg"];
    let text = services(&[&["turnaround"], &args[..]].concat());
    let points = all_rounds(&text);
    assert_eq!((rows(points, "3").len(), rows(points, "5").len()), (2, 2), "{text}");
    assert!(text.contains("| 5 | 0.5% | msg |") && rows(&text, "60").is_empty(), "{text}");
}

#[test]
fn busy_polling_times_are_measured_as_separate_carriers() {
    if !privileged("busy_polling_times_are_measured_as_separate_carriers") {
        return;
    }
    let args = ["--rtt", "2", "--loss", "0", "--messages", "20", "--rounds", "3", "--busy-poll", "0,400"];
    let text = services(&[&["turnaround"], &args[..]].concat());
    for name in ["msg, busy poll 0 us", "msg, busy poll 400 us", "TCP", "TCP, thin", "UDP"] {
        let row = text.lines().find(|line| line.starts_with(&format!("| 2 | 0% | {name} |")));
        let rounds = row.and_then(|row| row.split('|').nth(7)).map(|cell| cell.split_whitespace().count());
        assert_eq!(rounds, Some(3), "{name}: {text}");
    }
}

#[test]
fn missing_parts_for_udt_are_reported() {
    if !privileged("missing_parts_for_udt_are_reported") {
        return;
    }
    let text = services(&["jitter", "--rounds", "1", "--share", "0.3"]);
    for carrier in ["viz", "TCP"] {
        let streams = rows(&text, carrier);
        // One stream alone, and two concurrent ones: rate, median, and the single round of each.
        assert!(streams.len() == 3 && streams.iter().all(|cells| cells.len() == 3), "{text}");
        assert!(streams.iter().all(|cells| cells[0] > 1.0 && cells[1] > 0.0), "{text}");
    }
    assert!(text.contains("| UDT | not measured: scripts/bench/udt.sh"), "{text}");
}

#[test]
fn udt_is_measured_like_the_others_if_available() {
    const TEST: &str = "udt_is_measured_like_the_others_if_available";
    if !privileged(TEST) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench/udt.sh");
    let built = Command::new(script).env("CARGO_TARGET_DIR", directory.path()).output().unwrap();
    if !built.status.success() {
        eprintln!("SKIPPED {TEST}: {}", String::from_utf8_lossy(&built.stderr).trim());
        return;
    }
    let program = String::from_utf8(built.stdout).unwrap();
    let text = services(&["jitter", "--rounds", "1", "--share", "0.3", "--udt", program.trim()]);
    let udt = rows(&text, "UDT");
    // Rate and jitter are for benchmarks; a stream that stalls at its start has neither.
    assert!(udt[0].len() == 3 && udt[0][0] > 1.0 && udt[0][1] > 0.0, "{text}");
}

/// Returns the number of processes with this path in their arguments.
fn processes_in(directory: &Path) -> usize {
    let name = directory.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let arguments = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    arguments.filter(|arguments| String::from_utf8_lossy(arguments).contains(name)).count()
}

#[test]
fn a_measurement_ended_by_a_signal_leaves_nothing_behind() {
    if !privileged("a_measurement_ended_by_a_signal_leaves_nothing_behind") {
        return;
    }
    let _alone = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_haul-lab"));
    command.args(["services", "rates", "--rtt", "20"]).env("TMPDIR", directory.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let files = directory.path().join(format!("haul-services-{}", child.id()));
    // Both ends are running when the URL exists.
    let start = Instant::now();
    while !files.join("0/url.json").exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "it did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(processes_in(&files) > 0, "no process has the directory in its arguments");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!((processes_in(&files), std::fs::read_dir(directory.path()).unwrap().count()), (0, 0));
}
