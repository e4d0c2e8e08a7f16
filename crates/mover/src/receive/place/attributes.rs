//! Permissions and times.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

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
    let now = mode_of(&fstat(&fd)?);
    let mode = mode_for(now, wanted, granted);
    if mode == now { Ok(()) } else { fchmod(fd, Mode::from_raw_mode(mode)) }
}

/// Sets the time of last modification through an open descriptor, if it differs.
pub(crate) fn correct_time(fd: impl AsFd, wanted: Mtime) -> Result<(), Errno> {
    if Mtime::of(&fstat(&fd)?) == wanted { Ok(()) } else { futimens(fd, &modified_at(wanted)) }
}

/// Sets the time of a symbolic link that is open as a path. Links have no permissions.
pub(crate) fn set_on_link(link: impl AsFd, wanted: Mtime) -> Result<(), Errno> {
    match utimensat(link, "", &modified_at(wanted), AtFlags::EMPTY_PATH) {
        // Some file systems keep no times of links, and kernels before 5.8 take them by name only.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        done => done,
    }
}

#[expect(clippy::unnecessary_cast, reason = "the field differs between architectures")]
pub(crate) fn mode_of(there: &Stat) -> u32 {
    there.st_mode as u32 & ALL_BITS
}

/// Whether what is there has these permissions, and none that lend rights which they do not have.
pub(crate) fn has_mode(there: &Stat, mode: u32) -> bool {
    mode_for(mode_of(there), mode, FILE_BITS) == mode_of(there)
}

/// Whether what is there was modified at this time, as far as its file system can tell.
pub(crate) fn same_time(there: &Stat, wanted: Mtime) -> bool {
    let there = Mtime::of(there);
    there == wanted || there.nanos == 0 && there.secs == wanted.secs
}
