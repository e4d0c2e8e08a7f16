//! Requests from a stream's reader to its writer for another control law.

use haul_engine::{Control, EngineError as Error};
use haul_proto::{ChosenLaw, ControllerError, LawChange};
use haul_stack::Part;
use haul_wire::control::ControlMessage;

use crate::ConnectionError;

/// Requests changes of the control law from a stream's writer while the stream runs, from any thread.
/// Returned by [`ByteReader::law_requests`](crate::ByteReader::law_requests).
#[derive(Clone, derive_more::Debug)]
#[debug("LawRequests({law:?})")]
pub struct LawRequests {
    control: Control,
    law: Option<Part>,
}

/// Error of [`LawRequests::request`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LawRequestError {
    /// There is no such law or parameter.
    #[error(transparent)]
    Law(#[from] ControllerError),
    /// More than 64 parameters, or more than 8,192 bytes.
    #[error("the request has too many parameters, or too long ones")]
    TooLong,
    /// The writer is not reading its control channel. The request may be retried later.
    #[error("the peer does not read its control messages")]
    QueueFull,
    /// The stream has ended.
    #[error(transparent)]
    Ended(ConnectionError),
}

impl LawRequests {
    /// By this control channel, of a writer whose recipe says `law` of `rate_control`.
    pub fn new(control: Control, law: Option<Part>) -> Self {
        Self { control, law }
    }

    /// Returns the writer's initial `rate_control` with the changes requested through this handle.
    pub fn law(&self) -> Option<&Part> {
        self.law.as_ref()
    }

    /// Requests a change of the writer's `rate_control`, which may or may not apply it (see
    /// [`ByteWriter::take_law_request`](crate::ByteWriter::take_law_request)). Does not block.
    ///
    /// # Errors
    /// If there is no such law or parameter, or sending the request fails; [`LawRequests::law`] is unchanged.
    pub fn request(&mut self, change: &LawChange) -> Result<(), LawRequestError> {
        let Some(law) = &mut self.law else { return Ok(()) };
        let mut changed = law.clone();
        ChosenLaw::change(&mut changed, change)?;
        let message = ControlMessage::LawChange(change.texts());
        message.validate().map_err(|_| LawRequestError::TooLong)?;
        let ended = |error: Error| LawRequestError::Ended(error.into());
        if !self.control.send_if_room(&message).map_err(ended)? {
            return Err(LawRequestError::QueueFull);
        }
        *law = changed;
        Ok(())
    }
}
