//! Trees that are easily copied wrongly: the result equals that of `rsync -a`, and a second run changes
//! nothing. Each program gets its own copy of a case's source and destination.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode, XattrFlags, listxattr, setxattr};
use tempfile::TempDir;

use crate::support::{exits, haul, lossy};

/// An unused user id.
const USER: u32 = 54_321;

/// The user who runs both programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Root,
    User,
}

/// Name, kind and metadata of an entry. Contents of devices and pipes, and times of links, are not compared.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    contents: Vec<u8>,
    attributes: Vec<u8>,
}

fn seen(path: &Path) -> Seen {
    let meta = path.symlink_metadata().unwrap();
    let kind = meta.file_type();
    let mut attributes = vec![0; 4096];
    let len = if kind.is_symlink() { 0 } else { listxattr(path, &mut attributes[..]).unwrap_or(0) };
    attributes.truncate(len);
    Seen {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        mtime: if kind.is_symlink() || kind.is_fifo() { (0, 0) } else { (meta.mtime(), meta.mtime_nsec()) },
        contents: match () {
            () if kind.is_file() => fs::read(path).unwrap(),
            () if kind.is_symlink() => fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec(),
            () => Vec::new(),
        },
        attributes,
    }
}

/// A directory and everything below it.
fn tree(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::from([(PathBuf::from("."), seen(root))]);
    let mut open = vec![root.to_path_buf()];
    while let Some(at) = open.pop() {
        for item in fs::read_dir(&at).unwrap() {
            let path = item.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                open.push(path.clone());
            }
            found.insert(path.strip_prefix(root).unwrap().to_path_buf(), seen(&path));
        }
    }
    found
}

/// The change time (ctime) of each name.
fn changed(root: &Path) -> BTreeMap<PathBuf, (i64, i64)> {
    let at =
        |path: &PathBuf| root.join(path).symlink_metadata().map(|m| (m.ctime(), m.ctime_nsec())).unwrap();
    tree(root).into_keys().map(|path| (path.clone(), at(&path))).collect()
}

