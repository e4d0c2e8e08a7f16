//! Errors of sessions and connections.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use derive_more::Deref;
use haul_base::WithCauses;
use haul_proto::connection::{Failure, NotOffered};
use haul_wire::control::{Cipher, Fault, FaultCode, PROTOCOL_VERSION};

use crate::{Direction, UrlError};

/// A system error that can be cloned, as all who wait for the same failed resource are given it.
#[derive(Clone, Debug, Deref)]
#[deref(forward)]
pub struct SharedIoError(Arc<io::Error>);

impl From<io::Error> for SharedIoError {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

/// An engine error. Its `Display` text excludes its [`source`](Error::source); [`EngineError::fault`] returns
/// the form that is sent to the peer, with the texts of all causes.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The URL is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The URL for this host and port had expired before anything was sent.
    #[error("the URL for {0} has expired")]
    Expired(String),
    /// The host name cannot be resolved.
    #[error("cannot resolve {host}")]
    Resolve {
        /// Host name.
        host: String,
        /// The resolver's error.
        source: SharedIoError,
    },
    /// No address of the host accepts a TCP connection.
    #[error("cannot connect to {authority} (TCP)")]
    Connect {
        /// Host and port.
        authority: String,
        /// Error for the last address tried.
        source: SharedIoError,
    },
    /// The server at this address does not speak the protocol.
    #[error("{authority} does not respond like a haul server: {reason}")]
    NotHaul {
        /// Host and port.
        authority: String,
        /// What was observed.
        reason: String,
    },
    /// The server at this host and port is not the one that made the URL.
    #[error("the certificate of {0} does not match the URL")]
    Certificate(String),
    /// The TLS handshake failed for another reason.
    #[error("the encrypted connection to {peer} could not be set up: {reason}")]
    Tls {
        /// Peer.
        peer: String,
        /// Error from rustls.
        reason: String,
    },
    /// The peer sent this fault, in a [`Refuse`](haul_wire::control::ControlMessage::Refuse) or
    /// [`Abort`](haul_wire::control::ControlMessage::Abort).
    #[error("{}", .0.message)]
    Peer(Fault),
    /// The server chose a cipher that was not offered.
    #[error("the server chose the cipher {0}, which was not offered")]
    Cipher(Cipher),
    /// The server is this same endpoint, which keeps state for only one end of a connection with each peer.
    #[error("this is the endpoint's own listener: an endpoint cannot connect to itself; use another one")]
    OwnListener,
    /// The list of ciphers to offer is empty.
    #[error("the list of ciphers is empty (`Cipher::None` alone requests no encryption)")]
    NoCipher,
    /// UDP packets do not arrive in one direction.
    #[error("UDP packets do not get through {direction} (UDP port {port} of the server)")]
    UdpBlocked {
        /// The server's UDP port.
        port: u16,
        /// Direction in which no packet arrives.
        direction: Direction,
    },
    /// A firewall rule or security module of this machine rejects UDP packets; the system's error.
    #[error("this machine may not send UDP packets")]
    UdpForbidden(#[source] SharedIoError),
    /// The control channel broke; the reason reported by the system or the peer.
    #[error("the connection to the peer was lost: {0}")]
    ControlLost(String),
    /// The peer violated the protocol; what it did.
    #[error("the peer violated the protocol: {0}")]
    Protocol(String),
    /// The peer speaks this other version of the protocol.
    #[error("the peer uses protocol version {0}, this side version {PROTOCOL_VERSION}")]
    Version(u16),
    /// The timeout expired.
    #[error("timed out after {seconds:.1} seconds waiting for {what}")]
    TimedOut {
        /// What the caller waited for.
        what: &'static str,
        /// The timeout in seconds.
        seconds: f64,
    },
    /// The idle timeout, in seconds, expired: the connection has ended.
    #[error("no UDP packet arrived from the peer for {0:.1} seconds")]
    Silent(f64),
    /// The session has ended gracefully.
    #[error("the session has ended")]
    Closed,
    /// The data does not fit a control message.
    #[error("{0}")]
    TooLong(String),
    /// The server's address and port are not available.
    #[error("cannot listen on {addr}")]
    Listen {
        /// Requested address and port.
        addr: SocketAddr,
        /// The system's error.
        source: SharedIoError,
    },
    /// The recipe is invalid.
    #[error("the recipe cannot be used")]
    Recipe(#[from] haul_stack::RecipeError),
    /// The recipe cannot carry this message.
    #[error(transparent)]
    Message(#[from] haul_stack::SendError),
    /// A micro-protocol has failed, and its session with it.
    #[error("the micro-protocol `{protocol}` has failed: {message}")]
    MicroProtocol {
        /// Name of the micro-protocol.
        protocol: String,
        /// Its error message.
        message: String,
    },
    /// The resumption state cannot be used.
    #[error(transparent)]
    Resumption(#[from] crate::ResumptionError),
    /// A system call failed that should always work.
    #[error("{what}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The system's error.
        source: SharedIoError,
    },
}

impl EngineError {
    /// Error of a system call that should always work.
    pub(crate) fn system(what: &'static str, error: impl Into<io::Error>) -> Self {
        Self::System { what, source: error.into().into() }
    }

    /// Like [`EngineError::system`], for errors that are not an [`io::Error`].
    pub(crate) fn system_other(what: &'static str, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::system(what, io::Error::other(error))
    }

    pub(crate) fn timed_out(what: &'static str, timeout: Option<Duration>) -> Self {
        Self::TimedOut { what, seconds: timeout.unwrap_or_default().as_secs_f64() }
    }

    pub(crate) fn lost(reason: impl Into<String>) -> Self {
        Self::ControlLost(reason.into())
    }

    pub(crate) fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol(reason.into())
    }

    /// Returns the kind of failure.
    pub fn code(&self) -> FaultCode {
        match self {
            Self::Url(_)
            | Self::TooLong(_)
            | Self::Recipe(_)
            | Self::Message(_)
            | Self::Resumption(_)
            | Self::OwnListener
            | Self::NoCipher => FaultCode::Usage,
            Self::Expired(_) => FaultCode::Expired,
            Self::Resolve { .. } | Self::Connect { .. } | Self::NotHaul { .. } => FaultCode::Unreachable,
            Self::Certificate(_) => FaultCode::NotAuthorised,
            Self::Tls { .. } | Self::ControlLost(_) => FaultCode::ControlLost,
            Self::Peer(fault) => fault.code,
            Self::Cipher(_) => FaultCode::NotPermitted,
            Self::Version(_) => FaultCode::VersionMismatch,
            Self::UdpBlocked { .. } | Self::UdpForbidden(_) => FaultCode::UdpBlocked,
            Self::TimedOut { .. } | Self::Silent(_) => FaultCode::PeerSilent,
            Self::Protocol(_) | Self::Closed | Self::System { .. } | Self::MicroProtocol { .. } => {
                FaultCode::Internal
            }
            Self::Listen { .. } => FaultCode::Io,
        }
    }

    /// Returns the error with its causes, in the form that is sent to the peer. Hints are left to the
    /// application.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Peer(fault) => fault.clone(),
            _ => Fault::new(self.code(), self.with_causes(), ""),
        }
    }

