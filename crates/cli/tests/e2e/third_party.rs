//! Copies between two remote machines: three network namespaces, two of them with an sshd. The third runs the
//! command, and its firewall accepts only replies from ssh, so the data cannot pass through it.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    HAUL, Host, LIMIT, Mtu, Net, Outcome, Running, Server, Sshd, assert_same, assert_same_file, children,
    common, copy, descendants, directory, file, many, names, run_here, system, until,
};

/// The machines `a` and `b`, and the one that runs the command.
struct World {
    orders: Host,
    a: Sshd,
    b: Sshd,
    here: TempDir,
    net: Net,
}

impl World {
    fn new() -> Option<Self> {
        let net = Net::new(Mtu::Ethernet)?;
        let orders = net.stranger();
        let route = |host: &Host, to: &str, by: &str| {
            system(host.command("ip").args(["route", "add", to, "via", by]));
        };
        route(&orders, "10.77.0.0/24", Net::SERVER_FOR_STRANGERS);
        route(&net.client, "10.78.0.0/24", Net::SERVER);
        system(net.server.command("sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]));
        orders.firewall("-A", "-i lo -j ACCEPT");
        orders.firewall("-A", "-p tcp --sport 22 -j ACCEPT");
        orders.firewall("-A", "-p tcp -j DROP");
        orders.firewall("-A", "-p udp -j DROP");
        let a = Sshd::on(&net.client, "10.77.0.1")?;
        let b = Sshd::on(&net.server, Net::SERVER_FOR_STRANGERS)?;
        let here = directory();
        let known = here.path().join("known").display().to_string();
        let config =
            [a.client_config("a", "key", ""), b.client_config("b", "key", ""), common(&known)].join("\n");
        fs::write(here.path().join("config"), config).unwrap();
        Some(Self { orders, a, b, here, net })
    }

    fn cp(&self, words: &[&str]) -> Command {
        copy(self.orders.command(HAUL), &self.here.path().join("config"), words)
    }

    #[track_caller]
    fn copies(&self, words: &[&str]) -> Outcome {
        Running::start(&mut self.cp(words)).wait(LIMIT)
    }

    /// A running copy of 24 MiB from `a` to `b`: a detached one, or one that takes about 10 s.
    fn under_way(&self, options: &[&str]) -> Running {
        file(&self.a.home().join("large"), 1, 24 << 20);
        let detached = options.contains(&"--detach");
        let rate = if detached { "60Mbit" } else { "20Mbit" };
        let running =
            Running::start(&mut self.cp(&[options, &["--rate", rate, "a:large", "b:got"]].concat()));
        until("bytes at the destination", || has_bytes(&self.b.home()));
        if detached {
            until("the message that the copy is detached", || running.stderr().contains("detached:"));
        }
        running
    }

    fn until_both_have_ended(&self) {
        until("both sides to end", || self.a.hauls().is_empty() && self.b.hauls().is_empty());
        // Removes resumable state, so that the next copy starts from zero.
        run_here([std::ffi::OsStr::new("clean"), self.b.home().as_os_str()]).exits(0);
    }
}

fn has_bytes(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).any(|found| found.is_file() && found.blocks() > 0)
}

#[test]
fn a_tree_is_copied_directly_and_progress_is_shown_locally() {
    let Some(world) = World::new() else { return };
    let (from, to) = (world.a.home().join("tree"), world.b.home().join("tree"));
    many(&from, 100, 8_000_000);
    let events = world.here.path().join("events").display().to_string();
    let outcome = world
        .copies(&["--json", "--set", "chunk=1MB", "--rate", "50Mbit", "--events", &events, "a:tree", "b:"])
        .exits(0);
    assert_same(&from, &to);
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&json["ok"], &json["files"]), (&true.into(), &101.into()), "{json}");
    assert!(json["digest"].is_string() && json["packets_sent"].as_u64() > Some(5_000), "{json}");
    assert!(json["goodput_bps"].as_f64() < Some(50e6), "the maximum rate was not passed on: {json}");
    let trace = fs::read_to_string(&events).unwrap();
    let seen: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |name: &str| seen.iter().filter(|event| event["event"] == name).count();
    assert!(count("progress") > 3 && count("session") > 0, "{trace}");
    assert_eq!((count("start"), count("end")), (1, 1), "{trace}");
    world.until_both_have_ended();
    // The summary is that of any other copy.
    let outcome = world.copies(&["a:tree", "b:again"]).exits(0);
    let last: Vec<&str> = outcome.stderr.lines().rev().take(2).collect();
    assert!(last[0].starts_with("Limited by: ") && last[1].contains("101 files"), "{}", outcome.stderr);
}

