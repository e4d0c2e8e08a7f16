//! Write-behind: large files go to the disk while they come, so that the sync at their end has little left to do.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::storage::fdatasync;

/// Bytes of large files that are written between two calls; smaller files are left to the sync at their end.
pub(crate) const EVERY: u64 = 64 << 20;

pub(crate) type Order = (u32, Arc<File>);

/// What is being brought to the disk, and of what that failed.
#[derive(Default)]
pub(crate) struct Writeback {
    state: Mutex<WritebackState>,
    done: Condvar,
}

#[derive(Default)]
struct WritebackState {
    busy: Option<u32>,
    /// The kernel tells an error once, to whoever asks first; the sync at the end would not hear of it.
    failed: HashMap<u32, Errno>,
}

impl Writeback {
    /// Works until nobody orders any more.
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

    /// How it went with a file. Waits while it is being brought to the disk.
    pub(crate) fn outcome(&self, entry: u32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        self.done.wait_while(&mut state, |state| state.busy == Some(entry));
        state.failed.remove(&entry).map_or(Ok(()), Err)
    }
}
