//! Hard links, attributes, owners, unusual times, and deep or read-only directories.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use haul_mover::{MoveReport, ReceiveOptions, Root, SendLimits, receive_files, send_files};
use haul_wire::control::{
    Entry, EntryKind, Equal, FaultCode, HardLinks, Layout, LinkChoice, Newer, Ownership, Preserve,
    ReceivePolicy, RunMode, Selection,
};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags, getxattr, lgetxattr, setxattr};
use rustix::io::Errno;

use crate::harness::{
    Ends, Pair, Pump, all, announced, assert_no_parts, bytes, copy, link_pair, names_below, options, start,
};
use crate::trees::{assert_same, contents, set_mode, set_mtime};

fn inode(path: &Path) -> (u64, u64) {
    let meta = path.symlink_metadata().unwrap();
    (meta.ino(), meta.nlink())
}

/// Copies the contents of `src` with these options, all permitted by the receiver.
fn preserving(src: &Path, dst: &Path, preserve: Preserve) -> MoveReport {
    with(src, dst, preserve, ReceiveOptions { permit: preserve, ..options() }).clean().clone()
}

fn with(src: &Path, dst: &Path, preserve: Preserve, options: ReceiveOptions) -> Ends {
    let limits = SendLimits { preserve, ..SendLimits::default() };
    let sources = vec![[&bytes(src)[..], b"/."].concat()];
    start(sources, dst, Layout::Into, limits, options).unwrap().run(&Pump::default())
}

fn places() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    fs::create_dir(&dst).unwrap();
    (dir, src, dst)
}

/// Asserts that both directories have the same entries; they themselves may differ in their times.
fn assert_same_contents(src: &Path, dst: &Path) {
    for item in fs::read_dir(src).unwrap() {
        let name = item.unwrap().file_name();
        assert_same(&src.join(&name), &dst.join(&name));
    }
}

fn linked_tree(src: &Path) {
    fs::create_dir(src.join("d")).unwrap();
    fs::write(src.join("a"), contents(50_000, 1)).unwrap();
    fs::write(src.join("alone"), contents(10, 2)).unwrap();
    fs::write(src.join("empty"), "").unwrap();
    for name in ["b", "d/c"] {
        fs::hard_link(src.join("a"), src.join(name)).unwrap();
    }
    fs::hard_link(src.join("empty"), src.join("d/empty too")).unwrap();
    set_mode(&src.join("a"), 0o640);
    set_mtime(&src.join("a"), 1_000_000_000, 5);
}

#[test]
fn hard_links_stay_hard_links() {
    let (_dir, src, dst) = places();
    linked_tree(&src);
    let report = preserving(&src, &dst, Preserve::default());
    assert_eq!((report.files, report.hard_links, report.bytes), (3, 3, 50_010));
    let (ino, names) = inode(&dst.join("a"));
    assert_eq!(names, 3);
    assert_eq!((inode(&dst.join("b")).0, inode(&dst.join("d/c")).0), (ino, ino));
    assert_eq!(inode(&dst.join("empty")), inode(&dst.join("d/empty too")));
    assert_same(&src.join("a"), &dst.join("d/c"));
    // Again: everything is up to date.
    let repeated = preserving(&src, &dst, Preserve::default());
    assert_eq!((repeated.files, repeated.kept, repeated.hard_links), (0, 3, 3));
    assert_eq!(inode(&dst.join("b")), (ino, 3));
    // A separate file becomes a hard link again.
    fs::remove_file(dst.join("b")).unwrap();
    fs::write(dst.join("b"), "another").unwrap();
    preserving(&src, &dst, Preserve::default());
    assert_eq!(inode(&dst.join("b")), (ino, 3));
    assert_no_parts(&dst);
}

