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
    /// Bytes come; they are a message's frame if `frame`. False if they end the channel.
    fn receive(&mut self, body: &[u8], frame: bool) -> bool {
        let said = frame.then(|| message(body)).flatten();
        let Some(said) = said else { return self.feed(body) };
        let mut bytes = Vec::new();
        encode_frame(&said, &mut bytes).expect("what was decoded can be encoded");
        let waited = self.channel.outgoing_frames();
        let goes_on = self.feed(&bytes);
        self.understood |= goes_on;
        let waiting = self.channel.outgoing_frames();
        assert!(waiting <= waited + 1, "a message has more than one answer");
        assert!(waiting <= waited.max(1) || said == ControlMessage::Close, "answers pile up");
        goes_on
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

    /// A user sends a message; after the last one nothing more leaves.
    fn send(&mut self, body: &[u8]) {
        let Some(message) = message(body) else { return };
        let (closed, waiting) = (self.channel.is_closing(), self.channel.outgoing_frames());
        let sent = self.channel.send(&message, body.to_vec());
        assert_eq!(sent, !closed, "something is sent behind the last message");
        assert_eq!(self.channel.outgoing_frames(), waiting + usize::from(sent));
    }

    /// A user takes a message; those of the channel's own are not given out.
    fn take(&mut self) -> bool {
        let Some(message) = self.channel.take() else { return false };
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
/// out; and only what the peer did ends it. Arbitrary bytes are [`Steps`]: messages and other bytes that come, messages
/// that a user sends, frames that leave, messages that a user takes. True if a message was understood.
///
/// # Panics
/// If a rule is broken.
pub fn control_sequence(bytes: &[u8]) -> bool {
    let channel = ControlChannel::new(Time::ZERO, Timing::default());
    let mut checked = Checked { channel, decoder: FrameDecoder::new(), understood: false };
    for (what, body) in Steps::new(bytes).take(256) {
        match what % 6 {
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
