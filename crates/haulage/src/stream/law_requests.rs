//! How the reader of a stream asks its writer for another control law.

use haul_engine::{Control, EngineError as Error};
use haul_proto::{ChosenLaw, ControllerError};
use haul_stack::Part;
use haul_wire::control::ControlMessage;

use crate::ConnectionError;

/// Asks the writer of a stream to change its control law while it runs, from any thread:
/// [`ByteReader::law_requests`](crate::ByteReader::law_requests).
#[derive(Clone, derive_more::Debug)]
#[debug("LawRequests({law:?})")]
pub struct LawRequests {
    control: Control,
    law: Option<Part>,
}

/// Why the writer is not asked for another law.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LawRequestError {
    /// There is no such law or parameter.
    #[error(transparent)]
    Law(#[from] ControllerError),
    /// More than 64 parameters, or more than 8,192 bytes.
    #[error("the request has too many parameters, or too long ones")]
    TooLong,
    /// The writer does not read what it is sent. It may be asked again later.
    #[error("the other side does not read what it is sent")]
    NoRoom,
    /// The stream has ended.
    #[error(transparent)]
    Ended(ConnectionError),
}

impl LawRequests {
    pub(super) fn new(control: Control, law: Option<Part>) -> Self {
        Self { control, law }
    }

    /// What the writer's recipe says of `rate_control`, with what was asked for here since.
    pub fn law(&self) -> Option<&Part> {
        self.law.as_ref()
    }

    /// Asks for other parameters of the writer's `rate_control`: `("rate", "50Mbit")`, `("controller", "reno")`. The
    /// writer takes it up, or does not ([`ByteWriter::take_law_request`](crate::ByteWriter::take_law_request)). Never
    /// waits.
    ///
    /// # Errors
    /// If there is no such law or parameter, or the writer cannot be asked now; then [`LawRequests::law`] stays as it
    /// is.
    pub fn ask(&mut self, changes: &[(&str, &str)]) -> Result<(), LawRequestError> {
        let Some(law) = &mut self.law else { return Ok(()) };
        let changes = owned(changes);
        let mut changed = law.clone();
        ChosenLaw::change(&mut changed, &changes)?;
        let message = ControlMessage::LawChange(changes);
        message.validate().map_err(|_| LawRequestError::TooLong)?;
        let ended = |error: Error| LawRequestError::Ended(error.into());
        if !self.control.send_if_room(&message).map_err(ended)? {
            return Err(LawRequestError::NoRoom);
        }
        *law = changed;
        Ok(())
    }
}

/// Names and values as the messages have them.
pub(super) fn owned(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    changes.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}