#[test]
fn hard_links_below_a_root_are_separated_whatever_their_names() {
    let (_dir, src, dst) = places();
    fs::write(src.join("a"), contents(5000, 1)).unwrap();
    for name in ["b", "\u{e9}"] {
        fs::hard_link(src.join("a"), src.join(name)).unwrap();
    }
    for mode in [0o644, 0o600, 0o600] {
        set_mode(&src.join("a"), mode);
        let (a, b) = link_pair();
        let root = Root::beneath(&dst).unwrap();
        let receive = receive_files(b"", &root, Layout::Into, b, options()).unwrap();
        let sources = vec![[&bytes(&src)[..], b"/."].concat()];
        let preserve = Preserve { hard_links: HardLinks::Copy, ..Preserve::default() };
        // The first copy makes hard links, the others separate them.
        let preserve = if mode == 0o644 { Preserve::default() } else { preserve };
        let limits = SendLimits { preserve, ..SendLimits::default() };
        let send = send_files(sources, Root::Anywhere, &all(), a, limits).unwrap();
        Pair { send, receive }.run(&Pump::default()).clean();
        assert_same_contents(&src, &dst);
    }
}

#[test]
fn hard_links_found_more_often_than_the_file_has_names_stay_hard_links() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "contents").unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
    symlink("a", dir.path().join("c")).unwrap();
    symlink("b", dir.path().join("d")).unwrap();
    let follow = Selection { links: LinkChoice::Follow, ..Selection::default() };
    let source = bytes(&dir.path().join("."));
    let found = announced(vec![source], &Root::Anywhere, &follow, |_| {}).unwrap();
    let is_link = |entry: &Entry| matches!(entry.kind, EntryKind::HardLink { entry: 0 });
    assert_eq!(found.iter().filter(|entry| is_link(entry)).count(), 3, "{found:?}");
}

#[test]
fn hard_links_become_separate_files_on_request() {
    let (_dir, src, dst) = places();
    linked_tree(&src);
    let report = preserving(&src, &dst, Preserve { hard_links: HardLinks::Copy, ..Preserve::default() });
    assert_eq!((report.files, report.hard_links, report.bytes), (6, 0, 150_010));
    assert_eq!((inode(&dst.join("a")).1, inode(&dst.join("b")).1), (1, 1));
    assert_same(&src.join("b"), &dst.join("b"));
}

#[test]
fn a_link_whose_file_fails_fails_with_it() {
    let (_dir, src, dst) = places();
    fs::write(src.join("a"), "1").unwrap();
    fs::hard_link(src.join("a"), src.join("b")).unwrap();
    fs::create_dir(dst.join("a")).unwrap();
    let ends = with(&src, &dst, Preserve::default(), options());
    let report = ends.received.as_ref().unwrap();
    assert_eq!(report, ends.sent.as_ref().unwrap());
    let codes: Vec<_> = report.failures.named().iter().map(|(path, f)| (path.as_slice(), f.code)).collect();
    assert_eq!(codes, [(&b"a"[..], FaultCode::IsADirectory), (b"b", FaultCode::Io)]);
    assert!(!dst.join("b").exists());
}

#[test]
fn a_newer_file_is_not_replaced_by_a_link() {
    let (_dir, src, dst) = places();
    linked_tree(&src);
    fs::write(dst.join("b"), "newer").unwrap();
    let receive_policy = ReceivePolicy { newer: Newer::Keep, ..ReceivePolicy::default() };
    let ends = with(&src, &dst, Preserve::default(), ReceiveOptions { receive_policy, ..options() });
    assert_eq!(ends.clean().notes.count, 1);
    assert_eq!(fs::read(dst.join("b")).unwrap(), b"newer");
    assert_eq!(inode(&dst.join("a")).1, 2);
}

/// The first name, whose contents are sent, is newer at the destination.
#[test]
fn a_link_never_gets_the_contents_of_a_newer_file() {
    let (_dir, src, dst) = places();
    linked_tree(&src);
    preserving(&src, &dst, Preserve::default());
    let receive_policy = ReceivePolicy { newer: Newer::Keep, ..ReceivePolicy::default() };
    let update = |receive_policy| {
        with(&src, &dst, Preserve::default(), ReceiveOptions { receive_policy, ..options() })
    };
    // As an editor does: the other names keep the old file.
    fs::remove_file(dst.join("a")).unwrap();
    fs::write(dst.join("a"), "newer").unwrap();
    for run in [RunMode::ListChanges, RunMode::Move] {
        assert_eq!(update(ReceivePolicy { run, ..receive_policy }).clean().failures.count(), 0);
        assert_eq!(fs::read(dst.join("a")).unwrap(), b"newer");
        for name in ["b", "d/c"] {
            assert_same(&src.join(name), &dst.join(name));
        }
    }
    // There is nothing that they could be linked to.
    fs::remove_file(dst.join("b")).unwrap();
    set_mtime(&dst.join("d/c"), 5, 5);
    for run in [RunMode::ListChanges, RunMode::Move] {
        let ends = update(ReceivePolicy { run, ..receive_policy });
        let failures = ends.received.as_ref().unwrap().failures.named();
        let failed: Vec<_> = failures.iter().map(|(path, fault)| (&path[..], &fault.hint[..])).collect();
        let hint = "--no-hard-links copies it as a separate file";
        assert_eq!(failed, [(&b"b"[..], hint), (b"d/c", hint)]);
        assert!(!dst.join("b").exists());
        assert_eq!(fs::read(dst.join("d/c")).unwrap(), fs::read(src.join("a")).unwrap());
    }
    // Equal size and time do not suffice where contents are compared.
    set_mtime(&dst.join("d/c"), 1_000_000_000, 5);
    let ends = update(ReceivePolicy { equal: Equal::Contents, ..receive_policy });
    assert_eq!(ends.received.unwrap().failures.count(), 2);
}

