//! Symbolic links.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Place;
use super::Spot;
use crate::entries::Attributes;
use crate::fault::Trouble;
use crate::receive::place::attributes::{existing, set_on_link};
use crate::receive::place::dir_entry::trouble;
use crate::receive::place::installed::{FileId, Names, collision};
use crate::storage::{fstat, openat, readlinkat, rename_in, statat, symlinkat};

/// A symbolic link that is as it should be.
pub(crate) struct Linked {
    /// The directory that it lies in.
    pub(crate) directory: Arc<OwnedFd>,
    /// It was not there.
    pub(crate) made: bool,
}

impl Place {
    /// Whether a link with this target is there.
    pub(crate) fn has_link(&self, path: &[u8], target: &[u8]) -> bool {
        self.spot(path).is_ok_and(|spot| leads_to(&spot, target))
    }

    /// Sees to it that a symbolic link is there. `dress` is called with the link, open as a path, before it has
    /// its time; one that was there keeps its place, unless it may have names elsewhere.
    pub(crate) fn link(
        &self,
        entry: u32,
        path: &[u8],
        target: &[u8],
        attributes: Attributes,
        dress: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<Linked, Trouble> {
        let spot = self.spot(path)?;
        let made = !leads_to(&spot, target) || self.is_link_elsewhere(&spot);
        if made {
            self.make_link(&spot, (entry, path, target), attributes, dress)?;
        } else {
            self.keep_link(&spot, path, attributes, dress)?;
        }
        Ok(Linked { directory: spot.directory, made })
    }

    fn keep_link(
        &self,
        spot: &Spot,
        path: &[u8],
        attributes: Attributes,
        dress: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<(), Trouble> {
        let stat = statat(&spot.directory, &spot.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| trouble("look at", path, errno))?;
        let id = FileId::of(&stat);
        if !self.own.add(id) && self.is_own((id, Names::of(&stat)), spot) {
            return Err(collision(path));
        }
        let link = open_link(&spot.directory, &spot.name).map_err(|errno| trouble("open", path, errno))?;
        dress(link.as_fd());
        if !existing(&stat).same_time(attributes) {
            // Not our link: it leads where it should all the same.
            let _ = set_on_link(&link, attributes);
        }
        Ok(())
    }

    fn is_link_elsewhere(&self, spot: &Spot) -> bool {
        let there = statat(&spot.directory, &spot.name, AtFlags::SYMLINK_NOFOLLOW);
        there.is_ok_and(|stat| self.may_be_elsewhere(&stat))
    }

    fn make_link(
        &self,
        spot: &Spot,
        (entry, path, target): (u32, &[u8], &[u8]),
        attributes: Attributes,
        dress: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<(), Trouble> {
        self.must_be_replaceable(spot, path)?;
        let name = self.temporary(entry);
        self.note_directory_of(path);
        let made = self
            .with_room(spot, path, || symlinkat(target, &spot.directory, &name))
            .and_then(|()| open_link(&spot.directory, name.as_bytes()))
            .and_then(|link| {
                self.own.add(FileId::of(&fstat(&link)?));
                dress(link.as_fd());
                set_on_link(&link, attributes)
            })
            .and_then(|()| rename_in(&spot.directory, &name, &spot.name));
        made.map_err(|errno| {
            self.remove(spot, &name);
            trouble("create the link", path, errno)
        })
    }
}

/// Opens a symbolic link itself: what is done to it then is done to nothing that takes its name.
fn open_link(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = openat(directory, name, flags, Mode::empty())?;
    let is_link = FileType::from_raw_mode(fstat(&link)?.st_mode) == FileType::Symlink;
    if is_link { Ok(link) } else { Err(Errno::LOOP) }
}

fn leads_to(spot: &Spot, target: &[u8]) -> bool {
    readlinkat(&spot.directory, &spot.name).is_ok_and(|there| there == target)
}
