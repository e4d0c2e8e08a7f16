//! The program's behaviour for users and scripts, on the loopback interface and without privileges.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use haul_testing::attempts;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Server, exits, haul, lossy, object, run, starting, text};

/// A directory with a small tree in `tree`.
fn tree() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("below/empty")).unwrap();
    fs::write(tree.join("big"), vec![7; 3_000_000]).unwrap();
    fs::write(tree.join("below/small"), "small").unwrap();
    fs::write(tree.join("below/nothing"), "").unwrap();
    std::os::unix::fs::symlink("big", tree.join("link")).unwrap();
    dir
}

#[track_caller]
fn assert_same_tree(a: &Path, b: &Path) {
    let output = Command::new("diff").args(["-r", "--no-dereference"]).args([a, b]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stdout));
}

#[test]
fn a_tree_goes_to_a_server_and_back() {
    let (here, root) = (tree(), tempfile::tempdir().unwrap());
    let server = Server::start(root.path(), &[]);
    let tree = here.path().join("tree");
    let up = run(&["cp", "--json", tree.to_str().unwrap(), &server.at("copy")]);
    exits(&up, 0);
    assert_same_tree(&tree, &root.path().join("copy"));
    let back = here.path().join("back");
    let down = run(&["cp", "--json", &server.at("copy"), back.to_str().unwrap()]);
    exits(&down, 0);
    assert_same_tree(&tree, &back);
    let (up, down) = (object(&up), object(&down));
    assert_eq!((&up["bytes"], &up["files"]), (&3_000_005.into(), &3.into()));
    assert_eq!(up["digest"].as_str().unwrap().len(), 64);
    assert_eq!(down["bytes"], up["bytes"]);
}

/// Regression test: the trace was written to a file named `-`.
#[test]
fn a_trace_goes_to_stdout_if_it_is_unused() {
    let here = tree();
    let traced = |options: &[&str]| {
        let mut command = haul();
        command.current_dir(here.path()).args(["cp", "--events", "-"]).args(options);
        command.output().unwrap()
    };
    let output = traced(&["tree", "copy"]);
    exits(&output, 0);
    let lines = text(&output.stdout);
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&events[0]["event"], &events.last().unwrap()["event"]), (&"start".into(), &"end".into()));
    for options in [&["--json", "tree", "other"][..], &["--dry-run", "tree", "other"], &["tree/big", "-"]] {
        let output = traced(options);
        exits(&output, 2);
        let stderr = [output.stdout, output.stderr].concat();
        assert!(lossy(&stderr).contains("--events - both mean stdout"), "{options:?}: {}", lossy(&stderr));
    }
    assert!(!here.path().join("-").exists() && !here.path().join("other").exists());
}

#[test]
fn copies_from_stdin_and_to_stdout_are_traced_completely() {
    let here = tree();
    for (words, action) in
        [(["-", "copy"], "copy stdin to copy"), (["tree/big", "-"], "copy tree/big to stdout")]
    {
        let mut command = haul();
        command.current_dir(here.path()).args(["cp", "-q", "--events", "trace"]).args(words);
        exits(&command.stdin(Stdio::null()).output().unwrap(), 0);
        let trace = fs::read_to_string(here.path().join("trace")).unwrap();
        let events: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [start, .., end] = &events[..] else { panic!("{trace}") };
        assert_eq!((&start["event"], &start["actions"]), (&"start".into(), &json!([action])));
        assert_eq!((&end["event"], &end["ok"]), (&"end".into(), &true.into()), "{trace}");
    }
}

#[test]
fn a_file_from_stdin_has_the_mode_of_the_file_it_replaces_or_follows_the_umask() {
    let here = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| here.path().join(name));
    fs::write(&old, "contents").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o604)).unwrap();
    for (path, mode) in [(old, 0o604), (new, 0o640)] {
        let mut copy = starting(&["sh", "-c", "umask 027; exec \"$@\"", "sh"]);
        copy.args(["cp", "-q", "-"]).arg(&path).stdin(Stdio::null());
        exits(&copy.output().unwrap(), 0);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode, "{path:?}");
    }
}

