use std::time::Duration;

use haul_base::Bytes;

/// How one end of a connection is to run.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOptions {
    /// Bytes of messages that may wait to be sent; above, sending waits.
    pub queue: Bytes,
    /// Bytes of messages that may wait to be taken; above, arriving data is dropped as if the path had lost it.
    pub inbox: Bytes,
    /// Largest datagram, UDP payload bytes. What the path does not carry is lost: 1,200 pass everywhere.
    pub datagram: u16,
    /// How long a client waits for the server's first packet before it gives up.
    pub open_timeout: Duration,
    /// Sends a keep-alive when nothing has come for so long; after three without an answer the connection ends.
    pub keep_alive: Option<Duration>,
    /// How long a waiting thread polls the socket before it sleeps, as with `SO_BUSY_POLL` (socket(7)); zero: not at
    /// all. It saves a wake-up and costs a processor.
    pub busy_poll: Duration,
}

impl Default for ConnectionOptions {
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
