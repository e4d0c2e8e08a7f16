//! The list of lost packets in a trace is complete, also for a copy that ends in its first transmission
//! window.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Server, exits, haul, object};

/// The client's own packets are lost at random.
const LOSSY: (&str, &str) = ("HAUL_FAULTS", "loss=0.03,seed=5");

fn command(what: &str, trace: &Path, options: &[&str]) -> Command {
    let mut command = haul();
    command.env(LOSSY.0, LOSSY.1).args([what, "--json"]).args(options).arg("--events").arg(trace);
    command
}

fn source(dir: &Path, bytes: usize) -> PathBuf {
    let path = dir.join("source");
    fs::write(&path, vec![7; bytes]).unwrap();
    path
}

/// The events so far; an incomplete last line is ignored.
fn events(trace: &Path) -> Vec<Value> {
    let text = fs::read_to_string(trace).unwrap_or_default();
    let complete_lines = text.rfind('\n').map_or("", |end| &text[..end]);
    complete_lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sum(causes: &Value) -> u64 {
    causes.as_object().unwrap().values().filter_map(Value::as_u64).sum()
}

/// The numbers of all packets in a trace's lists, each once, and the losses counted by its windows.
fn listed(events: &[Value]) -> (BTreeSet<u64>, u64) {
    let windows = || events.iter().filter(|event| event["event"] == "window");
    let counted = windows().map(|window| sum(&window["lost_by_cause"])).sum();
    let runs: Vec<&Value> = windows().flat_map(|window| window["losses"].as_array().unwrap()).collect();
    let number = |run: &Value, key: &str| run[key].as_u64().unwrap();
    let packets: u64 = runs.iter().map(|run| number(run, "packets")).sum();
    let each = runs.iter().map(|run| (number(run, "first_pn"), number(run, "packets")));
    let each: BTreeSet<u64> = each.flat_map(|(first, packets)| first..first + packets).collect();
    assert_eq!(each.len() as u64, packets, "{runs:?}");
    (each, counted)
}

/// The losses in the last statistics line.
fn last_lost(events: &[Value]) -> u64 {
    let progress = events.iter().rev().find(|event| event["event"] == "progress").unwrap();
    progress["data"]["lost"].as_u64().unwrap()
}

#[test]
fn a_small_copy_lists_each_lost_packet_and_counts_it_by_cause() {
    for options in [&[][..], &["--diagnosis", "signature"], &["--diagnosis", "kernel"]] {
        let (dir, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (server, trace) = (Server::start(root.path(), &[]), dir.path().join("trace"));
        let source = source(dir.path(), 30_000_000);
        let output = command("cp", &trace, options).arg(source).arg(server.at("copy")).output().unwrap();
        exits(&output, 0);
        let (report, events) = (object(&output), events(&trace));
        let (each, counted) = listed(&events);
        assert!(each.len() > 20, "{report}");
        assert_eq!(each.len() as u64, last_lost(&events));
        assert_eq!((counted, sum(&report["lost_by_cause"])), (last_lost(&events), last_lost(&events)));
        let mut windows = events.iter().filter(|event| event["event"] == "window");
        let (last, more) = (windows.next().unwrap(), windows.next());
        assert!(more.is_none() && last["signature"].is_string() && last["by_signature"].is_null(), "{last}");
        assert_eq!(last["lost_by_cause"], report["lost_by_cause"]);
    }
}

#[test]
fn a_stopped_transfer_has_listed_its_losses() {
    let (dir, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (server, trace) = (Server::start(root.path(), &[]), dir.path().join("trace"));
    let mut bench = command("bench", &trace, &["--rate", "300Mbit", "--bytes", "10GB"]);
    bench.arg(&server.url).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = bench.spawn().unwrap();
    let begun = Instant::now();
    let lost = || events(&trace).iter().filter_map(|event| event["data"]["lost"].as_u64()).max();
    while lost().unwrap_or(0) < 20 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", events(&trace).last());
        sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    let events = events(&trace);
    let (each, counted) = listed(&events);
    assert_eq!(each.len() as u64, counted);
    assert!(each.len() as u64 >= last_lost(&events), "{} of {}", each.len(), last_lost(&events));
    assert_eq!(events.last().unwrap()["event"], "end");
}
