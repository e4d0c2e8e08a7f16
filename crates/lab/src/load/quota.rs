//! CPU time limit by a Linux control group.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use haul_base::Span;

/// Root of the CPU controller's groups in cgroup version 1, and of all groups in version 2.
const V1: &str = "/sys/fs/cgroup/cpu";
const V2: &str = "/sys/fs/cgroup";

/// A control group whose processes together get `run` of CPU time per `every`. Removed when dropped, by when
/// its processes must have ended.
#[derive(Debug)]
pub(crate) struct Quota {
    directory: PathBuf,
}

impl Quota {
    /// Creates a group of this name.
    ///
    /// # Errors
    /// If the system refuses: it requires root, and a kernel with CFS bandwidth control.
    pub(crate) fn new(name: &str, run: Span, every: Span) -> io::Result<Self> {
        let is_v1 = Path::new(V1).join("cpu.cfs_quota_us").is_file();
        let quota = Self { directory: Path::new(if is_v1 { V1 } else { V2 }).join(name) };
        fs::create_dir(&quota.directory)?;
        let (run, every) = (run.as_micros(), every.as_micros());
        if is_v1 {
            quota.set("cpu.cfs_period_us", &every.to_string())?;
            quota.set("cpu.cfs_quota_us", &run.to_string())?;
        } else {
            quota.set("cpu.max", &format!("{run} {every}"))?;
        }
        Ok(quota)
    }

    fn set(&self, key: &str, value: &str) -> io::Result<()> {
        fs::write(self.directory.join(key), value)
    }

    /// Returns the file to which a process writes its PID to join the group.
    pub(crate) fn members(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // A group that still has processes stays until the next boot.
        let _ = fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_control_group_limits_its_members_and_is_removed() {
        let name = format!("haul-lab-test-{}", std::process::id());
        let (run, every) = (Span::from_millis(20), Span::from_millis(100));
        let Ok(quota) = Quota::new(&name, run, every) else {
            println!("SKIPPED: no control groups here");
            return;
        };
        let directory = quota.directory.clone();
        let read = |key: &str| fs::read_to_string(directory.join(key)).unwrap_or_default();
        let set = [read("cpu.cfs_quota_us"), read("cpu.cfs_period_us"), read("cpu.max")].join(" ");
        assert!(set.contains("20000") && set.contains("100000"), "{set}");
        let mut sleeper = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        fs::write(quota.members(), sleeper.id().to_string()).unwrap();
        let members = read("cgroup.procs");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(members.trim(), sleeper.id().to_string());
        drop(quota);
        assert!(!directory.exists());
    }
}
