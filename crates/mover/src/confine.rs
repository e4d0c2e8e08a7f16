//! Opening paths below a directory and never outside it.
//!
//! `openat2` with `RESOLVE_BENEATH` does this in one call (Linux 5.6). Where it is missing or forbidden, the
//! components are opened one by one and no symbolic link is followed at all, which is stricter.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::storage::{lstatat, openat, openat2};

/// What happens to symbolic links on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Links {
    Refuse,
    /// They are followed while they stay below the directory.
    Within,
}

/// A path of this length is too long for one system call (`PATH_MAX` of Linux, with the NUL at its end).
const LONGEST: usize = 4096;

/// How often a lookup is repeated that lost a race with a rename (`openat2(2)`, `EAGAIN`).
const RETRIES: usize = 16;

/// Opens `path`, which is relative to `dir`; empty is `dir` itself. `O_CLOEXEC` is added.
pub(crate) fn open_beneath(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    links: Links,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    if path.is_empty() {
        return openat(dir, ".", flags, Mode::empty());
    }
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
        let probe = rustix::fs::openat2(rustix::fs::CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH);
        !matches!(probe, Err(Errno::NOSYS | Errno::PERM))
    })
}

fn with_openat2(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
    // It refuses flags that O_PATH makes meaningless, which openat ignores (openat2(2), EINVAL).
    let with_path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = if flags.contains(OFlags::PATH) { flags & with_path } else { flags };
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

/// Component by component, each opened without following a link.
fn by_component(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut components = path.split(|&b| b == b'/').filter(|c| !c.is_empty()).peekable();
    let mut at: Option<OwnedFd> = None;
    while let Some(component) = components.next() {
        if matches!(component, b"." | b"..") {
            return Err(Errno::XDEV);
        }
        let here = at.as_ref().map_or(dir, AsFd::as_fd);
        let last = components.peek().is_none();
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let how = if last { flags } else { step } | OFlags::NOFOLLOW;
        let opened =
            openat(here, component, how, Mode::empty()).map_err(|e| link_error(here, component, e))?;
        at = Some(opened);
    }
    at.ok_or(Errno::NOENT)
}

/// `O_DIRECTORY` on a link says "not a directory"; `openat2` says "loop", and so do we.
pub(crate) fn link_error(dir: BorrowedFd<'_>, name: &[u8], errno: Errno) -> Errno {
    let is_link =
        || lstatat(dir, name).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    if errno == Errno::NOTDIR && is_link() { Errno::LOOP } else { errno }
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
