//! Paths of sources and destinations, and opening them without following dangerous links: a peer's paths stay
//! below a directory, and paths given by the local user do not lead through another user's symbolic links.
//!
//! `openat2` with `RESOLVE_BENEATH` does the first in one call (Linux 5.6). Where it is missing or forbidden,
//! the components are opened one by one and no symbolic link is followed at all, which is stricter.
//!
//! The owner of a link can change its target at any time. A path through another user's link therefore lets
//! that user choose what is read or written with our rights, which is worst for root. The kernel refuses this
//! only in directories like `/tmp` (`fs.protected_symlinks`, proc(5)).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use derive_more::From;
use haul_wire::control::{Fault, FaultCode, Layout, LinkChoice};
use rustix::fs::{CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags};
use rustix::io::Errno;

use crate::accounts::euid;
use crate::fault::{show, source_fault};
use crate::storage::{
    effective_restrictions, fstat, fstatfs, kind_of, lstatat, open_in, openat2, readlinkat,
};

/// Directory that the paths of a job are confined to.
#[derive(Clone, Debug)]
pub enum Root {
    /// No confinement: paths are resolved as for any process of this user.
    Anywhere,
    /// Paths stay below this directory: a leading `/` is this directory, `..` is refused, and symbolic links
    /// are followed only if they stay below it.
    Beneath(Arc<OwnedFd>),
}

impl Root {
    /// Confines a job to the directory `path`.
    ///
    /// # Errors
    /// The directory does not exist, is not a directory, or may not be entered.
    pub fn beneath(path: &Path) -> Result<Self, Fault> {
        let opened = open_in(CWD, path, OFlags::PATH | OFlags::DIRECTORY);
        let fail = |errno| source_fault("open the root", path.as_os_str().as_bytes(), errno);
        Ok(Self::Beneath(Arc::new(opened.map_err(fail)?)))
    }

    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        match self {
            Self::Anywhere if path.is_empty() => Err(Errno::NOENT),
            Self::Anywhere => open_in(CWD, path, flags),
            Self::Beneath(root) => open_beneath(root.as_fd(), &without_dots(path)?, flags, Links::Within),
        }
    }

    pub(crate) fn split(&self, path: &[u8]) -> Named {
        let trimmed = &path[..path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1)];
        let name_start = trimmed.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        let name = &trimmed[name_start..];
        if matches!(name, b"" | b"." | b"..") {
            return Named { directory: path.to_vec(), name: Vec::new(), trailing_slash: true };
        }
        let directory = match (&trimmed[..name_start], self) {
            (b"", Self::Anywhere) => b".".to_vec(),
            (directory, _) => directory.to_vec(),
        };
        Named { directory, name: name.to_vec(), trailing_slash: trimmed.len() < path.len() }
    }
}

/// A path split into the directory to open and the name in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    /// Directory of the name; the whole path if there is no name.
    pub(crate) directory: Vec<u8>,
    /// Last component; empty for `.`, `..`, `/` and paths that end in them.
    pub(crate) name: Vec<u8>,
    /// Whether the path ends in a slash: it must be a directory, and a link to one is followed.
    pub(crate) trailing_slash: bool,
}

/// Removes empty and `.` components from a path; refuses `..`.
fn without_dots(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let components: Vec<&[u8]> = path.split(|&b| b == b'/').filter(|c| !matches!(*c, b"" | b".")).collect();
    if components.contains(&&b".."[..]) { Err(Errno::XDEV) } else { Ok(components.join(&b'/')) }
}

/// Whether a source stands for its contents and not for itself: `.`, `..`, `/`, and paths that end in them.
/// Every other source keeps its last component as its name at the destination.
pub fn copies_content(source: &[u8]) -> bool {
    Root::Anywhere.split(source).name.is_empty()
}

