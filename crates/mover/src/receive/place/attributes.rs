//! Permission bits and modification times.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

use crate::storage::{Mtime, fchmod, fstat, futimens, modified_at, utimensat};

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

/// Sets the permissions that [`mode_for`] returns, if they differ.
pub(crate) fn set_mode(fd: impl AsFd, wanted: u32, granted: u32) -> Result<(), Errno> {
    let now = mode_of(&fstat(&fd)?);
    let mode = mode_for(now, wanted, granted);
    if mode == now { Ok(()) } else { fchmod(fd, Mode::from_raw_mode(mode)) }
}

/// Sets the modification time through a file descriptor, if it differs.
pub(crate) fn correct_time(fd: impl AsFd, wanted: Mtime) -> Result<(), Errno> {
    if Mtime::of(&fstat(&fd)?) == wanted { Ok(()) } else { futimens(fd, &modified_at(wanted)) }
}

/// Sets the modification time of a symbolic link opened with `O_PATH`. Links have no permissions.
pub(crate) fn set_on_link(link: impl AsFd, wanted: Mtime) -> Result<(), Errno> {
    match utimensat(link, "", &modified_at(wanted), AtFlags::EMPTY_PATH) {
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
