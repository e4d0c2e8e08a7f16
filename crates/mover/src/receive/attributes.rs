//! Permissions and times.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::entries::Attributes;
use crate::receive::place::existing;
use crate::storage::{fchmod, fstat, futimens, utimensat};

/// Permission bits that a received file may have: no set-user-ID, set-group-ID or sticky bit, because those
/// would lend the receiving user's rights to a program that someone else chose.
pub(crate) const FILE_BITS: u32 = 0o0777;

/// Of a directory also set-group-ID (group of new files) and sticky, which lend nothing.
pub(crate) const DIRECTORY_BITS: u32 = 0o3777;

/// All bits that `chmod` takes.
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
    let now = existing(&fstat(&fd)?);
    let is_same = (now.mtime_secs, now.mtime_nanos) == (attributes.mtime_secs, attributes.mtime_nanos);
    if is_same { Ok(()) } else { set_time(fd, attributes) }
}

/// Sets the time of last modification through an open descriptor.
pub(crate) fn set_time(fd: impl AsFd, attributes: Attributes) -> Result<(), Errno> {
    futimens(fd, &times(attributes))
}

/// Sets the time of a symbolic link that is open as a path. Links have no permissions.
pub(crate) fn set_on_link(link: impl AsFd, attributes: Attributes) -> Result<(), Errno> {
    match utimensat(link, "", &times(attributes), AtFlags::EMPTY_PATH) {
        // Some file systems keep no times of links, and kernels before 5.8 take them by name only.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        done => done,
    }
}

fn times(attributes: Attributes) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: attributes.mtime_secs, tv_nsec: attributes.mtime_nanos.into() },
    }
}
