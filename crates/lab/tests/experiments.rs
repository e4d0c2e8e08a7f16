//! `haul-lab list` and `haul-lab run`.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use haul_testing::attempts;
use serde_json::Value;

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_haul-lab")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the plan shown in docs/experiments.md.
fn documented() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/experiments.md");
    let page = fs::read_to_string(page).unwrap();
    page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap().to_owned()
}

#[test]
fn every_experiment_is_listed_with_what_it_shows() {
    let output = lab(&["list"]);
    assert!(output.status.success());
    let list = text(&output.stdout);
    let plans = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("plans")).unwrap();
    for plan in plans {
        let name = plan.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(list.lines().any(|line| line.split_whitespace().next() == Some(&name)), "{name}: {list}");
    }
}

#[test]
fn a_figure_of_a_paper_is_reproduced_with_its_numbers_and_diagrams() {
    let out = tempfile::tempdir().unwrap();
    let names = ["asynch-3", "datta-cases", "scheduler-trace"];
    let output = lab(&[["run"].as_slice(), &names, &["--out", out.path().to_str().unwrap()]].concat());
    assert!(out.path().join("scheduler-o1.svg").exists(), "{}", text(&output.stdout));
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let found = [
        ("asynch-3.json", "/cells", 8),
        ("datta-cases.json", "/cells", 7),
        ("scheduler-trace.json", "/tables/schedulers", 2),
    ];
    for (plan, rows, count) in found {
        let json: Value = serde_json::from_slice(&fs::read(out.path().join(plan)).unwrap()).unwrap();
        let checks = json["checks"].as_array().unwrap();
        assert!(!checks.is_empty() && checks.iter().all(|c| c["verdict"] == "reproduced"), "{checks:?}");
        assert_eq!(json.pointer(rows).and_then(Value::as_array).map(Vec::len), Some(count), "{plan}");
    }
    let svg = fs::read_to_string(out.path().join("asynch-3-goodput.svg")).unwrap();
    assert!(svg.contains("<svg") && svg.contains("asynch") && svg.contains("rapid+"));
}

/// Regression test: a change of the law and of the losses that it is told left the rate at 91 % of the first.
#[test]
fn rapid_plus_falls_to_the_receivers_rate_from_any_first_rate() {
    let directory = tempfile::tempdir().unwrap();
    let output = lab(&["run", "datta-8", "--out", directory.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stdout));
    let independent = "  reproduced    the final rate does not depend on the starting rate";
    assert!(text(&output.stdout).contains(independent), "{}", text(&output.stdout));
}

#[test]
fn a_custom_plan_gives_equal_files_for_equal_seeds_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("queues.toml");
    fs::write(&plan, documented()).unwrap();
    let run = |name: &str, jobs: &str| {
        let out = dir.path().join(name);
        let options = ["--out", out.to_str().unwrap(), "--jobs", jobs, "--seeds", "4"];
        let output = lab(&[["run", plan.to_str().unwrap()].as_slice(), &options].concat());
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        assert!(text(&output.stdout).contains("1 checks: 1 reproduced"), "{}", text(&output.stdout));
        let files = ["queues.json", "queues-rtt.svg"];
        files.map(|file| fs::read(out.join(file)).unwrap())
    };
    let one = run("one", "1");
    assert!(one == run("two", "2"));
    let json: Value = serde_json::from_slice(&one[0]).unwrap();
    assert_eq!(json["seeds"], 4);
}

