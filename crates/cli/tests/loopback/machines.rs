//! Several servers send to this machine at the same time, on the loopback interface.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Server, exits, haul, lossy, object, run};

/// Two servers, and the destination.
struct Machines {
    roots: [tempfile::TempDir; 2],
    servers: [Server; 2],
    here: tempfile::TempDir,
}

impl Machines {
    fn new() -> Self {
        let roots = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let servers = [0, 1].map(|at: usize| Server::start(roots[at].path(), &[]));
        Self { roots, servers, here: tempfile::tempdir().unwrap() }
    }

    /// Both have a directory `out` with one file, named `a` and `b`.
    fn with_files() -> Self {
        let machines = Self::new();
        for (root, name) in machines.roots.iter().zip(["a", "b"]) {
            fs::create_dir(root.path().join("out")).unwrap();
            fs::write(root.path().join("out").join(name), name.repeat(300_000)).unwrap();
        }
        machines
    }

    fn to(&self) -> PathBuf {
        self.here.path().join("all")
    }

    /// `haul cp` from both servers to the common destination.
    fn copy(&self, options: &[&str], path: &str) -> std::process::Output {
        let [one, two] = &self.servers;
        let to = self.to();
        run(&[&["cp"], options, &[&one.at(path), &two.at(path), to.to_str().unwrap()]].concat())
    }
}

#[test]
fn files_of_one_source_are_not_deleted_because_another_lacks_them() {
    let machines = Machines::with_files();
    exits(&machines.copy(&["-q"], "out"), 0);
    for options in [&["--delete"][..], &["-n", "--delete"], &["--delete", "--max-delete", "1"]] {
        let refused = machines.copy(options, "out");
        exits(&refused, 2);
        assert!(lossy(&refused.stderr).contains("several machines"), "{}", lossy(&refused.stderr));
    }
    assert!(machines.to().join("out/a").exists() && machines.to().join("out/b").exists());
}

#[test]
fn the_combined_report_has_the_combined_values() {
    let machines = Machines::with_files();
    let events = machines.here.path().join("events");
    let output = machines.copy(&["--json", "--rate", "100Mbit", "--events", events.to_str().unwrap()], "out");
    exits(&output, 0);
    let report = object(&output);
    assert_eq!((&report["files"], &report["bytes"]), (&2.into(), &600_000.into()), "{report}");
    for known in ["rtt_ms", "limited_by", "limited_by_evidence", "max_rss_bytes", "digest"] {
        assert!(!report[known].is_null(), "{known}: {report}");
    }
    assert!(report["cpu_seconds"]["sender"].is_number() && report["cpu_seconds"]["receiver"].is_number());
    assert_eq!((&report["ok"], &report["controller"]), (&true.into(), &"bbr".into()));
    let trace = fs::read_to_string(&events).unwrap();
    let seen: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |server: &Server, event: &str| {
        let address = server.url.split(['/', '?']).nth(2).unwrap();
        seen.iter().filter(|line| line["machine"] == address && line["event"] == event).count()
    };
    for server in &machines.servers {
        assert!(of(server, "session") == 1 && of(server, "progress") > 0, "{trace}");
    }
    let of_all: Vec<&Value> = seen.iter().filter(|line| line["machine"].is_null()).collect();
    assert_eq!((of_all.len(), &of_all[0]["event"], &of_all[1]["event"]), (2, &"start".into(), &"end".into()));
}

#[test]
fn progress_is_one_line_with_totals() {
    let machines = Machines::new();
    for (root, name) in machines.roots.iter().zip(["a", "b"]) {
        fs::write(root.path().join(name), vec![7; 8_000_000]).unwrap();
    }
    let [one, two] = &machines.servers;
    let to = machines.to();
    // At least four seconds; the first progress line appears after three.
    let output = run(&["cp", "--rate", "30Mbit", &one.at("a"), &two.at("b"), to.to_str().unwrap()]);
    exits(&output, 0);
    let stderr = lossy(&output.stderr);
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains(" now, ")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(" of 16.0 MB | ")), "{stderr}");
}

