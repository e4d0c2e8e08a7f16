//! Opening paths without following dangerous links: a peer's paths stay below a directory, and paths given by
//! the local user do not lead through another user's symbolic links.
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
use std::sync::OnceLock;

use derive_more::From;
use haul_wire::control::{Fault, FaultCode};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::accounts::euid;
use crate::fault::show;
use crate::storage::{fstat, fstatfs, kind_of, lstatat, open_in, openat2, readlinkat};

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
    if has_openat2() && path.len() < LONGEST {
        with_openat2(dir, path, flags, links)
    } else {
        by_component(dir, path, flags)
    }
}

/// Whether `openat2` works here; old kernels and sandboxes refuse it.
fn has_openat2() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let probe = rustix::fs::openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH);
        !matches!(probe, Err(Errno::NOSYS | Errno::PERM))
    })
}

fn with_openat2(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
    // openat2 rejects flags that are meaningless with O_PATH, which openat ignores (openat2(2), EINVAL).
    let with_path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let flags = OFlags::CLOEXEC | if flags.contains(OFlags::PATH) { flags & with_path } else { flags };
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if links == Links::Refuse {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    let mut last = Errno::AGAIN;
    for _ in 0..RETRIES {
        match openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(errno @ (Errno::AGAIN | Errno::INTR)) => last = errno,
            done => return done,
        }
    }
    Err(last)
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
    let (mut at, mut rest) = (None, path);
    while rest.len() >= LONGEST {
        let slash = rest[..LONGEST].iter().rposition(|&b| b == b'/').filter(|&slash| slash > 0);
        let (part, behind) = rest.split_at(slash.ok_or(Errno::NAMETOOLONG)?);
        let here = at.as_ref().map_or(from, AsFd::as_fd);
        at = Some(open_in(here, part, OFlags::PATH | OFlags::DIRECTORY)?);
        rest = &behind[behind.iter().position(|&b| b != b'/').unwrap_or(behind.len())..];
    }
    let here = at.as_ref().map_or(from, AsFd::as_fd);
    open_in(here, if rest.is_empty() { b"." } else { rest }, flags)
}

/// Maps `ENOTDIR`, which `O_DIRECTORY` returns for a symbolic link, to `ELOOP`, as `openat2` does.
fn link_error(dir: BorrowedFd<'_>, name: &[u8], errno: Errno) -> Errno {
    let is_link = || lstatat(dir, name).is_ok_and(|stat| kind_of(&stat) == FileType::Symlink);
    if errno == Errno::NOTDIR && is_link() { Errno::LOOP } else { errno }
}

/// Maximum number of links in a path, as in the kernel (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// Magic number of procfs (statfs(2)). Its links lead to open files, which their text does not name.
const PROC_SUPER_MAGIC: u64 = 0x9fa0;

fn foreign(path: &[u8], name: &[u8], owner: u32) -> Fault {
    let (path, link) = (show(path), show(name));
    Fault::new(
        FaultCode::PathEscape,
        format!("`{path}` passes through the symbolic link `{link}` of another user (UID {owner})"),
        "links of other users are not followed, as they may change at any time; name the real path",
    )
}

#[derive(Clone, PartialEq, Eq, Debug, From)]
pub(crate) enum NotOpened {
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
    match open_own(path.as_os_str().as_bytes(), OFlags::RDONLY) {
        Ok(opened) => Ok(opened.into()),
        Err(NotOpened::Error(errno)) => Err(errno.into()),
        Err(NotOpened::Foreign(fault)) => Err(io::Error::other(fault.message)),
    }
}

/// Opens an existing path, following only links of root or of this user. Adds `O_CLOEXEC`.
pub(crate) fn open_own(path: &[u8], flags: OFlags) -> Result<OwnedFd, NotOpened> {
    if path.is_empty() {
        return Err(Errno::NOENT.into());
    }
    // A stack: the next component is the last item.
    let (mut at, mut rest, mut links) = (start(path)?, components(path).collect::<Vec<_>>(), 0);
    while let Some(name) = rest.pop() {
        if matches!(&name[..], b"" | b".") {
            continue;
        }
        let entry = open_in(&at, &name[..], OFlags::PATH | OFlags::NOFOLLOW)?;
        let stat = fstat(&entry)?;
        let is_link = kind_of(&stat) == FileType::Symlink;
        if is_link && !is_trusted(stat.st_uid)? {
            return Err(NotOpened::Foreign(foreign(path, &name, stat.st_uid)));
        }
        if !is_link || fstatfs(&entry)?.f_type as u64 == PROC_SUPER_MAGIC {
            let nofollow = if is_link { OFlags::empty() } else { OFlags::NOFOLLOW };
            if rest.is_empty() {
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
        rest.extend(components(&target));
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
    fn what_is_below_opens_and_nothing_else_does() {
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
        assert!(open(b"inside/f").is_ok() || !has_openat2());
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
    fn paths_lead_where_the_kernel_leads_them() {
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
            assert!(open_own(path.as_os_str().as_bytes(), flags).is_ok(), "{}", path.display());
        }
        assert_eq!(open_own(b"", flags).unwrap_err(), NotOpened::Error(Errno::NOENT));
    }

    #[test]
    fn a_link_of_another_user_is_named() {
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
