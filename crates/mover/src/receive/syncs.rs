//! Brings what was written to the disk.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, OwnedFd};

use haul_wire::control::Fault;
use rustix::io::Errno;

use crate::fault::{Side, Trouble};
use crate::storage::{dup, fstat, fsync, syncfs};

/// Up to so many files or directories are synced one by one; more, by file system.
pub(crate) const FEW: usize = 8;

/// Syncs a group: one by one if they are few, else each of their file systems once.
#[derive(Default)]
pub(crate) struct Syncs {
    file_systems: HashMap<u64, OwnedFd>,
}

impl Syncs {
    /// Syncs one of `count` files or directories now, or remembers its file system.
    pub(crate) fn contents(&mut self, fd: &impl AsFd, count: usize) -> Result<(), Errno> {
        if count <= FEW { unless_path_only(fsync(fd)) } else { self.file_system_of(fd) }
    }

    /// Remembers a file system.
    #[expect(clippy::useless_conversion, reason = "the field differs between architectures")]
    pub(crate) fn file_system_of(&mut self, fd: &impl AsFd) -> Result<(), Errno> {
        let device = u64::from(fstat(fd)?.st_dev);
        if let Entry::Vacant(vacant) = self.file_systems.entry(device) {
            vacant.insert(dup(fd)?);
        }
        Ok(())
    }

    /// Syncs what was remembered.
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        for (_, fd) in self.file_systems.drain() {
            unless_path_only(syncfs(fd)).map_err(failed)?;
        }
        Ok(())
    }
}

/// The destination cannot be synced.
pub(crate) fn failed(errno: Errno) -> Fault {
    Trouble::new(Side::Destination, "sync", b"the destination", errno).fault
}

/// Directories that may be entered but not listed cannot be synced.
fn unless_path_only(done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Err(Errno::BADF | Errno::INVAL) => Ok(()),
        done => done,
    }
}
