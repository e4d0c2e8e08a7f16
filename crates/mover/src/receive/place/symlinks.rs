//! Symbolic links.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::DirEntry;
use super::Place;
use crate::entries::Attributes;
use crate::fault::IoFault;
use crate::identity::FileId;
use crate::receive::place::attributes::{existing, set_on_link};
use crate::receive::place::dir_entry::{Names, collision};
use crate::storage::{fstat, lstatat, openat, readlinkat, symlinkat};

/// A symbolic link that is as it should be.
pub(crate) struct Linked {
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) made: bool,
}

impl Place {
    /// Whether a link with this target is there.
    pub(crate) fn has_link(&self, path: &[u8], target: &[u8]) -> bool {
        self.dir_entry(path).is_ok_and(|dirent| leads_to(&dirent, target))
    }

    /// Sees to it that a symbolic link is there. `apply` is called with the link, open as a path, before it has
    /// its time; one that was there keeps its place, unless it may have names elsewhere.
    pub(crate) fn link(
        &self,
        entry: u32,
        path: &[u8],
        target: &[u8],
        attributes: Attributes,
        apply: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<Linked, IoFault> {
        let dirent = self.dir_entry(path)?;
        let made = !leads_to(&dirent, target) || self.is_link_elsewhere(&dirent);
        if made {
            self.make_link(&dirent, (entry, path, target), attributes, apply)?;
        } else {
            self.keep_link(&dirent, path, attributes, apply)?;
        }
        Ok(Linked { directory: dirent.directory, made })
    }

    fn keep_link(
        &self,
        dirent: &DirEntry,
        path: &[u8],
        attributes: Attributes,
        apply: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<(), IoFault> {
        let stat = lstatat(&dirent.directory, &dirent.name)
            .map_err(|errno| IoFault::destination("look at", path, errno))?;
        let id = FileId::of(&stat);
        if !self.installed.add(id) && self.is_installed((id, Names::of(&stat)), dirent) {
            return Err(collision(path));
        }
        let link = open_link(&dirent.directory, &dirent.name)
            .map_err(|errno| IoFault::destination("open", path, errno))?;
        apply(link.as_fd());
        if !existing(&stat).same_time(attributes) {
            // Not our link: it leads where it should all the same.
            let _ = set_on_link(&link, attributes);
        }
        Ok(())
    }

    fn is_link_elsewhere(&self, dirent: &DirEntry) -> bool {
        let there = lstatat(&dirent.directory, &dirent.name);
        there.is_ok_and(|stat| self.may_be_elsewhere(&stat))
    }

    fn make_link(
        &self,
        dirent: &DirEntry,
        (entry, path, target): (u32, &[u8], &[u8]),
        attributes: Attributes,
        apply: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<(), IoFault> {
        self.must_be_replaceable(dirent, path)?;
        let made = self.put_in_place(entry, path, dirent, |name| {
            self.with_room(dirent, path, || symlinkat(target, &dirent.directory, name))?;
            let link = open_link(&dirent.directory, name.as_bytes())?;
            self.installed.add(FileId::of(&fstat(&link)?));
            apply(link.as_fd());
            set_on_link(&link, attributes)
        });
        made.map_err(|errno| IoFault::destination("create the link", path, errno))
    }
}

/// Opens a symbolic link itself: what is done to it then is done to nothing that takes its name.
fn open_link(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = openat(directory, name, flags, Mode::empty())?;
    let is_link = FileType::from_raw_mode(fstat(&link)?.st_mode) == FileType::Symlink;
    if is_link { Ok(link) } else { Err(Errno::LOOP) }
}

fn leads_to(dirent: &DirEntry, target: &[u8]) -> bool {
    readlinkat(&dirent.directory, &dirent.name).is_ok_and(|there| there == target)
}
