//! Failures between ssh and the remote program: each has its exit code and a hint.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    HAUL, LIMIT, Outcome, Running, Sshd, clean, copy, directory, file, names, script, until,
};

/// A directory with a file to send.
fn source() -> (TempDir, PathBuf) {
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 10_000);
    (here, source)
}

#[test]
fn haul_is_missing_or_not_executable_on_the_remote() {
    let Some(sshd) = Sshd::here("") else { return };
    let (_here, source) = source();
    let cp = |binary: &str| {
        sshd.copies([
            OsStr::new("--remote-binary"),
            OsStr::new(binary),
            source.as_os_str(),
            OsStr::new("far:x"),
        ])
    };
    cp("haul-is-not-here").exits(5).assert_shows(&[
        "`haul-is-not-here` was not found on far",
        &format!("`scp -F {} ", sshd.config().display()),
        "--remote-binary",
    ]);
    fs::write(sshd.home().join("not a program"), "").unwrap();
    cp("~/not a program").exits(5).assert_shows(&["cannot be executed", "chmod"]);
    // The same path works once it leads to the program: spaces and the tilde are handled.
    fs::remove_file(sshd.home().join("not a program")).unwrap();
    std::os::unix::fs::symlink(HAUL, sshd.home().join("not a program")).unwrap();
    cp("~/not a program").exits(0);
}

