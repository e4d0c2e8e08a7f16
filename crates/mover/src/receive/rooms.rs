//! Directories that were there and may not be written, and what a file system makes of times.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::entries::Attributes;
use crate::receive::attributes::set_time;
use crate::receive::place::{Existing, PRIVATE_FILE, Place, Spot, existing, parent_of};
use crate::storage::{fchmod, fstat, openat};

/// What the owner of a directory needs to make names in it.
const OWNER: u32 = 0o700;

/// All file systems store times between these as they are, in whole seconds: 1980 (FAT) to 2038.
const USUAL: std::ops::Range<i64> = 315_619_200..2_147_483_648;

/// The coarsest time of a file system in use is FAT's, 2 seconds.
const COARSE_SECONDS: u64 = 2;

/// Directories that were given permissions for the time of the job, by path, with what they had.
#[derive(Default)]
pub(crate) struct Loosened(Mutex<HashMap<Vec<u8>, u32>>);

impl Loosened {
    fn all(&self) -> MutexGuard<'_, HashMap<Vec<u8>, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory has got its final permissions.
    pub(crate) fn settled(&self, path: &[u8]) {
        self.all().remove(path);
    }
}

impl Place {
    /// Makes something in the directory of an entry. If that is forbidden there although the directory is ours,
    /// it is permitted for the time of the job.
    pub(crate) fn with_room<T>(
        &self,
        spot: &Spot,
        path: &[u8],
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match make() {
            Err(Errno::ACCESS) if !spot.at_top && self.loosen(spot, path).is_ok() => make(),
            done => done,
        }
    }

    fn loosen(&self, spot: &Spot, path: &[u8]) -> Result<(), Errno> {
        let mode = fstat(&spot.directory)?.st_mode & 0o7777;
        if mode & OWNER == OWNER {
            return Err(Errno::ACCESS);
        }
        fchmod(&spot.directory, Mode::from_raw_mode(mode | OWNER))?;
        let parent = parent_of(path).to_vec();
        self.loosened.all().entry(parent).or_insert(mode);
        Ok(())
    }

    /// Directories that did not get their final permissions get back what they had.
    pub(crate) fn tighten(&self) {
        let all = std::mem::take(&mut *self.loosened.all());
        for (path, mode) in all {
            if let Ok(directory) = self.directory(&self.local(&path)) {
                // It was ours a moment ago; more cannot be done.
                let _ = fchmod(&directory, Mode::from_raw_mode(mode));
            }
        }
    }

    /// Whether a file that is there was modified at this time, as far as its file system can tell. Where the time
    /// is near but not the same, or of an odd year, it is looked what the file system makes of it.
    pub(crate) fn same_time(&self, path: &[u8], there: &Existing, wanted: Attributes) -> bool {
        if there.same_time(wanted) {
            return true;
        }
        let is_near = there.mtime_secs.abs_diff(wanted.mtime_secs) <= COARSE_SECONDS;
        if !is_near && USUAL.contains(&wanted.mtime_secs) {
            return false;
        }
        let stored = self.spot(path).ok().and_then(|spot| stored_time(&spot, wanted).ok());
        stored.is_some_and(|stored| {
            (stored.mtime_secs, stored.mtime_nanos) == (there.mtime_secs, there.mtime_nanos)
        })
    }
}

/// What the file system makes of a time, found out with a file that has no name.
fn stored_time(spot: &Spot, wanted: Attributes) -> Result<Existing, Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(spot.directory.as_fd(), ".", flags, Mode::from_raw_mode(PRIVATE_FILE))?;
    set_time(&file, wanted)?;
    Ok(existing(&fstat(&file)?))
}
