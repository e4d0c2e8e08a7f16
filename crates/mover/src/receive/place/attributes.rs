//! Permission bits and modification times; directories without write permission.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::accounts::euid;
use crate::entries::Attributes;
use crate::identity::FileId;
use crate::receive::place::{DirEntry, Place};
use crate::root::split;
use crate::storage::{Mtime, fchmod, fstat, futimens, modified_at, openat, utimensat};

/// Permission bits that a received file may have: no set-user-ID, set-group-ID or sticky bit, because those
/// would grant the receiving user's privileges to a program that someone else chose.
pub(crate) const FILE_BITS: u32 = 0o0777;

/// Permission bits of a received directory. Set-group-ID (group of new files) and sticky grant no privileges.
pub(crate) const DIRECTORY_BITS: u32 = 0o3777;

pub(crate) const ALL_BITS: u32 = 0o7777;

/// Returns the permissions for a file that has `now`, if the sender requests `wanted` and may set the bits
/// `granted`. Bits beyond `granted` are never added, and kept only if the sender has them too.
pub(crate) fn mode_for(now: u32, wanted: u32, granted: u32) -> u32 {
    wanted & (granted | now) & ALL_BITS
}

pub(crate) fn set_mode(fd: impl AsFd, wanted: u32, granted: u32) -> Result<(), Errno> {
    let now = mode_of(&fstat(&fd)?);
    let mode = mode_for(now, wanted, granted);
    if mode == now { Ok(()) } else { fchmod(fd, Mode::from_raw_mode(mode)) }
}

pub(crate) fn correct_time(fd: impl AsFd, wanted: Mtime) -> Result<(), Errno> {
    if Mtime::of(&fstat(&fd)?) == wanted {
        return Ok(());
    }
    match futimens(&fd, &modified_at(wanted)) {
        Err(Errno::BADF) => set_on_path(fd, wanted),
        done => done,
    }
}

/// Sets the modification time of a file or link opened with `O_PATH`. Links have no permissions.
pub(crate) fn set_on_path(path: impl AsFd, wanted: Mtime) -> Result<(), Errno> {
    match utimensat(path, "", &modified_at(wanted), AtFlags::EMPTY_PATH) {
        // Some file systems store no times of links, and kernels before 5.8 accept only a name.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        done => done,
    }
}

#[expect(clippy::unnecessary_cast, reason = "the field differs between architectures")]
pub(crate) fn mode_of(there: &Stat) -> u32 {
    there.st_mode as u32 & ALL_BITS
}

/// Whether a file has these permissions, and no bits outside [`FILE_BITS`] that `mode` lacks.
pub(crate) fn has_mode(there: &Stat, mode: u32) -> bool {
    mode_for(mode_of(there), mode, FILE_BITS) == mode_of(there)
}

/// Whether a file's modification time equals `wanted`; a stored time in whole seconds matches any fraction.
pub(crate) fn same_time(there: &Stat, wanted: Mtime) -> bool {
    let there = Mtime::of(there);
    there == wanted || there.nanos == 0 && there.secs == wanted.secs
}

const OWNER_RWX: u32 = 0o700;

/// Seconds since the epoch that all file systems can represent: 1980 (FAT) to 2038.
const PORTABLE_SECONDS: std::ops::Range<i64> = 315_619_200..2_147_483_648;

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
        let relax_permissions = || self.relax_permissions(dirent.parent(), &dirent.directory).is_ok();
        match make() {
            Err(Errno::ACCESS) if is_of_set() && relax_permissions() => make(),
            done => done,
        }
    }

    /// Grants the owner of a directory all permissions for the duration of the job. Fails if the owner has
    /// them already, because the error then has another cause, or if another user owns the directory.
    pub(crate) fn relax_permissions(&self, local: &[u8], directory: &OwnedFd) -> Result<(), Errno> {
        let there = fstat(directory)?;
        let mode = mode_of(&there);
        if mode & OWNER_RWX == OWNER_RWX {
            return Err(Errno::ACCESS);
        }
        fchmod(directory, Mode::from_raw_mode(mode | OWNER_RWX)).map_err(|_| Errno::ACCESS)?;
        self.relaxed_permissions.lock().entry(local.to_vec()).or_insert((FileId::of(&there), mode));
        Ok(())
    }

    /// Whether [`Place::relax_permissions`] would succeed for this directory, or for the parent that hides it.
    pub(crate) fn could_relax_permissions(&self, local: &[u8]) -> bool {
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
    pub(crate) fn restore_permissions(&self) {
        let mut all: Vec<_> = std::mem::take(&mut *self.relaxed_permissions.lock()).into_iter().collect();
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
        if !is_near && PORTABLE_SECONDS.contains(&wanted.mtime.secs) {
            return false;
        }
        let stored = self.dir_entry(path).ok().and_then(|dirent| stored_time(&dirent, wanted).ok());
        stored == Some(Mtime::of(there))
    }
}

/// Returns a time as the file system stores it, tested with an unnamed file (`O_TMPFILE`).
fn stored_time(dirent: &DirEntry<'_>, wanted: Attributes) -> Result<Mtime, Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(dirent.directory.as_fd(), ".", flags, Mode::RUSR | Mode::WUSR)?;
    futimens(&file, &modified_at(wanted.mtime))?;
    Ok(Mtime::of(&fstat(&file)?))
}