#[test]
fn local_copies_are_verified() {
    let here = tree();
    let (from, to) = (here.path().join("tree"), here.path().join("copy"));
    let output = run(&["cp", from.to_str().unwrap(), to.to_str().unwrap()]);
    exits(&output, 0);
    assert_same_tree(&from, &to);
    let words = text(&output.stderr);
    let last: Vec<&str> = words.lines().rev().take(2).collect();
    assert!(last[0].starts_with("Limited by: "), "{words}");
    assert!(last[1].starts_with("Moved 3.0 MB in 3 files") && last[1].ends_with("all verified"), "{words}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_bench_carries_the_requested_amount_in_both_directions() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    for direction in [&[][..], &["--reverse"]] {
        let arguments = [&["bench", "--json", "--bytes", "5MB", &server.url], direction].concat();
        let output = run(&arguments);
        exits(&output, 0);
        assert_eq!(object(&output)["bytes"], 5_000_000);
    }
    exits(&run(&["bench", "--time", "200ms", "--json", &server.url]), 0);
}

/// Regression test: the bench sent a whole block of 128 KiB first, which took 10 s at 100 kbit/s.
#[test]
fn a_slow_bench_ends_when_its_time_is_over() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    for reverse in [&[][..], &["--reverse"]] {
        let words = ["bench", "--time", "1s", "--rate", "200kbit", "--json", &server.url];
        let attempt = || {
            let output = run(&[&words[..], reverse].concat());
            exits(&output, 0);
            object(&output)["bytes"].as_u64().unwrap()
        };
        let expected = 10_000..60_000;
        let bytes = attempts(attempt, |bytes| expected.contains(bytes));
        assert!(expected.contains(&bytes), "{reverse:?}: {bytes} B");
    }
}

/// Regression test: the bench waited for hours to send the first packet.
#[test]
fn a_bench_whose_first_packet_would_be_late_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    for more in [&[][..], &["--reverse"], &["--dry-run"]] {
        let output = run(&[&["bench", "--time", "1s", "--rate", "1bit", &server.url], more].concat());
        exits(&output, 2);
        assert!(text(&output.stderr).contains("not one packet leaves in 1"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_dry_bench_shows_a_recipes_defaults() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    let shipped = lossy(&run(&["presets", "bulk"]).stdout).replace("chunk = \"100MB\"\n", "");
    assert!(!shipped.contains("chunk ="), "{shipped}");
    let file = root.path().join("mine.toml");
    fs::write(&file, shipped).unwrap();
    let output = run(&["bench", "--dry-run", "--preset", file.to_str().unwrap(), &server.url]);
    exits(&output, 0);
    assert!(lossy(&output.stdout).contains("chunk: 100.0 MB"), "{output:?}");
    let output = run(&["bench", "--dry-run", "--json", &server.url]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(plan["ok"] == true && plan["schema"] == 1 && plan["dry_run"] == true, "{plan}");
    assert_eq!(plan.get("error"), Some(&Value::Null), "as that of a copy: {plan}");
}

#[test]
fn the_report_has_the_requested_law_and_rate() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    for (controller, given) in
        [("fixed", &["--preset", "fixed"][..]), ("reno", &["--controller", "reno"]), ("bbr", &[])]
    {
        for direction in [&[][..], &["--reverse"]] {
            let bench = ["bench", "--json", "--bytes", "1MB", "--rate", "8Mbit", &server.url];
            let attempt = || {
                let output = run(&[&bench, given, direction].concat());
                exits(&output, 0);
                object(&output)
            };
            let report = attempts(attempt, |report| report["limited_by"] == "rate_ceiling");
            assert_eq!(report["controller"], controller, "{direction:?}: {report}");
            assert_eq!(report["limited_by"], "rate_ceiling", "{direction:?}: {report}");
            let evidence = report["limited_by_evidence"].as_str().unwrap();
            assert!(evidence.contains("8.0 Mbit/s was requested"), "{evidence}");
        }
    }
}

#[test]
fn the_trace_reports_the_limit_each_second() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (server, events) = (Server::start(root.path(), &[]), here.path().join("events"));
    let bench = ["bench", "--bytes", "3MB", "--rate", "8Mbit", "--events", events.to_str().unwrap()];
    let limits = || -> Vec<Value> {
        exits(&run(&[&bench[..], &[&server.url]].concat()), 0);
        let trace = fs::read_to_string(&events).unwrap();
        let lines = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["event"] == "limit").collect()
    };
    let are_right =
        |all: &Vec<Value>| all.len() >= 2 && all.iter().all(|limit| limit["limited_by"] == "rate_ceiling");
    let limits = attempts(limits, are_right);
    assert!(limits.len() >= 2, "{limits:?}");
    for limit in limits {
        assert_eq!(limit["limited_by"], "rate_ceiling", "{limit}");
        assert!(
            limit["limited_by_evidence"].as_str().unwrap().contains("8.0 Mbit/s was requested"),
            "{limit}"
        );
    }
}