#[test]
fn no_secret_is_on_a_command_line() {
    let Some(world) = World::new() else { return };
    let running = world.under_way(&[]);
    let mut hauls = world.a.hauls();
    hauls.extend(world.b.hauls());
    assert_eq!(hauls.len(), 2, "one process on each machine");
    for pid in hauls.into_iter().chain([running.id().cast_signed()]) {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let words = String::from_utf8_lossy(&words).into_owned();
        assert!(words.contains("cp") || words.contains("serve"), "{words}");
        assert!(!words.contains("haul://") && !words.contains("k="), "{words}");
    }
    drop(running);
    world.until_both_have_ended();
}

#[test]
fn the_transfer_stops_with_the_local_process() {
    let Some(world) = World::new() else { return };
    let running = world.under_way(&[]);
    running.signal(Signal::INT);
    let outcome = running.wait(LIMIT).exits(130);
    assert!(outcome.stderr.contains("a:large b:got"), "the command is printed: {}", outcome.stderr);
    world.until_both_have_ended();
    assert!(!world.b.home().join("got").exists());
    // Ctrl-C at a terminal also signals ssh.
    let running = world.under_way(&[]);
    running.signal(Signal::INT);
    for ssh in children(running.id()) {
        // It may have ended already.
        let _ = kill_process(Pid::from_raw(ssh).unwrap(), Signal::INT);
    }
    running.wait(LIMIT).exits(130);
    world.until_both_have_ended();
    let running = world.under_way(&[]);
    running.signal(Signal::KILL);
    running.wait(LIMIT);
    world.until_both_have_ended();
    assert!(!world.b.home().join("got").exists());
}

#[test]
fn a_detached_transfer_continues_without_the_local_process() {
    let Some(world) = World::new() else { return };
    for signal in [Signal::KILL, Signal::INT] {
        let running = world.under_way(&["--detach"]);
        running.signal(signal);
        let outcome = running.wait(LIMIT);
        let log = outcome.stderr.lines().find_map(|line| line.split_once("log a:")).map(|(_, rest)| rest);
        let log = log.and_then(|rest| rest.split(',').next()).expect(&outcome.stderr).to_owned();
        if signal == Signal::INT {
            let outcome = outcome.exits(130).assert_shows(&["continues on a"]);
            assert!(!outcome.stderr.contains("Run it again"), "{}", outcome.stderr);
            assert!(outcome.stderr.contains(&log));
            world.until_both_have_ended();
            assert!(fs::read_to_string(&log).unwrap().contains("all verified"));
        } else {
            world.until_both_have_ended();
            assert!(fs::read_to_string(&log).unwrap().contains("copy a:large to b:got"));
        }
        assert_same_file(&world.a.home().join("large"), &world.b.home().join("got"));
        fs::remove_file(world.b.home().join("got")).unwrap();
    }
}

