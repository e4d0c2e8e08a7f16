//! What can go wrong, by operation. Each has the text of the failure that it holds, and that one's
//! [`source`](std::error::Error::source); all of them become the one [`Error`] with `?`.

use haul_engine::{EngineError as Error, ResumptionError, UrlError};
use haul_stack::{RecipeError, SendError as MessageError};

/// Why a connection or a stream cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL cannot be read.
    Url(#[from] UrlError),
    /// The recipe, or its control law, cannot be used.
    Recipe(#[from] RecipeError),
    /// The file with the resumption state cannot be used.
    Resumption(#[from] ResumptionError),
    /// No server answers there.
    Unreachable(Box<Error>),
    /// The server is not the one that made the URL, or the URL has expired.
    NotTrusted(Box<Error>),
    /// The server refuses.
    Refused(Box<Error>),
    /// TCP gets through to the server and UDP does not.
    UdpBlocked(Box<Error>),
    /// The server did not answer in time.
    TimedOut(Box<Error>),
    /// Anything else.
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

/// How a connection or a stream has ended.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum ConnectionError {
    /// One side has closed it: all was said.
    #[error("{}", Error::Closed)]
    Closed,
    /// The other side has broken it off.
    Aborted(Box<Error>),
    /// The other side is silent, or packets do not get through to it.
    Silent(Box<Error>),
    /// A micro-protocol of this side has failed.
    MicroProtocol(Box<Error>),
    /// Anything else.
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

/// Why a message is not sent.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum SendError {
    /// The recipe does not carry such a message.
    Message(#[from] MessageError),
    /// There was no room for it in the time that was given.
    TimedOut(Error),
    /// The connection has ended.
    Ended(#[from] ConnectionError),
}

/// Why a wait for a message, an event, the arrival of everything or an end has no result.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum WaitError {
    /// Nothing came in the time that was given; the connection goes on.
    TimedOut(Error),
    /// The connection has ended.
    Ended(#[from] ConnectionError),
}

/// Why a listener cannot be had, or has no client to give.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum AcceptError {
    /// The address and port cannot be had for both TCP and UDP.
    Address(Error),
    /// No client came in the time that was given.
    TimedOut(Error),
    /// The listener has stopped.
    #[error("{}", Error::Closed)]
    Closed,
    /// A client came, and its stream could not begin; the next client may be better off.
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

/// Converts the error of an operation back to the engine's error that it holds, boxed or directly.
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
    fn a_stream_says_that_its_connection_has_ended_however_it_has() {
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
    fn a_wait_that_ran_out_is_not_a_connection_that_fell_silent() {
        let (what, seconds) = ("a message", 1.0);
        assert!(matches!(WaitError::from(Error::TimedOut { what, seconds }), WaitError::TimedOut(_)));
        let silent = WaitError::from(Error::Silent(1.0));
        assert!(matches!(&silent, WaitError::Ended(ConnectionError::Silent(_))), "{silent:?}");
        assert_eq!(silent.to_string(), Error::Silent(1.0).to_string());
        assert!(matches!(Error::from(silent), Error::Silent(_)));
    }
}
