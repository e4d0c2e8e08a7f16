//! What the packets of the negotiation say, and what is said again until it is answered.

use haul_base::{Span, Time};

/// Repeated so often after the round-trip time, at least.
const SHORTEST_REPEAT: Span = Span::from_millis(20);
/// Who has waited long asks less often, but so often at least.
const LONGEST_PAUSE: Span = Span::from_secs(5);
/// A repetition comes after this part of the time that it has been said for.
const PAUSE_PART: u64 = 8;
/// Bytes in front of the text: the word, the change's number, the number of the last change heard of.
pub(super) const HEADER: usize = 9;

/// The first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Word {
    Apply = 1,
    Propose = 2,
    Ready = 3,
    Refused = 4,
    Commit = 5,
    Done = 6,
}

impl Word {
    const ALL: [Self; 6] = [Self::Apply, Self::Propose, Self::Ready, Self::Refused, Self::Commit, Self::Done];
}

/// A packet of the negotiation that has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Heard<'p> {
    pub(super) word: Word,
    /// Number of the change.
    pub(super) number: u32,
    /// Number of this end's last change that the other side had dealt with.
    pub(super) seen: u32,
    pub(super) text: &'p str,
}

pub(super) fn write(word: Word, number: u32, seen: u32, text: &str) -> Vec<u8> {
    let mut body = vec![word as u8];
    body.extend_from_slice(&number.to_be_bytes());
    body.extend_from_slice(&seen.to_be_bytes());
    body.extend_from_slice(text.as_bytes());
    body
}

pub(super) fn read(body: &[u8]) -> Option<Heard<'_>> {
    let word = Word::ALL.into_iter().find(|word| Some(&(*word as u8)) == body.first())?;
    let number = u32::from_be_bytes(body.get(1..5)?.try_into().ok()?);
    let seen = u32::from_be_bytes(body.get(5..HEADER)?.try_into().ok()?);
    Some(Heard { word, number, seen, text: std::str::from_utf8(&body[HEADER..]).ok()? })
}

/// Something that is said again until it is answered.
#[derive(Debug)]
pub(crate) struct Saying {
    pub(super) word: Word,
    pub(super) number: u32,
    pub(super) text: String,
    since: Time,
    pub(super) next: Time,
}

impl Saying {
    pub(super) fn new(now: Time, word: Word, number: u32, text: String) -> Self {
        Self { word, number, text, since: now, next: now }
    }

    pub(super) fn age(&self, now: Time) -> Span {
        now.since(self.since)
    }

    /// It leaves now; says when it will leave again.
    pub(super) fn leave(&mut self, now: Time, rtt: Span) {
        let pause = (self.age(now) / PAUSE_PART).min(LONGEST_PAUSE);
        self.next = now + (rtt * 3 / 2).max(SHORTEST_REPEAT).max(pause);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_stand_as_documented() {
        let body = write(Word::Propose, 3, 0x0102, "name = \"x\"");
        assert_eq!(body, b"\x02\0\0\0\x03\0\0\x01\x02name = \"x\"");
        let heard = Heard { word: Word::Propose, number: 3, seen: 0x0102, text: "name = \"x\"" };
        assert_eq!(read(&body), Some(heard));
        assert_eq!((read(&body[..8]), read(b"\x07\0\0\0\0\0\0\0\0"), read(b"")), (None, None, None));
    }

    #[test]
    fn repetitions_become_rare_when_nobody_answers() {
        let mut saying = Saying::new(Time::ZERO, Word::Apply, 1, String::new());
        let mut pauses = Vec::new();
        while saying.next < Time::ZERO + Span::from_secs(100) {
            let now = saying.next;
            saying.leave(now, Span::from_millis(100));
            pauses.push(saying.next.since(now));
        }
        assert_eq!((pauses[0], pauses.last().copied()), (Span::from_millis(150), Some(LONGEST_PAUSE)));
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]) && pauses.len() < 60, "{pauses:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(heard) = read(&bytes) {
                prop_assert_eq!(write(heard.word, heard.number, heard.seen, heard.text), bytes);
            }
        }
    }
}