#[test]
fn the_demo_crosses_its_path_and_leaves_nothing_behind() {
    let scratch = tempfile::tempdir().unwrap();
    let events = scratch.path().join("events");
    let output = haul()
        .args([
            "demo", "--no-tcp", "--size", "3MB", "--files", "20", "--rtt", "10ms", "--loss", "1%", "--events",
        ])
        .arg(&events)
        .env("TMPDIR", scratch.path())
        .output()
        .unwrap();
    exits(&output, 0);
    let words = text(&output.stderr);
    assert!(words.contains("Data:  ") && words.contains("all verified"), "{words}");
    assert!(!words.contains("TCP"), "{words}");
    assert_eq!(scratch.path().read_dir().unwrap().count(), 1, "only the events file must remain");
    let trace = fs::read_to_string(&events).unwrap();
    let lines: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!((names.first(), names.last()), (Some(&"start"), Some(&"end")));
    for name in ["session", "progress", "path"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(lines.windows(2).all(|pair| pair[0]["t"].as_f64() <= pair[1]["t"].as_f64()));
}

#[test]
fn traces_of_both_ends_have_the_receiving_hosts_load() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(root.path(), &[]);
    let (file, events) = (here.path().join("file"), here.path().join("events"));
    fs::write(&file, vec![7; 8_000_000]).unwrap();
    let (file, back) = (file.to_str().unwrap(), here.path().join("back"));
    let copies = [(file, server.at("file")), (&server.at("file"), back.to_str().unwrap().to_owned())];
    for (source, destination) in copies {
        let arguments =
            ["cp", "--rate", "100Mbit", "--events", events.to_str().unwrap(), source, &destination];
        exits(&run(&arguments), 0);
        let trace = fs::read_to_string(&events).unwrap();
        let lines = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let hosts: Vec<Value> =
            lines.map(|line| line["data"]["receiver_host"].clone()).filter(|host| !host.is_null()).collect();
        let last = hosts.last().unwrap_or_else(|| panic!("no host in {trace}"));
        assert!(last["involuntary_switches"].is_u64(), "{last}");
        let fill = last["socket_fill_percent"].as_f64().unwrap();
        assert!((0.0..=100.0).contains(&fill), "{last}");
        // Landlock allows a server to read them, too.
        for (key, path) in [
            ("run_delay_ms", "/proc/thread-self/schedstat"),
            ("steal_ms", "/proc/stat"),
            ("cpu_pressure_percent", "/proc/pressure/cpu"),
            ("disk_pressure_percent", "/proc/pressure/io"),
        ] {
            assert_eq!(last[key].is_number(), fs::read(path).is_ok(), "{key} of {last}");
        }
        assert!(last["sleep_average_ms"].is_null(), "{last}");
    }
}

