//! What the mover needs of the control channel.

use std::time::Duration;

use haul_wire::control::{ControlMessage, Fault};

/// An ordered, reliable channel of control messages to the peer, used from several threads at once.
pub trait ControlLink: Send + Sync {
    /// Queues `message` for the peer. May block for as long as the channel is congested.
    ///
    /// # Errors
    /// The channel is broken; the fault says how and ends the job.
    fn send(&self, message: ControlMessage) -> Result<(), Fault>;

    /// The next message of the peer, or `None` if none came within `timeout`.
    ///
    /// # Errors
    /// The channel is broken; the fault says how and ends the job.
    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault>;
}