#[test]
fn a_transfer_is_reported_as_detached_once_it_is() {
    let Some(world) = World::new() else { return };
    file(&world.a.home().join("x"), 1, 300_000);
    // The address that b announces does not answer, so the next one is tried some seconds later.
    fs::create_dir_all(world.b.home().join(".config/haul")).unwrap();
    fs::write(world.b.home().join(".config/haul/config.toml"), "[serve]\nhost = \"10.99.0.1\"").unwrap();
    system(world.net.client.command("ip").args(["route", "add", "10.99.0.0/24", "via", Net::SERVER]));
    let silence = ["-w", "-A", "OUTPUT", "-d", "10.99.0.1", "-j", "DROP"];
    system(world.net.client.command("iptables").args(silence));
    let running = Running::start(&mut world.cp(&["--detach", "a:x", "b:y"]));
    until("the message that the copy is detached", || running.stderr().contains("detached:"));
    running.signal(Signal::KILL);
    running.wait(LIMIT);
    world.until_both_have_ended();
    assert_same_file(&world.a.home().join("x"), &world.b.home().join("y"));
}

/// Kills the ssh to the machine that copies.
fn cut(running: &Running) {
    kill(running, "cp --for-ssh");
}

/// Kills the ssh that runs `command` remotely.
fn kill(running: &Running, command: &str) {
    let ssh = children_with(running, command);
    assert_eq!(ssh.len(), 1);
    kill_process(Pid::from_raw(ssh[0]).unwrap(), Signal::KILL).unwrap();
}

fn children_with(running: &Running, words: &str) -> Vec<i32> {
    let has_them = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(words)
    };
    children(running.id()).into_iter().filter(has_them).collect()
}

#[test]
fn the_death_of_ssh_stops_the_transfer_unless_detached() {
    let Some(world) = World::new() else { return };
    let running = world.under_way(&[]);
    cut(&running);
    running.wait(LIMIT).exits(5).assert_shows(&["connection to a was lost", "stops there", "--detach"]);
    world.until_both_have_ended();
    assert!(!world.b.home().join("got").exists());
    let running = world.under_way(&["--detach"]);
    cut(&running);
    running.wait(LIMIT).exits(5).assert_shows(&["connection to a was lost", "continues there", "tail"]);
    world.until_both_have_ended();
    assert_same_file(&world.a.home().join("large"), &world.b.home().join("got"));
}

/// A dead server is not reported as a closed port.
#[test]
fn the_early_death_of_the_ssh_to_the_server_is_reported() {
    let Some(world) = World::new() else { return };
    file(&world.a.home().join("x"), 1, 300_000);
    let script = format!("#!/bin/sh\n[ $1 = serve ] || sleep 2\nexec {HAUL} \"$@\"\n");
    for home in [&world.a, &world.b] {
        home.script("haul", &script);
    }
    let running = Running::start(&mut world.cp(&["--remote-binary", "~/haul", "a:x", "b:y"]));
    until("ssh to a", || !children_with(&running, "cp --for-ssh").is_empty());
    kill(&running, "serve --once");
    running.wait(LIMIT).exits(5).assert_shows(&["seen from a", "connection to b ended early"]);
    world.until_both_have_ended();
}

#[test]
fn a_detached_transfer_watched_to_its_end_reports_normally() {
    let Some(world) = World::new() else { return };
    file(&world.a.home().join("x"), 1, 300_000);
    let outcome = world.copies(&["--detach", "a:x", "b:y"]).exits(0);
    assert!(outcome.stderr.contains("all verified") && outcome.stderr.contains("stop it"), "{outcome:?}");
}

#[test]
fn between_an_ssh_host_and_a_server() {
    let Some(world) = World::new() else { return };
    let root = directory();
    let server = Server::start(&world.net, root.path(), &[]);
    let source = world.a.home().join("it's x");
    file(&source, 1, 300_000);
    let log_lines = |words: &[&str], line: &str| {
        let outcome = world.copies(&[&["-n"], words].concat()).exits(0);
        assert!(outcome.stdout.lines().any(|stdout_line| stdout_line == line), "{outcome:?}");
    };
    log_lines(&["a:it's x", &server.at("in")], "send in (300.0 kB)");
    assert!(!root.path().join("in").exists());
    world.copies(&["a:it's x", &server.at("in")]).exits(0);
    assert_same_file(&source, &root.path().join("in"));
    log_lines(&[&server.at("in"), "a:back"], "send back (300.0 kB)");
    assert!(!world.a.home().join("back").exists());
    world.copies(&[&server.at("in"), "a:back"]).exits(0);
    assert_same_file(&source, &world.a.home().join("back"));
    assert!(names(&world.b.home()).is_empty());
}

