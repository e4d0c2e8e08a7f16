//! Who is who in a session.

use std::fmt;

/// Which end of a session this is. Both can send and receive files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Opened the connection.
    Client,
    /// Listened for it.
    Server,
}

impl Role {
    /// The other end.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A direction of the path between the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From the client to the server.
    ClientToServer,
    /// From the server to the client.
    ServerToClient,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClientToServer => "from the client to the server",
            Self::ServerToClient => "from the server to the client",
        })
    }
}
