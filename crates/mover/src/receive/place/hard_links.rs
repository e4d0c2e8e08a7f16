//! Further names of files that are in place.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use haul_wire::control::{Action, FaultCode, Newer};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::entries::Attributes;
use crate::fault::{IoFault, show};
use crate::identity::FileId;
use crate::receive::place::{DirEntry, PRIVATE_FILE, Place, existing};
use crate::storage::{self, fstat, fsync, linkat, lstatat, openat};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Linked {
    /// It is a name of the file.
    Name,
    /// It was one already.
    Already,
    /// It is a file of its own: this file system has no hard links, or no more for this file.
    Copy,
    /// Something newer is there and was to be kept.
    KeptNewer,
}

impl Place {
    /// What [`Place::hard_link`] would do once the file at `target` is in place; `is_kept`: it is there already.
    pub(crate) fn would_link(
        &self,
        (path, target): (&[u8], &[u8]),
        how: (Attributes, Newer),
        is_kept: bool,
    ) -> Action {
        let file = self.existing(target).filter(|_| is_kept).map(|there| there.id);
        let stays = self.dir_entry(path).ok().and_then(|dirent| stays(&dirent, file, how));
        if stays.is_some() { Action::Keep } else { Action::Link }
    }

    /// Makes `path` another name of the file at `target`, which is in place. Where that cannot be, it becomes
    /// a copy, which `apply` completes. Gives the directory that it lies in, too.
    pub(crate) fn hard_link(
        &self,
        entry: u32,
        (path, target): (&[u8], &[u8]),
        (attributes, newer): (Attributes, Newer),
        apply: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(Linked, Arc<OwnedFd>), IoFault> {
        let fail = |errno| IoFault::destination("link", path, errno);
        let (from, dirent) = (self.dir_entry(target)?, self.dir_entry(path)?);
        let stat = lstatat(&from.directory, &from.name).map_err(fail)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let what = format!("is another name of `{}`, which has gone", show(target));
            return Err(IoFault::entry(FaultCode::Io, path, &what, "run the same command again"));
        }
        if let Some(linked) = stays(&dirent, Some(FileId::of(&stat)), (attributes, newer)) {
            return Ok((linked, dirent.directory));
        }
        self.must_be_replaceable(&dirent, path)?;
        let linked = self.put_in_place(entry, path, &dirent, |name| {
            let link = || linkat(&from.directory, &from.name, &dirent.directory, name);
            match self.with_room(&dirent, path, link) {
                Ok(()) => Ok(Linked::Name),
                Err(Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    copy((&from, existing(&stat).size), &dirent, name, apply).map(|()| Linked::Copy)
                }
                Err(errno) => Err(errno),
            }
        });
        Ok((linked.map_err(fail)?, dirent.directory))
    }

    /// Gives a name a file of its own with the contents of `there`, which stays as it is under its other names. `apply`
    /// completes it.
    pub(crate) fn detach(
        &self,
        entry: u32,
        path: &[u8],
        there: &File,
        apply: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), IoFault> {
        let fail = |errno| IoFault::destination("copy", path, errno);
        let dirent = self.dir_entry(path)?;
        let size = fstat(there).map_err(fail)?.st_size as u64;
        let done = self.put_in_place(entry, path, &dirent, |name| {
            let copy = copy_of((there, size), &dirent, name, apply)?;
            // What is there is whole on the disk, and the copy takes its place.
            fsync(&copy)?;
            self.installed.add(FileId::of(&fstat(&copy)?));
            Ok(())
        });
        done.map_err(fail)
    }
}

/// Whether what is at the name may stay, and why: it is this file, or newer than it and was to be kept.
fn stays(
    dirent: &DirEntry,
    file: Option<FileId>,
    (attributes, newer): (Attributes, Newer),
) -> Option<Linked> {
    let there = lstatat(&dirent.directory, &dirent.name).ok()?;
    if Some(FileId::of(&there)) == file {
        return Some(Linked::Already);
    }
    let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
    let is_kept = newer == Newer::Keep && is_file && existing(&there).is_later(attributes);
    is_kept.then_some(Linked::KeptNewer)
}

fn copy(
    (from, size): (&DirEntry, u64),
    to: &DirEntry,
    name: &str,
    apply: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = File::from(openat(&from.directory, &from.name, flags, Mode::empty())?);
    copy_of((&source, size), to, name, apply).map(drop)
}

fn copy_of(
    (source, size): (&File, u64),
    to: &DirEntry,
    name: &str,
    apply: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<File, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy = File::from(openat(&to.directory, name, flags, Mode::from_raw_mode(PRIVATE_FILE))?);
    storage::copy(source, &copy, size)?;
    apply(copy.as_fd())?;
    Ok(copy)
}
