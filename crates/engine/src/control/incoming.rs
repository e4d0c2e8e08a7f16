//! What becomes of the peer's messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haul_wire::control::{ControlMessage, FrameDecoder};

use super::state::{Room, Shared};
use crate::EngineError;
use crate::error::CloseReason;

/// Takes the bytes that have come, deals with the messages that are the channel's own, and hands the others to its users.
pub(super) struct Incoming {
    shared: Arc<Shared>,
    decoder: FrameDecoder,
    /// Pings carry the time since then.
    started: Instant,
}

impl Incoming {
    pub(super) fn new(shared: Arc<Shared>, started: Instant) -> Self {
        Self { shared, decoder: FrameDecoder::new(), started }
    }

    /// Takes the next bytes, and does what the messages in them ask for.
    ///
    /// # Errors
    /// How the channel ends: bytes that are no message, or what the peer says of its own end.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        self.decoder.feed(bytes);
        loop {
            match self.decoder.next_message() {
                Ok(None) => return Ok(()),
                Ok(Some(message)) => self.dispatch(message)?,
                Err(error) => return Err(EngineError::protocol(error.to_string())),
            }
        }
    }

    fn dispatch(&self, message: ControlMessage) -> Result<(), EngineError> {
        match message {
            ControlMessage::Ping(n) if self.shared.state.lock().has_outgoing() => {
                // Whoever floods with pings gets no answer to each.
                tracing::trace!(n, "ping not answered: there is more to send");
            }
            ControlMessage::Ping(n) => {
                let _ = self.shared.push(&ControlMessage::Pong(n), None, Room::Ignore);
            }
            ControlMessage::Pong(n) => self.on_pong(n),
            ControlMessage::UdpSeen { size } => {
                self.shared.udp_seen.store(size, Ordering::Relaxed);
            }
            ControlMessage::Refuse(fault) | ControlMessage::Abort(fault) => {
                return Err(EngineError::Peer(fault.from_peer()));
            }
            ControlMessage::Bye => {
                self.shared.state.update(|state| state.bye_received = true);
                self.shared.deliver(ControlMessage::Bye);
                // Ignored if this side has said it already.
                let _ = self.shared.push(&ControlMessage::Bye, Some(CloseReason::Graceful), Room::Ignore);
            }
            ControlMessage::Transport(message) => self.shared.transport.deliver(message)?,
            message => self.shared.deliver(message),
        }
        Ok(())
    }

    fn on_pong(&self, micros: u64) {
        let round_trip = self.started.elapsed().checked_sub(Duration::from_micros(micros));
        self.shared.state.update(|state| state.round_trip = round_trip.or(state.round_trip));
    }
}