/// Returns the layout that `cp` would use: [`Layout::As`] for one source that has a name, unless the
/// destination is written as a directory (`/` at its end, `.`, `..`, empty); otherwise [`Layout::Into`].
pub fn layout_for<S: AsRef<[u8]>>(sources: &[S], destination: &[u8]) -> Layout {
    let directory = destination.ends_with(b"/") || copies_content(destination);
    match sources {
        [one] if !directory && !copies_content(one.as_ref()) => Layout::As,
        _ => Layout::Into,
    }
}

/// The parent directory of a source, or the source itself; entries are opened relative to it.
#[derive(Debug)]
pub(crate) struct SourceRoot {
    directory: Arc<OwnedFd>,
    /// Path of the source's directory relative to `directory`.
    prefix: Vec<u8>,
    /// Number of leading bytes of an entry's path to skip: they are not part of the path below the source's
    /// directory.
    strip: usize,
    /// Symbolic links that a path may contain; `None`: any.
    links: Option<Links>,
}

impl SourceRoot {
    /// Opens the directory `path`, resolved by `root`.
    pub(crate) fn new(root: &Root, path: &[u8], strip: usize, links: LinkChoice) -> Result<Self, Errno> {
        let opened = Arc::new(root.open(path, OFlags::PATH | OFlags::DIRECTORY)?);
        let (directory, prefix, links) = match (links, root) {
            (LinkChoice::Keep, _) => (opened, Vec::new(), Some(Links::Refuse)),
            (LinkChoice::Follow, Root::Anywhere) => (opened, Vec::new(), None),
            (LinkChoice::Follow, Root::Beneath(root)) => {
                (root.clone(), without_dots(path)?, Some(Links::Within))
            }
        };
        Ok(Self { directory, prefix, strip, links })
    }

    /// Opens the entry with this path. Symbolic links, also in the last component, are followed only if the
    /// job follows links.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let (directory, below) = (self.directory.as_fd(), path.get(self.strip..).unwrap_or_default());
        match self.links {
            None => open_long(directory, below, flags),
            Some(links) => open_beneath(directory, &join(&self.prefix, below), flags, links),
        }
    }
}

/// Splits a path into its directory (empty: the base) and its last component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|&b| b == b'/');
    slash.map_or((&[], path), |at| (&path[..at], &path[at + 1..]))
}

/// Joins a directory and a name; the base directory is empty and adds no prefix.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, name].join(&b'/') }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Links {
    /// No link is followed, not even in the last component.
    Refuse,
    /// Links are followed if they stay below the directory.
    Within,
}

/// Paths of this length or more are too long for one system call (`PATH_MAX` of Linux, including the NUL).
const LONGEST: usize = 4096;

/// Attempts of a lookup that loses a race with a rename (`openat2(2)`, `EAGAIN`).
const RETRIES: usize = 16;

/// Opens `path` relative to `dir`; an empty path is `dir` itself. Adds `O_CLOEXEC`.
pub(crate) fn open_beneath(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    links: Links,
) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return open_in(dir, ".", flags);
    }
    let flags = flags | if links == Links::Refuse { OFlags::NOFOLLOW } else { OFlags::empty() };
    if *HAS_OPENAT2 && path.len() < LONGEST {
        with_openat2(dir, path, flags, links)
    } else {
        by_component(dir, path, flags)
    }
}

/// Whether `openat2` works here; old kernels and sandboxes refuse it.
static HAS_OPENAT2: LazyLock<bool> = LazyLock::new(|| {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let probe = rustix::fs::openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH);
    !matches!(probe, Err(Errno::NOSYS | Errno::PERM))
});

