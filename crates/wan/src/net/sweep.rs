//! Ends what is left inside of a namespace, and removes the names that killed runs have left behind.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::namespace::{NAMES, release};

/// How long processes have to end by themselves.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often to look whether they have.
const LOOK: Duration = Duration::from_millis(10);

/// The device and inode by which the kernel knows a namespace.
pub(crate) type NamespaceId = (u64, u64);

/// The processes, other than this one, whose network namespace is one of these.
fn processes_inside(ids: &[NamespaceId]) -> Vec<Pid> {
    let own = std::process::id().cast_signed();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let inside = pids.filter(|pid| {
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net"));
        *pid != own && namespace.is_ok_and(|meta| ids.contains(&(meta.dev(), meta.ino())))
    });
    inside.filter_map(Pid::from_raw).collect()
}

/// Ends every process inside: SIGTERM first, SIGKILL after two seconds.
pub(crate) fn kill_inside(ids: &[NamespaceId]) {
    let signal_all = |signal| {
        for pid in processes_inside(ids) {
            // It may have ended in the meantime.
            let _ = kill_process(pid, signal);
        }
    };
    signal_all(Signal::TERM);
    let end = Instant::now() + PATIENCE;
    while !processes_inside(ids).is_empty() {
        if Instant::now() > end {
            signal_all(Signal::KILL);
            sleep(LOOK);
            break;
        }
        reap();
        sleep(LOOK);
    }
    reap();
}

/// Collects children that have ended, and those that were left to us.
fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

/// Removes namespaces `<prefix><pid>-…` whose process is gone; returns their names.
pub fn sweep(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(NAMES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let stale = names.filter(|name| owner(name, prefix).is_some_and(|pid| !is_alive(pid)));
    stale.filter(|name| remove(&Path::new(NAMES).join(name))).collect()
}

fn remove(path: &Path) -> bool {
    if let Ok(meta) = fs::metadata(path) {
        // A name whose mount has failed is an ordinary file, on a device that has no namespaces.
        kill_inside(&[(meta.dev(), meta.ino())]);
    }
    release(path).is_ok()
}

/// The process that a name belongs to.
fn owner(name: &str, prefix: &str) -> Option<u32> {
    let (pid, _side) = name.strip_prefix(prefix)?.split_once('-')?;
    pid.parse().ok()
}

/// Whether the process is one of ours and runs. Another program may have got the number of a dead one.
fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("haul"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_owner() {
        assert_eq!(owner("haul-wan-123-a", "haul-wan-"), Some(123));
        assert_eq!(owner("haul-wan-x-a", "haul-wan-"), None);
        assert_eq!(owner("haul-e2e-123-0-c", "haul-wan-"), None);
        assert_eq!(owner("haul-wan-123", "haul-wan-"), None);
    }

    #[test]
    fn only_programs_of_this_project_own_namespaces() {
        // Cargo names this one haul_wan-HASH.
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(1) && !is_alive(u32::MAX));
    }
}
