//! Existing directories without write permission, and the resolution of a file system's timestamps.

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

/// Permissions that a directory's owner needs to create files in it.
const OWNER: u32 = 0o700;

/// Seconds since the epoch that all file systems can represent: 1980 (FAT) to 2038.
const USUAL: std::ops::Range<i64> = 315_619_200..2_147_483_648;

/// Coarsest timestamp resolution of a file system in use: FAT's 2 seconds.
const COARSE_SECONDS: u64 = 2;

impl Place {
    /// Runs `make` in an entry's directory. If permissions are missing, relaxes them for the job where the
    /// user owns the directory, and tries again.
    pub(crate) fn with_room<T>(
        &self,
        dirent: &DirEntry<'_>,
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        // The set may not contain the permissions of the destination itself.
        let is_of_set = || !dirent.parent().is_empty() || self.is_included.load(Ordering::Acquire);
        let open_up = || self.open_up(dirent.parent(), &dirent.directory).is_ok();
        match make() {
            Err(Errno::ACCESS) if is_of_set() && open_up() => make(),
            done => done,
        }
    }

    /// Grants the owner of a directory all permissions for the duration of the job. Fails if the owner has
    /// them already, because the error then has another cause, or if another user owns the directory.
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

    /// Whether [`Place::open_up`] would succeed for this directory, or for the parent that hides it.
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

    /// Restores the permissions of directories that did not get their final ones, deepest first.
    pub(crate) fn tighten(&self) {
        let mut all: Vec<_> = std::mem::take(&mut *self.loosened.lock()).into_iter().collect();
        all.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        for (path, (id, mode)) in all {
            if let Ok(directory) = self.directory(&path)
                && fstat(&directory).is_ok_and(|stat| FileId::of(&stat) == id)
            {
                // Best effort: the user owned the directory when its permissions were relaxed.
                let _ = fchmod(&directory, Mode::from_raw_mode(mode));
            }
        }
    }

    /// Whether the file system would store the time `wanted` as the existing file's different time. Tested
    /// with a temporary file only if the two are at most 2 s apart or `wanted` is outside 1980 to 2038.
    pub(crate) fn stores_time_as(&self, path: &[u8], there: &Stat, wanted: Attributes) -> bool {
        let is_near = Mtime::of(there).secs.abs_diff(wanted.mtime.secs) <= COARSE_SECONDS;
        if !is_near && USUAL.contains(&wanted.mtime.secs) {
            return false;
        }
        let stored = self.dir_entry(path).ok().and_then(|dirent| stored_time(&dirent, wanted).ok());
        stored == Some(Mtime::of(there))
    }
}

/// Returns a time as the file system stores it, tested with an unnamed file (`O_TMPFILE`).
fn stored_time(dirent: &DirEntry<'_>, wanted: Attributes) -> Result<Mtime, Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(dirent.directory.as_fd(), ".", flags, Mode::from_raw_mode(PRIVATE_FILE))?;
    futimens(&file, &modified_at(wanted.mtime))?;
    Ok(Mtime::of(&fstat(&file)?))
}