fn with_openat2(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
    // openat2 rejects flags that are meaningless with O_PATH, which openat ignores (openat2(2), EINVAL).
    let with_path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let flags = OFlags::CLOEXEC | if flags.contains(OFlags::PATH) { flags & with_path } else { flags };
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if links == Links::Refuse {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    for _ in 0..RETRIES {
        match openat2(dir, path, flags, Mode::empty(), effective_restrictions(resolve)) {
            Err(Errno::AGAIN) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

fn by_component(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut components = path.split(|&b| b == b'/').filter(|c| !c.is_empty()).peekable();
    let mut at: Option<OwnedFd> = None;
    while let Some(component) = components.next() {
        if matches!(component, b"." | b"..") {
            return Err(Errno::XDEV);
        }
        let here = at.as_ref().map_or(dir, AsFd::as_fd);
        let is_last = components.peek().is_none();
        let how = if is_last { flags } else { OFlags::PATH | OFlags::DIRECTORY } | OFlags::NOFOLLOW;
        at = Some(open_in(here, component, how).map_err(|e| link_error(here, component, e))?);
    }
    at.ok_or(Errno::NOENT)
}

/// Opens a path that may exceed the limit of one system call, following links; an empty path is `from`
/// itself. Adds `O_CLOEXEC`.
pub(crate) fn open_long(from: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let (mut at, mut remaining) = (None, path);
    while remaining.len() >= LONGEST {
        let slash = remaining[..LONGEST].iter().rposition(|&b| b == b'/').filter(|&slash| slash > 0);
        let (part, after) = remaining.split_at(slash.ok_or(Errno::NAMETOOLONG)?);
        let here = at.as_ref().map_or(from, AsFd::as_fd);
        at = Some(open_in(here, part, OFlags::PATH | OFlags::DIRECTORY)?);
        remaining = &after[after.iter().position(|&b| b != b'/').unwrap_or(after.len())..];
    }
    let here = at.as_ref().map_or(from, AsFd::as_fd);
    open_in(here, if remaining.is_empty() { b"." } else { remaining }, flags)
}

/// Maps `ENOTDIR`, which `O_DIRECTORY` returns for a symbolic link, to `ELOOP`, as `openat2` does.
fn link_error(dir: BorrowedFd<'_>, name: &[u8], errno: Errno) -> Errno {
    let is_link = || lstatat(dir, name).is_ok_and(|stat| kind_of(&stat) == FileType::Symlink);
    if errno == Errno::NOTDIR && is_link() { Errno::LOOP } else { errno }
}

/// Maximum number of links in a path, as in the kernel (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

fn foreign(path: &[u8], name: &[u8], owner: u32) -> Fault {
    let (path, link) = (show(path), show(name));
    Fault::new(
        FaultCode::PathEscape,
        format!("`{path}` passes through the symbolic link `{link}` of another user (UID {owner})"),
        "links of other users are not followed, as they may change at any time; name the real path",
    )
}

#[derive(Clone, PartialEq, Eq, Debug, From)]
pub(crate) enum OpenError {
    #[from]
    Error(Errno),
    /// The path leads through a link of another user.
    Foreign(Fault),
}

/// Opens a file named by the local user for reading. Links in the path must belong to root or to this user.
///
/// # Errors
/// Those of [`File::open`], and a link of another user.
pub fn open_named(path: &Path) -> io::Result<File> {
    match open_trusted(path.as_os_str().as_bytes(), OFlags::RDONLY) {
        Ok(opened) => Ok(opened.into()),
        Err(OpenError::Error(errno)) => Err(errno.into()),
        Err(OpenError::Foreign(fault)) => Err(io::Error::other(fault.message)),
    }
}

/// Opens an existing path, following only links of root or of this user. Adds `O_CLOEXEC`.
pub(crate) fn open_trusted(path: &[u8], flags: OFlags) -> Result<OwnedFd, OpenError> {
    if path.is_empty() {
        return Err(Errno::NOENT.into());
    }
    // A stack: the next component is the last item.
    let (mut at, mut pending, mut links) = (start(path)?, components(path).collect::<Vec<_>>(), 0);
    while let Some(name) = pending.pop() {
        if matches!(&name[..], b"" | b".") {
            continue;
        }
        let entry = open_in(&at, &name[..], OFlags::PATH | OFlags::NOFOLLOW)?;
        let stat = fstat(&entry)?;
        let is_link = kind_of(&stat) == FileType::Symlink;
        if is_link && !is_trusted(stat.st_uid)? {
            return Err(OpenError::Foreign(foreign(path, &name, stat.st_uid)));
        }
        // Links of procfs lead to open files, which their text does not name.
        if !is_link || fstatfs(&entry)?.f_type == PROC_SUPER_MAGIC {
            let nofollow = if is_link { OFlags::empty() } else { OFlags::NOFOLLOW };
            if pending.is_empty() {
                return Ok(open_in(&at, &name[..], flags | nofollow)?);
            }
            at = if is_link { open_in(&at, &name[..], OFlags::PATH)? } else { entry };
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = readlinkat(&entry, "")?;
        if target.starts_with(b"/") {
            at = start(&target)?;
        }
        pending.extend(components(&target));
    }
    Ok(open_in(&at, ".", flags)?)
}

/// Returns the components of a path in reverse order.
fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|&b| b == b'/').rev().map(<[u8]>::to_vec)
}

fn start(path: &[u8]) -> Result<OwnedFd, Errno> {
    let from = if path.starts_with(b"/") { "/" } else { "." };
    open_in(CWD, from, OFlags::PATH | OFlags::DIRECTORY)
}

/// Whether links of this owner are followed. Where root's ID is not mapped (`user_namespaces(7)`), the owner
/// of the root directory stands for root.
fn is_trusted(owner: u32) -> Result<bool, Errno> {
    Ok(owner == 0 || owner == euid() || owner == fstat(start(b"/")?)?.st_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_as_in_cp() {
        let split = |path: &str| {
            let named = Root::Anywhere.split(path.as_bytes());
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (text(named.directory), text(named.name), named.trailing_slash)
        };
        let expected = |d: &str, n: &str, s| (d.to_owned(), n.to_owned(), s);
        assert_eq!(split("a"), expected(".", "a", false));
        assert_eq!(split("x/a//"), expected("x/", "a", true));
        assert_eq!(split("/a"), expected("/", "a", false));
        assert_eq!(split("x/.."), expected("x/..", "", true));
        assert_eq!(split("/"), expected("/", "", true));
    }

    #[test]
    fn the_layout_follows_sources_and_destination() {
        assert_eq!(layout_for(&["a"], b"b"), Layout::As);
        assert_eq!(layout_for(&["a"], b"b/"), Layout::Into);
        assert_eq!(layout_for(&["a"], b""), Layout::Into);
        assert_eq!(layout_for(&["a", "c"], b"b"), Layout::Into);
        assert_eq!(layout_for(&["a/."], b"b"), Layout::Into);
    }

    #[test]
    fn a_root_confines_absolute_and_dotted_paths() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        std::fs::write(dir.path().join("in/f"), "x").unwrap();
        let root = Root::beneath(&dir.path().join("in")).unwrap();
        assert!(root.open(b"/f", OFlags::RDONLY).is_ok());
        assert!(root.open(b"", OFlags::PATH).is_ok());
        assert_eq!(root.open(b"../in/f", OFlags::RDONLY).unwrap_err(), Errno::XDEV);
        assert_eq!(root.open(b"/etc/passwd", OFlags::RDONLY).unwrap_err(), Errno::NOENT);
    }
}

#[cfg(test)]
mod confined_tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::open;

    use super::*;

    fn tree() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/a/b")).unwrap();
        fs::write(dir.path().join("root/a/b/f"), "x").unwrap();
        fs::write(dir.path().join("secret"), "s").unwrap();
        symlink("a/b", dir.path().join("root/inside")).unwrap();
        symlink("../secret", dir.path().join("root/out")).unwrap();
        symlink("..", dir.path().join("root/up")).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = open(dir.path().join("root"), flags, Mode::empty()).unwrap();
        (dir, root)
    }

    type Opener = fn(BorrowedFd<'_>, &[u8]) -> Result<OwnedFd, Errno>;

    const BOTH: [Opener; 2] = [
        |dir, path| open_beneath(dir, path, OFlags::RDONLY, Links::Refuse),
        |dir, path| by_component(dir, path, OFlags::RDONLY),
    ];

    #[test]
    fn only_link_free_paths_beneath_the_root_open() {
        let (_keep, root) = tree();
        for opener in BOTH {
            assert!(opener(root.as_fd(), b"a/b/f").is_ok());
            let path_only = OFlags::PATH | OFlags::DIRECTORY | OFlags::NONBLOCK;
            assert!(open_beneath(root.as_fd(), b"a/b", path_only, Links::Refuse).is_ok());
            assert_eq!(opener(root.as_fd(), b"inside/f").unwrap_err(), Errno::LOOP);
            assert_eq!(opener(root.as_fd(), b"out").unwrap_err(), Errno::LOOP);
            assert_eq!(opener(root.as_fd(), b"up/secret").unwrap_err(), Errno::LOOP);
            assert_eq!(opener(root.as_fd(), b"../secret").unwrap_err(), Errno::XDEV);
            assert_eq!(opener(root.as_fd(), b"a/none").unwrap_err(), Errno::NOENT);
        }
    }

    #[test]
    fn links_that_stay_inside_can_be_permitted() {
        let (_keep, root) = tree();
        let open = |path| open_beneath(root.as_fd(), path, OFlags::RDONLY, Links::Within);
        assert!(open(b"inside/f").is_ok() || !*HAS_OPENAT2);
        assert!(open(b"out").is_err());
        assert!(open(b"up/secret").is_err());
        assert!(open(b"/etc/passwd").is_err());
    }
}

#[cfg(test)]
mod foreign_links_tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    fn read(path: &Path) -> io::Result<String> {
        let mut text = String::new();
        open_named(path)?.read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn path_resolution_matches_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/f"), "f").unwrap();
        symlink("b", at("a/relative")).unwrap();
        symlink(at("a"), at("absolute")).unwrap();
        symlink("a/relative/../relative/./f", at("chain")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let open = File::open(at("a/b/f")).unwrap();
        let proc = format!("/proc/self/fd/{}", open.as_raw_fd());
        for path in [at("a/b/f"), at("absolute/relative/f"), at("chain"), at("a//./b/../b/f"), proc.into()] {
            assert_eq!(read(&path).unwrap(), "f", "{}", path.display());
        }
        for path in ["a/b/f/", "a/b/f/x", "a/b/f/..", "none", "none/f", "loop", "a/b/f/."] {
            let errors = [read(&at(path)), fs::read_to_string(at(path))].map(|read| read.unwrap_err());
            assert_eq!(errors[0].raw_os_error(), errors[1].raw_os_error(), "{path}");
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        for path in [at("a"), at("a/"), at("absolute/b/.."), "/".into(), ".".into()] {
            assert!(open_trusted(path.as_os_str().as_bytes(), flags).is_ok(), "{}", path.display());
        }
        assert_eq!(open_trusted(b"", flags).unwrap_err(), OpenError::Error(Errno::NOENT));
    }

    #[test]
    fn a_link_owned_by_another_user_is_refused_and_named() {
        if euid() != 0 {
            eprintln!("SKIPPED: only root can give a link to another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("f"), "f").unwrap();
        let link = dir.path().join("link");
        symlink(".", &link).unwrap();
        assert_eq!(read(&link.join("f")).unwrap(), "f");
        lchown(&link, Some(54_321), None).unwrap();
        let refused = read(&link.join("f")).unwrap_err().to_string();
        assert!(refused.contains("`link` of another user (UID 54321)"), "{refused}");
    }
}