#[test]
fn links_across_file_systems_become_copies() {
    let (_dir, src, dst) = places();
    let mounted = dst.join("d");
    fs::create_dir(&mounted).unwrap();
    let mount = std::process::Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&mounted).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: a file system cannot be mounted here");
        return;
    }
    linked_tree(&src);
    let result = std::panic::catch_unwind(|| {
        let report = preserving(&src, &dst, Preserve::default());
        assert_eq!((report.files, report.hard_links, report.notes.count), (3, 3, 2));
        assert!(report.notes.first[0].contains("copy"), "{:?}", report.notes);
        assert_same(&src.join("d/c"), &dst.join("d/c"));
        assert_eq!(inode(&dst.join("d/c")).1, 1);
    });
    std::process::Command::new("umount").arg(&mounted).status().unwrap();
    result.unwrap();
}

pub(crate) fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 70_000];
    let len = getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

/// Whether the temporary directory supports what the test needs.
pub(crate) fn has_attributes(dir: &Path) -> bool {
    let works = set(dir, "user.haul-test", b"x").is_ok();
    if !works {
        eprintln!("SKIPPED: the directory for temporary files has no extended attributes");
    }
    works
}

/// Returns an ACL with an entry for one more user (`acl(5)`; Linux's format, version 2).
fn acl(user: u32) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, user), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)]
    {
        value.extend(tag.to_le_bytes());
        value.extend(rights.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

#[test]
fn attributes_and_acls_are_copied_only_on_request() {
    let (dir, src, dst) = places();
    if !has_attributes(dir.path()) {
        return;
    }
    fs::create_dir(src.join("d")).unwrap();
    fs::write(src.join("f"), "contents").unwrap();
    let long = contents(3_000, 9);
    set(&src.join("f"), "user.long", &long).unwrap();
    set(&src.join("f"), "user.empty", b"").unwrap();
    set(&src.join("d"), "user.of a directory", b"1").unwrap();
    set(&src.join("f"), "system.posix_acl_access", &acl(12_345)).unwrap();
    set(&src.join("d"), "system.posix_acl_default", &acl(12_346)).unwrap();
    set_mode(&src.join("f"), 0o444);
    symlink("f", src.join("l")).unwrap();
    preserving(&src, &dst, Preserve::default());
    assert_eq!((get(&dst.join("f"), "user.long"), get(&dst.join("d"), "user.of a directory")), (None, None));
    // The file is kept, but its attributes are updated.
    let report = preserving(&src, &dst, Preserve::ALL);
    assert_eq!((report.kept, report.notes.count), (1, 0), "{:?}", report.notes);
    for name in ["user.long", "user.empty", "system.posix_acl_access"] {
        assert_eq!(get(&dst.join("f"), name), get(&src.join("f"), name), "{name}");
    }
    for name in ["user.of a directory", "system.posix_acl_default"] {
        assert_eq!(get(&dst.join("d"), name), get(&src.join("d"), name), "{name}");
        assert!(get(&dst.join("d"), name).is_some());
    }
    assert_same_contents(&src, &dst);
    // Attributes that the source no longer has are removed; new files get all at once.
    rustix::fs::removexattr(src.join("f"), "user.empty").unwrap();
    fs::write(src.join("new"), "new").unwrap();
    set(&src.join("new"), "user.new", b"n").unwrap();
    preserving(&src, &dst, Preserve::ALL);
    assert_eq!(get(&dst.join("f"), "user.empty"), None);
    assert_eq!(get(&dst.join("f"), "user.long"), Some(long));
    assert_eq!(get(&dst.join("new"), "user.new"), Some(b"n".to_vec()));
    assert_no_parts(&dst);
}

#[test]
fn a_receiver_applies_only_permitted_metadata() {
    let (dir, src, dst) = places();
    if !has_attributes(dir.path()) {
        return;
    }
    fs::write(src.join("f"), "contents").unwrap();
    set(&src.join("f"), "user.a", b"1").unwrap();
    set_mode(&src.join("f"), 0o4755);
    let ends = with(&src, &dst, Preserve::ALL, options());
    let notes = &ends.clean().notes;
    assert_eq!(notes.count, 1, "{notes:?}");
    assert!(notes.first[0].contains("does not permit extended attributes"), "{notes:?}");
    assert_eq!(get(&dst.join("f"), "user.a"), None);
    assert_eq!(
        fs::metadata(dst.join("f")).unwrap().mode() & 0o7777,
        0o755,
        "the copy must not be set-user-ID"
    );
}

/// The source has symbolic links to files that were moved to the destination, for example to a larger disk.
#[test]
fn a_link_does_not_replace_its_own_target() {
    let (_dir, src, dst) = places();
    for name in ["straight", "around", "again"] {
        fs::write(dst.join(name), name).unwrap();
    }
    fs::hard_link(dst.join("again"), dst.join("kept")).unwrap();
    symlink(dst.join("straight"), src.join("straight")).unwrap();
    symlink("../src/straight", src.join("other")).unwrap();
    symlink("../src/../dst/around", src.join("around")).unwrap();
    symlink("kept", src.join("again")).unwrap();
    let ends = with(&src, &dst, Preserve::default(), options());
    let failures = ends.received.as_ref().unwrap().failures.named();
    let failed: Vec<_> = failures.iter().map(|(path, fault)| (&path[..], fault.code)).collect();
    assert_eq!(failed, [(&b"around"[..], FaultCode::Io), (b"straight", FaultCode::Io)]);
    for name in ["straight", "around"] {
        assert_eq!(fs::read_to_string(dst.join(name)).unwrap(), name);
    }
    // The file that the link replaces still has its other name.
    assert_eq!(fs::read_to_string(dst.join("again")).unwrap(), "again");
    assert!(dst.join("again").is_symlink() && dst.join("other").is_symlink());
    assert_no_parts(&dst);
}

#[test]
fn root_sets_owners_and_setuid_bits_on_request() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give files away");
        return;
    }
    let (_dir, src, dst) = places();
    fs::create_dir(src.join("d")).unwrap();
    fs::write(src.join("f"), "contents").unwrap();
    fs::write(src.join("set-user-ID"), "contents").unwrap();
    symlink("nowhere", src.join("l")).unwrap();
    for name in ["f", "d", "l", "set-user-ID"] {
        std::os::unix::fs::lchown(src.join(name), Some(54_321), Some(54_322)).unwrap();
    }
    set_mode(&src.join("set-user-ID"), 0o4755);
    let owners = |name: &str| {
        let meta = dst.join(name).symlink_metadata().unwrap();
        (meta.uid(), meta.gid(), meta.mode() & 0o7777)
    };
    preserving(&src, &dst, Preserve::default());
    assert_eq!((owners("f").0, owners("set-user-ID").2), (0, 0o755));
    // Owners that the receiver does not permit are noted, once for each file that has another owner.
    let notes = with(&src, &dst, Preserve { owner: Ownership::Names, ..Preserve::default() }, options());
    let notes = notes.clean().notes.clone();
    assert_eq!(notes.count, 4, "{notes:?}");
    assert!(notes.first[0].contains("does not permit the owner 54321:54322"), "{notes:?}");
    // Files that are kept get their owners, too.
    for owner in [Ownership::Names, Ownership::Numbers] {
        let report = preserving(&src, &dst, Preserve { owner, ..Preserve::default() });
        assert_eq!((report.kept, report.notes.count), (2, 0), "{:?}", report.notes);
        for name in ["f", "d", "l"] {
            assert_eq!((owners(name).0, owners(name).1), (54_321, 54_322), "{name}");
        }
        assert_eq!(owners("set-user-ID"), (54_321, 54_322, 0o4755));
    }
    assert_same_contents(&src, &dst);
}

