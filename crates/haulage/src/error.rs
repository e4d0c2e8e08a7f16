//! Errors, by operation. Each has the message and the [`source`](std::error::Error::source) of the error that
//! it wraps; `?` converts all of them to [`Error`].

use haul_engine::{EngineError as Error, ResumptionError, UrlError};
use haul_stack::{RecipeError, SendError as MessageError};

/// Error of opening a connection or a stream.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is invalid.
    Url(#[from] UrlError),
    /// The recipe or its control law is invalid.
    Recipe(#[from] RecipeError),
    /// The resumption file cannot be used.
    Resumption(#[from] ResumptionError),
    /// No Haulage server answers at the address.
    Unreachable(Box<Error>),
    /// The server is not the one that made the URL, or the URL has expired.
    NotTrusted(Box<Error>),
    /// The server refuses the request.
    Refused(Box<Error>),
    /// The server is reachable over TCP but not over UDP.
    UdpBlocked(Box<Error>),
    /// The timeout expired before the server answered.
    TimedOut(Box<Error>),
    /// Any other error.
    Failed(Box<Error>),
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        match error {
            Error::Url(error) => Self::Url(error),
            Error::Recipe(error) => Self::Recipe(error),
            Error::Resumption(error) => Self::Resumption(error),
            Error::Resolve { .. } | Error::Connect { .. } | Error::NotHaul { .. } => {
                Self::Unreachable(error.into())
            }
            Error::Certificate(_) | Error::Expired(_) => Self::NotTrusted(error.into()),
            Error::Peer(_) => Self::Refused(error.into()),
            Error::UdpBlocked { .. } | Error::UdpForbidden(_) => Self::UdpBlocked(error.into()),
            Error::TimedOut { .. } => Self::TimedOut(error.into()),
            error => Self::Failed(error.into()),
        }
    }
}

/// How a connection or a stream ended.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum ConnectionError {
    /// Either peer closed it gracefully.
    #[error("{}", Error::Closed)]
    Closed,
    /// The peer aborted it.
    Aborted(Box<Error>),
    /// The peer went silent, or packets do not reach it.
    Silent(Box<Error>),
    /// A local micro-protocol failed.
    MicroProtocol(Box<Error>),
    /// Any other error.
    Failed(Box<Error>),
}

impl From<Error> for ConnectionError {
    fn from(error: Error) -> Self {
        match error {
            Error::Closed => Self::Closed,
            Error::Peer(_) => Self::Aborted(error.into()),
            Error::Silent(_) | Error::UdpBlocked { .. } | Error::ControlLost(_) => Self::Silent(error.into()),
            Error::MicroProtocol { .. } => Self::MicroProtocol(error.into()),
            error => Self::Failed(error.into()),
        }
    }
}

/// Error of sending a message.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum SendError {
    /// The recipe cannot carry this message.
    Message(#[from] MessageError),
    /// The timeout expired while the send queue was full.
    TimedOut(Error),
    /// The connection has ended.
    Ended(#[from] ConnectionError),
}

/// Error of waiting for a message, an event, a flush or a close.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout expired; the connection is still open.
    TimedOut(Error),
    /// The connection has ended.
    Ended(#[from] ConnectionError),
}

/// Error of binding a listener or accepting a client.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum AcceptError {
    /// The address and port are not available for both TCP and UDP.
    Address(Error),
    /// The timeout expired before a client connected.
    TimedOut(Error),
    /// The listener has stopped.
    #[error("{}", Error::Closed)]
    Closed,
    /// A client's stream could not be opened; the listener is still usable.
    Failed(Error),
}

impl From<Error> for SendError {
    fn from(error: Error) -> Self {
        match error {
            Error::Message(error) => Self::Message(error),
            Error::TimedOut { .. } => Self::TimedOut(error),
            error => Self::Ended(error.into()),
        }
    }
}

impl From<Error> for WaitError {
    fn from(error: Error) -> Self {
        match error {
            Error::TimedOut { .. } => Self::TimedOut(error),
            error => Self::Ended(error.into()),
        }
    }
}

impl From<Error> for AcceptError {
    fn from(error: Error) -> Self {
        match error {
            Error::Closed => Self::Closed,
            Error::Listen { .. } => Self::Address(error),
            Error::TimedOut { .. } => Self::TimedOut(error),
            error => Self::Failed(error),
        }
    }
}

/// Converts an operation's error back to the engine's error that it wraps, boxed or directly.
macro_rules! into_engine_error {
    ($operation:ident { $(Closed => $closed:ident;)? boxed: $($boxed:ident)*; direct: $($direct:ident)* }) => {
        impl From<$operation> for Error {
            fn from(error: $operation) -> Self {
                match error {
                    $($operation::Closed => Self::$closed,)?
                    $($operation::$boxed(error) => *error,)*
                    $($operation::$direct(error) => error.into(),)*
                }
            }
        }
    };
}

into_engine_error!(OpenError {
    boxed: Unreachable NotTrusted Refused UdpBlocked TimedOut Failed;
    direct: Url Recipe Resumption
});
into_engine_error!(ConnectionError { Closed => Closed; boxed: Aborted Silent MicroProtocol Failed; direct: });
into_engine_error!(SendError { boxed: ; direct: Message TimedOut Ended });
into_engine_error!(WaitError { boxed: ; direct: TimedOut Ended });
into_engine_error!(AcceptError { Closed => Closed; boxed: ; direct: Address TimedOut Failed });

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_stream_reports_the_end_of_its_connection() {
        let direction = haul_engine::Direction::ClientToServer;
        for error in [
            Error::Closed,
            Error::Silent(1.0),
            Error::UdpBlocked { port: 7, direction },
            Error::MicroProtocol { protocol: "own".to_owned(), message: "panicked".to_owned() },
            Error::Protocol("nonsense".to_owned()),
            Error::System { what: "the UDP socket failed", source: io::Error::other("it is gone").into() },
        ] {
            let kind = io::Error::from(error.clone()).kind();
            assert_eq!(kind, io::ErrorKind::ConnectionAborted, "{error}");
        }
    }

    #[test]
    fn a_wait_timeout_differs_from_a_connection_timeout() {
        let (what, seconds) = ("a message", 1.0);
        assert!(matches!(WaitError::from(Error::TimedOut { what, seconds }), WaitError::TimedOut(_)));
        let silent = WaitError::from(Error::Silent(1.0));
        assert!(matches!(&silent, WaitError::Ended(ConnectionError::Silent(_))), "{silent:?}");
        assert_eq!(silent.to_string(), Error::Silent(1.0).to_string());
        assert!(matches!(Error::from(silent), Error::Silent(_)));
    }
}