#[test]
fn a_lost_result_is_a_failure() {
    let here = tree();
    let (from, to) = (here.path().join("tree"), here.path().join("copy"));
    let copy = ["cp", "--json", from.to_str().unwrap(), to.to_str().unwrap()];
    for arguments in [&["presets"][..], &["--show-config"], &copy] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = haul().args(arguments).stdout(full).output().unwrap();
        exits(&output, 7);
        assert!(lossy(&output.stderr).contains("cannot write the result to stdout"), "{arguments:?}");
    }
    assert_same_tree(&from, &to);
    // Without its URL nobody can use a server, so it exits at once.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--root", from.to_str().unwrap()];
    let output = starting(&["timeout", "60"]).args(serve).stdout(full).output().unwrap();
    exits(&output, 7);
    assert!(lossy(&output.stderr).contains("cannot print the URL"), "{}", lossy(&output.stderr));
    let closed = ["timeout", "60", "sh", "-c", "exec \"$@\" >&-", "sh"];
    let output = starting(&closed).args(serve).output().unwrap();
    exits(&output, 2);
    assert!(lossy(&output.stderr).contains("stdout is closed"), "{}", lossy(&output.stderr));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert!(haul().arg("presets").stdout(writer).status().unwrap().success(), "a closed stdout is no error");
}

#[test]
fn a_lost_trace_is_a_failure_in_the_result_object() {
    let here = tree();
    let from = here.path().join("tree");
    let copy = |to: &Path, more: &[&str]| {
        let words = ["cp", "--events", "/dev/full", from.to_str().unwrap(), to.to_str().unwrap()];
        let output = run(&[&words[..], more].concat());
        exits(&output, 7);
        assert_same_tree(&from, to);
        output
    };
    let result = object(&copy(&here.path().join("for a script"), &["--json"]));
    assert!(result["ok"] == false && result["bytes"].as_u64() > Some(0), "{result}");
    assert!(result["error"]["message"].as_str().unwrap().contains("cannot write the events"), "{result}");
    let stderr = lossy(&copy(&here.path().join("for people"), &[]).stderr);
    assert!(
        stderr.contains("all verified") && stderr.contains("cannot write the events to /dev/full"),
        "{stderr}"
    );
}

#[test]
fn a_lost_trace_hides_no_other_failure_and_fails_dry_runs() {
    let here = tree();
    let unreachable = Server::start(here.path(), &[]).at("copy");
    let traced = |words: &[&str], code: i32| {
        let words = [&["cp", "--events", "/dev/full", "tree"], words].concat();
        let output = haul().current_dir(here.path()).args(words).output().unwrap();
        exits(&output, code);
        output
    };
    traced(&[&unreachable], 5);
    assert_eq!(object(&traced(&[&unreachable, "--json"], 5))["error"]["code"], "unreachable");
    let said = lossy(&traced(&["copy", "-n"], 7).stderr);
    assert!(said.contains("cannot write the events to /dev/full"), "{said}");
    assert_eq!(object(&traced(&["copy", "-n", "--json"], 7))["ok"], false);
}

#[test]
fn the_command_line_lifts_ceilings_of_presets_environment_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    fs::write(&config, "rate = '5Mbit'\n").unwrap();
    let shown = |command: &mut Command| {
        let output = command.args(["--json", "--show-config"]).output().unwrap();
        exits(&output, 0);
        let rows = object(&output);
        rows.as_array().unwrap().iter().find(|row| row["key"] == "set.rate").unwrap()["value"].clone()
    };
    let fobs = ["cp", "--preset", "fobs"];
    assert_eq!(shown(haul().args(fobs)), "900Mbit");
    assert_eq!(shown(haul().args(["cp"]).env("HAUL_CONFIG", &config)), "5Mbit");
    for (arguments, file) in [(&fobs[..], OsStr::new("")), (&["cp"], config.as_os_str())] {
        let mut command = haul();
        command.args(arguments).args(["--rate", "unlimited"]).env("HAUL_CONFIG", file);
        assert_eq!(shown(&mut command), "unlimited");
    }
    let mut from_environment = haul();
    from_environment.arg("cp").env("HAUL_CONFIG", &config).env("HAUL_RATE", "unlimited");
    assert_eq!(shown(&mut from_environment), "unlimited");
    for other in ["0", "off", "none"] {
        for option in [["--rate", other], ["--set", &format!("rate={other}")]] {
            let refused = haul().args(["cp"]).args(option).args(["a", "b"]).output().unwrap();
            exits(&refused, 2);
            assert!(lossy(&refused.stderr).contains("unlimited"), "{}", lossy(&refused.stderr));
        }
    }
}

