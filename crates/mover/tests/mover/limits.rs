//! Full and read-only file systems. Tests that need root report that they were skipped without it.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use haul_mover::{MAX_NAMED_FAILURES, ReceiveOptions, Root, SendLimits};
use haul_wire::control::{
    Durability, EntryKind, Extraneous, Fault, FaultCode, Layout, Newer, Readback, ReceivePolicy, RunMode,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::harness::{
    Pair, Pump, all, announced, assert_no_parts, assert_resumable, bytes, copy, names_below, options, start,
};
use crate::receive_policy::{DELETE, content};
use crate::trees::{assert_same, contents, set_mode, set_mtime};

/// A tmpfs, unmounted on drop.
struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    fn mount(path: &'a Path, options: &str) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let mounted = rustix::process::getuid().is_root()
            && Command::new("mount")
                .args(["-t", "tmpfs", "-o", options, "tmpfs"])
                .arg(path)
                .status()
                .is_ok_and(|s| s.success());
        if !mounted {
            eprintln!("SKIPPED: a tmpfs cannot be mounted here (needs root)");
        }
        mounted.then_some(Self(path))
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_ends_the_job_on_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("mnt");
    let Some(_mounted) = Tmpfs::mount(&mount, "size=4m") else {
        return;
    };
    // Large files are refused when their space is reserved, small ones when they are written.
    for (name, files, len) in [("large", 3, 3 << 20), ("small", 20, 400_000)] {
        let src = dir.path().join(name);
        fs::create_dir(&src).unwrap();
        for i in 0..files {
            fs::write(src.join(format!("f{i}")), contents(len, i)).unwrap();
        }
        let dst = mount.join(name);
        let ends = copy(&[&src], &dst, Layout::As);
        for end in [ends.sent, ends.received] {
            let fault = end.unwrap_err();
            assert_eq!(fault.code, FaultCode::DiskFull, "{fault}");
            assert!(!fault.hint.is_empty());
        }
        if name == "large" {
            assert_resumable(&mount);
        } else {
            assert_no_parts(&mount);
        }
        let is_part = |name: &std::ffi::OsStr| name.as_bytes().ends_with(b".part");
        for done in fs::read_dir(&dst).unwrap() {
            let name = done.unwrap().file_name();
            if is_part(&name) {
                continue;
            }
            assert_eq!(fs::read(dst.join(&name)).unwrap(), fs::read(src.join(&name)).unwrap());
        }
        fs::remove_dir_all(&dst).unwrap();
    }
}

#[test]
fn a_read_only_file_system_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("mnt");
    let Some(_mounted) = Tmpfs::mount(&mount, "ro") else {
        return;
    };
    fs::write(dir.path().join("f"), "x").unwrap();
    let started =
        start(vec![bytes(&dir.path().join("f"))], &mount, Layout::As, SendLimits::default(), options());
    assert_eq!(started.err().map(|fault| fault.code), Some(FaultCode::ReadOnly));
}

/// Environment variable of the child process that runs the test without root's rights.
const UNPRIVILEGED: &str = "HAUL_TEST_UNPRIVILEGED";

/// Runs the named test again as an unprivileged user, for whom permissions apply. False: this is that child.
fn again_without_rights(test: &str, dir: &Path) -> bool {
    if std::env::var_os(UNPRIVILEGED).is_some() || !rustix::process::getuid().is_root() {
        return false;
    }
    set_mode(dir, 0o777);
    let program = dir.join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", test]).env(UNPRIVILEGED, "1").env("TMPDIR", dir).uid(65_534).gid(65_534);
    let done = loop {
        match command.output() {
            // A child of another test may still have the copy open for writing (fork before exec).
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            done => break done.unwrap(),
        }
    };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    true
}

