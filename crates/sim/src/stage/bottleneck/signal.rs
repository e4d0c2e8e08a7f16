//! Congestion signals of queues.

use serde::{Deserialize, Serialize};

/// Congestion signal of an active queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Drops a packet.
    #[default]
    Drop,
    /// Marks packets of ECN-capable flows and drops those of others (RFC 3168).
    Mark,
}
