//! An endpoint's threads run code of others: micro-protocols, sinks, sources and wakers. A panic in it must not end the
//! thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::connection::Connection;
use crate::EngineError;

/// Runs `work`; a panic becomes an error with its message. What `work` changes must be consistent wherever it may
/// panic, or not be used afterwards.
pub(super) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })
}

impl Connection {
    /// Runs `work` with this connection. A panic ends the connection and nothing else; the stack itself catches those
    /// of its micro-protocols.
    pub(super) fn guarded(&self, work: impl FnOnce(&Self)) {
        let Err(message) = caught(|| work(self)) else { return };
        let mut state = self.lock();
        state.end(EngineError::MicroProtocol { protocol: "of the application".to_owned(), message });
        Self::release(state);
    }
}
