//! What the control channel's thread and its users share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use haul_wire::control::{ControlMessage, FrameDecoder, MAX_TRANSPORT, encode_frame};
use haul_wire::packet::CloseReason;

use crate::{EngineError, Monitor, Waker};

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
    pub(super) wake: Waker,
    /// Size of the first datagram that the server saw; 0 before.
    pub(super) udp_seen: AtomicU16,
    /// The data thread has heard the peer since this was last looked at.
    pub(super) data_heard: AtomicBool,
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
        let (wake, udp_seen, data_heard) = (Waker::new()?, AtomicU16::new(0), AtomicBool::new(false));
        Ok(Self { state: Monitor::default(), wake, udp_seen, data_heard, transport: Transport::default() })
    }

    /// Puts a message into the outgoing queue, as the last one if it closes the channel. Whether it is there: always,
    /// but with [`Room::OrNot`].
    pub(super) fn push(&self, message: &ControlMessage, room: Room) -> Result<bool, EngineError> {
        let mut frame = Vec::new();
        encode_frame(message, &mut frame).map_err(|e| EngineError::TooLong(e.to_string()))?;
        let until = Some(Instant::now() + ROOM_WITHIN);
        let pushed = self.state.wait(until, |state| match state.refusal() {
            Some(error) => Some(Err(error)),
            None if room == Room::Wait && state.outgoing_bytes > OUTGOING_ROOM => None,
            None if room == Room::OrNot && state.outgoing_bytes > OUTGOING_ROOM => Some(Ok(false)),
            None => {
                state.enqueue(std::mem::take(&mut frame), close_reason_of(message));
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

fn close_reason_of(message: &ControlMessage) -> Option<CloseReason> {
    match message {
        ControlMessage::Bye => Some(CloseReason::Graceful),
        ControlMessage::Abort(_) | ControlMessage::Refuse(_) => Some(CloseReason::Abort),
        _ => None,
    }
}

/// Messages of the other side that may wait for the data thread.
const MOST_INCOMING: usize = 16;

/// Messages of the transport on the control channel. They go from data thread to data thread; the channel's users do
/// not see them.
///
/// No data thread waits for the channel, and neither end keeps more than a few messages. At most one waits to be sent:
/// the data thread writes the next when it has left. Of those that were received and not taken, the oldest are dropped.
/// A report that is dropped costs no more than one that is lost over UDP.
/// The data thread looks at both queues in each turn, without a lock.
pub(super) struct Transport {
    pub(super) outgoing: ArrayQueue<Vec<u8>>,
    pub(super) incoming: ArrayQueue<Vec<u8>>,
    /// To be woken when a message comes, and when another one may be sent.
    pub(super) data_thread: OnceLock<Waker>,
}

impl Default for Transport {
    fn default() -> Self {
        let (outgoing, incoming) = (ArrayQueue::new(1), ArrayQueue::new(MOST_INCOMING));
        Self { outgoing, incoming, data_thread: OnceLock::new() }
    }
}

impl Transport {
    pub(super) fn take_outgoing(&self) -> Option<ControlMessage> {
        let message = self.outgoing.pop()?;
        self.wake_data_thread();
        Some(ControlMessage::Transport(message))
    }

    fn wake_data_thread(&self) {
        if let Some(data_thread) = self.data_thread.get() {
            data_thread.wake();
        }
    }

    /// Takes a message that has come.
    ///
    /// # Errors
    /// If it is too long.
    pub(super) fn deliver(&self, message: Vec<u8>) -> Result<(), EngineError> {
        let len = message.len();
        if len > MAX_TRANSPORT {
            return Err(EngineError::protocol(format!("a message of the transport has {len} bytes")));
        }
        self.incoming.force_push(message);
        self.wake_data_thread();
        Ok(())
    }
}

/// Takes the bytes that have come, deals with the channel's own messages, and hands the others to its users.
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
                let _ = self.shared.push(&ControlMessage::Pong(n), Room::Ignore);
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
                let _ = self.shared.push(&ControlMessage::Bye, Room::Ignore);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_waits_to_be_sent_and_of_those_that_come_the_newest_few() {
        let transport = Transport::default();
        assert!(transport.take_outgoing().is_none());
        transport.outgoing.push(vec![2]).unwrap();
        assert!(transport.outgoing.is_full());
        assert_eq!(transport.take_outgoing(), Some(ControlMessage::Transport(vec![2])));
        assert!(!transport.outgoing.is_full() && transport.take_outgoing().is_none());
        for n in 0..1_000_u32 {
            transport.deliver(n.to_be_bytes().to_vec()).unwrap();
        }
        let came: Vec<_> = std::iter::from_fn(|| transport.incoming.pop()).collect();
        assert_eq!(came.len(), MOST_INCOMING);
        assert_eq!(came.last().unwrap()[..], 999_u32.to_be_bytes());
        transport.deliver(vec![0; MAX_TRANSPORT]).unwrap();
        assert!(matches!(transport.deliver(vec![0; MAX_TRANSPORT + 1]), Err(EngineError::Protocol(_))));
    }
}
