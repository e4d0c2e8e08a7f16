//! Control channel protocol: queues in both directions, pings, and the close. The driver carries the frames
//! over TLS on TCP, and decodes received ones.

use std::collections::VecDeque;

use haul_base::{Span, Time};
use haul_wire::control::{ControlMessage, Fault, encode_frame};
use haul_wire::packet::CloseReason;

/// Outgoing bytes above which the queue counts as full.
const OUTGOING_ROOM: usize = 8 << 20;
/// Bytes of unread messages above which the driver stops reading from the peer.
const INCOMING_ROOM: usize = 16 << 20;
/// While packets arrive over UDP, TCP may be silent for this many times longer: behind a queue that they keep
/// full it backs off (RFC 6298, section 5.5).
const DATA_TIMEOUT_FACTOR: u64 = 4;

/// Ping interval and silence timeout.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Interval between pings.
    pub ping: Span,
    /// Silence after which the peer is considered gone.
    pub silence: Span,
}

impl Default for Timing {
    fn default() -> Self {
        Self { ping: Span::from_secs(1), silence: Span::from_secs(15) }
    }
}

/// Destination of a received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageFor {
    /// The channel itself.
    Channel,
    /// The channel's users: [`ControlChannel::take`] returns the message.
    Users,
    /// The session's stack.
    Stack(Vec<u8>),
    /// The path probe: the server receives the client, and first saw a datagram of this size (UDP payload).
    PathProbe(u16),
}

/// One end of a control channel.
#[derive(Debug)]
pub struct ControlChannel {
    outgoing: VecDeque<Vec<u8>>,
    outgoing_bytes: usize,
    incoming: VecDeque<(ControlMessage, usize)>,
    /// Memory of the queued messages in decoded form.
    incoming_bytes: usize,
    /// Set by the last message: nothing is sent after it.
    close_reason: Option<CloseReason>,
    closed_by_peer: bool,
    round_trip: Option<Span>,
    timing: Timing,
    /// Pings contain the time since then.
    started: Time,
    last_received: Time,
    /// When the peer's packets last arrived over UDP.
    data_received_at: Option<Time>,
    next_ping: Time,
}

impl ControlChannel {
    /// Creates a channel to a peer that was just heard.
    pub fn new(now: Time, timing: Timing) -> Self {
        Self {
            outgoing: VecDeque::new(),
            outgoing_bytes: 0,
            incoming: VecDeque::new(),
            incoming_bytes: 0,
            close_reason: None,
            closed_by_peer: false,
            round_trip: None,
            timing,
            started: now,
            last_received: now,
            data_received_at: None,
            next_ping: now + timing.ping,
        }
    }

    /// Whether the outgoing queue is below its limit. Messages may be sent regardless of it.
    pub fn has_space(&self) -> bool {
        self.outgoing_bytes <= OUTGOING_ROOM
    }

    /// Queues a message's frame. Returns false after the last message, which states how the channel ends.
    pub fn send(&mut self, message: &ControlMessage, frame: Vec<u8>) -> bool {
        if self.is_closing() {
            return false;
        }
        self.outgoing_bytes += frame.len();
        self.outgoing.push_back(frame);
        self.close_reason = match message {
            ControlMessage::Close => Some(CloseReason::Graceful),
            ControlMessage::Abort(_) | ControlMessage::Refuse(_) => Some(CloseReason::Abort),
            _ => None,
        };
        true
    }

    /// As [`send`](Self::send), for the channel's own messages, which are short.
    fn send_own(&mut self, message: &ControlMessage) {
        let mut frame = Vec::new();
        if encode_frame(message, &mut frame).is_ok() {
            self.send(message, frame);
        }
    }

