//! What is at an entry's name and of another kind gives way, if names may be removed: a file or link to a directory at
//! once, because other entries come into it; a directory, and what is in it, only when everything has arrived.

use haul_wire::control::{Action, Extraneous, Fault};
use rustix::fs::{AtFlags, FileType};

use crate::entries::Kind;
use crate::fault::{IoFault, Scope};
use crate::receive::delete::{limit, too_many};
use crate::receive::place::Place;
use crate::receive::shared::Shared;
use crate::storage::unlinkat;

impl Place {
    /// What is at an entry's name.
    pub(crate) fn obstacle(&self, path: &[u8]) -> Option<FileType> {
        self.dir_entry(path).ok()?.kind(path).ok().flatten()
    }
}

/// Whether it has to be removed before an entry of this kind can be made.
pub(crate) fn is_in_the_way(kind: Kind, there: FileType) -> bool {
    match kind {
        Kind::Directory => there != FileType::Directory,
        Kind::File(_) | Kind::Symlink | Kind::HardLink(_) => {
            !matches!(there, FileType::RegularFile | FileType::Symlink)
        }
        Kind::Unread => false,
    }
}

impl Shared {
    /// Whether what is in the way is removed.
    pub(crate) fn clears(&self) -> bool {
        self.receive_policy.extraneous != Extraneous::Keep
    }

    /// Makes a directory (true), or takes the one that is there (false).
    ///
    /// # Errors
    /// The outer one ends the job.
    pub(crate) fn make_directory(&self, path: &[u8]) -> Result<Result<bool, IoFault>, Fault> {
        let made = self.place.make_directory(path);
        let blocked = || self.place.obstacle(path).is_some_and(|there| is_in_the_way(Kind::Directory, there));
        if made.is_ok() || !self.clears() || !blocked() {
            return Ok(made);
        }
        if let Err(io_fault) = self.count_one().and_then(|()| self.unlink(path)) {
            return Ok(Err(io_fault));
        }
        self.tell(self.place.local(path), Action::Delete)?;
        Ok(self.place.make_directory(path))
    }

    /// Counts a name that is in the way of a directory and goes.
    pub(crate) fn count_one(&self) -> Result<(), IoFault> {
        if let Some((most, 0)) = limit(self) {
            return Err(IoFault { fault: too_many(most), scope: Scope::Entry });
        }
        self.book().removal.removed += 1;
        Ok(())
    }

    fn unlink(&self, path: &[u8]) -> Result<(), IoFault> {
        let dirent = self.place.dir_entry(path)?;
        let unlink = || unlinkat(&dirent.directory, &dirent.name, AtFlags::empty());
        self.place
            .with_room(&dirent, path, unlink)
            .map_err(|errno| IoFault::destination("remove", path, errno))
    }
}
