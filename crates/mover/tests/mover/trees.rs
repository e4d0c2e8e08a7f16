//! Creates trees of files and compares them byte by byte.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

/// Sets the modification time, without following a link.
pub(crate) fn set_mtime(path: &Path, secs: i64, nanos: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns bytes that differ by offset and by file.
pub(crate) fn contents(len: usize, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    haul_base::Rng::from_seed(salt).fill(&mut bytes);
    bytes
}

/// Asserts that both trees have the same names, kinds, contents, permissions and times.
pub(crate) fn assert_same(a: &Path, b: &Path) {
    let (meta_a, meta_b) = (a.symlink_metadata().unwrap(), b.symlink_metadata().unwrap());
    let what = format!("{} and {}", a.display(), b.display());
    assert_eq!(meta_a.file_type(), meta_b.file_type(), "{what}");
    assert_eq!(
        (meta_a.mtime(), meta_a.mtime_nsec()),
        (meta_b.mtime(), meta_b.mtime_nsec()),
        "mtime of {what}"
    );
    assert_eq!(meta_a.mode(), meta_b.mode(), "mode of {what}");
    if meta_a.is_symlink() {
        assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap(), "{what}");
    } else if meta_a.is_dir() {
        let names = |path: &Path| {
            let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(a), names(b), "{what}");
        for name in names(a) {
            assert_same(&a.join(&name), &b.join(&name));
        }
    } else {
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "contents of {what}");
    }
}

/// Creates a tree with unusual entries of every kind.
pub(crate) fn odd_tree(root: &Path) {
    fs::create_dir_all(root.join("empty directory")).unwrap();
    fs::create_dir_all(root.join("deep")).unwrap();
    let names: [&[u8]; 6] = [b"new\nline", b"\xff\xfe not utf-8", &[b'n'; 255], b"-rf", b" ", b"\x1b[2J"];
    for (i, name) in names.iter().enumerate() {
        fs::write(root.join(crate::harness::name(name)), contents(i * 100, i as u64)).unwrap();
    }
    let sizes = [0, 1, 1399, 1400, 1401, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000];
    for size in sizes {
        let path = root.join(format!("size {size}"));
        fs::write(&path, contents(size, size as u64)).unwrap();
        set_mtime(&path, 1_000_000_000 + i64::try_from(size).unwrap(), 123_456_789);
    }
    odd_attributes(root);
    for (name, target) in
        [("dangling", "nowhere/at all"), ("absolute", "/etc/passwd"), ("up", "../../.."), ("self", "self")]
    {
        symlink(target, root.join(name)).unwrap();
        set_mtime(&root.join(name), 77, 88);
    }
    let mut deep = root.join("deep");
    for level in 0..60 {
        deep = deep.join(format!("level {level}"));
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), "found").unwrap();
}

fn odd_attributes(root: &Path) {
    fs::write(root.join("read only"), "r").unwrap();
    set_mode(&root.join("read only"), 0o400);
    fs::write(root.join("program"), "#!/bin/sh").unwrap();
    set_mode(&root.join("program"), 0o755);
    fs::write(root.join("before 1970"), "old").unwrap();
    set_mtime(&root.join("before 1970"), -86_400 * 365, 999_999_999);
    fs::create_dir(root.join("setgid")).unwrap();
    fs::write(root.join("setgid/inside"), "x").unwrap();
    set_mode(&root.join("setgid"), 0o2775);
    fs::create_dir(root.join("closed")).unwrap();
    fs::write(root.join("closed/inside"), "x").unwrap();
    set_mtime(&root.join("closed"), -1, 1);
    set_mode(&root.join("closed"), 0o555);
}