#[test]
fn a_dry_run_lists_the_changes_of_every_remote_name() {
    let Some(world) = World::new() else { return };
    let (from, to) = (world.a.home().join("from"), world.b.home().join("to"));
    for (directory, files) in [(&from, &["kept", "new", "other"][..]), (&to, &["kept", "other", "gone"])] {
        fs::create_dir(directory).unwrap();
        for name in files {
            fs::write(directory.join(name), name.repeat(100)).unwrap();
        }
    }
    system(Command::new("touch").arg("-r").args([from.join("kept"), to.join("kept")]));
    system(Command::new("touch").args(["-d", "2001-01-01"]).arg(to.join("other")));
    let outcome = world.copies(&["-nv", "--delete", "a:from/.", "b:to/"]).exits(0);
    let stdout_lines: Vec<&str> = outcome.stdout.lines().collect();
    let at = |line: &str| {
        let found = stdout_lines.iter().position(|stdout_lines| stdout_lines.starts_with(line));
        found.unwrap_or_else(|| panic!("{line}: {outcome:?}"))
    };
    for item in ["send new (300 B)", "replace other (500 B)", "keep kept", "delete gone"] {
        assert!(at("udp: ") < at(item) && at(item) < at("would send"), "{item}: {outcome:?}");
    }
    assert_eq!(stdout_lines[0], "would copy a:from/. to b:to/");
    assert_eq!(
        stdout_lines.last(),
        Some(&"would send 800 B in 2 files, 1 file there already, 1 name deleted")
    );
    let outcome = world.copies(&["-n", "--json", "--delete", "a:from/.", "b:to/"]).exits(0);
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(json["items"]["delete"], serde_json::json!([{ "path": "gone" }]), "{json}");
    assert_eq!(json["items"]["send"], serde_json::json!([{ "path": "new", "size": 300 }]), "{json}");
    assert!(json["negotiated"]["udp"].is_string() && json["dry_run"] == true && json["ok"] == true, "{json}");
    // More entries than any buffer holds; all must arrive here.
    let many_names = world.a.home().join("many");
    fs::create_dir(&many_names).unwrap();
    for at in 0..3000 {
        fs::write(many_names.join(format!("file {at}")), "").unwrap();
    }
    let outcome = world.copies(&["-n", "a:many", "b:"]).exits(0);
    assert_eq!(outcome.stdout.lines().filter(|line| line.starts_with("send ")).count(), 3000);
    assert_eq!(names(&to), ["gone", "kept", "other"]);
    assert!(!world.b.home().join("many").exists());
    world.until_both_have_ended();
}

#[test]
fn a_recipe_is_passed_on_and_names_are_reported() {
    let Some(world) = World::new() else { return };
    let (from, to) = (world.a.home().join("tree"), world.b.home().join("tree"));
    many(&from, 50, 2_000_000);
    let custom_preset = world.here.path().join("own.toml");
    let text = haul_proto::presets::PRESETS.iter().find(|(name, _)| *name == "rbudp").unwrap().1;
    fs::write(&custom_preset, text).unwrap();
    let preset = custom_preset.display().to_string();
    for (preset, shown) in [("rbudp", "rbudp"), ("fobs", "fobs"), (&preset, "own")] {
        let outcome = world.copies(&["-v", "--preset", preset, "--rate", "50Mbit", "a:tree", "b:"]).exits(0);
        assert_same(&from, &to);
        assert!(outcome.stderr.contains(&format!("preset {shown},")), "{}", outcome.stderr);
        let count = |word: &str| outcome.stderr.lines().filter(|line| line.starts_with(word)).count();
        assert_eq!((count("send tree/"), count("mkdir tree")), (51, 41), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("delete "), "{}", outcome.stderr);
        fs::remove_dir_all(&to).unwrap();
        world.until_both_have_ended();
    }
    world.copies(&["--preset", "viz", "a:tree", "b:"]).exits(2).assert_shows(&["needs object"]);
    // A detached copy lists its files in its log.
    let outcome = world.copies(&["-v", "--detach", "a:tree", "b:"]).exits(0);
    let log = outcome.stderr.lines().find_map(|line| line.split_once("log a:")).map(|(_, rest)| rest);
    let log = log.and_then(|rest| rest.split(',').next()).expect(&outcome.stderr);
    assert!(fs::read_to_string(log).unwrap().contains("\nsend tree/large (2.0 MB)\n"));
    assert!(!outcome.stderr.contains("send tree/large"), "{}", outcome.stderr);
    world.until_both_have_ended();
}

