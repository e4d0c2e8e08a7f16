//! Waking a thread that waits for descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use crate::EngineError;

/// Wakes a thread that waits for its socket: for a data thread more of the object can be read, or the sink has room
/// again. Cheap to clone; waking a thread that has ended does nothing.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A new waker, for one thread.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn new() -> Result<Self, EngineError> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map(|fd| Self(Arc::new(fd)))
            .map_err(|error| EngineError::system("cannot make an eventfd", error))
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        // The counter can only be full if the thread is about to wake anyway.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn reset(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