#[test]
fn missing_permissions_fail_only_affected_entries() {
    let dir = tempfile::tempdir().unwrap();
    if again_without_rights("limits::missing_permissions_fail_only_affected_entries", dir.path()) {
        return;
    }
    let src = dir.path().join("src");
    fs::create_dir_all(src.join("sub")).unwrap();
    fs::create_dir(src.join("closed")).unwrap();
    for file in ["open", "secret", "sub/f"] {
        fs::write(src.join(file), contents(2000, 1)).unwrap();
    }
    set_mode(&src.join("secret"), 0);
    set_mode(&src.join("closed"), 0);
    let dst = dir.path().join("dst");
    fs::create_dir_all(dst.join("sub")).unwrap();
    set_mode(&dst.join("sub"), 0o555);
    let ends = copy(&[&src.join(".")], &dst, Layout::Into);
    let report = ends.sent.unwrap();
    let code = |path: &str| {
        report.failures.named().iter().find(|(p, _)| p == path.as_bytes()).map(|(_, fault)| fault.code)
    };
    assert_eq!(code("secret"), Some(FaultCode::Unreadable));
    assert_eq!(code("closed"), Some(FaultCode::Unreadable));
    assert_eq!(report.failures.count(), 2);
    assert_eq!(report.exit_code(), 3);
    assert_same(&src.join("open"), &dst.join("open"));
    // A directory of the set is writable while filled, and gets the set's permissions in the end.
    assert_same(&src.join("sub"), &dst.join("sub"));
    assert_no_parts(&dst);
    set_mode(&src.join("closed"), 0o755);
}

#[test]
fn an_unwritable_destination_ends_the_job() {
    let dir = tempfile::tempdir().unwrap();
    if again_without_rights("limits::an_unwritable_destination_ends_the_job", dir.path()) {
        return;
    }
    let src = dir.path().join("src");
    fs::create_dir(&src).unwrap();
    for i in 0..50 {
        fs::write(src.join(format!("f{i}")), contents(20_000, i)).unwrap();
    }
    let dst = dir.path().join("dst");
    fs::create_dir(&dst).unwrap();
    set_mode(&dst, 0o555);
    let pair = start(vec![bytes(&src)], &dst, Layout::Into, SendLimits::default(), options()).unwrap();
    let ends = pair.run(&Pump::default());
    for end in [ends.sent, ends.received] {
        assert_eq!(end.unwrap_err().code, FaultCode::ReadOnly);
    }
    set_mode(&dst, 0o755);
}

#[test]
fn read_only_directories_are_filled_and_synchronised() {
    let dir = tempfile::tempdir().unwrap();
    if again_without_rights("limits::read_only_directories_are_filled_and_synchronised", dir.path()) {
        return;
    }
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    let closed = src.join("closed");
    fs::create_dir_all(closed.join("below")).unwrap();
    fs::write(closed.join("f"), contents(2000, 1)).unwrap();
    fs::write(closed.join("below/g"), contents(2000, 2)).unwrap();
    let modes = |mode| [closed.join("below"), closed.clone()].iter().for_each(|path| set_mode(path, mode));
    modes(0o555);
    copy(&[&src.join(".")], &dst, Layout::Into).clean();
    assert_same(&closed, &dst.join("closed"));
    // Every kind of entry, in a directory without write permission.
    modes(0o755);
    fs::write(closed.join("below/new"), "new").unwrap();
    fs::hard_link(closed.join("f"), closed.join("below/linked")).unwrap();
    std::os::unix::fs::symlink("x", closed.join("link")).unwrap();
    fs::create_dir(closed.join("directory")).unwrap();
    modes(0o555);
    copy(&[&src.join(".")], &dst, Layout::Into).clean();
    assert_same(&closed, &dst.join("closed"));
    // An interrupted job leaves the permissions as they were.
    modes(0o755);
    fs::write(closed.join("below/large"), contents(4 << 20, 3)).unwrap();
    modes(0o555);
    let limits = SendLimits::default();
    let pair = start(vec![bytes(&src.join("."))], &dst, Layout::Into, limits, options()).unwrap();
    let Pair { mut send, mut receive } = pair;
    let over = || send.handle.is_finished() || receive.handle.is_finished();
    let pump = Pump { stop_after: Some(2 << 20), ..Pump::default() };
    pump.run(&mut *send.source, &mut *receive.sink, &over);
    send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped", ""));
    assert!(receive.handle.join().is_err());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dst.join("closed/below")), 0o555);
    modes(0o755);
    for path in [dst.join("closed/below"), dst.join("closed"), dst.join("closed/directory")] {
        set_mode(&path, 0o755);
    }
}