#[test]
fn local_lists_select_files_for_a_third_party_transfer() {
    let Some(world) = World::new() else { return };
    let from = world.a.home().join("from");
    fs::create_dir(&from).unwrap();
    for name in ["kept", "left", "other"] {
        fs::write(from.join(name), name).unwrap();
    }
    let list = |name: &str, text: &str| {
        let path = world.here.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (rules, paths) = (list("rules", "left\n"), list("paths", "kept\nleft\n"));
    world.copies(&["--exclude-from", &rules, "--files-from", &paths, "a:from", "b:"]).exits(0);
    assert_eq!(names(&world.b.home().join("from")), ["kept"]);
    world.until_both_have_ended();
}

#[test]
fn failures_of_both_machines_are_reported_locally() {
    let Some(world) = World::new() else { return };
    file(&world.a.home().join("x"), 1, 300_000);
    world.copies(&["a:missing", "b:y"]).exits(7).assert_shows(&["missing"]);
    world.copies(&["a:x", "b:no/such/place/"]).exits(7).assert_shows(&["no/such"]);
    world.copies(&["--dry-run", "a:missing", "b:y"]).exits(7).assert_shows(&["missing"]);
    world.net.server.firewall("-I", "-p udp -j DROP");
    world.copies(&["a:x", "b:y"]).exits(5).assert_shows(&["seen from a", "UDP", "--port-range"]);
    world.copies(&["--remote-binary", "nowhere", "a:x", "b:y"]).exits(5).assert_shows(&["on b"]);
    world.copies(&["a:x", "b:y", "a:z"]).exits(2).assert_shows(&["different machines"]);
    assert!(names(&world.b.home()).is_empty());
    world.until_both_have_ended();
}

/// Every user of a machine can read all command lines, so the key is passed from the server to the remote
/// client through this machine, over stdin and stdout of two ssh processes.
#[test]
fn the_key_is_on_no_command_line() {
    let Some(world) = World::new() else { return };
    let mut running = world.under_way(&[]);
    let holds = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    let (mut hauls, mut log_lines) = (std::collections::BTreeSet::new(), 0);
    while running.is_running() {
        let mut roots = vec![running.id(), world.a.id(), world.b.id()];
        // Processes whose ssh has ended.
        roots.extend([&world.a, &world.b].iter().flat_map(|sshd| sshd.hauls()).map(i32::cast_unsigned));
        for (pid, line, environment) in descendants(&roots) {
            let shown = String::from_utf8_lossy(&line).replace('\0', " ");
            assert!(!holds(&line, b"k=") && !holds(&environment, b"?k="), "process {pid}: {shown}");
            if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program == Path::new(HAUL)) {
                hauls.insert(pid);
            }
        }
        log_lines += 1;
    }
    assert!(hauls.len() >= 3 && log_lines > 50, "{} haul processes seen in {log_lines} polls", hauls.len());
    running.wait(LIMIT).exits(0);
    assert_same_file(&world.a.home().join("large"), &world.b.home().join("got"));
}