#[test]
fn failures_have_exit_codes_and_appear_in_the_json() {
    let (here, root) = (tree(), tempfile::tempdir().unwrap());
    let read_only = Server::start(root.path(), &["--read-only"]);
    let (tree, nothing) = (here.path().join("tree"), here.path().join("nothing"));
    let (tree, nothing) = (tree.to_str().unwrap(), nothing.to_str().unwrap());
    let (locked, stale) = (read_only.at("copy"), "haul://127.0.0.1:1/?k=x");
    let cases: [(&[&str], i32, &str); 9] = [
        (&["cp", "--json", tree, &locked], 6, "not_permitted"),
        (&["cp", "--json", nothing, "copy"], 7, "no_such_path"),
        (&["cp", "--json", tree, stale], 2, "usage"),
        (&["cp", "--json", tree, ":path"], 2, "usage"),
        (&["cp", "--json", tree], 2, "usage"),
        (&["cp", "--json", "--set", "chnk=1MB", tree, "copy"], 2, "usage"),
        (&["bench", "--json", "--bytes", "100", &locked], 2, "usage"),
        (&["cp", "--json", "--rate", "0", tree, "copy"], 2, "usage"),
        (&["cp", "--json", "--set", "rate=0", tree, "copy"], 2, "usage"),
    ];
    for (arguments, code, name) in cases {
        let output = haul().args(arguments).current_dir(here.path()).output().unwrap();
        exits(&output, code);
        let result = object(&output);
        assert_eq!((&result["ok"], &result["error"]["code"]), (&false.into(), &name.into()), "{result}");
        assert!(!output.stderr.is_empty());
        let is_about_zero = arguments.iter().any(|&word| word == "0" || word == "rate=0");
        assert_eq!(is_about_zero, lossy(&output.stderr).contains("above zero"), "{}", lossy(&output.stderr));
    }
}

/// Regression test: the JSON object had only the first of several lines, which ended with a colon.
#[test]
fn the_object_names_the_option_that_is_missing() {
    let output = run(&["cp", "--json", "--max-delete", "3", "a", "b"]);
    exits(&output, 2);
    let error = &object(&output)["error"];
    assert!(error["message"].as_str().unwrap().ends_with("not provided: --delete"), "{error}");
}

#[test]
fn failed_files_are_named_and_the_others_are_copied() {
    let here = tree();
    let output = haul()
        .args(["cp", "--quiet", "tree/big", "missing", "tree/below/small", "into/"])
        .current_dir(here.path())
        .output()
        .unwrap();
    exits(&output, 3);
    assert!(text(&output.stderr).starts_with("failed: missing: "), "{}", text(&output.stderr));
    assert_eq!(text(&fs::read(here.path().join("into/small")).unwrap()), "small");
}