#[test]
fn one_plan_runs_real_and_simulated_with_comparable_results() {
    let name = "one_plan_runs_real_and_simulated_with_comparable_results";
    let haul = Path::new(env!("CARGO_BIN_EXE_haul-lab")).with_file_name("haul");
    if !haul.is_file() {
        return println!("SKIPPED {name}: {} is not built", haul.display());
    }
    if !haul_testing::privileged(name) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("real.toml");
    // 20 % of the packets are dropped on the path in either world; the speed is not checked.
    let words = r#"
        about = "a lossy path, for real and simulated"
        paper = "ours"
        runner = "both"
        [quick]
        seeds = 1
        sweep = { law = ["fixed"] }
        [variants.law]
        fixed = { "session.bulk.controller" = "fixed" }
        [scenario]
        cap = "60s"
        record = "100ms"
        path = [{ name = "wan", forward = [{ mtu = 1500 }, { loss = "20%" }, { delay = "5ms" }], back = [{ delay = "5ms" }] }]
        session = [{ name = "bulk", path = "wan", bytes = "5MB", rate = "20Mbit" }]
        event = [{ at = "300ms", path = "wan", stage = "delay", change = { delay = "8ms" } }]
        [[plot]]
        kind = "over_time"
        over_time = ["goodput_bps.bulk", "law_bps.bulk"]
        series = "runner"
        file = "law"
        [[plot]]
        kind = "grid"
        grid = ["goodput_bps.bulk@0s..2s"]
        each = "law"
        series = "runner"
        [[check]]
        name = "a fifth is lost for real"
        test = { kind = "value", measure = "session.bulk.lost_share", at = { runner = "emulator" }, expected = [0.15, 0.25] }
        [[check]]
        name = "as much as in the simulator"
        test = { kind = "alike", measure = "session.bulk.lost_share", at = { runner = "emulator" }, like = { runner = "simulator" }, tolerance = 0.3 }
    "#;
    fs::write(&plan, words).unwrap();
    let run = || lab(&["run", plan.to_str().unwrap(), "--out", dir.path().to_str().unwrap()]);
    let is_reproduced = |output: &Output| text(&output.stdout).contains("2 checks: 2 reproduced");
    let output = attempts(run, is_reproduced);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(is_reproduced(&output), "{}", text(&output.stdout));
    let json: Value = serde_json::from_slice(&fs::read(dir.path().join("real.json")).unwrap()).unwrap();
    for cell in json["cells"].as_array().unwrap() {
        let session = &cell["runs"][0]["sessions"][0];
        assert!(session["complete"] == true && session["bytes"] == 5_000_000, "{session}");
        assert!(session["data"]["drops"]["random"].as_u64().unwrap() > 500, "{session}");
    }
    for file in ["real-fixed.svg", "real-goodput-bps.svg"] {
        let svg = fs::read_to_string(dir.path().join(file)).unwrap();
        assert!(svg.contains("emulator") && svg.contains("simulator"), "{file}");
    }
}

#[test]
fn a_differing_check_fails_only_without_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("turned.toml");
    let inverted = documented().replace("lower =", "middle =").replace("higher =", "lower =");
    let inverted = inverted.replace("middle =", "higher =").replace("seeds = 20", "seeds = 2");
    let run = |text: &str| {
        fs::write(&plan, text).unwrap();
        lab(&["run", plan.to_str().unwrap(), "--out", dir.path().to_str().unwrap()])
    };
    let output = run(&inverted);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("differs"), "{}", text(&output.stdout));
    let explained = inverted.replace("[[check]]", "[[check]]\nwhy = \"it was turned around\"");
    let output = run(&explained);
    assert!(output.status.success() && text(&output.stdout).contains("it was turned around"));
}

#[test]
fn a_bound_on_zero_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("nothing.toml");
    let documented = documented();
    let (plain, _) = documented.split_once("[[check]]").unwrap();
    let at = "law = \"reno\", \"path.wan.forward.bottleneck.queue.tail_drop\" = \"10ms\"";
    let measure = "goodput_bps.bulk@0s..500ms";
    let test = format!(
        "kind = \"at_least\", measure = \"{measure}\", at = {{ {at} }}, share = 1.0, of = [{{ {at} }}]"
    );
    // The session starts after the evaluated time.
    let late = plain.replace("time = \"30s\"", "time = \"30s\", start = \"2s\"");
    fs::write(&plan, format!("{late}[[check]]\nname = \"as much as zero\"\ntest = {{ {test} }}\n")).unwrap();
    let out = dir.path().to_str().unwrap();
    let output = lab(&["run", plan.to_str().unwrap(), "--seeds", "1", "--out", out]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("to compare with are zero"), "{}", text(&output.stderr));
}

