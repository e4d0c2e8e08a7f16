//! `haul-lab sim` with the shipped scenarios, and with invalid ones.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)
}

fn sim(file: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_haul-lab")).arg("sim").arg(file).args(args).output().unwrap()
}

/// Runs a shipped scenario, which must pass.
fn passes(name: &str) -> Value {
    let output = sim(&shipped(name), &[]);
    let error_output = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {error_output}\n{}", String::from_utf8_lossy(&output.stdout));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["passed"], true);
    for run in json["runs"].as_array().unwrap() {
        println!("{name}: seed {}", run["seed"]);
        assert_eq!(run["adds_up"], true);
    }
    json
}

#[test]
fn a_fixed_rate_keeps_its_rate_at_one_percent_loss() {
    let json = passes("fixed-1-percent.toml");
    let drops = &json["runs"][0]["sessions"][0]["data"]["drops"];
    assert!(drops["random"].as_u64().unwrap() > 1_000, "{drops}");
}

#[test]
fn early_and_late_flows_each_get_a_third() {
    passes("late-comer.toml");
}

#[test]
fn a_raised_ceiling_takes_effect_at_once() {
    passes("other-ceilings.toml");
}

#[test]
fn a_queue_that_marks_stays_short() {
    passes("marks.toml");
}

#[test]
fn the_default_fills_a_lossy_gigabit_and_its_rates_are_recorded() {
    let json = passes("default-lossy-gigabit.toml");
    let rates = &json["runs"][0]["rates"];
    assert_eq!(rates["flows"][0], "bulk");
    let samples: Vec<u64> =
        rates["delivered_bps"][0].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert!(samples.iter().max().unwrap() > &800_000_000, "{samples:?}");
}

#[test]
fn the_cost_of_every_law_can_be_measured() {
    passes("cost-of-a-law.toml");
}

#[test]
fn an_outage_is_survived() {
    passes("outage.toml");
}

#[test]
fn a_change_of_the_mtu_is_survived() {
    passes("mtu-change.toml");
}

#[test]
fn many_senders_reach_one_host() {
    let json = passes("many-to-one.toml");
    assert_eq!(json["runs"][0]["sessions"].as_array().unwrap().len(), 4);
}

#[test]
fn a_busy_receiver_loses_in_its_socket_buffer() {
    passes("busy-receiver.toml");
}

#[test]
fn tcp_flows_run_in_both_directions() {
    passes("tcp-both-ways.toml");
}

#[test]
fn loads_have_the_costs_of_the_scenario() {
    let host = "[[host]]\nname = \"rx\"\nloads = [{ kind = \"computation\", slowdown = 2.0 }]\n";
    let output = run_text(&format!("{SMALL}{host}"), &[]);
    assert_eq!(output.status.code(), Some(2));
    let error_output = String::from_utf8_lossy(&output.stderr);
    assert!(error_output.contains("`slowdown` is for loads of the kind `memory`"), "{error_output}");
}

#[test]
fn a_sweep_runs_every_combination_in_order() {
    let json = passes("rtt-loss-sweep.toml");
    let runs = json["runs"].as_array().unwrap();
    let value = |run: &Value, key: &str| run["values"][key].as_str().unwrap().to_owned();
    let order: Vec<(String, String)> = runs
        .iter()
        .map(|run| (value(run, "path.wan.forward.delay"), value(run, "path.wan.forward.loss")))
        .collect();
    assert_eq!(order.len(), 9);
    assert_eq!(order[0], ("1ms".to_owned(), "0%".to_owned()));
    assert_eq!(order[1], ("1ms".to_owned(), "0.1%".to_owned()));
    assert_eq!(order[8], ("50ms".to_owned(), "1%".to_owned()));
}