#[test]
fn a_large_unreadable_file_is_not_sent_as_zeros() {
    let dir = tempfile::tempdir().unwrap();
    if again_without_rights("limits::a_large_unreadable_file_is_not_sent_as_zeros", dir.path()) {
        return;
    }
    let secret = dir.path().join("secret");
    fs::write(&secret, contents(2 << 20, 1)).unwrap();
    set_mode(&secret, 0);
    let found = announced(vec![bytes(&secret)], &Root::Anywhere, &all(), |_| {}).unwrap();
    let EntryKind::Failed(fault) = &found[0].kind else { panic!("{found:?}") };
    assert!(fault.message.contains("secret") && fault.message.contains("Permission denied"), "{fault}");
}

#[test]
fn an_unreadable_file_is_a_failure_even_if_the_destination_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let name = "limits::an_unreadable_file_is_a_failure_even_if_the_destination_has_it";
    if again_without_rights(name, dir.path()) {
        return;
    }
    for size in [1000, 2 << 20] {
        let (src, dst) = (dir.path().join(format!("src{size}")), dir.path().join(format!("dst{size}")));
        fs::create_dir(&src).unwrap();
        fs::write(src.join("secret"), contents(size, 1)).unwrap();
        copy(&[&src.join(".")], &dst, Layout::Into).clean();
        fs::write(dst.join("old"), "contents").unwrap();
        set_mode(&src.join("secret"), 0);
        let options = ReceiveOptions { receive_policy: DELETE, ..options() };
        let pair = start(vec![content(&src)], &dst, Layout::Into, SendLimits::default(), options).unwrap();
        let ends = pair.run(&Pump::default());
        assert_eq!(ends.one_failure().1.code, FaultCode::Unreadable, "{size}");
        assert_eq!(ends.sent.as_ref().unwrap().exit_code(), FaultCode::Unreadable.exit_code());
        assert!(dst.join("secret").exists() && dst.join("old").exists());
    }
}

#[test]
fn names_in_unreadable_directories_count_before_deletion() {
    let dir = tempfile::tempdir().unwrap();
    if again_without_rights("limits::names_in_unreadable_directories_count_before_deletion", dir.path()) {
        return;
    }
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    fs::create_dir_all(dst.join("old")).unwrap();
    for file in 0..3 {
        fs::write(dst.join("old").join(file.to_string()), "contents").unwrap();
    }
    let run = |most, mode| {
        set_mode(&dst.join("old"), mode);
        let receive_policy = ReceivePolicy { extraneous: Extraneous::DeleteAtMost(most), ..DELETE };
        let options = ReceiveOptions { receive_policy, ..options() };
        let pair = start(vec![content(&src)], &dst, Layout::Into, SendLimits::default(), options).unwrap();
        pair.run(&Pump::default()).clean().removal.removed
    };
    for mode in [0o333, 0o555, 0] {
        assert_eq!(run(3, mode), 0, "{mode:o}");
        assert_eq!(dst.join("old").metadata().unwrap().permissions().mode() & 0o777, mode);
    }
    assert_eq!(run(4, 0), 4);
    assert!(!dst.join("old").exists());
}

