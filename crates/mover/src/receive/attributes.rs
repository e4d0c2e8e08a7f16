//! Permissions and times.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::entries::Attributes;
use crate::storage::{futimens, utimensat};

/// Permission bits that a received file may have: no set-user-ID, set-group-ID or sticky bit, because those
/// would lend the receiving user's rights to a program that someone else chose.
pub(crate) const FILE_BITS: u32 = 0o0777;

/// Of a directory also set-group-ID (group of new files) and sticky, which lend nothing.
pub(crate) const DIRECTORY_BITS: u32 = 0o3777;

/// Sets the time of last modification through an open descriptor.
pub(crate) fn set_time(fd: impl AsFd, attributes: Attributes) -> Result<(), Errno> {
    futimens(fd, &times(attributes))
}

/// Sets the time of a symbolic link itself. Links have no permissions.
pub(crate) fn set_on_link(directory: impl AsFd, name: &[u8], attributes: Attributes) -> Result<(), Errno> {
    match utimensat(directory, name, &times(attributes), AtFlags::SYMLINK_NOFOLLOW) {
        // Some file systems keep no times of links.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        done => done,
    }
}

fn times(attributes: Attributes) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: attributes.mtime_secs, tv_nsec: attributes.mtime_nanos.into() },
    }
}
