//! The emulator leaves nothing behind, however it ends.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use haul_testing::privileged;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Wan, eventually, haul_lab};

fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !status.is_empty() && !status.contains(") Z ")
}

fn names_of(pid: u32) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("haul-wan-{pid}-"))).collect()
}

/// Returns the process whose PID is in `file`.
fn pid_in(file: &Path) -> u32 {
    eventually("a process", || fs::read_to_string(file).ok()?.trim().parse().ok())
}

/// Returns a command that leaves a background process and waits.
fn with_processes(directory: &Path) -> Command {
    let mut command = haul_lab();
    let file = |name: &str| directory.join(name).display().to_string();
    let server = format!("echo $$ >{}; exec sleep 1000", file("server"));
    let words = format!(
        "(setsid sh -c 'echo $$ >{}; trap \"\" TERM; sleep 1000; sleep 1000') & echo $$ >{}; sleep 1000",
        file("left"),
        file("command")
    );
    command.args(["wan", "-q", "--burners", "1", "--server", &server, "--", "sh", "-c", &words]);
    command.stderr(Stdio::null());
    command
}

#[test]
fn sigterm_ends_everything() {
    if !privileged("sigterm_ends_everything") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut child = with_processes(directory.path()).spawn().unwrap();
    let pids = ["server", "left", "command"].map(|name| pid_in(&directory.path().join(name)));
    assert_eq!(names_of(child.id()).len(), 2);
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(names_of(child.id()), Vec::<String>::new());
    eventually("the death of the processes", || pids.iter().all(|pid| !is_alive(*pid)).then_some(()));
}

#[test]
fn the_death_of_the_command_ends_everything() {
    if !privileged("the_death_of_the_command_ends_everything") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut child = with_processes(directory.path()).spawn().unwrap();
    let pids = ["server", "left", "command"].map(|name| pid_in(&directory.path().join(name)));
    kill_process(Pid::from_raw(pids[2].cast_signed()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    assert_eq!(names_of(child.id()), Vec::<String>::new());
    eventually("the death of the processes", || pids.iter().all(|pid| !is_alive(*pid)).then_some(()));
}

#[test]
fn leftovers_of_a_killed_emulator_are_removed_by_the_next() {
    if !privileged("leftovers_of_a_killed_emulator_are_removed_by_the_next") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut child = with_processes(directory.path()).spawn().unwrap();
    let pids = ["server", "left", "command"].map(|name| pid_in(&directory.path().join(name)));
    child.kill().unwrap();
    child.wait().unwrap();
    // Its own children end with it; grandchildren and namespace names remain.
    eventually("the end of the children", || (!is_alive(pids[0]) && !is_alive(pids[2])).then_some(()));
    let wan = Wan::start("-q");
    // Other tests' emulators also sweep.
    eventually("the sweep", || (names_of(child.id()).is_empty() && !is_alive(pids[1])).then_some(()));
    assert!(wan.end(Signal::INT).0.success());
}
