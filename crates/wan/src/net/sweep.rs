//! Ends processes inside a namespace, and removes names left behind by killed runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::namespace::{NAMES, NamespaceId, release};

/// Time that processes have to end after SIGTERM.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Time that processes have to end after SIGKILL: one that waits for a disk ends when the disk answers.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns the processes, other than this one, whose network namespace is in `ids`.
fn processes_inside(ids: &[NamespaceId]) -> Vec<Pid> {
    let current = std::process::id().cast_signed();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let inside = pids.filter(|pid| {
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net"));
        *pid != current && namespace.is_ok_and(|meta| ids.contains(&(meta.dev(), meta.ino())))
    });
    inside.filter_map(Pid::from_raw).collect()
}

/// Ends every process inside: SIGTERM first, SIGKILL after two seconds. Returns when they have ended, at the
/// latest ten seconds later.
pub(crate) fn kill_processes_in(ids: &[NamespaceId]) {
    for (signal, timeout) in [(Signal::TERM, TIMEOUT), (Signal::KILL, KILL_TIMEOUT)] {
        for pid in processes_inside(ids) {
            // The process may have ended in the meantime.
            let _ = kill_process(pid, signal);
        }
        if have_ended(ids, timeout) {
            return;
        }
    }
}

/// Reaps children until no process is inside; `false` if one still is after `timeout`.
fn have_ended(ids: &[NamespaceId], timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    loop {
        let ended = processes_inside(ids).is_empty();
        reap_children();
        if ended || Instant::now() > end {
            return ended;
        }
        sleep(POLL_INTERVAL);
    }
}

/// Reaps children that have ended, including adopted ones.
fn reap_children() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

/// Identifies a process: a later process with the same PID has a different start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    pid: u32,
    /// Start time in clock ticks since boot.
    started: u64,
}

/// Returns the name of a namespace of this process: `<prefix><pid>-<start>-<side>`.
pub(crate) fn process_name(prefix: &str, side: &str) -> String {
    let pid = std::process::id();
    format!("{prefix}{pid}-{}-{side}", start_of(pid).unwrap_or_default())
}

/// Removes namespaces `<prefix><pid>-<start>-…` whose process has ended. Returns their names.
pub fn sweep(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(NAMES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let stale = names.filter(|name| owner(name, prefix).is_some_and(|owner| !is_alive(owner)));
    stale.filter(|name| remove(&Path::new(NAMES).join(name))).collect()
}

fn remove(path: &Path) -> bool {
    if let Ok(meta) = fs::metadata(path) {
        // A name whose mount has failed is an ordinary file, on a device without namespaces.
        kill_processes_in(&[(meta.dev(), meta.ino())]);
    }
    release(path).is_ok()
}

/// Parses the process that a name belongs to.
fn owner(name: &str, prefix: &str) -> Option<Owner> {
    let mut parts = name.strip_prefix(prefix)?.splitn(3, '-');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let owner = Owner { pid: number()?.try_into().ok()?, started: number()? };
    parts.next().map(|_side| owner)
}

/// Whether the process is running, whatever its program is called: tests create namespaces too.
fn is_alive(owner: Owner) -> bool {
    start_of(owner.pid) == Some(owner.started)
}

/// Returns a process's start time in clock ticks since boot (`proc_pid_stat(5)`, field 22).
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name, field 2, may contain blanks and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn names_identify_their_owner() {
        let known = Some(Owner { pid: 123, started: 4567 });
        assert_eq!(owner("haul-wan-123-4567-a", "haul-wan-"), known);
        let current = owner(&process_name("haul-wan-", "b"), "haul-wan-").unwrap();
        assert_eq!(current.pid, std::process::id());
        assert!(is_alive(current));
        for other in
            ["haul-wan-x-1-a", "haul-wan-1-x-a", "haul-e2e-123-0-c", "haul-wan-123-a", "haul-wan-123-4"]
        {
            assert_eq!(owner(other, "haul-wan-"), None, "{other}");
        }
    }

    /// Regression: the sweep of another run considered the namespaces of the test program `e2e` stale,
    /// because its name does not start with `haul`, and ended the processes inside by SIGTERM.
    #[test]
    fn a_running_process_keeps_its_namespaces_with_any_name() {
        let mut other = Command::new("sleep").arg("100").spawn().unwrap();
        let alive = Owner { pid: other.id(), started: start_of(other.id()).unwrap() };
        let reused_pid = Owner { started: alive.started + 1, ..alive };
        let seen = (is_alive(alive), is_alive(reused_pid));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(seen, (true, false));
        assert!(!is_alive(alive) && !is_alive(Owner { pid: u32::MAX, started: 0 }));
    }
}