    /// Returns the message followed by those of all causes.
    pub(crate) fn with_causes(&self) -> String {
        WithCauses(self).to_string()
    }
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> Self {
        let stopped = |message| Self::Peer(Fault::new(FaultCode::PeerStopped, message, ""));
        match failure {
            Failure::Aborted => stopped("the peer aborted the connection"),
            Failure::Superseded => stopped("the client opened a newer connection"),
            Failure::Silent(span) => Self::Silent(span.as_secs_f64()),
            Failure::Unanswered(port) => Self::UdpBlocked { port, direction: Direction::ClientToServer },
            Failure::MicroProtocol { protocol, message } => Self::MicroProtocol { protocol, message },
        }
    }
}

impl From<NotOffered> for EngineError {
    fn from(error: NotOffered) -> Self {
        match error {
            NotOffered::Cipher(cipher) => Self::Cipher(cipher),
            NotOffered::Recipe(error) => Self::Recipe(error),
            NotOffered::Other(_) => Self::protocol(error.to_string()),
        }
    }
}

/// For the traits of the standard library.
impl From<EngineError> for io::Error {
    fn from(error: EngineError) -> Self {
        let kind = match &error {
            EngineError::TimedOut { .. } => io::ErrorKind::TimedOut,
            EngineError::ControlLost(_)
            | EngineError::Peer(_)
            | EngineError::Closed
            | EngineError::Silent(_)
            | EngineError::UdpBlocked { .. }
            | EngineError::UdpForbidden(_)
            | EngineError::MicroProtocol { .. }
            | EngineError::Protocol(_)
            | EngineError::System { .. } => io::ErrorKind::ConnectionAborted,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_message_is_passed_on_unchanged() {
        let fault = Fault::new(FaultCode::DiskFull, "disk full", "make room");
        assert_eq!(EngineError::Peer(fault.clone()).fault(), fault);
    }
}
