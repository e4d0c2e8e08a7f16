//! `haul demo` between network namespaces, with TCP beside it, and through its relay. Needs root and
//! `/dev/net/tun`; without them each test reports SKIPPED and passes, or fails with `HAUL_E2E=required`.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use haul_testing::{attempts, copy_program, privileged, unconfigured};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(60);

fn haul() -> Command {
    unconfigured(Command::new(env!("CARGO_BIN_EXE_haul")))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn exits(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
}

/// Runs as root without `CAP_SYS_ADMIN`, and where no user namespace can be created.
fn without_privilege(words: &[&str]) -> Output {
    // The limit applies to this user namespace only, not to the machine.
    let script =
        "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -sys_admin \"$0\" \"$@\"";
    let mut command = unconfigured(Command::new("unshare"));
    command.args(["-r", "sh", "-c", script, env!("CARGO_BIN_EXE_haul")]).args(words);
    command.output().unwrap()
}

fn is_alive(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !status.is_empty() && !status.contains(") Z ")
}

/// Waits for the only child of a process.
fn child_of(parent: u32) -> i32 {
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        let tasks = fs::read_dir(format!("/proc/{parent}/task")).unwrap().flatten();
        let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        if let Ok(child) = children.collect::<String>().trim().parse() {
            return child;
        }
        sleep(Duration::from_millis(5));
    }
    panic!("{parent} has no child");
}

/// Regression test: the trace of a demo that could not start was empty.
#[test]
fn the_trace_of_a_demo_that_fails_has_its_result() {
    let output = haul().args(["demo", "--events", "-"]).env("TMPDIR", "/nonexistent").output().unwrap();
    exits(&output, 7);
    let events = text(&output.stdout);
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&Value> = events.iter().map(|event| &event["event"]).collect();
    assert_eq!(names, ["start", "end"]);
    assert!(events[1]["error"]["message"].as_str().unwrap().contains("TMPDIR"), "{events:?}");
}

#[test]
fn tcp_uses_the_same_path_and_appears_in_table_events_and_json() {
    if !privileged("tcp_uses_the_same_path_and_appears_in_table_events_and_json") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let events = scratch.path().join("events");
    let demo = ["demo", "--size", "2MB", "--files", "4", "--rtt", "10ms", "--path-rate", "50Mbit"];
    let output = haul().args(demo).arg("--events").arg(&events).output().unwrap();
    exits(&output, 0);
    let words = text(&output.stderr);
    for word in ["Each alone on this path", "  haul  ", "  TCP CUBIC  ", "  TCP BBR  "] {
        assert!(words.contains(word), "{word}: {words}");
    }
    assert!(words.lines().last().unwrap().starts_with("Limited by:"), "{words}");
    let trace = fs::read_to_string(&events).unwrap();
    let lines: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter(|line| line["event"] == "tcp").count(), 2, "{trace}");

    let tcp = lines.last().unwrap()["tcp"].clone();
    assert_eq!(tcp["left_out"], Value::Null, "{tcp}");
    let (flows, missing) = (tcp["flows"].as_array().unwrap(), tcp["missing"].as_array().unwrap());
    assert_eq!(flows.len() + missing.len(), 2, "{tcp}");
    assert_eq!(flows[0]["congestion"], "cubic");
    for flow in flows {
        let (bytes, seconds) = (flow["bytes"].as_u64().unwrap(), flow["seconds"].as_f64().unwrap());
        assert!(bytes == 2_000_000 || seconds >= 10.0 && bytes > 0, "{flow}");
        // Lower bound on the time: one round trip to connect, plus the bytes at the path's rate.
        assert!(seconds >= 0.01 + bytes as f64 * 8.0 / 50e6, "{flow}");
        let share = flow["share"].as_f64().unwrap();
        assert!((flow["goodput_bps"].as_f64().unwrap() / 50e6 - share).abs() < 1e-6, "{flow}");
    }
}

#[test]
fn without_privilege_a_relay_carries_the_copy_and_tcp_is_skipped_with_the_reason() {
    if !privileged("without_privilege_a_relay_carries_the_copy_and_tcp_is_skipped_with_the_reason") {
        return;
    }
    let demo = ["demo", "--size", "1MB", "--files", "3", "--rtt", "5ms"];
    let output = without_privilege(&demo);
    exits(&output, 0);
    let words = text(&output.stderr);
    let about: Vec<&str> = words.lines().filter(|line| line.contains("TCP is not shown")).collect();
    assert_eq!(about.len(), 1, "{words}");
    assert!(about[0].contains("CAP_SYS_ADMIN"), "{words}");
    let relay: Vec<&str> = words.lines().filter(|line| line.contains("through a relay")).collect();
    assert!(relay.len() == 1 && relay[0].contains("CAP_SYS_ADMIN"), "{words}");

    let output = without_privilege(&[&demo[..], &["--json"]].concat());
    exits(&output, 0);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["ok"], true);
    assert_eq!(result["tcp"]["flows"], Value::Array(Vec::new()), "{result}");
    assert!(result["tcp"]["left_out"].as_str().unwrap().contains("CAP_SYS_ADMIN"), "{result}");
}

