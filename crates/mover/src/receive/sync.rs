//! Syncs written data to disk.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crossbeam_channel::Receiver;
use haul_wire::control::Fault;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::fault::IoFault;
use crate::identity::FileId;
use crate::storage::{dup, fdatasync, fstat, fsync, syncfs};

/// Maximum files or directories to sync individually.
pub(crate) const MAX_SINGLE_SYNCS: usize = 8;

/// Syncs a group of files: individually up to [`MAX_SINGLE_SYNCS`], otherwise each of their file systems once.
#[derive(Default)]
pub(crate) struct Syncs {
    file_systems: HashMap<u64, OwnedFd>,
}

impl Syncs {
    /// Syncs one of `count` files or directories now, or adds its file system to be synced by `finish`.
    pub(crate) fn contents(&mut self, fd: &impl AsFd, count: usize) -> Result<(), Errno> {
        if count <= MAX_SINGLE_SYNCS { ignore_unsupported(fsync(fd)) } else { self.file_system_of(fd) }
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
            ignore_unsupported(syncfs(fd)).map_err(failed)?;
        }
        Ok(())
    }
}

pub(crate) fn failed(errno: Errno) -> Fault {
    IoFault::destination("sync", b"the destination", errno).fault
}

/// Ignores errors of `O_PATH` descriptors: directories without read permission cannot be synced.
fn ignore_unsupported(done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Err(Errno::BADF | Errno::INVAL) => Ok(()),
        done => done,
    }
}

/// Bytes of large files between two write-backs; smaller files are left to the final sync.
pub(crate) const WRITEBACK_BYTES: u64 = 64 << 20;

pub(crate) type WritebackJob = (u32, Arc<File>);

/// Write-behind: large files are written to disk as they arrive, so that the final sync has little left to do.
#[derive(Default)]
pub(crate) struct Writeback {
    state: Mutex<WritebackState>,
    done: Condvar,
}

#[derive(Default)]
struct WritebackState {
    busy: Option<u32>,
    /// The kernel reports a write-back error only once; the final sync would not see it.
    failed: HashMap<u32, Errno>,
}

impl Writeback {
    pub(crate) fn run(&self, jobs: &Receiver<WritebackJob>) {
        while let Ok((entry, file)) = jobs.recv() {
            self.state.lock().busy = Some(entry);
            let done = fdatasync(&*file);
            let mut state = self.state.lock();
            state.busy = None;
            if let Err(errno) = done {
                state.failed.insert(entry, errno);
            }
            drop(state);
            self.done.notify_all();
        }
    }

    /// Returns the result for a file. Waits while it is being written back.
    pub(crate) fn outcome(&self, entry: u32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        self.done.wait_while(&mut state, |state| state.busy == Some(entry));
        state.failed.remove(&entry).map_or(Ok(()), Err)
    }
}
