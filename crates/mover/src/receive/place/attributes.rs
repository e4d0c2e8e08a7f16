//! Permissions and times.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

use crate::entries::Attributes;
use crate::identity::FileId;
use crate::receive::place::dir_entry::Names;
use crate::storage::{Mtime, fchmod, fstat, futimens, modified_at, utimensat};

/// Permission bits that a received file may have: no set-user-ID, set-group-ID or sticky bit, because those
/// would lend the receiving user's rights to a program that someone else chose.
pub(crate) const FILE_BITS: u32 = 0o0777;

/// Of a directory also set-group-ID (group of new files) and sticky, which lend nothing.
pub(crate) const DIRECTORY_BITS: u32 = 0o3777;

pub(crate) const ALL_BITS: u32 = 0o7777;

/// The permissions that something gets which has `now`, if the sender says `wanted` and may give the bits `granted`.
/// What lends rights beyond them is never given, and stays only where the sender has it too.
pub(crate) fn mode_for(now: u32, wanted: u32, granted: u32) -> u32 {
    wanted & (granted | now) & ALL_BITS
}

/// Sets permissions as [`mode_for`] has them, if they differ.
pub(crate) fn set_mode(fd: impl AsFd, wanted: u32, granted: u32) -> Result<(), Errno> {
    let now = existing(&fstat(&fd)?).mode;
    let mode = mode_for(now, wanted, granted);
    if mode == now { Ok(()) } else { fchmod(fd, Mode::from_raw_mode(mode)) }
}

/// Sets the time of last modification through an open descriptor, if it differs.
pub(crate) fn correct_time(fd: impl AsFd, attributes: Attributes) -> Result<(), Errno> {
    let is_same = Mtime::of(&fstat(&fd)?) == attributes.mtime;
    if is_same { Ok(()) } else { set_time(fd, attributes) }
}

pub(crate) fn set_time(fd: impl AsFd, attributes: Attributes) -> Result<(), Errno> {
    futimens(fd, &modified_at(attributes.mtime))
}

/// Sets the time of a symbolic link that is open as a path. Links have no permissions.
pub(crate) fn set_on_link(link: impl AsFd, attributes: Attributes) -> Result<(), Errno> {
    match utimensat(link, "", &modified_at(attributes.mtime), AtFlags::EMPTY_PATH) {
        // Some file systems keep no times of links, and kernels before 5.8 take them by name only.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        done => done,
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Existing {
    pub(crate) size: u64,
    pub(crate) mtime: Mtime,
    pub(crate) id: FileId,
    pub(crate) names: Names,
    pub(crate) mode: u32,
}

impl Existing {
    pub(crate) fn is_later(&self, than: Attributes) -> bool {
        self.mtime > than.mtime
    }

    /// Whether it has these permissions, and none that lend rights which they do not have.
    pub(crate) fn has_mode(&self, mode: u32) -> bool {
        mode_for(self.mode, mode, FILE_BITS) == self.mode
    }

    /// Whether it was modified at this time, as far as its file system can tell.
    pub(crate) fn same_time(&self, attributes: Attributes) -> bool {
        let whole_seconds = self.mtime.nanos == 0;
        self.mtime == attributes.mtime || whole_seconds && self.mtime.secs == attributes.mtime.secs
    }
}

#[expect(clippy::unnecessary_cast, reason = "fields differ between architectures")]
pub(crate) fn existing(stat: &Stat) -> Existing {
    Existing {
        size: stat.st_size as u64,
        mtime: Mtime::of(stat),
        id: FileId::of(stat),
        names: Names::of(stat),
        mode: stat.st_mode as u32 & ALL_BITS,
    }
}