#[test]
fn a_failing_source_is_named_and_the_others_remain() {
    let machines = Machines::with_files();
    fs::remove_dir_all(machines.roots[1].path().join("out")).unwrap();
    let name = machines.servers[1].url.split(['/', '?']).nth(2).unwrap();
    let output = machines.copy(&[], "out");
    exits(&output, 3);
    let stderr = lossy(&output.stderr);
    assert!(stderr.contains(name) && stderr.contains("failed"), "{stderr}");
    assert!(machines.to().join("out/a").exists());
    let report = object(&machines.copy(&["--json"], "out"));
    assert_eq!((&report["ok"], &report["kept_files"]), (&false.into(), &1.into()), "{report}");
    assert_eq!(report["error"]["code"], "no_such_path", "{report}");
    exits(&machines.copy(&["-n"], "out"), 3);
    // Every source fails.
    exits(&machines.copy(&["-q"], "nowhere"), 7);
    exits(&machines.copy(&["-n"], "nowhere"), 7);
}

#[test]
fn a_dry_run_creates_nothing_and_lists_the_files_of_each_source() {
    let machines = Machines::with_files();
    let output = machines.copy(&["-n"], "out");
    exits(&output, 0);
    let stdout = lossy(&output.stdout);
    for line in ["send out/a (300.0 kB)", "send out/b (300.0 kB)", "would send 600.0 kB in 2 files"] {
        assert!(stdout.contains(line), "{stdout}");
    }
    assert!(!lossy(&output.stderr).contains("Moved"), "{}", lossy(&output.stderr));
    let report = object(&machines.copy(&["-n", "--json"], "out"));
    assert_eq!(report["items"]["send"].as_array().map(Vec::len), Some(2), "{report}");
    assert!(!machines.to().exists());
}

#[test]
fn failures_name_their_machine() {
    let machines = Machines::with_files();
    // Both fail on this one: a link to nothing, which is followed.
    for root in &machines.roots {
        std::os::unix::fs::symlink("nowhere", root.path().join("out/dangling")).unwrap();
    }
    let output = machines.copy(&["--json", "--copy-links"], "out");
    let report = object(&output);
    let failures = report["failures"].as_array().unwrap();
    let mut from: Vec<&str> = failures.iter().map(|failure| failure["machine"].as_str().unwrap()).collect();
    from.sort_unstable();
    let mut servers = machines.servers.each_ref().map(|server| server.url.split(['/', '?']).nth(2).unwrap());
    servers.sort_unstable();
    assert_eq!(from, servers, "{report}");
    assert!(failures.iter().all(|failure| failure["path"] == "out/dangling"), "{report}");
    let stderr = lossy(&machines.copy(&["--copy-links"], "out").stderr);
    for server in servers {
        assert!(stderr.contains(&format!("failed: out/dangling from {server}: ")), "{stderr}");
    }
    // With a single machine its name is not repeated.
    let to = machines.to();
    let one = run(&["cp", "--json", "--copy-links", &machines.servers[0].at("out"), to.to_str().unwrap()]);
    let report = object(&one);
    assert_eq!(report["failures"][0]["path"], "out/dangling", "{report}");
    assert!(report["failures"][0].get("machine").is_none(), "{report}");
}

#[test]
fn the_destination_is_not_created_through_another_users_link() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give a link to another user");
        return;
    }
    let here = tempfile::tempdir().unwrap();
    fs::create_dir(here.path().join("victim")).unwrap();
    let link = here.path().join("att");
    std::os::unix::fs::symlink("victim", &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(65_534), Some(65_534)).unwrap();
    let words = ["cp", "--ssh", "false", "a:x", "b:y", "att/new2"];
    let output = haul().args(words).current_dir(here.path()).output().unwrap();
    assert!(lossy(&output.stderr).contains("of another user"), "{}", lossy(&output.stderr));
    assert!(!output.status.success() && !here.path().join("victim/new2").exists());
}
