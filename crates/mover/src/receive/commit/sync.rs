//! Syncs written data to disk, and reads files back.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use haul_wire::control::{Fault, FaultCode};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use crate::fault::IoFault;
use crate::identity::FileId;
use crate::receive::shared::Shared;
use crate::receive::verify::hash_group;
use crate::storage::{dup, fdatasync, fstat, fsync, syncfs};
use crate::tree::{Groups, Tree};

/// Maximum files or directories to sync individually.
pub(crate) const FEW: usize = 8;

/// Syncs a group of files: individually up to [`FEW`], otherwise each of their file systems once.
#[derive(Default)]
pub(crate) struct Syncs {
    file_systems: HashMap<u64, OwnedFd>,
}

impl Syncs {
    /// Syncs one of `count` files or directories now, or adds its file system to be synced by `finish`.
    pub(crate) fn contents(&mut self, fd: &impl AsFd, count: usize) -> Result<(), Errno> {
        if count <= FEW { unless_path_only(fsync(fd)) } else { self.file_system_of(fd) }
    }

    pub(crate) fn file_system_of(&mut self, fd: &impl AsFd) -> Result<(), Errno> {
        let device = FileId::of(&fstat(fd)?).device;
        if let Entry::Vacant(vacant) = self.file_systems.entry(device) {
            vacant.insert(dup(fd)?);
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        for (_, fd) in self.file_systems.drain() {
            unless_path_only(syncfs(fd)).map_err(failed)?;
        }
        Ok(())
    }
}

pub(crate) fn failed(errno: Errno) -> Fault {
    IoFault::destination("sync", b"the destination", errno).fault
}

/// Ignores errors of `O_PATH` descriptors: directories without read permission cannot be synced.
fn unless_path_only(done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Err(Errno::BADF | Errno::INVAL) => Ok(()),
        done => done,
    }
}

/// Reads a complete, verified file back from disk and compares its digest.
pub(crate) fn read_back(shared: &Shared, entry: u32, file: &File, buffer: &mut [u8]) -> Result<(), IoFault> {
    let (shape, digest) = shared.table(|table| (table.shape(entry), table.digest(entry).copied()));
    let path = || shared.path(entry);
    let io_fault = |errno| IoFault::destination("read back", &path(), errno);
    // Only clean pages are dropped from the page cache (posix_fadvise(2)).
    fdatasync(file).map_err(io_fault)?;
    // May fail: in-memory file systems have no page cache to drop.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    let groups = Groups::of(shape.len);
    let mut tree = Tree::new(groups);
    for group in 0..groups.count() {
        if shared.has_ended() {
            break;
        }
        shared.progress.worked.add(1);
        tree.set(group, hash_group(file, &shape, group, buffer).map_err(io_fault)?);
    }
    match tree.root() {
        Some(found) if Some(found) != digest => Err(IoFault::entry(
            FaultCode::VerifyFailed,
            &path(),
            "differs on disk from what was written: its BLAKE3 digest differs",
            "check the system log of the receiving machine and test its disk",
        )),
        // No root: the job has ended.
        _ => Ok(()),
    }
}
