//! Restricts `haul serve` to its root directory, and some files of the system for reading: even if a client
//! exploits a defect, the kernel lets the server open nothing else. Landlock (landlock(7)) needs no
//! privileges, and also applies to threads that the restricted one starts later, but not to earlier ones.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use haul_mover::Root;
use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible, LandlockStatus, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, path_beneath_rules,
};
use rustix::fs::{Mode, OFlags, open};

/// The newest ABI that this was tested with. An older kernel enforces the rights that it knows.
const NEWEST: ABI = ABI::V7;
/// Files and directories to read: names of users and groups, shared libraries that look them up, the time
/// zone, the number of processors, and what the kernel says of this process and the load. Missing ones are
/// skipped.
const READ: [&str; 18] = [
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/userdb",
    "/lib",
    "/lib64",
    "/proc/pressure",
    "/proc/self",
    "/proc/stat",
    "/proc/sys/kernel/random/boot_id",
    "/run/systemd/userdb",
    "/sys/devices/system/cpu/online",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/var/lib/sss/mc",
];

/// Open descriptors of what [`READ`] has of `/proc`. A Landlock rule names an inode; without these, the
/// kernel may reclaim an unused one when memory is short, and procfs then makes another, for which there is
/// no rule.
static PROC_FILES: LazyLock<Vec<OwnedFd>> = LazyLock::new(|| {
    let of_proc = READ.iter().filter(|path| path.starts_with("/proc/"));
    of_proc.filter_map(|path| open(*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()).collect()
});

/// Restricts this thread, and those that it starts from now on, to `root`, [`READ`] and the counters of
/// network interfaces. Returns Landlock's ABI, or why there is no restriction.
pub(crate) fn restrict(root: &Root, is_read_only: bool) -> Result<ABI, String> {
    let Root::Beneath(directory) = root else {
        return Err("all paths may be read and written".to_owned());
    };
    match enforce(directory, is_read_only) {
        Ok(LandlockStatus::Available { effective_abi, .. }) => Ok(effective_abi),
        Ok(_) => Err("this kernel does not support it, or has it disabled".to_owned()),
        Err(error) => Err(format!("Linux 5.19 or later is needed ({error})")),
    }
}

pub(crate) fn describe(restricted: &Result<ABI, String>, root: &Path, access: &str) -> String {
    match restricted {
        Ok(abi) => format!("restricted by Landlock to {access} in {} (ABI {})", root.display(), *abi as i32),
        Err(reason) => format!("not restricted by Landlock: {reason}"),
    }
}

fn enforce(root: impl AsFd, is_read_only: bool) -> Result<LandlockStatus, RulesetError> {
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    // Nothing is executed, and no device is created or controlled.
    let denied = AccessFs::Execute | AccessFs::IoctlDev | AccessFs::MakeChar | AccessFs::MakeBlock;
    let below_root = if is_read_only { reading } else { AccessFs::from_all(NEWEST) & !denied };
    LazyLock::force(&PROC_FILES);
    let status = Ruleset::default()
        // Unless this right is handled, no file can be renamed or linked into another directory of the root.
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .create()?
        .add_rule(PathBeneath::new(root, below_root))?
        .add_rules(path_beneath_rules(READ, reading))?
        .add_rules(path_beneath_rules(interfaces(), reading))?
        .restrict_self()?;
    Ok(status.landlock)
}

/// Returns the directories with the counters of the present network interfaces.
fn interfaces() -> Vec<PathBuf> {
    let shown = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    shown.filter_map(|interface| fs::canonicalize(interface.path()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use rustix::fs::{CWD, FileType, makedev, mknodat};

    use super::*;

    /// Runs `act` on a thread of its own, which alone is restricted.
    fn restricted(root: &Path, is_read_only: bool, act: impl FnOnce() + Send) {
        let opened = Root::beneath(root).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| match restrict(&opened, is_read_only) {
                Ok(abi) => {
                    assert!(abi >= ABI::V2);
                    act();
                }
                Err(reason) => skipped(&reason),
            });
            thread.join().unwrap();
        });
    }

    #[expect(clippy::print_stderr, reason = "whoever runs the tests should know")]
    fn skipped(reason: &str) {
        eprintln!("SKIPPED a restriction by Landlock: {reason}");
    }

    /// The kernel returns EXDEV if a file would gain rights by another name (landlock(7), Refer).
    #[track_caller]
    fn denied<T>(result: Result<T, Error>) {
        let kind = result.err().map(|error| error.kind());
        assert!(matches!(kind, Some(ErrorKind::PermissionDenied | ErrorKind::CrossesDevices)), "{kind:?}");
    }

    #[test]
    fn served_files_are_accessible_only_beneath_the_root() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = elsewhere.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, root.path().join("link")).unwrap();
        fs::copy("/bin/true", root.path().join("program")).unwrap();
        restricted(root.path(), false, || {
            let at = |name: &str| root.path().join(name);
            fs::create_dir_all(at("a/b")).unwrap();
            fs::create_dir(at("c")).unwrap();
            fs::write(at("a/b/file"), "text").unwrap();
            fs::rename(at("a/b/file"), at("c/file")).unwrap();
            fs::hard_link(at("c/file"), at("a/again")).unwrap();
            assert_eq!(fs::read(at("a/again")).unwrap(), b"text");
            denied(fs::read(&secret));
            denied(fs::read(at("link")));
            denied(fs::write(elsewhere.path().join("new"), ""));
            denied(fs::hard_link(&secret, at("stolen")));
            denied(fs::rename(at("c/file"), elsewhere.path().join("file")));
            denied(fs::remove_file(&secret));
            denied(fs::read_dir("/"));
            denied(Command::new("/bin/true").status());
            denied(Command::new(at("program")).status());
            let made = mknodat(CWD, at("device"), FileType::CharacterDevice, Mode::RUSR, makedev(1, 3));
            denied(made.map_err(Error::from));
            fs::remove_dir_all(at("c")).unwrap();
            // Files for looking up names, and the kernel's on this process, can still be read.
            assert!(fs::read("/etc/passwd").is_ok() && fs::read("/proc/self/status").is_ok());
            assert!(fs::read("/proc/thread-self/schedstat").is_ok() && fs::read("/proc/stat").is_ok());
            assert!(!Path::new("/proc/pressure/cpu").exists() || fs::read("/proc/pressure/cpu").is_ok());
            assert!(
                fs::read("/proc/net/softnet_stat").is_ok() && fs::read("/sys/class/net/lo/address").is_ok()
            );
            assert!(fs::read("/sys/class/net/lo/statistics/rx_dropped").is_ok());
        });
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
    }

    #[test]
    fn a_root_offered_for_reading_cannot_be_written() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "text").unwrap();
        restricted(root.path(), true, || {
            let at = |name: &str| root.path().join(name);
            assert_eq!(fs::read(at("file")).unwrap(), b"text");
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
            denied(fs::write(at("file"), ""));
            denied(fs::write(at("new"), ""));
            denied(fs::create_dir(at("new")));
            denied(fs::rename(at("file"), at("new")));
            denied(fs::remove_file(at("file")));
        });
    }

    #[test]
    fn the_message_names_the_root_or_the_lack_of_restriction() {
        let within = describe(&Ok(ABI::V3), Path::new("/r"), "reading");
        assert_eq!(within, "restricted by Landlock to reading in /r (ABI 3)");
        let absent = restrict(&Root::Anywhere, true);
        let absent = describe(&absent, Path::new("/"), "reading");
        assert_eq!(absent, "not restricted by Landlock: all paths may be read and written");
    }
}
