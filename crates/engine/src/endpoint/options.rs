use std::time::Duration;

use haul_base::Bytes;

/// How one end of a connection is to run.
#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions {
    /// Bytes of messages that may wait to be sent; more have to wait.
    pub queue: Bytes,
    /// Bytes of messages that may wait to be taken; above, arriving data is dropped as if the path had lost it.
    pub inbox: Bytes,
    /// Largest datagram, UDP payload bytes. What the path does not carry is lost: 1,200 pass everywhere.
    pub datagram: u16,
    /// A client that hears nothing of the server for so long after it began a connection gives up.
    pub open_timeout: Duration,
    /// Asks for a sign of life when nothing has come for so long, and ends after three that were not answered.
    pub keep_alive: Option<Duration>,
    /// A thread that waits looks for packets again and again for so long before it sleeps, as with `SO_BUSY_POLL`
    /// (socket(7)); zero: it sleeps at once. It spares a wake-up and costs a processor.
    pub busy_poll: Duration,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            queue: Bytes(1 << 20),
            inbox: Bytes(4 << 20),
            datagram: 1_200,
            open_timeout: Duration::from_secs(5),
            keep_alive: None,
            busy_poll: Duration::ZERO,
        }
    }
}
