//! Command lines: rejected arguments, and the environment of COMMAND.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use haul_testing::{copy_program, privileged};

use crate::support::haul_lab;

fn run(words: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = haul_lab().args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn impossible_options_are_refused_with_an_example_before_anything_is_created() {
    for (words, hint) in [
        (&["--rtt", "100"][..], "50ms"),
        (&["--rate", "1GB"], "800Mbit"),
        (&["--loss", "200%"], "0.1%"),
        (&["--queue", "10"], "64KiB"),
        (&["--outage", "5s"], "5s+1s"),
        (&["--aqm", "pie"], "codel"),
        (&["--aqm", "red"], "--rate"),
        (&["--burst-loss", "4"], "--loss"),
        (&["--mtu", "100"], "1280"),
        (&["--change", "loss=1%"], "10s:loss=1%"),
        (&["--change", "1s:jitter=1ms"], "--jitter 0ms"),
        (&["--change", "1s:rate=1Mbit"], "--rate"),
        (&["--background", "udp"], "udp:100Mbit"),
        (&["--path", "/nonexistent/path.toml"], "path.toml"),
        (&["--path", "x.toml", "--rtt", "5ms"], "--rtt"),
    ] {
        let words: Vec<&str> =
            ["wan"].into_iter().chain(words.iter().copied()).chain(["--", "true"]).collect();
        let (code, _, stderr) = run(&words);
        assert_eq!(code, Some(2), "{words:?}: {stderr}");
        assert!(stderr.contains(hint), "{words:?}: {stderr}");
    }
}

#[test]
fn help_has_examples() {
    for words in [&["--help"][..], &["wan", "--help"]] {
        let (code, stdout, _) = run(words);
        assert_eq!(code, Some(0));
        assert!(stdout.contains("Examples:") && stdout.contains("haul-lab wan --r"), "{stdout}");
    }
}

#[test]
fn a_command_gets_addresses_and_its_exit_code_is_returned() {
    if !privileged("a_command_gets_addresses_and_its_exit_code_is_returned") {
        return;
    }
    let shell = |script: &str| run(&["wan", "-q", "--", "sh", "-c", script]);
    assert_eq!(shell("exit 7").0, Some(7));
    assert_eq!(shell("kill -9 $$").0, Some(137));
    assert_eq!(run(&["wan", "-q", "--", "/nonexistent"]).0, Some(127));
    let (code, stdout, _) =
        shell("echo $HAUL_WAN_A $HAUL_WAN_B $HAUL_WAN_B6; $HAUL_WAN_ON_B cat /proc/net/fib_trie");
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with("10.201.0.1 10.201.0.2 fd00:201::2\n"), "{stdout}");
    assert!(stdout.contains("10.201.0.2") && stdout.contains("LOCAL"), "{stdout}");
}

#[test]
fn json_is_the_only_thing_on_standard_output() {
    if !privileged("json_is_the_only_thing_on_standard_output") {
        return;
    }
    let (code, stdout, stderr) = run(&["wan", "--rtt", "2ms", "--seed", "5", "--json", "--", "true"]);
    assert_eq!(code, Some(0), "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["seed"], 5);
    assert_eq!(report["path"]["forth"]["stages"][2]["delay"], "1ms");
    assert!(stderr.contains("seed 5"), "{stderr}");
}

#[test]
fn a_path_file_configures_every_stage() {
    if !privileged("a_path_file_configures_every_stage") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("path.toml");
    let text = "[forth]\nstages = [{ bottleneck = { rate = \"10Mbit\", queue = { tail_drop = \"64KiB\" } } }, { delay = \"1ms\" }]\n\
                [back]\nstages = [{ delay = \"3ms\" }]\n";
    fs::write(&file, text).unwrap();
    let (code, stdout, stderr) =
        run(&["wan", "-q", "--json", "--path", file.to_str().unwrap(), "--", "true"]);
    assert_eq!(code, Some(0), "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["back"]["stages"][0]["name"], "delay");
    assert_eq!(report["forth"]["stages"].as_array().unwrap().len(), 2);
}

/// Runs as nobody, in a mount namespace in which `prepare` was executed.
fn run_unprivileged(prepare: &str, words: &str) -> (Option<i32>, String) {
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let program = directory.path().join("haul-lab");
    copy_program(Path::new(env!("CARGO_BIN_EXE_haul-lab")), &program);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory.path(), open).unwrap();
    let script = format!(
        "{prepare}; exec setpriv --reuid 65534 --regid 65534 --clear-groups {} {words}",
        program.display()
    );
    let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn without_privilege_the_missing_capability_and_the_demo_are_named() {
    if !privileged("without_privilege_the_missing_capability_and_the_demo_are_named") {
        return;
    }
    let closed = "mount -t tmpfs tmpfs /dev/net && mknod -m 600 /dev/net/tun c 10 200";
    let (code, text) = run_unprivileged(closed, "wan -- true");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("/dev/net/tun") && text.contains("haul demo"), "{text}");
}

#[test]
fn without_user_namespaces_the_missing_capability_and_the_demo_are_named() {
    let test = "without_user_namespaces_the_missing_capability_and_the_demo_are_named";
    if !privileged(test) {
        return;
    }
    // In a private user namespace the limit can be set to 0 without affecting this machine's.
    let closed =
        "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -sys_admin \"$0\" \"$@\"";
    let words = ["-r", "sh", "-c", closed, env!("CARGO_BIN_EXE_haul-lab"), "wan", "--", "true"];
    let output = Command::new("unshare").args(words).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in ["CAP_SYS_ADMIN", "user namespace", "haul demo"] {
        assert!(text.contains(word), "{text}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn a_user_namespace_suffices_if_the_kernel_allows_it() {
    let test = "a_user_namespace_suffices_if_the_kernel_allows_it";
    let allowed = fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|n| n.trim() != "0");
    if !privileged(test) {
        return;
    }
    if !allowed {
        eprintln!("SKIPPED {test}: user namespaces are switched off");
        return;
    }
    let open = "mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200";
    let (code, text) =
        run_unprivileged(open, "wan --rtt 2ms -q -- sh -c '$HAUL_WAN_ON_B cat /proc/net/fib_trie; id -u'");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("10.201.0.2") && text.trim_end().ends_with('0'), "{text}");
}