/// Runs `work` as a user without privileges who owns everything in the directory.
fn unprivileged(dir: &Path, work: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return work();
    }
    for path in names_below(dir).iter().map(PathBuf::as_path).chain([dir]) {
        std::os::unix::fs::lchown(path, Some(54_321), Some(54_321)).unwrap();
    }
    let user = rustix::process::Uid::from_raw(54_321);
    let thread = || {
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        work();
    };
    std::thread::scope(|scope| scope.spawn(thread).join()).unwrap();
}

#[test]
fn kept_files_and_directories_that_cannot_be_read_are_corrected() {
    let (dir, src, dst) = places();
    fs::create_dir(src.join("d")).unwrap();
    for name in ["f", "d/f"] {
        fs::write(src.join(name), "contents").unwrap();
    }
    unprivileged(dir.path(), || {
        preserving(&src, &dst, Preserve::default());
        fs::write(src.join("d/new"), "new").unwrap();
        set_mtime(&src.join("d"), 1_000_000_000, 5);
        set_mode(&dst.join("f"), 0);
        set_mode(&dst.join("d"), 0o300);
        let report = preserving(&src, &dst, Preserve::default());
        assert_eq!((report.files, report.kept, report.notes.count), (1, 2, 0));
        assert_same_contents(&src, &dst);
    });
}

