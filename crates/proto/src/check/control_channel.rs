use haul_base::Time;
use haul_wire::check::{Steps, message};
use haul_wire::control::{ControlMessage, FrameDecoder, encode_frame};

use crate::connection::{ControlChannel, Timing};

/// One end of a channel, without its network.
struct Checked {
    channel: ControlChannel,
    decoder: FrameDecoder,
    understood: bool,
}

impl Checked {
    /// Feeds received bytes; they are a message's frame if `frame`. Returns false if they end the channel.
    fn receive(&mut self, body: &[u8], frame: bool) -> bool {
        let sent_message = frame.then(|| message(body)).flatten();
        let Some(sent_message) = sent_message else { return self.feed(body) };
        let mut bytes = Vec::new();
        encode_frame(&sent_message, &mut bytes).expect("what was decoded can be encoded");
        let waiting_before = self.channel.outgoing_frames();
        let is_accepted = self.feed(&bytes);
        self.understood |= is_accepted;
        let waiting = self.channel.outgoing_frames();
        assert!(waiting <= waiting_before + 1, "a message has more than one answer");
        assert!(waiting <= waiting_before.max(1) || sent_message == ControlMessage::Close, "answers pile up");
        is_accepted
    }

    fn feed(&mut self, bytes: &[u8]) -> bool {
        self.decoder.feed(bytes);
        loop {
            match self.decoder.next_message() {
                Ok(None) => return true,
                Ok(Some(message)) => {
                    if self.channel.on_message(Time::ZERO, message).is_err() {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
    }

    /// Sends a message of a user; after the last one nothing more is sent.
    fn send(&mut self, body: &[u8]) {
        let Some(message) = message(body) else { return };
        let (closed, waiting) = (self.channel.is_closing(), self.channel.outgoing_frames());
        let sent = self.channel.send(&message, body.to_vec());
        assert_eq!(sent, !closed, "something is sent behind the last message");
        assert_eq!(self.channel.outgoing_frames(), waiting + usize::from(sent));
    }

    /// Takes a message for a user; the channel's own messages are not among them.
    fn take(&mut self) -> bool {
        let Some(message) = self.channel.take() else { return false };
        let is_internal = matches!(
            message,
            ControlMessage::Ping(_)
                | ControlMessage::Pong(_)
                | ControlMessage::UdpSeen { .. }
                | ControlMessage::Refuse(_)
                | ControlMessage::Abort(_)
                | ControlMessage::Transport(_)
        );
        assert!(!is_internal, "a user is given {message:?}");
        true
    }
}

/// Checks a control channel, from received frames to the messages for its users: a peer's message has at most
/// one answer, and answers do not pile up; nothing is sent after the last message; the channel's own messages
/// are not passed to users; and only the peer's actions end it. Arbitrary bytes are [`Steps`]: messages and
/// other bytes received, messages sent by a user, frames transmitted, messages taken by a user. Returns true
/// if a message was understood.
///
/// # Panics
/// If a rule is violated.
pub fn control_sequence(bytes: &[u8]) -> bool {
    let channel = ControlChannel::new(Time::ZERO, Timing::default());
    let mut checked = Checked { channel, decoder: FrameDecoder::new(), understood: false };
    for (kind, body) in Steps::new(bytes).take(256) {
        match kind % 6 {
            kind @ 0..=2 => {
                if !checked.receive(body, kind < 2) {
                    break;
                }
            }
            3 => checked.send(body),
            4 => drop(checked.channel.next_frame()),
            _ => drop(checked.take()),
        }
    }
    while checked.take() {}
    assert_eq!(checked.channel.incoming_memory(), 0, "memory of messages that were taken");
    checked.understood
}
