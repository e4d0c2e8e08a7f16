//! The rules of a control channel's messages as a function; see [`crate::check::control_sequence`].

use std::sync::Arc;
use std::time::Instant;

use haul_wire::check::{Steps, message};
use haul_wire::control::{ControlMessage, encode_frame};

use super::state::{Incoming, Room, Shared};
use crate::EngineError;

/// One end of a channel, without its network.
struct Checked {
    shared: Arc<Shared>,
    incoming: Incoming,
    understood: bool,
}

impl Checked {
    /// Bytes come; they are a message's frame if `frame`.
    fn receive(&mut self, body: &[u8], frame: bool) -> Result<(), EngineError> {
        let said = frame.then(|| message(body)).flatten();
        let Some(said) = said else { return self.incoming.take(body) };
        let mut bytes = Vec::new();
        encode_frame(&said, &mut bytes).expect("what was decoded can be encoded");
        let waited = self.shared.state.lock().outgoing_frames();
        let taken = self.incoming.take(&bytes);
        self.understood |= taken.is_ok();
        let waiting = self.shared.state.lock().outgoing_frames();
        assert!(waiting <= waited + 1, "a message has more than one answer");
        assert!(waiting <= waited.max(1) || said == ControlMessage::Bye, "answers pile up");
        taken
    }

    /// A user sends a message; after the last one nothing more leaves.
    fn send(&self, body: &[u8]) {
        let Some(message) = message(body) else { return };
        let closed = self.shared.state.lock().close_reason.is_some();
        let sent = self.shared.push(&message, Room::OrNot);
        assert!(!closed || sent.is_err(), "something is sent behind the last message");
    }

    /// A user takes a message; those of the channel's own are not given out.
    fn take(&self) -> bool {
        let Ok(Some(message)) = self.shared.take(Some(Instant::now())) else { return false };
        let own = matches!(
            message,
            ControlMessage::Ping(_)
                | ControlMessage::Pong(_)
                | ControlMessage::UdpSeen { .. }
                | ControlMessage::Refuse(_)
                | ControlMessage::Abort(_)
                | ControlMessage::Transport(_)
        );
        assert!(!own, "a user is given {message:?}");
        true
    }
}

/// Checks a control channel, from the frames that come to what its users are given: a peer's message has one answer at
/// most, and answers do not pile up; nothing is sent behind the last message; the channel's own messages are not given
/// out; and only what the peer did ends it. Arbitrary bytes are [`Steps`](haul_wire::check::Steps): messages and other
/// bytes that come, messages that a user sends, frames that leave, messages that a user takes. True if a message was
/// understood.
///
/// # Panics
/// If a rule is broken.
pub fn control_sequence(bytes: &[u8]) -> bool {
    let shared = Arc::new(Shared::new().expect("there is a file descriptor"));
    let incoming = Incoming::new(shared.clone(), Instant::now());
    let mut checked = Checked { shared, incoming, understood: false };
    for (what, body) in Steps::new(bytes).take(256) {
        match what % 6 {
            kind @ 0..=2 => {
                if let Err(error) = checked.receive(body, kind < 2) {
                    assert!(matches!(error, EngineError::Protocol(_) | EngineError::Peer(_)), "{error}");
                    break;
                }
            }
            3 => checked.send(body),
            4 => drop(checked.shared.next_frame()),
            _ => drop(checked.take()),
        }
    }
    while checked.take() {}
    checked.understood
}
