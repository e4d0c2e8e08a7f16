//! Write-behind: large files are written to disk as they arrive, so that the final sync has little left to
//! do.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::storage::fdatasync;

/// Bytes of large files between two write-backs; smaller files are left to the final sync.
pub(crate) const EVERY: u64 = 64 << 20;

pub(crate) type Order = (u32, Arc<File>);

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
    pub(crate) fn run(&self, orders: &Receiver<Order>) {
        while let Ok((entry, file)) = orders.recv() {
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