#[test]
fn capabilities_are_copied_only_with_owners() {
    let (_dir, src, dst) = places();
    fs::write(src.join("f"), "contents").unwrap();
    // CAP_NET_RAW, permitted and effective (`capabilities(7)`, version 2).
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if set(&src.join("f"), "security.capability", &capability).is_err() {
        eprintln!("SKIPPED: capabilities of files cannot be set here");
        return;
    }
    let xattrs = Preserve { owner: Ownership::Receiver, ..Preserve::ALL };
    let report = preserving(&src, &dst, xattrs);
    assert_eq!(report.notes.count, 1, "{:?}", report.notes);
    assert_eq!(get(&dst.join("f"), "security.capability"), None);
    preserving(&src, &dst, Preserve::ALL);
    assert!(get(&dst.join("f"), "security.capability").is_some());
}

#[test]
fn times_of_all_centuries_are_preserved_and_recognised() {
    let (_dir, src, dst) = places();
    for (index, secs) in
        [-86_400 * 365 * 60, -1, 0, 2_147_483_647, 2_147_483_648, 4_294_967_296, 16_000_000_000]
            .into_iter()
            .enumerate()
    {
        let path = src.join(index.to_string());
        fs::write(&path, "x").unwrap();
        set_mtime(&path, secs, 999_999_999);
    }
    assert_eq!(preserving(&src, &dst, Preserve::default()).files, 7);
    assert_same_contents(&src, &dst);
    assert_eq!(preserving(&src, &dst, Preserve::default()).kept, 7);
}

#[test]
fn clamped_times_do_not_cause_another_copy() {
    let (dir, src, dst) = places();
    let image = dir.path().join("image");
    File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let run = |program: &str, args: &[&str], path: &[&Path]| {
        let output = std::process::Command::new(program).args(args).args(path).output();
        output.is_ok_and(|output| output.status.success())
    };
    // Inodes of 128 bytes have times of 32 bits and no nanoseconds.
    let made = run("mkfs.ext4", &["-q", "-F", "-I", "128"], &[&image]);
    if !(made && run("mount", &["-o", "loop"], &[&image, &dst])) {
        eprintln!("SKIPPED: a file system with short times cannot be made and mounted here");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        for (name, secs) in [("late", 10_000_000_000), ("early", -5_000_000_000), ("usual", 1_700_000_000)] {
            fs::write(src.join(name), "x").unwrap();
            set_mtime(&src.join(name), secs, 123_456_789);
        }
        assert_eq!(preserving(&src, &dst, Preserve::default()).files, 3);
        assert!(fs::metadata(dst.join("late")).unwrap().mtime() < 10_000_000_000, "the time was not clamped");
        let repeated = preserving(&src, &dst, Preserve::default());
        assert_eq!((repeated.files, repeated.kept), (0, 3));
        // Changes are still detected.
        set_mtime(&src.join("usual"), 1_700_000_001, 0);
        fs::write(src.join("late"), "longer").unwrap();
        set_mtime(&src.join("late"), 10_000_000_000, 0);
        assert_eq!(preserving(&src, &dst, Preserve::default()).files, 2);
    });
    // A process that another test starts may still have the file system open.
    let begun = Instant::now();
    while !run("umount", &[], &[&dst]) {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(100));
    }
    result.unwrap();
}