const SMALL: &str = "cap = \"10s\"
[[path]]
name = \"wan\"
forward = [
    { bottleneck = { rate = \"100Mbit\", queue = { tail_drop = \"50ms\" } } },
    { loss = \"1%\" },
    { delay = \"5ms\" },
]
[[session]]
name = \"bulk\"
path = \"wan\"
bytes = \"2MB\"
";

#[test]
fn a_session_runs_any_preset_and_can_switch_laws() {
    let session_text = "recipe = \"rapid+\"\nrate = \"90Mbit\"\nset = { \"rate_control.k\" = \"4\" }
        switch = [{ at = \"1s\", controller = \"fixed\", rate = \"20Mbit\" }]\n";
    let long = SMALL.replace("cap =", "record = \"250ms\"\ncap =").replace("2MB", "20MB");
    let output = run_text(&format!("{long}{session_text}"), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["runs"][0]["sessions"][0]["controller"], "rapid_plus");
    let rates = &json["runs"][0]["rates"];
    let law: Vec<u64> = rates["law_bps"][0].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert_eq!((law[2], law[6]), (90_000_000, 20_000_000), "{law:?}");
    let wrong = run_text(&format!("{SMALL}switch = [{{ at = \"1s\", controller = \"warp\" }}]\n"), &[]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("no controller `warp`"), "{wrong:?}");
}

#[test]
fn a_session_can_report_over_its_control_channel() {
    let output = run_text(&format!("{SMALL}set = {{ \"bitmap_ack.over\" = \"control\" }}\n"), &[]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let session = &json["runs"][0]["sessions"][0];
    assert!(session["complete"] == true && session["feedback"]["offered"] == 0, "{session}");
}

#[test]
fn the_load_of_a_host_is_recorded_as_the_length_of_its_run_queue() {
    let host = "[[host]]\nname = \"rx\"
        loads = [{ kind = \"computation\", processes = 3, at = \"1s\", length = \"2s\" }]\n";
    let text = SMALL
        .replace("cap =", "record = \"500ms\"\nexpect_cap = true\ncap =")
        .replace("bytes = \"2MB\"", "host = \"rx\"\ntime = \"4s\"\ncontroller = \"fixed\"\nrate = \"5Mbit\"");
    let output = run_text(&format!("{text}{host}"), &[]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let load: Vec<u64> = json["runs"][0]["rates"]["host_load"][0]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    // Three CPU-bound programs from 1 to 3 s, beside a receiver that hardly uses the core.
    assert!(load[0] < 100 && load[6] < 100, "{load:?}");
    assert!(load[2..6].iter().all(|&load| (3_000..3_500).contains(&load)), "{load:?}");
}

/// Runs a scenario given as text.
fn run_text(text: &str, args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("scenario.toml");
    std::fs::write(&file, text).unwrap();
    sim(&file, args)
}

#[test]
fn equal_seeds_give_equal_bytes_whatever_the_number_of_threads() {
    let sweep = format!("{SMALL}[sweep]\nseed = [1, 2, 3]\n");
    let one = run_text(&sweep, &["--jobs", "1"]);
    let many = run_text(&sweep, &["--jobs", "3"]);
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    assert_eq!(one.stdout, many.stdout);
    let (five, six) = (run_text(SMALL, &["--seed", "5"]), run_text(SMALL, &["--seed", "6"]));
    assert_ne!(five.stdout, six.stdout);
    assert_eq!(five.stdout, run_text(SMALL, &["--set", "seed=5"]).stdout);
}

#[test]
fn a_session_can_have_a_duration() {
    let text = SMALL.replace(
        "bytes = \"2MB\"",
        "time = \"1s\"\nstart = \"500ms\"\ncontroller = \"fixed\"\nrate = \"80Mbit\"",
    );
    let output = run_text(&text, &[]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let session = &json["runs"][0]["sessions"][0];
    assert_eq!(session["complete"], true, "{session}");
    let seconds = session["seconds"].as_f64().unwrap();
    assert!((1.0..3.5).contains(&seconds), "{session}");
}

#[test]
fn the_seed_determines_the_start_delay() {
    let text = format!("start_within = \"300ms\"\n{}", SMALL.replace("    { loss = \"1%\" },\n", ""));
    let first_packet = |seed: &str| {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("trace.jsonl");
        let output = run_text(&text, &["--seed", seed, "--trace", trace.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let trace = std::fs::read_to_string(trace).unwrap();
        let line: Value = serde_json::from_str(trace.lines().next().unwrap()).unwrap();
        line["at_ns"].as_u64().unwrap()
    };
    let starts: Vec<u64> = (1..=6).map(|seed| first_packet(&seed.to_string())).collect();
    assert_eq!(first_packet("3"), starts[2]);
    let (least, most) = (starts.iter().min().unwrap(), starts.iter().max().unwrap());
    assert!(most - least > 50_000_000 && *most < 400_000_000, "{starts:?}");
}

#[test]
fn traffic_of_every_kind_runs_beside_a_session_and_damage_is_detected() {
    let text = SMALL.replace("{ loss = \"1%\" }", "{ corruption = { share = \"1%\", effect = \"flip\" } }")
        + "[[traffic]]\nname = \"cubic\"\npath = \"wan\"\ntcp = { control = \"cubic\" }
[[traffic]]\nname = \"bursts\"\npath = \"wan\"
udp = { rate = \"20Mbit\", pattern = { on_off = { on = { exponential = \"10ms\" }, off = { exponential = \"10ms\" } } } }
[[traffic]]\nname = \"web\"\npath = \"wan\"\naggregate = { load = \"10Mbit\" }
[[check]]\nthat = \"complete = true\"
[[check]]\ntraffic = \"cubic\"\nthat = \"goodput > 0\"\n";
    let output = run_text(&text, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_trace_has_the_fate_of_every_packet() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace.jsonl");
    let output = run_text(SMALL, &["--trace", trace.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = std::fs::read_to_string(trace).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lost: u64 =
        lines.filter(|line| line["reason"] == "random").map(|line| line["packets"].as_u64().unwrap()).sum();
    let session = &json["runs"][0]["sessions"][0];
    let drops = |flow: &str| session[flow]["drops"]["random"].as_u64().unwrap_or(0);
    assert_eq!(lost, drops("data") + drops("feedback"));
}

#[test]
fn failed_checks_and_the_cap_are_reported_as_failures() {
    let text = format!("{SMALL}[[check]]\nsession = \"bulk\"\nthat = \"goodput >= 1Gbit\"\n");
    let output = run_text(&text, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not goodput >= 1Gbit; it was "));
    let output = run_text(SMALL, &["--set", "cap=20ms"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stopped at its cap of 0.02 s"));
    assert!(run_text(SMALL, &["--set", "cap=20ms", "--set", "expect_cap=true"]).status.success());
}

/// Checks that an invalid scenario gives exit code 2, and that the message contains all `parts`.
fn refused(text: &str, args: &[&str], parts: &[&str]) {
    let output = run_text(text, args);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(output.stdout.is_empty());
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn bad_scenarios_are_refused_with_file_line_field_and_what_is_allowed() {
    let with = |from: &str, to: &str| SMALL.replace(from, to);
    refused(
        &with("bytes =", "bites ="),
        &[],
        &["scenario.toml:12:1", "`session[0].bites`", "unknown field `bites`", "`bytes`", "`controller`"],
    );
    refused(
        &with("\"2MB\"", "\"2Mbit\""),
        &[],
        &["scenario.toml:12:9", "`session[0].bytes`", "unknown unit", "1GB"],
    );
    refused(&with("\"5ms\"", "5"), &[], &["scenario.toml:7:", "path[0].forward[2]", "\"50ms\""]);
    refused(
        &with("path = \"wan\"", "path = \"lan\""),
        &[],
        &["scenario.toml:11:8", "no path `lan`", "there are: wan"],
    );
    refused(
        &format!("{SMALL}controller = \"warp\"\n"),
        &[],
        &["scenario.toml:13:14", "`session[0].controller`", "`warp`", "delivery, bbr, fixed"],
    );
    refused(&format!("{SMALL}controller = \"fixed\"\n"), &[], &["scenario.toml:13:14", "needs a rate"]);
    refused(&format!("{SMALL}time = \"1s\"\n"), &[], &["scenario.toml:12:9", "either bytes or time"]);
    refused(
        &format!("{SMALL}sender_host = \"tx\"\n"),
        &[],
        &["scenario.toml:13:15", "no host `tx`", "there are: none"],
    );
    refused(
        &format!("{SMALL}[[check]]\nsession = \"bulk\"\nthat = \"godput > 1Mbit\"\n"),
        &[],
        &["scenario.toml:15:8", "`check[0].that`", "goodput"],
    );
    refused(
        &format!(
            "{SMALL}[[event]]\nat = \"1s\"\npath = \"wan\"\nstage = \"mtu\"\nchange = {{ mtu = 1400 }}\n"
        ),
        &[],
        &["scenario.toml:16:9", "no stage `mtu`", "bottleneck"],
    );
    refused(
        &format!("{SMALL}[sweep]\n\"path.lan.forward.delay\" = [\"1ms\"]\n"),
        &[],
        &["scenario.toml:14:", "has: wan"],
    );
    refused(&format!("{SMALL}[sweep]\nseed = 4\n"), &[], &["scenario.toml:14:8", "list of values"]);
    refused("cap = ", &[], &["scenario.toml:1:7"]);
    refused(SMALL, &["--set", "path.wan.forward.rate=1Mbit"], &["--set", "bottleneck, loss, delay"]);
    refused(SMALL, &["--set", "session.bulk.bytes=5"], &["session.bulk.bytes = 5", "size"]);
}

#[test]
fn a_missing_file_is_named() {
    let output = sim(Path::new("no-such.toml"), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such.toml: No such file"));
}

#[test]
fn signatures_of_a_scenario_contain_every_loss_and_are_reproducible() {
    let made = |dir: &Path| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("training/network.toml");
        let set = ["session.bulk.rate=720Mbit", "path.wan.forward.bottleneck.queue.tail_drop=5ms"];
        let set = set.iter().flat_map(|one| ["--set", one]).chain(["--set", "session.bulk.time=3s"]);
        let mut lab = Command::new(env!("CARGO_BIN_EXE_haul-lab"));
        let output =
            lab.arg("signatures").arg(file).args(set).args(["--seed", "4", "--out"]).arg(dir).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(dir.join("network-0000.sig")).unwrap()
    };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [text, again] = dirs.each_ref().map(|dir| made(dir.path()));
    assert_eq!(text, again);
    let windows = haul_diagnosis::read_signatures(&text).unwrap();
    let lost: u64 = windows.iter().map(haul_diagnosis::Signature::lost_packets).sum();
    let died = text.split_once("queue_full ").unwrap().1;
    let died: u64 = died.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    // The last window is still incomplete.
    assert!(
        windows.len() >= 2 && lost > 1_000 && lost <= died,
        "{} windows, {lost} of {died}",
        windows.len()
    );
}