fn write(path: impl AsRef<Path>, text: &str, mode: u32) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    set_mode(path, mode);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Sets the same times everywhere, the deepest entries first.
fn same_times(root: &Path) {
    for path in tree(root).into_keys().rev() {
        let at = filetime(1_000_000_000);
        rustix::fs::utimensat(CWD, root.join(path), &at, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn filetime(secs: i64) -> rustix::fs::Timestamps {
    let at = rustix::fs::Timespec { tv_sec: secs, tv_nsec: 5 };
    rustix::fs::Timestamps { last_access: at, last_modification: at }
}

/// A directory that the user may enter as well, with the program in it.
struct Bench {
    dir: TempDir,
    program: PathBuf,
}

impl Bench {
    /// `None` without root, setpriv or rsync.
    fn new(test: &str) -> Option<Self> {
        let there = |name: &str| Command::new(name).arg("--version").output().is_ok();
        if !rustix::process::geteuid().is_root() || !there("setpriv") || !there("rsync") {
            eprintln!("SKIPPED {test}: needs root, setpriv and rsync");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o755);
        let program = dir.path().join("haul");
        haul_testing::copy_program(Path::new(env!("CARGO_BIN_EXE_haul")), &program);
        Some(Self { dir, program })
    }

    fn command(&self, who: Who, program: &Path) -> Command {
        let mut command = match who {
            Who::Root => Command::new(program),
            Who::User => {
                let mut command = Command::new("setpriv");
                command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]);
                command.arg(program);
                command
            }
        };
        command.current_dir(self.dir.path());
        haul_testing::unconfigured(command)
    }

    /// Source `s` and destination `d` below `name`, owned by the user who copies.
    fn places(&self, name: &str, who: Who, fill: impl Fn(&Path, &Path)) -> (PathBuf, PathBuf) {
        let (source, destination) =
            (self.dir.path().join(name).join("s"), self.dir.path().join(name).join("d"));
        fs::create_dir_all(&source).unwrap();
        fill(&source, &destination);
        for root in [&source, &destination].into_iter().filter(|root| root.exists()) {
            if who == Who::User {
                for path in tree(root).into_keys() {
                    let mode = root.join(&path).symlink_metadata().unwrap().mode();
                    lchown(root.join(&path), Some(USER), Some(USER)).unwrap();
                    if mode & 0o170_000 != 0o120_000 {
                        set_mode(&root.join(&path), mode & 0o7777);
                    }
                }
            }
            same_times(root);
        }
        if who == Who::User {
            lchown(self.dir.path().join(name), Some(USER), Some(USER)).unwrap();
        }
        (source, destination)
    }

    /// Runs both programs with the same options and compares the results, and the dry run's output with what
    /// the copy then did.
    fn compare(&self, name: &str, who: Who, options: &[&str], fill: impl Fn(&Path, &Path)) {
        let (source, destination) = self.places(&format!("{name}-haul"), who, &fill);
        let (from, theirs) = self.places(&format!("{name}-rsync"), who, &fill);
        let rsync = self
            .command(who, Path::new("rsync"))
            .args(["-aX"])
            .args(options)
            .arg(from.join(""))
            .arg(&theirs)
            .output();
        let rsync = rsync.unwrap();
        assert!(rsync.status.success(), "{name}: rsync: {}", lossy(&rsync.stderr));
        let cp = |more: &[&str]| {
            let mut command = self.command(who, &self.program);
            let words = ["cp", "-q", "--preserve", "owner,xattrs", "--numeric-ids"];
            command
                .args(words)
                .args(options)
                .args(more)
                .arg(source.join("."))
                .arg(&destination)
                .output()
                .unwrap()
        };
        let before = destination.exists().then(|| (tree(&destination), changed(&destination)));
        let dry = cp(&["--dry-run"]);
        assert!(dry.status.success(), "{name}: dry run: {}", lossy(&dry.stderr));
        assert_eq!(
            destination.exists().then(|| (tree(&destination), changed(&destination))),
            before,
            "{name}: the dry run"
        );
        let done = cp(&[]);
        assert!(done.status.success(), "{name}: {}", lossy(&done.stderr));
        let (found, expected) = (tree(&destination), tree(&theirs));
        for (path, expected_node) in &expected {
            assert_eq!(found.get(path), Some(expected_node), "{name}: {}", path.display());
        }
        assert!(found.keys().eq(expected.keys()), "{name}: {:?}, not {:?}", found.keys(), expected.keys());
        let was = changed(&destination);
        let repeated = cp(&[]);
        assert!(repeated.status.success(), "{name}: {}", lossy(&repeated.stderr));
        assert_eq!(changed(&destination), was, "{name}: a run with nothing to do");
    }
}

fn attribute(path: &Path, value: &[u8]) {
    setxattr(path, "user.haul", value, XattrFlags::empty()).unwrap();
}

/// A file capability (`struct vfs_cap_data`, revision 2: `cap_net_raw`, effective and permitted).
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn both(source: &Path, destination: &Path, name: &str, modes: (u32, u32)) {
    write(source.join(name), name, modes.0);
    write(destination.join(name), name, modes.1);
}

#[test]
fn rules_protect_what_rsync_protects() {
    let Some(bench) = Bench::new("rules_protect_what_rsync_protects") else { return };
    let fill = |source: &Path, destination: &Path| {
        for root in [source, destination] {
            for path in ["name", "deep/name", "deep/er/name", "a b/x", "a b/c/x", "w*/x", "wz/x", "other"] {
                write(root.join(path), path, 0o644);
            }
        }
        for path in ["name", "a b/x", "w*/x", "deep/name"] {
            fs::remove_file(source.join(path)).unwrap();
        }
    };
    let patterns = [
        "**/name",
        "**name",
        "/**/name",
        "/deep/**/name",
        "deep/**",
        "/a\\ b/***",
        "a\\ b/***",
        "/w\\*/***",
        "/w\\*/",
        "/w\\*/*",
        "**/x",
        "a b/***",
        "**/a b/",
        "/**",
        "de**/name",
        "**/deep/**",
        "***/name",
    ];
    for (number, pattern) in patterns.into_iter().enumerate() {
        bench.compare(&format!("rule{number}"), Who::Root, &["--delete", "--exclude", pattern], fill);
    }
}

#[test]
fn a_destination_gets_the_permissions_and_time_of_its_source() {
    let Some(bench) = Bench::new("a_destination_gets_the_permissions") else { return };
    for who in [Who::Root, Who::User] {
        let new = |source: &Path, _: &Path| {
            write(source.join("f"), "f", 0o600);
            attribute(source, b"of the source");
            set_mode(source, 0o700);
        };
        bench.compare(&format!("new-{who:?}"), who, &[], new);
        let there = |source: &Path, destination: &Path| {
            both(source, destination, "f", (0o600, 0o600));
            write(source.join("new"), "new", 0o600);
            set_mode(source, 0o750);
            set_mode(destination, 0o755);
        };
        bench.compare(&format!("there-{who:?}"), who, &[], there);
        let closed = |source: &Path, destination: &Path| {
            there(source, destination);
            write(destination.join("extra"), "extra", 0o600);
            set_mode(source, 0o555);
            set_mode(destination, 0o555);
        };
        bench.compare(&format!("closed-{who:?}"), who, &["--delete"], closed);
    }
}

#[test]
fn setuid_bits_and_capabilities_are_removed_if_the_source_lost_them() {
    let Some(bench) = Bench::new("setuid_bits_and_capabilities_are_removed") else { return };
    bench.compare("rights", Who::Root, &[], |source, destination| {
        both(source, destination, "setuid", (0o755, 0o4755));
        both(source, destination, "setgid", (0o755, 0o2755));
        both(source, destination, "keeps", (0o4755, 0o4755));
        both(source, destination, "capable", (0o755, 0o755));
        setxattr(destination.join("capable"), "security.capability", &CAPABILITY, XattrFlags::empty())
            .unwrap();
        both(source, destination, "stays", (0o755, 0o755));
        for root in [source, destination] {
            setxattr(root.join("stays"), "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
        }
    });
}

#[test]
fn own_read_only_files_can_be_changed() {
    let Some(bench) = Bench::new("own_read_only_files_can_be_changed") else { return };
    bench.compare("read-only", Who::User, &["--delete"], |source, destination| {
        for name in ["file", "directory/in/file"] {
            both(source, destination, name, (0o444, 0o444));
            attribute(&source.join(name), b"new");
            attribute(&destination.join(name), b"old");
        }
        both(source, destination, "gains", (0o400, 0o400));
        attribute(&source.join("gains"), b"new");
        both(source, destination, "loses", (0o400, 0o400));
        attribute(&destination.join("loses"), b"old");
        attribute(&source.join("directory"), b"new");
        attribute(&destination.join("directory"), b"old");
        write(destination.join("directory/extra"), "extra", 0o444);
        write(destination.join("gone/in/extra"), "extra", 0o444);
        for root in [source, destination] {
            for path in ["directory/in", "directory"] {
                set_mode(&root.join(path), 0o555);
            }
        }
        set_mode(&destination.join("gone/in"), 0o555);
        set_mode(&destination.join("gone"), 0o555);
    });
}

#[test]
fn other_file_types_are_replaced_and_a_dry_run_reports_it() {
    let Some(bench) = Bench::new("other_file_types_are_replaced") else { return };
    for who in [Who::Root, Who::User] {
        bench.compare(&format!("kinds-{who:?}"), who, &["--delete"], |source, destination| {
            for name in ["fifo", "file", "link", "directory"] {
                write(source.join(name).join("in/x"), name, 0o644);
            }
            fs::create_dir(destination).unwrap();
            rustix::fs::mkfifoat(CWD, destination.join("fifo"), Mode::from_raw_mode(0o600)).unwrap();
            write(destination.join("file"), "in the way", 0o600);
            symlink("/etc", destination.join("link")).unwrap();
            write(source.join("tree"), "a file", 0o644);
            write(destination.join("tree/in/x"), "x", 0o644);
            set_mode(&destination.join("tree/in"), 0o500);
        });
    }
}

#[test]
fn identical_files_are_not_touched() {
    let Some(bench) = Bench::new("identical_files_are_not_touched") else { return };
    for who in [Who::Root, Who::User] {
        bench.compare(&format!("idle-{who:?}"), who, &["--delete"], |source, destination| {
            both(source, destination, "plain", (0o640, 0o640));
            both(source, destination, "d/e/f", (0o444, 0o444));
            for root in [source, destination] {
                attribute(&root.join("plain"), b"same");
                attribute(&root.join("d"), b"same");
                symlink("plain", root.join("link")).unwrap();
                fs::create_dir(root.join("sticky")).unwrap();
                set_mode(&root.join("sticky"), 0o3755);
                set_mode(&root.join("d/e"), 0o555);
            }
        });
    }
}

#[test]
fn a_dry_run_works_on_a_read_only_file_system() {
    let Some(bench) = Bench::new("a_dry_run_works_on_a_read_only_file_system") else { return };
    let (source, destination) = bench.places("mounted", Who::Root, |source, destination| {
        both(source, destination, "same", (0o644, 0o644));
        write(source.join("new"), "new", 0o644);
    });
    let script = "mount --bind \"$2\" \"$2\" && mount -o remount,bind,ro \"$2\" && exec \"$0\" cp --dry-run \"$1\" \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(&bench.program).arg(source.join(".")).arg(&destination);
    let output = haul_testing::unconfigured(command).output().unwrap();
    if lossy(&output.stderr).contains("mount:") || lossy(&output.stderr).contains("unshare:") {
        eprintln!("SKIPPED a_dry_run_needs_no_file_system: mounts are not permitted here");
        return;
    }
    exits(&output, 0);
    assert!(lossy(&output.stdout).contains("new"), "{}", lossy(&output.stdout));
}

#[test]
fn links_of_other_users_are_not_followed_to_a_destination_or_a_list() {
    let Some(bench) = Bench::new("links_of_other_users") else { return };
    let at = |path: &str| bench.dir.path().join(path);
    write(at("s/f"), "f", 0o644);
    write(at("target/old"), "old", 0o644);
    write(at("list"), "f\n", 0o644);
    for (link, target) in
        [("theirs", "target"), ("their-list", "list"), ("ours", "target"), ("our-list", "list")]
    {
        symlink(at(target), at(link)).unwrap();
        if link.starts_with("their") {
            lchown(at(link), Some(USER), Some(USER)).unwrap();
        }
    }
    let cp = |options: &[&str], to: &str| {
        haul()
            .args(["cp", "-q"])
            .args(options)
            .arg(at("s/."))
            .arg(at(to))
            .current_dir(bench.dir.path())
            .output()
            .unwrap()
    };
    for to in ["theirs", "theirs/", "theirs/new", "theirs/."] {
        let refused = cp(&[], to);
        exits(&refused, 6);
        let stderr = lossy(&refused.stderr);
        assert!(
            stderr.contains("theirs") && stderr.contains("symbolic link") && stderr.contains("54321"),
            "{to}: {stderr}"
        );
        assert_eq!(fs::read_dir(at("target")).unwrap().count(), 1, "{to}");
    }
    for option in ["--exclude-from", "--files-from"] {
        let refused = cp(&[option, "their-list"], "new");
        exits(&refused, 2);
        let stderr = lossy(&refused.stderr);
        assert!(stderr.contains("their-list") && stderr.contains("symbolic link"), "{stderr}");
        assert!(!at("new").exists());
        exits(&cp(&[option, "our-list"], "by-list"), 0);
        exits(&cp(&[option, "/dev/stdin"], "by-list"), 0);
    }
    exits(&cp(&[], "ours"), 0);
    assert!(at("target/f").exists());
    let stream = haul().args(["cp", "-q", "-"]).arg(at("theirs/f2")).output().unwrap();
    exits(&stream, 6);
    assert!(!at("target/f2").exists());
    // A link may be followed by its owner; a link owned by root, by everybody.
    lchown(at("target"), Some(USER), Some(USER)).unwrap();
    for to in ["theirs", "ours"] {
        let mut command = bench.command(Who::User, &bench.program);
        exits(&command.args(["cp", "-q"]).arg(at("s/.")).arg(at(to)).output().unwrap(), 0);
    }
}

#[test]
fn leftovers_of_unfinished_copies_in_a_source_are_named_and_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    let leftovers = ["s/.haul-deadbeef.journal", "s/d/.haul-0badcafe.journal", "s/d/.haul-0badcafe-1.part"];
    for path in leftovers.into_iter().chain(["s/f"]) {
        write(at(path), "not a journal", 0o644);
    }
    write(at("d/extra"), "extra", 0o644);
    let cp = |options: &[&str]| {
        haul().args(["cp", "--delete"]).args(options).arg(at("s/.")).arg(at("d")).output().unwrap()
    };
    let output = cp(&[]);
    exits(&output, 3);
    let stderr = lossy(&output.stderr);
    assert!(
        stderr.contains(".haul-deadbeef.journal") && stderr.contains("d/.haul-0badcafe.journal"),
        "{stderr}"
    );
    assert!(at("d/f").exists() && !at("d/.haul-deadbeef.journal").exists());
    assert!(!at("d/extra").exists(), "the source is known completely, so the name must be deleted: {stderr}");
    exits(&cp(&["--exclude", ".haul-*"]), 0);
    // No journal is kept for an entry that can never be copied.
    let output = haul().arg("cp").arg(at("s")).arg(at("new")).output().unwrap();
    exits(&output, 3);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}
