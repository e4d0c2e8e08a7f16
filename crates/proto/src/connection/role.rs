//! Who is who in a session.

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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, derive_more::Display)]
pub enum Direction {
    /// From the client to the server.
    #[display("from the client to the server")]
    ClientToServer,
    /// From the server to the client.
    #[display("from the server to the client")]
    ServerToClient,
}
