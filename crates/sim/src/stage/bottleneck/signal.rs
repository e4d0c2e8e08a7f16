//! How a queue tells flows to slow down.

use serde::{Deserialize, Serialize};

/// How an active queue tells a flow to slow down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// It drops a packet.
    #[default]
    Drop,
    /// It marks packets of ECN-capable flows, and drops those of others (RFC 3168).
    Mark,
}