#[test]
fn entries_of_directories_that_cannot_be_created_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    for (directory, files) in [("a", 1), ("x", 150), ("x/sub", 150), ("z", 1)] {
        fs::create_dir_all(src.join(directory)).unwrap();
        for file in 0..files {
            fs::write(src.join(directory).join(file.to_string()), "contents").unwrap();
        }
    }
    fs::create_dir(&dst).unwrap();
    for name in ["x", "z"] {
        fs::write(dst.join(name), "in the way").unwrap();
    }
    for run in [RunMode::ListChanges, RunMode::Move] {
        let options = ReceiveOptions::with_policy(1, ReceivePolicy { run, ..ReceivePolicy::default() });
        let sources = vec![[&bytes(&src)[..], b"/."].concat()];
        let started = start(sources, &dst, Layout::Into, SendLimits::default(), options).unwrap();
        let ends = started.run(&Pump::default());
        let report = ends.sent.unwrap();
        assert_eq!(report, ends.received.unwrap(), "{run:?}");
        let failures = &report.failures;
        assert_eq!((report.files, failures.count(), report.exit_code()), (1, 304, 3), "{run:?}");
        assert_eq!((failures.below(b"x"), failures.below(b"z")), (301, 1), "{run:?}");
        let cause = |path: &[u8]| failures.named().iter().any(|(named, _)| named == path);
        assert!(cause(b"x") && cause(b"z"), "{:?}", failures.named());
        assert_eq!(failures.named().len(), MAX_NAMED_FAILURES);
    }
}

#[test]
fn read_only_files_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    if again_without_rights("limits::read_only_files_are_read_back", dir.path()) {
        return;
    }
    if std::env::var_os(UNPRIVILEGED).is_some() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum }).unwrap();
    }
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    for i in 0..300 {
        fs::write(src.join(format!("f{i}")), contents(100, i)).unwrap();
        set_mode(&src.join(format!("f{i}")), 0o444);
    }
    let receive_policy = ReceivePolicy {
        readback: Readback::FromDisk,
        durability: Durability::Synced,
        ..ReceivePolicy::default()
    };
    let options = ReceiveOptions::with_policy(1, receive_policy);
    let pair = start(vec![bytes(&src)], &dst, Layout::As, SendLimits::default(), options).unwrap();
    pair.run(&Pump::default()).clean();
    assert_same(&src, &dst);
}

#[test]
fn a_part_with_its_final_permissions_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    if again_without_rights("limits::a_part_with_its_final_permissions_is_resumed", dir.path()) {
        return;
    }
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    for place in [&src, &dst] {
        fs::create_dir(place).unwrap();
    }
    fs::write(src.join("big"), contents(8 << 20, 1)).unwrap();
    set_mode(&src.join("big"), 0o444);
    let limits = SendLimits::default();
    let pair = start(vec![content(&src)], &dst, Layout::Into, limits, options()).unwrap();
    let Pair { mut send, mut receive } = pair;
    let pump = Pump { stop_after: Some(5 << 20), ..Pump::default() };
    pump.run(&mut *send.source, &mut *receive.sink, &|| false);
    send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped", ""));
    assert!(receive.handle.join().is_err());
    drop(receive.sink);
    let part = names_below(&dst).into_iter().find(|path| path.extension().is_some_and(|e| e == "part"));
    set_mode(&part.unwrap(), 0o444);
    assert!(copy(&[&src.join("big")], &dst, Layout::Into).clean().resumed_bytes > 0);
    assert_same(&src.join("big"), &dst.join("big"));
}

#[test]
fn newer_files_in_directories_without_search_permission_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    if again_without_rights(
        "limits::newer_files_in_directories_without_search_permission_are_kept",
        dir.path(),
    ) {
        return;
    }
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    for place in [&src, &dst] {
        fs::create_dir_all(place.join("d")).unwrap();
        for name in ["equal", "newer"] {
            fs::write(place.join("d").join(name), "old").unwrap();
            set_mtime(&place.join("d").join(name), 1_000_000_000, 0);
        }
    }
    fs::write(dst.join("d/newer"), "new").unwrap();
    for extraneous in [Extraneous::Keep, Extraneous::Delete] {
        set_mode(&dst.join("d"), 0o600);
        let receive_policy = ReceivePolicy { extraneous, newer: Newer::Keep, ..DELETE };
        let options = ReceiveOptions { receive_policy, ..options() };
        let pair = start(vec![content(&src)], &dst, Layout::Into, SendLimits::default(), options).unwrap();
        assert_eq!(pair.run(&Pump::default()).clean().kept, 2);
        assert_eq!(fs::read(dst.join("d/newer")).unwrap(), b"new");
    }
}
