//! File trees: generated from a seed, and compared by code independent of the program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use haul_base::Rng;
use rustix::fs::{XattrFlags, setxattr};
use tempfile::TempDir;

use super::skip;

/// A temporary directory.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("there is room for temporary files")
}

/// Pseudo-random file contents, different for each seed.
pub(crate) fn contents(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

/// Writes a file and creates its parent directories.
pub(crate) fn file(path: &Path, seed: u64, size: usize) {
    fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("directories can be made");
    let mut file = File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.write_all(&contents(seed, size)).expect("there is room for test files");
}

fn set_mtime(path: &Path, seconds: i64, nanos: u32) {
    let zero = SystemTime::UNIX_EPOCH;
    let seconds_part = Duration::from_secs(seconds.unsigned_abs());
    let at = if seconds < 0 { zero - seconds_part } else { zero + seconds_part }
        + Duration::from_nanos(nanos.into());
    File::open(path).and_then(|file| file.set_modified(at)).expect("the time can be set");
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("modes of our own files can be set");
}

/// A tree of edge cases: odd names, sizes around packet and block boundaries, empty files, dangling links,
/// modes and times.
pub(crate) fn odd(root: &Path) {
    // The payloads of the smallest packet and of Ethernet's, and powers of two around them.
    let borders = [1_154, 1_161, 1_200, 1_424, 1_433, 1_440, 4_096, 14_330, 65_536, 1 << 20];
    for (index, border) in borders.into_iter().enumerate() {
        for (step, size) in [border - 1, border, border + 1].into_iter().enumerate() {
            file(&root.join(format!("sizes/{border}/{step}")), (3 * index + step) as u64, size);
        }
    }
    let names: [&[u8]; 10] = [
        b"new\nline",
        b"not \xff\xfe utf-8",
        b"-rf",
        b" ",
        b"tab\tand\x1b[31mescape",
        b"...",
        "größe-名前-🚚".as_bytes(),
        b"a:b",
        b"%2e%2e",
        &[b'x'; 255],
    ];
    for (index, name) in names.into_iter().enumerate() {
        let directory = root.join("names").join(OsStr::from_bytes(name));
        file(&directory.join(OsStr::from_bytes(name)), 100 + index as u64, index);
    }
    fs::create_dir_all(root.join("empty/in/empty")).expect("directories can be made");
    file(&root.join("nothing"), 0, 0);
    let deep: PathBuf = std::iter::repeat_n("deep", 60).collect();
    file(&root.join(deep).join("down"), 5, 5);
    links(root);
    modes_and_times(root);
}

fn links(root: &Path) {
    let directory = root.join("links");
    fs::create_dir_all(&directory).expect("directories can be made");
    let targets: [&[u8]; 5] =
        [b"../nothing", b"/etc/passwd", b"nowhere", b"../../../..", b"odd \xff\ntarget"];
    for (index, target) in targets.into_iter().enumerate() {
        symlink(OsStr::from_bytes(target), directory.join(index.to_string())).expect("links can be made");
    }
    symlink("../sizes", directory.join("to-directory")).expect("links can be made");
}

fn modes_and_times(root: &Path) {
    for (index, mode) in [0o000, 0o400, 0o444, 0o600, 0o644, 0o755, 0o777].into_iter().enumerate() {
        let path = root.join(format!("modes/{mode:03o}"));
        file(&path, 200 + index as u64, 100);
        set_mtime(&path, 1_000_000_000, 100_000_000 + index as u32);
        set_mode(&path, mode);
    }
    for (index, seconds) in [0, -86_400, 4_102_444_800].into_iter().enumerate() {
        let path = root.join(format!("times/{index}"));
        file(&path, 300 + index as u64, 10);
        set_mtime(&path, seconds, 1);
    }
    let closed = root.join("modes/read-only-directory");
    file(&closed.join("inside"), 400, 1_000);
    set_mode(&closed, 0o555);
    set_mtime(&closed, 1_234_567_890, 987_654_321);
    set_mtime(&root.join("empty/in"), 1_111_111_111, 5);
}

/// Many small files and a large one.
pub(crate) fn many(root: &Path, small: u32, large: usize) {
    for number in 0..small {
        let size = (number as usize * 37) % 4_000;
        file(&root.join(format!("d{}/f{number}", number % 40)), number.into(), size);
    }
    file(&root.join("large"), 77, large);
}

/// Offsets of the holes in the sparse file of [`particular`].
const HOLE: u64 = 3 << 20;

/// Properties that need an option or get lost easily: hard links, extended attributes, an access control
/// list, another owner, a sparse file, symbolic links, an empty and a read-only directory.
pub(crate) fn particular(root: &Path) {
    let large = root.join("one");
    file(&large, 11, 2 << 20);
    fs::create_dir_all(root.join("names")).expect("directories can be made");
    for name in ["names/two", "names/three"] {
        fs::hard_link(&large, root.join(name)).expect("files here have hard links");
    }
    symlink("../one", root.join("names/link")).expect("links can be made");
    symlink("nowhere", root.join("dangling")).expect("links can be made");
    sparse(&root.join("holes"));
    fs::create_dir(root.join("empty")).expect("directories can be made");
    let closed = root.join("closed");
    file(&closed.join("inside"), 12, 5_000);
    for (path, mode) in [(&large, 0o640), (&closed.join("inside"), 0o444)] {
        set_mode(path, mode);
    }
    for path in [&large, &root.join("dangling")] {
        lchown(path, Some(54_321), Some(54_322)).expect("root can change owners");
    }
    attributes(root);
    for (path, seconds) in [(&large, 1_000_000_001), (&root.join("empty"), 1_000_000_002)] {
        set_mtime(path, seconds, 123_456_789);
    }
    set_mode(&closed, 0o555);
    set_mtime(&closed, 1_000_000_003, 5);
}

/// Data at both ends and in the middle, with holes between.
fn sparse(path: &Path) {
    let file = File::create(path).expect("there is room for test files");
    for part in 0..3 {
        file.write_all_at(&contents(20 + part, 100_000), part * HOLE).expect("there is room for test files");
    }
    file.set_len(3 * HOLE).expect("files can end in a hole");
}

fn attributes(root: &Path) {
    // Version 2 of `posix_acl_xattr.h`: owner, user 54,323, group, mask, others.
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let nobody = u32::MAX;
    let list = [
        entry(0x01, 6, nobody),
        entry(0x02, 4, 54_323),
        entry(0x04, 4, nobody),
        entry(0x10, 4, nobody),
        entry(0x20, 0, nobody),
    ];
    let list = [&2_u32.to_le_bytes()[..], &list.concat()].concat();
    for (path, name, value) in [
        ("one", "user.haul", &b"value"[..]),
        ("one", "system.posix_acl_access", &list),
        ("empty", "user.of a directory", b"1"),
        ("closed", "user.empty", b""),
        ("closed/inside", "user.binary", &[0, 255, 10]),
    ] {
        setxattr(root.join(path), name, value, XattrFlags::empty())
            .unwrap_or_else(|error| panic!("{path}, {name}: {error}"));
    }
}

/// Whether temporary files can have the properties that [`particular`] sets; otherwise reports a skip.
pub(crate) fn can_be_particular() -> bool {
    let place = tempfile::NamedTempFile::new().expect("there is room for temporary files");
    let set = setxattr(place.path(), "user.haul", b"x", XattrFlags::empty());
    if set.is_err() {
        skip("the directory for temporary files has no extended attributes");
    }
    set.is_ok()
}

/// Asserts that rsync finds no difference between two trees: hard links, access control lists, extended
/// attributes, links, permissions, times, owners, groups, devices, and contents by checksum. Compares the
/// times of the two roots as well. rsync does not compare holes; a file of [`particular`] has them.
#[track_caller]
pub(crate) fn assert_same_to_rsync(expected: &Path, found: &Path) {
    let slash = |path: &Path| path.join("");
    let mut rsync = Command::new("rsync");
    rsync.args(["-nHAXrlptgoDc", "--numeric-ids", "--delete", "-i"]).args([slash(expected), slash(found)]);
    let Ok(output) = rsync.output() else {
        return skip("rsync is missing: the trees are compared by our own means only");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let differences = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(differences.is_empty(), "to rsync {} differs:\n{differences}", found.display());
}

/// Asserts that the copy of the sparse file of [`particular`] allocates no more blocks.
#[track_caller]
pub(crate) fn assert_holes(root: &Path) {
    let meta = fs::metadata(root.join("holes")).expect("it was copied");
    assert_eq!(meta.len(), 3 * HOLE);
    let taken = meta.blocks() * 512;
    assert!(taken < HOLE, "{taken} bytes are allocated for {} bytes of data", 3 * 100_000);
}

/// A file's metadata and kind, without a regular file's contents.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    kind: Kind,
    mode: u32,
    mtime: (i64, i64),
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    File(u64),
    Directory,
    Link(OsString),
    Other,
}

impl Node {
    fn of(path: &Path, metadata: &Metadata) -> io::Result<Self> {
        let file_type = metadata.file_type();
        let kind = if file_type.is_symlink() {
            Kind::Link(fs::read_link(path)?.into_os_string())
        } else if file_type.is_dir() {
            Kind::Directory
        } else if file_type.is_file() {
            Kind::File(metadata.len())
        } else {
            Kind::Other
        };
        // A link's mode has no meaning.
        let mode = if matches!(kind, Kind::Link(_)) { 0 } else { metadata.mode() & 0o7777 };
        Ok(Self { kind, mode, mtime: (metadata.mtime(), metadata.mtime_nsec()) })
    }
}

/// Everything below `root`, which must exist, by relative path; `root` itself has the empty path. Names that
/// another process removes meanwhile are left out.
fn walk(root: &Path) -> BTreeMap<Vec<u8>, Node> {
    let mut nodes = BTreeMap::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(path) = open.pop() {
        match visit(&path) {
            Ok((node, entries)) => {
                open.extend(entries);
                let relative = path.strip_prefix(root).expect("below the root").as_os_str();
                nodes.insert(relative.as_bytes().to_vec(), node);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && path != root => {}
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    nodes
}

/// Returns the file at a path, and the paths of a directory's entries.
fn visit(path: &Path) -> io::Result<(Node, Vec<PathBuf>)> {
    let metadata = fs::symlink_metadata(path)?;
    let entries =
        if metadata.is_dir() { fs::read_dir(path)?.collect::<io::Result<_>>()? } else { Vec::new() };
    Ok((Node::of(path, &metadata)?, entries.iter().map(DirEntry::path).collect()))
}

/// Asserts that two trees are equal: names, kinds, contents, modes, times to the nanosecond, link targets.
#[track_caller]
pub(crate) fn assert_same(expected: &Path, found: &Path) {
    let (mut left, mut right) = (walk(expected), walk(found));
    // The names and times of the two roots are not compared.
    left.remove(&b""[..]);
    right.remove(&b""[..]);
    assert_same_nodes(&left, &right);
    for (path, _) in left.iter().filter(|(_, node)| matches!(node.kind, Kind::File(_))) {
        let read = |root: &Path| fs::read(root.join(OsStr::from_bytes(path))).expect("root can read");
        assert!(read(expected) == read(found), "{} differs", String::from_utf8_lossy(path));
    }
}

#[track_caller]
fn assert_same_nodes(left: &BTreeMap<Vec<u8>, Node>, right: &BTreeMap<Vec<u8>, Node>) {
    for (path, node) in left {
        assert_eq!(right.get(path), Some(node), "{} (left: copy, right: original)", path.escape_ascii());
    }
    for path in right.keys() {
        assert!(left.contains_key(path), "{} is in the copy only", path.escape_ascii());
    }
}

/// Asserts that two files or trees are equal in everything, roots included.
#[track_caller]
pub(crate) fn assert_same_file(expected: &Path, found: &Path) {
    assert_same_nodes(&walk(expected), &walk(found));
    assert!(fs::read(expected).ok() == fs::read(found).ok(), "{} differs", found.display());
}

/// The names below `root`, without the program's own temporary files.
pub(crate) fn names(root: &Path) -> Vec<String> {
    let is_expected = |name: &str| {
        let last = name.rsplit('/').next().unwrap_or_default();
        last.starts_with(".haul-") && matches!(last.rsplit('.').next(), Some("part" | "journal"))
    };
    let all = walk(root).into_keys().map(|path| String::from_utf8_lossy(&path).into_owned());
    all.filter(|name| !name.is_empty() && !is_expected(name)).collect()
}