#[test]
fn unprivileged_users_get_namespaces_where_user_namespaces_are_allowed() {
    if !privileged("unprivileged_users_get_namespaces_where_user_namespaces_are_allowed") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = scratch.path().join("haul");
    copy_program(Path::new(env!("CARGO_BIN_EXE_haul")), &program);
    let mut command = unconfigured(Command::new("setpriv"));
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
    command.args(["demo", "--size", "1MB", "--files", "3", "--rtt", "5ms", "--no-tcp"]);
    let output = command.env("TMPDIR", scratch.path()).output().unwrap();
    exits(&output, 0);
    let words = text(&output.stderr);
    let may = fs::metadata("/dev/net/tun").unwrap().permissions().mode() & 0o006 == 0o006;
    // If the relay is used although the device is accessible, the output must name the reason.
    assert!(!words.contains("through a relay") || !may || words.contains("namespace"), "{words}");
}

#[test]
fn an_interrupt_during_tcp_ends_everything() {
    if !privileged("an_interrupt_during_tcp_ends_everything") {
        return;
    }
    // At 1 Mbit/s each flow takes seconds.
    let demo = ["demo", "--size", "500kB", "--files", "1", "--rtt", "5ms", "--path-rate", "1Mbit"];
    let mut child = haul().args(demo).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("TCP CUBIC")), "a flow begins");
    let demo = child.id();
    kill_process(Pid::from_raw(demo.cast_signed()).unwrap(), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("TCP BBR")), "{rest:?}");
    // The demo's namespaces have no names, so none can be left behind.
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    assert_eq!(names.filter(|name| name.contains(&format!("-{demo}-"))).count(), 0);
}

/// A path slow enough for a debug build on a busy machine, on which the suspended receiver's buffer
/// overflows.
const BUSY: [&str; 8] =
    ["demo", "--busy-receiver", "--rtt", "20ms", "--path-rate", "100Mbit", "--rate", "90Mbit"];

#[test]
fn a_busy_receiver_is_measured_with_and_without_the_diagnosis_and_causes_are_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let events = scratch.path().join("events");
    let demo = || {
        let output =
            haul().args(BUSY).args(["--time", "5s", "--json"]).arg("--events").arg(&events).output().unwrap();
        exits(&output, 0);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    // A busy machine delays the path too, which looks like a queue.
    let is_hosts = |report: &Value| {
        let causes = report["lost_by_cause"].as_object().unwrap();
        let all: f64 = causes.values().map(|count| count.as_f64().unwrap()).sum();
        let host = causes["receiver_host"].as_f64().unwrap();
        host > 50.0 && host >= 0.6 * all
    };
    let with = attempts(demo, is_hosts);
    let without = &with["without_verdict"];
    for report in [&with, without] {
        assert_eq!((&report["ok"], report["controller"].as_str()), (&Value::Bool(true), Some("highspeed")));
        assert!(report["goodput_bps"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert!(is_hosts(&with), "{}", with["lost_by_cause"]);
    // The path's own counters show that it dropped almost nothing.
    let trace = fs::read_to_string(&events).unwrap();
    let lines: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let paths: Vec<&Value> =
        lines.iter().filter(|line| line["event"] == "path" && line["direction"] == "data").collect();
    assert_eq!(paths.len(), 2, "{trace}");
    assert!(paths.iter().all(|path| path["random"] == 0), "{paths:?}");
}

#[test]
fn a_busy_receiver_is_shown_in_a_table_and_ends_with_the_demo() {
    let output = haul().args(BUSY).args(["--time", "2s"]).output().unwrap();
    exits(&output, 0);
    let words = text(&output.stderr);
    for word in ["suspended for 100 ms of each second", "  with the verdict  ", "  without  "] {
        assert!(words.contains(word), "{word}: {words}");
    }
    let unlimited = haul().args(&BUSY[..6]).args(["--rate", "unlimited", "--time", "1s"]).output().unwrap();
    assert!(text(&unlimited.stderr).contains("at most 100.0 Mbit/s are sent"), "{}", text(&unlimited.stderr));
    let mut child = haul().args(BUSY).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("Now with the verdict")), "the first run has not started");
    let parent = child.id();
    let receiver = child_of(parent);
    child.kill().unwrap();
    child.wait().unwrap();
    let end = Instant::now() + TIMEOUT;
    while is_alive(receiver) {
        assert!(Instant::now() < end, "the receiver has not ended");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_busy_receiver_demo_refuses_files() {
    for words in [&["--size", "1MB"][..], &["--files", "2"], &["data"], &["--no-tcp"]] {
        exits(&haul().args(["demo", "--busy-receiver"]).args(words).output().unwrap(), 2);
    }
    exits(&haul().args(["demo", "--time", "2s"]).output().unwrap(), 2);
}

/// They were ignored.
#[test]
fn size_and_number_of_files_are_for_a_generated_set() {
    for words in [["--size", "1MB"], ["--files", "2"]] {
        exits(&haul().args(["demo", "data"]).args(words).output().unwrap(), 2);
    }
}