    /// Returns the next frame for the network.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        let frame = self.outgoing.pop_front()?;
        self.outgoing_bytes -= frame.len();
        Some(frame)
    }

    /// Returns the number of frames queued for the network.
    pub fn outgoing_frames(&self) -> usize {
        self.outgoing.len()
    }

    /// Whether the last message was queued or sent.
    pub fn is_closing(&self) -> bool {
        self.close_reason.is_some()
    }

    /// Whether the peer has closed the channel.
    pub fn is_closed_by_peer(&self) -> bool {
        self.closed_by_peer
    }

    /// Whether, after the last message was sent, the peer has nothing more to send.
    pub fn is_over(&self) -> bool {
        self.closed_by_peer || self.close_reason == Some(CloseReason::Abort)
    }

    /// Handles a received message.
    ///
    /// # Errors
    /// The fault with which the peer ended the channel.
    pub fn on_message(&mut self, now: Time, message: ControlMessage) -> Result<MessageFor, Fault> {
        match message {
            // A peer that floods pings does not get an answer to each.
            ControlMessage::Ping(_) if !self.outgoing.is_empty() => {}
            ControlMessage::Ping(n) => self.send_own(&ControlMessage::Pong(n)),
            ControlMessage::Pong(micros) => {
                let sent = Span::from_micros(micros);
                let elapsed = now.since(self.started);
                self.round_trip = (sent <= elapsed).then(|| elapsed.saturating_sub(sent)).or(self.round_trip);
            }
            ControlMessage::UdpSeen { size } => return Ok(MessageFor::PathProbe(size)),
            ControlMessage::Refuse(fault) | ControlMessage::Abort(fault) => return Err(fault.from_peer()),
            ControlMessage::Transport(message) => return Ok(MessageFor::Stack(message)),
            message => {
                if message == ControlMessage::Close {
                    self.closed_by_peer = true;
                    self.send_own(&ControlMessage::Close);
                }
                let memory = message.memory();
                self.incoming_bytes += memory;
                self.incoming.push_back((message, memory));
                return Ok(MessageFor::Users);
            }
        }
        Ok(MessageFor::Channel)
    }

    /// Returns the next message for the users.
    pub fn take(&mut self) -> Option<ControlMessage> {
        let (message, memory) = self.incoming.pop_front()?;
        self.incoming_bytes -= memory;
        Some(message)
    }

    /// Returns the memory in bytes of the messages queued for the users.
    pub fn incoming_memory(&self) -> usize {
        self.incoming_bytes
    }

    /// Whether so much is queued for the users that nothing more should be read from the peer.
    pub fn is_full(&self) -> bool {
        self.incoming_bytes > INCOMING_ROOM
    }

    /// Records that something arrived over TCP.
    pub fn on_received(&mut self, now: Time) {
        self.last_received = now;
    }

    /// Records that packets arrived over UDP.
    pub fn on_data_received(&mut self, now: Time) {
        self.data_received_at = Some(now);
    }

    /// Returns the round-trip time of the latest ping, including its time in queues.
    pub fn round_trip(&self) -> Option<Span> {
        self.round_trip
    }

    /// Sends a ping when one is due, unless the channel is sending anyway, which shows that this end is
    /// alive.
    ///
    /// # Errors
    /// The duration of the peer's silence, if it exceeds the timeout: the peer is lost.
    pub fn on_deadline(&mut self, now: Time, is_sending: bool) -> Result<(), Span> {
        if self.is_full() {
            // Nothing is read from the peer, so its silence means nothing.
            self.last_received = now;
        }
        if self.lost_at() <= now {
            return Err(now.since(self.last_received));
        }
        if now >= self.next_ping {
            self.next_ping = now + self.timing.ping;
            if !is_sending {
                self.send_own(&ControlMessage::Ping(now.since(self.started).as_micros()));
            }
        }
        Ok(())
    }

    /// Returns when a ping is due or the silence timeout expires.
    pub fn deadline(&self) -> Time {
        self.next_ping.min(self.lost_at())
    }

    /// Returns when the peer is considered lost if nothing more arrives.
    fn lost_at(&self) -> Time {
        let silence = self.timing.silence;
        let last = self.last_received + silence * DATA_TIMEOUT_FACTOR;
        let by_data = self.data_received_at.map(|at| (at + silence).min(last));
        by_data.into_iter().fold(self.last_received + silence, Time::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_packets_extend_a_silent_channels_timeout() {
        let (timing, second) = (Timing::default(), Span::from_secs(1));
        let mut channel = ControlChannel::new(Time::ZERO, timing);
        let mut silence = |with_data: bool| {
            let first_deadline = channel.deadline();
            channel.on_received(first_deadline);
            loop {
                let now = channel.deadline();
                if with_data {
                    channel.on_data_received(now);
                }
                if let Err(silence) = channel.on_deadline(now, false) {
                    return silence;
                }
                assert!(now.since(first_deadline) < timing.silence * 9, "no end of it");
            }
        };
        let (alone, beside_data) = (silence(false), silence(true));
        assert!(alone >= timing.silence && alone <= timing.silence + second, "{alone:?}");
        assert!(beside_data >= timing.silence * DATA_TIMEOUT_FACTOR, "{beside_data:?}");
        assert!(beside_data <= timing.silence * DATA_TIMEOUT_FACTOR + second, "{beside_data:?}");
    }

    #[test]
    fn a_ping_is_sent_each_second_without_other_messages_and_measures_the_round_trip() {
        let mut channel = ControlChannel::new(Time::ZERO, Timing::default());
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        channel.on_deadline(at(999), false).unwrap();
        assert_eq!(channel.outgoing_frames(), 0);
        channel.on_deadline(at(1_000), true).unwrap();
        assert_eq!((channel.outgoing_frames(), channel.deadline()), (0, at(2_000)));
        channel.on_deadline(at(2_000), false).unwrap();
        let mut ping = Vec::new();
        encode_frame(&ControlMessage::Ping(2_000_000), &mut ping).unwrap();
        assert_eq!(channel.next_frame(), Some(ping));
        let answer = |micros| ControlMessage::Pong(micros);
        assert_eq!(channel.on_message(at(2_080), answer(2_000_000)), Ok(MessageFor::Channel));
        assert_eq!(channel.round_trip(), Some(Span::from_millis(80)));
        // A pong with a future time is ignored.
        assert_eq!(channel.on_message(at(2_090), answer(u64::MAX / 1_000)), Ok(MessageFor::Channel));
        assert_eq!(channel.round_trip(), Some(Span::from_millis(80)));
    }
}
