//! Roles of the two ends of a session.

/// Role of an end of a session. Both can send and receive files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The end that opens the connection.
    Client,
    /// The end that accepts the connection.
    Server,
}

impl Role {
    /// Returns the peer's role.
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
