//! Hard links to installed files, and symbolic links.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use haul_wire::control::{Action, Equal, FaultCode, Newer, ReceivePolicy};
use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::fault::{IoFault, show};
use crate::identity::{FileId, ancestors};
use crate::receive::metadata::{same_time, set_on_path};
use crate::receive::place::files::{collision, has_one_name};
use crate::receive::place::{DirEntry, Place};
use crate::storage::{
    self, Mtime, create_in, fstat, fsync, kind_of, linkat, open_in, readlinkat, statat, symlinkat,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkOutcome {
    /// The hard or symbolic link was created.
    Name,
    /// The link existed already.
    Existed,
    /// The file was copied: the file system has no hard links, or the file's link limit is reached.
    Copy,
    /// A newer file exists and was kept as requested.
    KeptNewer,
    /// The file that it is a name of was kept because it is newer, so the existing, equal one was kept too.
    KeptEqual,
}

/// A further name of a file of the set.
pub(crate) struct HardLink<'p> {
    pub(crate) path: &'p [u8],
    /// The file's first name.
    pub(crate) target: &'p [u8],
    pub(crate) size: u64,
    pub(crate) mtime: Mtime,
    /// Whether the file at `target` existed already and is kept.
    pub(crate) is_kept: bool,
    pub(crate) policy: ReceivePolicy,
}

impl HardLink<'_> {
    /// Returns why the existing file is kept, if it is. `file`: the file at `target`. Fails if that was kept
    /// because it is newer: it is another file then.
    fn kept(&self, dirent: &DirEntry<'_>, file: Option<&Stat>) -> Result<Option<LinkOutcome>, IoFault> {
        let is_newer = |stat: &Stat| self.policy.newer == Newer::Keep && Mtime::of(stat) > self.mtime;
        let existing = dirent.stat().ok().filter(|stat| kind_of(stat) == FileType::RegularFile);
        let is_equal = |existing: &Stat| {
            self.policy.equal == Equal::SizeAndTime
                && existing.st_size as u64 == self.size
                && same_time(existing, self.mtime)
        };
        match &existing {
            Some(existing) if file.is_some_and(|file| FileId::of(file) == FileId::of(existing)) => {
                Ok(Some(LinkOutcome::Existed))
            }
            Some(existing) if is_newer(existing) => Ok(Some(LinkOutcome::KeptNewer)),
            _ if !(self.is_kept && file.is_some_and(is_newer)) => Ok(None),
            Some(existing) if is_equal(existing) => Ok(Some(LinkOutcome::KeptEqual)),
            _ => {
                let what = format!("is a hard link to `{}`, which is newer and was kept", show(self.target));
                let hint = "--no-hard-links copies it as a separate file";
                Err(IoFault::entry(FaultCode::Io, self.path, &what, hint))
            }
        }
    }
}

impl Place {
    /// Returns what [`Place::hard_link`] would do once the file is installed.
    pub(crate) fn would_link(&self, link: &HardLink<'_>) -> Result<Action, IoFault> {
        let file = self.existing(link.target).filter(|_| link.is_kept);
        let kept = self.dir_entry(link.path).ok().map(|dirent| link.kept(&dirent, file.as_ref()));
        Ok(if kept.transpose()?.flatten().is_some() { Action::Keep } else { Action::Link })
    }