#[test]
fn a_server_for_one_session_has_the_sessions_exit_code() {
    let (here, root) = (tree(), tempfile::tempdir().unwrap());
    let mut server = Server::start(root.path(), &["--once"]);
    let tree = here.path().join("tree");
    let dry = run(&["cp", "--dry-run", tree.to_str().unwrap(), &server.at("copy")]);
    exits(&dry, 0);
    assert!(text(&dry.stdout).contains("would send") && text(&dry.stdout).contains("cipher: "));
    assert!(!root.path().join("copy").exists());
    exits(&run(&["cp", "-q", tree.to_str().unwrap(), &server.at("copy")]), 0);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn presets_configuration_man_page_and_completions_are_printed() {
    for arguments in
        [&["presets"][..], &["presets", "fixed"], &["--show-config"], &["man"], &["completions", "zsh"]]
    {
        let output = run(arguments);
        exits(&output, 0);
        assert!(output.stdout.len() > 50, "{arguments:?}");
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    }
    let output = run(&["cp", "--show-config", "--json", "--rate", "5Mbit"]);
    let rows = object(&output);
    let rate = rows.as_array().unwrap().iter().find(|row| row["key"] == "rate").unwrap();
    assert_eq!((&rate["value"], &rate["origin"]), (&"5Mbit".into(), &"flag --rate".into()));
    let viz = run(&["pipe", "--preset", "viz", "--rate", "50Mbit", "--show-config", "--json", "haul://h:1/"]);
    let rows = object(&viz);
    let row = |key: &str| rows.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap().clone();
    assert_eq!(
        (&row("set.rate")["value"], &row("set.rate")["origin"]),
        (&"50Mbit".into(), &"flag --rate".into())
    );
    assert_eq!(row("set.controller")["value"], Value::Null);
    for (command, is_shown) in [("serve", true), ("doctor", true), ("status", false)] {
        let output = run(&[command, "--show-config"]);
        assert_eq!(text(&output.stdout).contains("set.chunk"), is_shown, "{command}: {output:?}");
    }
    let unset = run(&["cp", "--diagnosis", "on", "--show-config"]);
    exits(&unset, 0);
}

#[test]
fn no_limit_is_reported_for_tiny_transfers() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(root.path(), &[]);
    let source = here.path().join("source");
    fs::write(&source, "tiny").unwrap();
    let copy = |from: &str, to: &str| object(&run(&["cp", "--json", from, to]));
    let (there, back) = (server.at("there"), here.path().join("back"));
    let source = source.to_str().unwrap();
    for (from, to) in
        [(source, there.as_str()), (source, &there), (&there, back.to_str().unwrap()), ("nosuch", &there)]
    {
        let report = copy(from, to);
        // Copies of less than a second report no limit.
        let is_long = report["seconds"].as_f64() >= Some(1.0);
        assert!(report["limited_by"].is_null() || is_long, "{from} {to}: {report}");
    }
}

#[test]
fn presets_and_controllers_are_listed_one_per_line() {
    let listed = run(&["presets"]);
    let text = String::from_utf8_lossy(&listed.stdout);
    for (name, _) in haul_proto::presets::PRESETS {
        assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} in {text}");
    }
    let (_, laws) = text.split_once("\n\ncontrollers, for --controller:\n").expect(&text);
    for law in haul_proto::laws() {
        assert!(
            laws.lines().any(|line| line.starts_with(&format!("{} ", law.name))),
            "{} in {laws}",
            law.name
        );
    }
}

#[test]
fn presets_are_listed_in_json_with_their_commands() {
    let listed = object(&run(&["presets", "--json"]));
    assert!(listed["ok"] == true && listed["schema"] == 1 && listed["error"].is_null(), "{listed}");
    let all = listed["presets"].as_array().unwrap();
    let names: Vec<_> = all.iter().filter_map(|preset| preset["name"].as_str()).collect();
    let shipped = haul_proto::presets::PRESETS.iter().map(|(name, _)| *name);
    assert_eq!(names, ["default", "fixed"].into_iter().chain(shipped).collect::<Vec<_>>());
    for preset in all {
        let commands: Vec<_> = preset["commands"].as_array().unwrap().iter().collect();
        assert!(
            commands.contains(&&"pipe".into()) && !preset["summary"].as_str().unwrap().is_empty(),
            "{preset}"
        );
    }
    let one = object(&run(&["presets", "viz", "--json"]));
    assert!(one["preset"]["text"].as_str().unwrap().contains("[fixed_rate]"), "{one}");
    assert_eq!(one["preset"]["commands"], serde_json::json!(["pipe"]), "{one}");
    let none = run(&["presets", "vis", "--json"]);
    exits(&none, 2);
    assert!(object(&none)["error"]["message"].as_str().unwrap().contains("`vis`"));
}
