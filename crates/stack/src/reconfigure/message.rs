//! Messages of the negotiation, and their repetition until they are answered.

use haul_base::{Span, Time};

/// Minimum time between repetitions.
const SHORTEST_REPEAT: Span = Span::from_millis(20);
/// Maximum time between repetitions.
const LONGEST_PAUSE: Span = Span::from_secs(5);
/// Divisor: the time between repetitions grows to this fraction of the time since the first one.
const PAUSE_PART: u64 = 8;
/// Bytes before the text: the type, the number of the change, the number of the last change received.
pub(super) const HEADER: usize = 9;

/// Type of the message, its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MessageType {
    Apply = 1,
    Propose = 2,
    Ready = 3,
    Refused = 4,
    Commit = 5,
    Done = 6,
}

impl MessageType {
    const ALL: [Self; 6] = [Self::Apply, Self::Propose, Self::Ready, Self::Refused, Self::Commit, Self::Done];
}

/// A message of the negotiation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChangeMessage<'p> {
    pub(super) message_type: MessageType,
    /// Number of the change.
    pub(super) number: u32,
    /// Number of this end's last change that the peer had handled.
    pub(super) seen: u32,
    pub(super) text: &'p str,
}

pub(super) fn write(message_type: MessageType, number: u32, seen: u32, text: &str) -> Vec<u8> {
    let mut body = vec![message_type as u8];
    body.extend_from_slice(&number.to_be_bytes());
    body.extend_from_slice(&seen.to_be_bytes());
    body.extend_from_slice(text.as_bytes());
    body
}

pub(super) fn read(body: &[u8]) -> Option<ChangeMessage<'_>> {
    let message_type =
        MessageType::ALL.into_iter().find(|message_type| Some(&(*message_type as u8)) == body.first())?;
    let number = u32::from_be_bytes(body.get(1..5)?.try_into().ok()?);
    let seen = u32::from_be_bytes(body.get(5..HEADER)?.try_into().ok()?);
    Some(ChangeMessage { message_type, number, seen, text: std::str::from_utf8(&body[HEADER..]).ok()? })
}

/// A message that is repeated until it is answered.
#[derive(Debug)]
pub(crate) struct RepeatedMessage {
    pub(super) message_type: MessageType,
    pub(super) number: u32,
    pub(super) text: String,
    since: Time,
    pub(super) next: Time,
}

impl RepeatedMessage {
    pub(super) fn new(now: Time, message_type: MessageType, number: u32, text: String) -> Self {
        Self { message_type, number, text, since: now, next: now }
    }

    pub(super) fn age(&self, now: Time) -> Span {
        now.since(self.since)
    }

    /// Records sending at `now`, and sets the time of the next repetition.
    pub(super) fn on_sent(&mut self, now: Time, rtt: Span) {
        let pause = (self.age(now) / PAUSE_PART).min(LONGEST_PAUSE);
        self.next = now + (rtt * 3 / 2).max(SHORTEST_REPEAT).max(pause);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_laid_out_as_documented() {
        let body = write(MessageType::Propose, 3, 0x0102, "name = \"x\"");
        assert_eq!(body, b"\x02\0\0\0\x03\0\0\x01\x02name = \"x\"");
        let message = ChangeMessage {
            message_type: MessageType::Propose,
            number: 3,
            seen: 0x0102,
            text: "name = \"x\"",
        };
        assert_eq!(read(&body), Some(message));
        assert_eq!((read(&body[..8]), read(b"\x07\0\0\0\0\0\0\0\0"), read(b"")), (None, None, None));
    }

    #[test]
    fn unanswered_repetitions_become_rare() {
        let mut repeated = RepeatedMessage::new(Time::ZERO, MessageType::Apply, 1, String::new());
        let mut pauses = Vec::new();
        while repeated.next < Time::ZERO + Span::from_secs(100) {
            let now = repeated.next;
            repeated.on_sent(now, Span::from_millis(100));
            pauses.push(repeated.next.since(now));
        }
        assert_eq!((pauses[0], pauses.last().copied()), (Span::from_millis(150), Some(LONGEST_PAUSE)));
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]) && pauses.len() < 60, "{pauses:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(message) = read(&bytes) {
                prop_assert_eq!(write(message.message_type, message.number, message.seen, message.text), bytes);
            }
        }
    }
}