    /// Creates a hard link to the file at its target, or copies the file and runs `apply` on the copy. Also
    /// returns the directory of the link.
    pub(crate) fn hard_link(
        &self,
        entry: u32,
        link: &HardLink<'_>,
        apply: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(LinkOutcome, Arc<OwnedFd>), IoFault> {
        let (from, dirent) = (self.dir_entry(link.target)?, self.dir_entry(link.path)?);
        let stat = from.stat().map_err(dirent.fail("link"))?;
        if kind_of(&stat) != FileType::RegularFile {
            let what = format!("is a hard link to `{}`, which no longer exists", show(link.target));
            return Err(IoFault::entry(FaultCode::Io, link.path, &what, "run the same command again"));
        }
        if let Some(linked) = link.kept(&dirent, Some(&stat))? {
            return Ok((linked, dirent.directory));
        }
        self.must_be_replaceable(&dirent)?;
        let linked = self.rename_into_place(entry, &dirent, |name| {
            let link = || linkat(&from.directory, from.name(), &dirent.directory, name);
            match self.with_access(&dirent, link) {
                Ok(()) => Ok(LinkOutcome::Name),
                Err(Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    let file = File::from(from.open(OFlags::RDONLY)?);
                    copy(&file, &dirent, name, apply).map(|_| LinkOutcome::Copy)
                }
                Err(errno) => Err(errno),
            }
        });
        Ok((linked.map_err(dirent.fail("link"))?, dirent.directory))
    }

    /// Replaces the file at `path` (`existing`) by a copy, on which it runs `apply`. Other hard links stay.
    pub(crate) fn detach(
        &self,
        entry: u32,
        path: &[u8],
        existing: &File,
        apply: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), IoFault> {
        let dirent = self.dir_entry(path)?;
        let done = self.rename_into_place(entry, &dirent, |name| {
            let copy = copy(existing, &dirent, name, apply)?;
            // The original is complete on disk, so its replacement has to be as well.
            fsync(&copy)?;
            self.installed.add(FileId::of(&fstat(&copy)?));
            Ok(())
        });
        done.map_err(dirent.fail("copy"))?;
        // Its other names are not this job's.
        fstat(existing).map(|stat| self.installed.remove(FileId::of(&stat))).map_err(dirent.fail("look at"))
    }

    /// Fails if a symbolic link with this target would replace the target itself.
    pub(crate) fn may_link(&self, path: &[u8], target: &[u8]) -> Result<(), IoFault> {
        self.dir_entry(path).map_or(Ok(()), |dirent| must_not_lose_target(&dirent, target))
    }

    /// Ensures that a symbolic link exists, and returns its directory. `apply` receives the link, opened with
    /// `O_PATH`, before its time is set. An existing link with this target is reused, unless
    /// [`Place::may_be_shared`].
    pub(crate) fn link(
        &self,
        entry: u32,
        path: &[u8],
        target: &[u8],
        mtime: Mtime,
        apply: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<(LinkOutcome, Arc<OwnedFd>), IoFault> {
        let dirent = self.dir_entry(path)?;
        let is_kept = |stat: &Stat| has_target(&dirent, target) && !self.may_be_shared(stat);
        if let Some(stat) = dirent.stat().ok().filter(is_kept) {
            if !self.claims(&stat, &dirent) {
                return Err(collision(path));
            }
            let link = open_link(&dirent.directory, dirent.name()).map_err(dirent.fail("open"))?;
            apply(link.as_fd());
            if !same_time(&stat, mtime) {
                // Fails if another user owns the link, whose target is right nevertheless.
                let _ = set_on_path(&link, mtime);
            }
            return Ok((LinkOutcome::Existed, dirent.directory));
        }
        self.must_be_replaceable(&dirent)?;
        must_not_lose_target(&dirent, target)?;
        let made = self.rename_into_place(entry, &dirent, |name| {
            self.with_access(&dirent, || symlinkat(target, &dirent.directory, name))?;
            let link = open_link(&dirent.directory, name.as_bytes())?;
            self.installed.add(FileId::of(&fstat(&link)?));
            apply(link.as_fd());
            // Another user may own it, if the file system maps all users to one.
            set_on_path(&link, mtime).or_else(|errno| if errno == Errno::PERM { Ok(()) } else { Err(errno) })
        });
        made.map_err(dirent.fail("create the link"))?;
        Ok((LinkOutcome::Name, dirent.directory))
    }
}

/// Creates a file with the contents of `source`, then runs `apply` on it.
fn copy(
    source: &File,
    to: &DirEntry<'_>,
    name: &str,
    apply: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<File, Errno> {
    let copy = File::from(create_in(&to.directory, name, OFlags::WRONLY)?);
    storage::copy(source, &copy, fstat(source)?.st_size as u64)?;
    apply(copy.as_fd())?;
    Ok(copy)
}

/// Opens a symbolic link itself, so that later changes cannot affect a file that replaces it.
fn open_link(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let link = open_in(directory, name, OFlags::PATH | OFlags::NOFOLLOW)?;
    let is_link = kind_of(&fstat(&link)?) == FileType::Symlink;
    if is_link { Ok(link) } else { Err(Errno::LOOP) }
}

/// Fails if a symbolic link would replace its own target, unless the target has further hard links.
fn must_not_lose_target(dirent: &DirEntry<'_>, target: &[u8]) -> Result<(), IoFault> {
    let Ok(existing) = dirent.stat() else { return Ok(()) };
    let is_directory = kind_of(&existing) == FileType::Directory;
    let is_lost = if is_directory {
        is_inside(dirent, target, FileId::of(&existing))
    } else {
        let target_id =
            statat(&dirent.directory, target, AtFlags::NO_AUTOMOUNT).map(|stat| FileId::of(&stat));
        has_one_name(&existing) && target_id == Ok(FileId::of(&existing))
    };
    if !is_lost {
        return Ok(());
    }
    let what = if is_directory {
        "is or contains the target of the link, and would be lost"
    } else {
        "is the target of the link, and would be lost"
    };
    let hint = "choose another destination, or --copy-links if the source has only links to it";
    Err(IoFault::entry(FaultCode::Io, dirent.path, what, hint))
}

/// Whether a symbolic link's target is this directory or lies below it.
fn is_inside(dirent: &DirEntry<'_>, target: &[u8], directory: FileId) -> bool {
    let open = |path: &[u8], access| open_in(&dirent.directory, path, OFlags::PATH | access);
    let itself = open(target, OFlags::DIRECTORY);
    let innermost = itself.or_else(|_| {
        // A missing target cannot be lost.
        open(target, OFlags::empty())?;
        let slash = target.iter().rposition(|&byte| byte == b'/');
        open(slash.map_or(b".", |slash| &target[..=slash]), OFlags::DIRECTORY)
    });
    innermost.into_iter().flat_map(ancestors).any(|(_, stat)| FileId::of(&stat) == directory)
}

pub(crate) fn has_target(dirent: &DirEntry<'_>, target: &[u8]) -> bool {
    readlinkat(&dirent.directory, dirent.name()).is_ok_and(|existing| existing == target)
}