#[test]
fn a_different_remote_version_is_named() {
    let Some(sshd) = Sshd::here("") else { return };
    let (_here, source) = source();
    let cp = |binary: &Path| {
        sshd.copies([
            OsStr::new("--remote-binary"),
            binary.as_os_str(),
            source.as_os_str(),
            OsStr::new("far:x"),
        ])
    };
    let newer =
        sshd.script("newer", r#"echo '#haul-over-ssh# {"program":"9.9.9","protocol":999,"url":7}'; cat"#);
    cp(&newer).exits(1).assert_shows(&["haul on far is 9.9.9", "999", env!("CARGO_PKG_VERSION"), "upgrade"]);
    let older = sshd.script("older", "echo \"error: unexpected argument '--for-ssh' found\" >&2; exit 2");
    cp(&older).exits(1).assert_shows(&["older than haul here", "upgrade"]);
}

#[test]
fn another_program_is_distinguished_from_a_banner() {
    let Some(sshd) = Sshd::here("") else { return };
    let (_here, source) = source();
    let cp = |text: &str| {
        let program = sshd.script("program", text);
        sshd.copies([
            OsStr::new("--remote-binary"),
            program.as_os_str(),
            source.as_os_str(),
            OsStr::new("far:x"),
        ])
    };
    cp("echo Only files here.").exits(5).assert_shows(&["did not start haul", "Only files here."]);
    cp("yes | head -c 200000; cat").exits(5).assert_shows(&["printed too much before haul started", "`y`"]);
    cp("head -c 60000 /dev/urandom | tr -d '#'").exits(5).assert_shows(&["did not start haul"]);
    cp("echo lost its library >&2; exit 3").exits(5).assert_shows(&[
        "code 3",
        "lost its library",
        "--version",
    ]);
}

#[test]
fn rejected_keys() {
    let Some(sshd) = Sshd::here("") else { return };
    let (_here, source) = source();
    let cp = |config: &Path| {
        let words = [OsStr::new("--json"), OsStr::new("-F"), config.as_os_str(), source.as_os_str()];
        let mut command = Command::new(HAUL);
        clean(&mut command);
        command.args(["cp", "--remote-binary", HAUL]).args(words).arg("far:x");
        Running::start(&mut command).wait(LIMIT)
    };
    let refused = |outcome: Outcome, words: &str| {
        let outcome = outcome.exits(6).assert_shows(&[words]);
        let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(json["error"]["code"], "not_authorised", "{json}");
    };
    refused(cp(&sshd.write_client_config("wrong", "other-key", "")), "Permission denied");
    let known = sshd.home().join("known");
    fs::write(&known, "").unwrap();
    let strict = format!("StrictHostKeyChecking yes\nUserKnownHostsFile {}", known.display());
    refused(cp(&sshd.write_client_config("strict", "key", &strict)), "Host key verification failed");
    assert_eq!(names(&sshd.home()), ["known"]);
}

/// The tests know no account's password, so only wrong ones are tested.
#[test]
fn a_password_is_requested_and_a_wrong_or_missing_one_fails() {
    let Some(sshd) = Sshd::here("PasswordAuthentication yes\nAuthenticationMethods password") else { return };
    if Command::new("setsid").arg("-V").output().is_err() {
        crate::support::skip("the program `setsid` is missing");
        return;
    }
    let (here, source) = source();
    let options = "PasswordAuthentication yes\nPreferredAuthentications password";
    let config = sshd.write_client_config("password", "key", options);
    let hint = format!("make `ssh -F {} far true` work first", config.display());
    let cp = |asking: &str| {
        let mut alone = Command::new("setsid");
        alone.args(["-w", HAUL]).env_remove("DISPLAY").env("SSH_ASKPASS_REQUIRE", asking);
        let place = here.path().display();
        alone.env("SSH_ASKPASS", script(here.path(), "ask", &format!(": > {place}/asked; echo wrong")));
        let words = [source.as_os_str(), OsStr::new("far:x")];
        Running::start(&mut copy(alone, &config, words)).wait(LIMIT).exits(6).assert_shows(&[
            "Permission denied",
            "terminal",
            &hint,
        ])
    };
    cp("never");
    assert!(!here.path().join("asked").exists());
    cp("force");
    assert!(here.path().join("asked").exists());
    assert!(names(&sshd.home()).is_empty());
}

#[test]
fn ssh_cannot_connect_or_is_not_installed() {
    let (here, source) = source();
    let cp = |options: &[&OsStr], to: &str| {
        let mut command = Command::new(HAUL);
        clean(&mut command);
        command.args(["cp", "-F", "/dev/null"]).args(options).arg(&source).arg(to);
        Running::start(&mut command).wait(LIMIT)
    };
    if Command::new("ssh").arg("-V").output().is_err() {
        crate::support::skip("the program `ssh` is missing");
        return;
    }
    let batch = [OsStr::new("-o"), OsStr::new("BatchMode=yes")];
    cp(&batch, "no-such-host.invalid:x")
        .exits(5)
        .assert_shows(&["could not connect to no-such-host.invalid"]);
    cp(&[OsStr::new("-P"), OsStr::new("1")], "127.0.0.1:x")
        .exits(5)
        .assert_shows(&["refused", "make `ssh -F /dev/null -p 1 127.0.0.1 true` work first"]);
    let with = |text: &str| {
        let ssh = script(here.path(), "ssh", &format!("[ $1 = -G ] && exit 1\n{text}"));
        cp(&[OsStr::new("--ssh"), ssh.as_os_str()], "far:x")
    };
    cp(&[OsStr::new("--ssh"), OsStr::new("/nonexistent/ssh")], "far:x")
        .exits(5)
        .assert_shows(&["openssh-client", "--ssh"]);
    with("kill -9 $$").exits(5).assert_shows(&["signal 9"]);
    with("exit 0").exits(5).assert_shows(&["did not start haul", "printed nothing"]);
    with("exec >&-; exec sleep 5").exits(5).assert_shows(&["closed its output"]);
    cp(&[OsStr::new("--ssh"), OsStr::new("'ssh")], "far:x").exits(2).assert_shows(&["quote"]);
    cp(&[OsStr::new("--port-range"), OsStr::new("9-8")], "far:x").exits(2);
    cp(&[OsStr::new("--detach")], "far:x").exits(2).assert_shows(&["two other machines"]);
    cp(&[], "-oProxyCommand=x:y").exits(2);
}

#[test]
fn ctrl_c_works_while_ssh_connects() {
    let (here, source) = source();
    let place = here.path().display();
    let ssh =
        script(here.path(), "ssh", &format!("[ $1 = -G ] && exit 1\n: > {place}/started\nexec sleep 300"));
    let mut command = Command::new(HAUL);
    clean(&mut command);
    let copy = Running::start(command.args(["cp", "--ssh"]).arg(ssh).arg(&source).arg("far:x"));
    until("ssh to be started", || here.path().join("started").exists());
    copy.signal(Signal::INT);
    copy.wait(LIMIT).exits(130).assert_shows(&["interrupted"]);
}
