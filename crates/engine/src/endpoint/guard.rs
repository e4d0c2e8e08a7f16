//! Code of others runs on an endpoint's threads: micro-protocols, sinks, sources and wakers. One that panics must not take
//! the thread with it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::connection::Connection;
use super::shared::Shared;
use crate::EngineError;

/// Does something; of a panic on the way only its control frames are left. What `work` changes must be whole wherever it may panic, or
/// not be used afterwards.
pub(super) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })
}

impl Connection {
    /// Does something with this connection. A panic ends the connection, and nothing else: the stack catches those of its
    /// micro-protocols, this is for the rest.
    pub(super) fn guarded(&self, shared: &Shared, work: impl FnOnce(&Self)) {
        let Err(message) = caught(|| work(self)) else { return };
        let mut state = self.lock();
        state.end(EngineError::MicroProtocol { protocol: "of the application".to_owned(), message });
        // Whoever waits is told; a waker that panics again has had its chance.
        let _ = caught(|| self.release(shared, state));
    }
}