#[test]
fn missing_or_invalid_plans_are_reported_with_a_hint() {
    let error_output = |args: &[&str]| {
        let output = lab(args);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    assert!(error_output(&["run", "warp"]).contains("`haul-lab list`"));
    assert!(error_output(&["run", "asynch-3", "warp"]).contains("`haul-lab list`"), "before one is run");
    assert!(error_output(&["run", "nowhere.toml"]).contains("nowhere.toml"));
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("broken.toml");
    fs::write(&plan, documented().replace("session.bulk.rtt", "session.bulk.speed")).unwrap();
    let error = error_output(&["run", plan.to_str().unwrap()]);
    assert!(error.contains("is not available here") && error.contains("goodput"), "{error}");
    fs::write(&plan, documented().replace("seeds = 20", "seeds = 0")).unwrap();
    assert!(error_output(&["run", plan.to_str().unwrap()]).contains("nonzero"));
}

const WINDOWS: &str = r#"
about = "A receiving host that loses, and a path that loses at random"
paper = "ours"

[quick]
seeds = 2
sweep = { cause = ["host", "random"] }

[variants.cause]
host = { "host.rx.loads" = [{ kind = "system_calls", processes = 1, run = "10ms", wait = "200ms", at = "1s" }] }
random = { "path.wan.forward.loss" = "0.2%" }

[scenario]
cap = "20s"
path = [{ name = "wan", forward = [{ mtu = 1500 }, { bottleneck = { rate = "1Gbit", queue = { tail_drop = "20ms" } } }, { loss = "0%" }, { delay = "5ms" }] }]
host = [{ name = "rx", scheduler = "o1", socket_buffer = "256KiB", per_packet = "5us" }]
session = [{ name = "bulk", path = "wan", host = "rx", time = "5s", recipe = "fobs", controller = "fixed", rate = "900Mbit", set = { "rate_control.max_batch" = "4" }, windows = true, discriminators = true }]

[[plot]]
kind = "windows"
show = "positions"
series = "cause"

[[plot]]
kind = "windows"
show = "complexity"
series = "cause"

[[plot]]
kind = "windows"
show = "mean_complexity"
series = "cause"

[[plot]]
kind = "windows"
show = "success_proportion"
series = "cause"

[[check]]
name = "windows of the host are classified"
test = { kind = "proportion", hits = "session.bulk.windows_host", trials = "session.bulk.windows", at = { cause = "host" }, bound = [0.5, 1.0] }

[[check]]
name = "more of them than exist"
why = "impossible"
test = { kind = "proportion", hits = "session.bulk.windows_network", trials = "session.bulk.windows", at = { cause = "host" }, bound = [0.9, 1.0] }

[[check]]
name = "random losses are not congestion: better than all others"
test = { kind = "nearest", measure = "session.bulk.put_on_network", others = ["session.bulk.zigzag", "session.bulk.biaz"], at = { cause = "random" }, to = 0.0 }

[[check]]
name = "better than the diagnosis"
why = "impossible"
test = { kind = "nearest", measure = "session.bulk.zigzag", others = ["session.bulk.put_on_network"], at = { cause = "random" }, to = 0.0 }
"#;

#[test]
fn windows_are_counted_and_drawn_and_discriminators_see_the_same_packets() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, out) = (dir.path().join("windows.toml"), dir.path().join("out"));
    fs::write(&plan, WINDOWS).unwrap();
    let output = lab(&["run", plan.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let json: Value = serde_json::from_slice(&fs::read(out.join("windows.json")).unwrap()).unwrap();
    let verdicts: Vec<&str> =
        json["checks"].as_array().unwrap().iter().map(|check| check["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["reproduced", "differs", "reproduced", "differs"], "{}", json["checks"]);
    for (at, cell) in json["cells"].as_array().unwrap().iter().enumerate() {
        let diagnosis = &cell["runs"][0]["sessions"][0]["diagnosis"];
        let shares = diagnosis["discriminators"].as_object().unwrap();
        assert_eq!(shares.len(), 5);
        assert!(shares.values().all(|share| (0.0..=1.0).contains(&share.as_f64().unwrap())), "{shares:?}");
        let kept = diagnosis["kept"].as_array().unwrap();
        assert!(kept.len() >= 3 && !kept[0]["lost"].as_array().unwrap().is_empty(), "{at}: {}", kept.len());
    }
    for name in ["positions", "complexity", "mean-complexity", "success-proportion"] {
        let svg = fs::read_to_string(out.join(format!("windows-{name}.svg"))).unwrap();
        assert!(svg.contains("host") && svg.contains("random"), "{name}");
    }
}