#[test]
fn trees_deeper_than_path_max() {
    let (dir, src, dst) = places();
    let name = "n".repeat(250);
    let level = |depth: usize| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut at = rustix::fs::openat(CWD, &src, flags, Mode::empty()).unwrap();
        for _ in 0..depth {
            let _ = rustix::fs::mkdirat(&at, &name, Mode::RWXU);
            at = rustix::fs::openat(&at, &name, flags, Mode::empty()).unwrap();
        }
        at
    };
    for depth in [3, 15, 16, 17, 40] {
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = rustix::fs::openat(level(depth), "file", flags, Mode::RUSR).unwrap();
        rustix::io::write(&file, b"contents").unwrap();
    }
    let report = preserving(&src, &dst, Preserve::ALL);
    assert_eq!((report.files, report.entries), (5, 45));
    assert_eq!(preserving(&src, &dst, Preserve::default()).kept, 5);
    let mut at = File::open(&dst).unwrap();
    for _ in 0..40 {
        let opened = rustix::fs::openat(&at, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        at = File::from(opened.unwrap());
    }
    assert!(rustix::fs::statat(&at, "file", AtFlags::empty()).is_ok());
    drop(dir);
}

#[test]
fn a_sparse_file_of_100_terabytes() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIPPED: there is no file system in memory at /dev/shm");
        return;
    };
    let (src, dst) = (dir.path().join("f"), dir.path().join("copy"));
    let file = File::create(&src).unwrap();
    if file.set_len(100_000_000_000_000).is_err() {
        eprintln!("SKIPPED: files of 100 TB cannot be made here");
        return;
    }
    set_mtime(&src, 1_000_000_000, 0);
    copy(&[&src], &dst, Layout::As).clean();
    assert_eq!((dst.metadata().unwrap().len(), dst.metadata().unwrap().blocks()), (100_000_000_000_000, 0));
    // With some data at its end.
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", 99_999_999_999_997).unwrap();
    copy(&[&src], &dst, Layout::As).clean();
    let mut end = [0; 3];
    std::os::unix::fs::FileExt::read_exact_at(&File::open(&dst).unwrap(), &mut end, 99_999_999_999_997)
        .unwrap();
    assert_eq!(&end, b"end");
    assert!(dst.metadata().unwrap().blocks() < 100);
}

#[test]
fn links_keep_their_attributes() {
    let (_dir, src, dst) = places();
    symlink("nowhere", src.join("l")).unwrap();
    let set = rustix::fs::lsetxattr(src.join("l"), "trusted.haul", b"x", XattrFlags::empty());
    if set.is_err() {
        eprintln!("SKIPPED: links cannot have attributes here");
        return;
    }
    let report = preserving(&src, &dst, Preserve::ALL);
    assert_eq!(report.notes.count, 0, "{:?}", report.notes);
    let mut value = [0; 9];
    assert_eq!(lgetxattr(dst.join("l"), "trusted.haul", &mut value[..]), Ok(1));
    assert_same_contents(&src, &dst);
}

#[test]
fn times_rounded_by_the_file_system_are_recognised() {
    let (_dir, src, dst) = places();
    for (nanos, kept) in [(123_456_700, 1), (123_456_000, 1), (120_000_000, 1), (0, 1), (123_000_000, 0)] {
        fs::write(src.join("f"), "contents").unwrap();
        set_mtime(&src.join("f"), 1_000_000_000, 123_456_789);
        fs::write(dst.join("f"), "contents").unwrap();
        set_mtime(&dst.join("f"), 1_000_000_000, nanos);
        assert_eq!(preserving(&src, &dst, Preserve::default()).kept, kept, "{nanos}");
    }
}
