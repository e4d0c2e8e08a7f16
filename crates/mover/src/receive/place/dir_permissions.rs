//! Directories that were there and may not be written, and what a file system makes of times.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::accounts::euid;
use crate::entries::Attributes;
use crate::identity::FileId;
use crate::receive::place::attributes::mode_of;
use crate::receive::place::{DirEntry, PRIVATE_FILE, Place};
use crate::root::split;
use crate::storage::{Mtime, fchmod, fstat, futimens, modified_at, openat};

/// What the owner of a directory needs to make names in it.
const OWNER: u32 = 0o700;

/// All file systems store times between these as they are, in whole seconds: 1980 (FAT) to 2038.
const USUAL: std::ops::Range<i64> = 315_619_200..2_147_483_648;

/// The coarsest time of a file system in use is FAT's, 2 seconds.
const COARSE_SECONDS: u64 = 2;

impl Place {
    /// Makes something in the directory of an entry; if it is ours and forbids that, it is permitted for the job.
    pub(crate) fn with_room<T>(
        &self,
        dirent: &DirEntry<'_>,
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        // Of the destination itself the set may not say what permissions it gets.
        let is_of_set = || !dirent.parent().is_empty() || self.is_included.load(Ordering::Acquire);
        let open_up = || self.open_up(dirent.parent(), &dirent.directory).is_ok();
        match make() {
            Err(Errno::ACCESS) if is_of_set() && open_up() => make(),
            done => done,
        }
    }

    /// Permits the owner of a directory of the destination everything in it, for the time of the job. It fails if the
    /// owner is permitted everything, so that it is something else, and if it is not ours.
    pub(crate) fn open_up(&self, local: &[u8], directory: &OwnedFd) -> Result<(), Errno> {
        let there = fstat(directory)?;
        let mode = mode_of(&there);
        if mode & OWNER == OWNER {
            return Err(Errno::ACCESS);
        }
        fchmod(directory, Mode::from_raw_mode(mode | OWNER)).map_err(|_| Errno::ACCESS)?;
        self.loosened.lock().entry(local.to_vec()).or_insert((FileId::of(&there), mode));
        Ok(())
    }

    /// Whether [`Place::open_up`] would make way to this directory, or to what is above it and hides it.
    pub(crate) fn could_open_up(&self, local: &[u8]) -> bool {
        let mut at = local;
        loop {
            match self.directory(at) {
                Ok(directory) => return fstat(&directory).is_ok_and(|stat| stat.st_uid == euid()),
                Err(Errno::ACCESS) if !at.is_empty() => at = split(at).0,
                Err(_) => return false,
            }
        }
    }

    /// Directories that did not get their final permissions get back what they had, the deepest first.
    pub(crate) fn tighten(&self) {
        let mut all: Vec<_> = std::mem::take(&mut *self.loosened.lock()).into_iter().collect();
        all.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        for (path, (id, mode)) in all {
            if let Ok(directory) = self.directory(&path)
                && fstat(&directory).is_ok_and(|stat| FileId::of(&stat) == id)
            {
                // It was ours a moment ago; more cannot be done.
                let _ = fchmod(&directory, Mode::from_raw_mode(mode));
            }
        }
    }

    /// Whether this time became that of a file that is there, which is another one: where it is near, or of an odd year, it
    /// is looked what the file system makes of it.
    pub(crate) fn stores_time_as(&self, path: &[u8], there: &Stat, wanted: Attributes) -> bool {
        let is_near = Mtime::of(there).secs.abs_diff(wanted.mtime.secs) <= COARSE_SECONDS;
        if !is_near && USUAL.contains(&wanted.mtime.secs) {
            return false;
        }
        let stored = self.dir_entry(path).ok().and_then(|dirent| stored_time(&dirent, wanted).ok());
        stored == Some(Mtime::of(there))
    }
}

/// What the file system makes of a time, found out with a file that has no name.
fn stored_time(dirent: &DirEntry<'_>, wanted: Attributes) -> Result<Mtime, Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(dirent.directory.as_fd(), ".", flags, Mode::from_raw_mode(PRIVATE_FILE))?;
    futimens(&file, &modified_at(wanted.mtime))?;
    Ok(Mtime::of(&fstat(&file)?))
}
