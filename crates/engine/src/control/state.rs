//! State shared by the control channel's thread and its users.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use haul_base::Time;
use haul_proto::connection::{ControlChannel, Timing};
use haul_wire::control::{ControlMessage, MAX_TRANSPORT, encode_frame};

use crate::{EngineError, Monitor, Waker};

/// Maximum wait for queue space: a peer that answers pings but reads nothing is stuck.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(30 * 60);

pub(super) struct ControlState {
    pub(super) channel: ControlChannel,
    /// Everything up to the close was written to the socket.
    pub(super) close_sent: bool,
    /// All user handles were dropped.
    pub(super) abandoned: bool,
    /// Set once, when the thread stops: [`EngineError::Closed`] after a graceful end.
    pub(super) ended: Option<EngineError>,
    /// Deadline for the peer's close; the channel ends then.
    pub(super) close_by: Option<Instant>,
}

pub(super) struct SharedControl {
    pub(super) state: Monitor<ControlState>,
    pub(super) wake: Waker,
    /// Size of the first datagram that the server received; 0 before.
    pub(super) udp_seen: AtomicU16,
    /// Whether the data thread has received packets since the last check.
    pub(super) data_received: AtomicBool,
    pub(super) transport: TransportQueues,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenFull {
    Wait,
    Drop,
    /// Queue it anyway.
    Exceed,
}

impl SharedControl {
    pub(super) fn new(now: Time, timing: Timing) -> Result<Self, EngineError> {
        let state = ControlState {
            channel: ControlChannel::new(now, timing),
            close_sent: false,
            abandoned: false,
            ended: None,
            close_by: None,
        };
        Ok(Self {
            state: Monitor::new(state),
            wake: Waker::new()?,
            udp_seen: AtomicU16::new(0),
            data_received: AtomicBool::new(false),
            transport: TransportQueues::default(),
        })
    }

    /// Queues a message, as the last one if it closes the channel. Returns whether it was queued: always,
    /// except with [`WhenFull::Drop`].
    pub(super) fn push(&self, message: &ControlMessage, when_full: WhenFull) -> Result<bool, EngineError> {
        let mut frame = Vec::new();
        encode_frame(message, &mut frame).map_err(|e| EngineError::TooLong(e.to_string()))?;
        let until = Some(Instant::now() + MAX_QUEUE_WAIT);
        let pushed = self.state.wait(until, |state| match &state.ended {
            Some(error) => Some(Err(error.clone())),
            None if state.channel.is_closing() => Some(Err(EngineError::Closed)),
            None if when_full == WhenFull::Wait && !state.channel.has_space() => None,
            None if when_full == WhenFull::Drop && !state.channel.has_space() => Some(Ok(false)),
            None => Some(Ok(state.channel.send(message, std::mem::take(&mut frame)))),
        });
        self.wake.wake();
        pushed.unwrap_or_else(|| {
            let minutes = MAX_QUEUE_WAIT.as_secs() / 60;
            Err(EngineError::lost(format!(
                "the peer read no control message for {minutes} minutes although it responds"
            )))
        })
    }

    /// Returns the next frame to send. Transport messages are few and short, and go first.
    pub(super) fn next_frame(&self) -> Option<Vec<u8>> {
        if let Some(message) = self.transport.take_outgoing()
            && !self.state.lock().channel.is_closing()
        {
            let mut frame = Vec::new();
            // Encoding fails only for a message longer than `MAX_TRANSPORT`, which is dropped.
            if encode_frame(&message, &mut frame).is_ok() {
                return Some(frame);
            }
        }
        self.state.update(|state| state.channel.next_frame())
    }

    /// Takes the next message; `None` if none arrives by `until`.
    pub(super) fn take(&self, until: Option<Instant>) -> Result<Option<ControlMessage>, EngineError> {
        let mut was_full = false;
        let taken = self.state.wait(until, |state| {
            was_full = state.channel.is_full();
            let message = state.channel.take().map(Ok);
            message.or_else(|| state.ended.clone().map(Err))
        });
        if was_full {
            self.wake.wake();
        }
        taken.transpose()
    }

    /// Whether so many messages are queued for the users that reading must pause.
    pub(super) fn is_full(&self) -> bool {
        self.state.lock().channel.is_full()
    }
}

/// Capacity for received messages that the data thread has not taken.
const MAX_INCOMING: usize = 16;

/// Transport messages on the control channel: from data thread to data thread, invisible to its users.
///
/// The data threads check both queues in each turn, without a lock, and never wait for the channel. At most
/// one message is queued for sending; the data thread writes the next one when it was sent. If too many
/// received messages are queued, the oldest are dropped, which costs no more than a report lost over UDP.
pub(super) struct TransportQueues {
    pub(super) outgoing: ArrayQueue<Vec<u8>>,
    pub(super) incoming: ArrayQueue<Vec<u8>>,
    /// Woken when a message arrives, when another one may be sent, and when the channel ends.
    pub(super) data_thread: OnceLock<Waker>,
}

impl Default for TransportQueues {
    fn default() -> Self {
        let (outgoing, incoming) = (ArrayQueue::new(1), ArrayQueue::new(MAX_INCOMING));
        Self { outgoing, incoming, data_thread: OnceLock::new() }
    }
}

impl TransportQueues {
    pub(super) fn take_outgoing(&self) -> Option<ControlMessage> {
        let message = self.outgoing.pop()?;
        self.wake_data_thread();
        Some(ControlMessage::Transport(message))
    }

    pub(super) fn wake_data_thread(&self) {
        if let Some(data_thread) = self.data_thread.get() {
            data_thread.wake();
        }
    }

    /// Queues a received message.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outgoing_message_is_pending_and_only_the_newest_incoming_ones_are_kept() {
        let transport = TransportQueues::default();
        assert!(transport.take_outgoing().is_none());
        transport.outgoing.push(vec![2]).unwrap();
        assert!(transport.outgoing.is_full());
        assert_eq!(transport.take_outgoing(), Some(ControlMessage::Transport(vec![2])));
        assert!(!transport.outgoing.is_full() && transport.take_outgoing().is_none());
        for n in 0..1_000_u32 {
            transport.deliver(n.to_be_bytes().to_vec()).unwrap();
        }
        let received: Vec<_> = std::iter::from_fn(|| transport.incoming.pop()).collect();
        assert_eq!(received.len(), MAX_INCOMING);
        assert_eq!(received.last().unwrap()[..], 999_u32.to_be_bytes());
        transport.deliver(vec![0; MAX_TRANSPORT]).unwrap();
        assert!(matches!(transport.deliver(vec![0; MAX_TRANSPORT + 1]), Err(EngineError::Protocol(_))));
    }
}
