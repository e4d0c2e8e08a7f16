//! What the control channel's thread and its users share.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU16;
use std::time::{Duration, Instant};

use haul_wire::control::{ControlMessage, encode_frame};

use super::transport::Transport;
use crate::error::CloseReason;
use crate::{EngineError, Monitor};

/// How long a message may wait for room: a peer that answers pings and takes nothing is stuck.
const ROOM_WITHIN: Duration = Duration::from_secs(30 * 60);
/// Above this many bytes in the outgoing queue [`Shared::push`] waits.
const OUTGOING_ROOM: usize = 8 << 20;
/// When messages that nobody has taken occupy more memory than this, nothing more is read from the peer.
const INCOMING_ROOM: usize = 16 << 20;

#[derive(Default)]
pub(super) struct State {
    outgoing: VecDeque<Vec<u8>>,
    outgoing_bytes: usize,
    incoming: VecDeque<(ControlMessage, usize)>,
    /// Memory of the messages that wait, as they are decoded.
    incoming_bytes: usize,
    /// After it nothing more is sent.
    pub(super) close_reason: Option<CloseReason>,
    /// Everything up to the close has gone to the kernel.
    pub(super) close_sent: bool,
    pub(super) bye_received: bool,
    /// No user holds the channel any more.
    pub(super) abandoned: bool,
    /// Set once, when the thread stops: [`EngineError::Closed`] after a regular end.
    pub(super) ended: Option<EngineError>,
    /// When the channel ends, if the peer has not closed it by then.
    pub(super) close_by: Option<Instant>,
    pub(super) round_trip: Option<Duration>,
}

pub(super) struct Shared {
    pub(super) state: Monitor<State>,
    pub(super) wake: crate::Waker,
    /// Size of the first datagram that the server saw; 0 before.
    pub(super) udp_seen: AtomicU16,
    pub(super) transport: Transport,
}

/// What to do when there is no room in the outgoing queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// Wait for it.
    Wait,
    /// Do without the message.
    OrNot,
    /// Put it there all the same.
    Ignore,
}

impl Shared {
    pub(super) fn new() -> Result<Self, EngineError> {
        let (wake, udp_seen) = (crate::Waker::new()?, AtomicU16::new(0));
        Ok(Self { state: Monitor::default(), wake, udp_seen, transport: Transport::default() })
    }

    /// Puts a message into the outgoing queue, as the last one if it closes the channel. Whether it is there: always,
    /// but with [`Room::OrNot`].
    pub(super) fn push(
        &self,
        message: &ControlMessage,
        close_reason: Option<CloseReason>,
        room: Room,
    ) -> Result<bool, EngineError> {
        let mut frame = Vec::new();
        encode_frame(message, &mut frame).map_err(|e| EngineError::TooLong(e.to_string()))?;
        let until = Some(Instant::now() + ROOM_WITHIN);
        let pushed = self.state.wait(until, |state| match state.refusal() {
            Some(error) => Some(Err(error)),
            None if room == Room::Wait && state.outgoing_bytes > OUTGOING_ROOM => None,
            None if room == Room::OrNot && state.outgoing_bytes > OUTGOING_ROOM => Some(Ok(false)),
            None => {
                state.enqueue(std::mem::take(&mut frame), close_reason);
                Some(Ok(true))
            }
        });
        self.wake.wake();
        pushed.unwrap_or_else(|| {
            let minutes = ROOM_WITHIN.as_secs() / 60;
            Err(EngineError::lost(format!(
                "the other side took no control message for {minutes} minutes although it answers"
            )))
        })
    }

    /// The next frame for the network. Messages of the transport are few and short, and go first.
    pub(super) fn next_frame(&self) -> Option<Vec<u8>> {
        if let Some(message) = self.transport.take_outgoing()
            && self.state.lock().close_reason.is_none()
        {
            let mut frame = Vec::new();
            // It has at most `MAX_TRANSPORT` bytes, or it is none.
            if encode_frame(&message, &mut frame).is_ok() {
                return Some(frame);
            }
        }
        self.state.update(|state| {
            let frame = state.outgoing.pop_front()?;
            state.outgoing_bytes -= frame.len();
            Some(frame)
        })
    }

    pub(super) fn deliver(&self, message: ControlMessage) {
        let memory = message.memory();
        self.state.update(|state| {
            state.incoming_bytes += memory;
            state.incoming.push_back((message, memory));
        });
    }

    /// Takes the next message; `None` if there is none by `until`.
    pub(super) fn take(&self, until: Option<Instant>) -> Result<Option<ControlMessage>, EngineError> {
        let mut was_full = false;
        let taken = self.state.wait(until, |state| {
            was_full = state.incoming_bytes > INCOMING_ROOM;
            match state.incoming.pop_front() {
                Some((message, memory)) => {
                    state.incoming_bytes -= memory;
                    Some(Ok(message))
                }
                None => state.ended.clone().map(Err),
            }
        });
        if was_full {
            self.wake.wake();
        }
        taken.transpose()
    }

    /// Whether so much waits for the users that the peer must wait too.
    pub(super) fn is_full(&self) -> bool {
        self.state.lock().incoming_bytes > INCOMING_ROOM
    }
}

impl State {
    /// Why nothing more can be sent.
    fn refusal(&self) -> Option<EngineError> {
        self.ended.clone().or_else(|| self.close_reason.map(|_| EngineError::Closed))
    }

    #[cfg(test)]
    pub(super) fn incoming_memory(&self) -> usize {
        self.incoming.iter().map(|(message, _)| message.memory()).sum()
    }

    /// Messages that wait for the network.
    pub(super) fn outgoing_frames(&self) -> usize {
        self.outgoing.len()
    }

    pub(super) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    fn enqueue(&mut self, frame: Vec<u8>, close_reason: Option<CloseReason>) {
        self.outgoing_bytes += frame.len();
        self.outgoing.push_back(frame);
        self.close_reason = close_reason;
    }
}
