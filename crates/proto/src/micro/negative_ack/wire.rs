//! The two packets of `negative_ack`, all big-endian.
//!
//! *Missing*, from the receiver:
//! `1 | flags u8 | newest packet u48 | below u48 | next u48 | (gap u16 | length u16) ...`; the stretches are what is
//! missing from `below` upwards. *State*, from the sender: ` 2 | flags u8 | oldest u48 | next u48 ` .

const MISSING: u8 = 1;
const STATE: u8 = 2;
/// Bytes in front of the stretches, of each stretch, and of the other packet.
pub(super) const FIXED: usize = 20;
pub(super) const STRETCH: usize = 4;
pub(super) const STATE_LEN: usize = 14;
/// Stretches in one packet; what is missing beyond them is said when they are filled.
pub(super) const MOST_STRETCHES: usize = 64;
/// The bit of `flags`: an answer is wanted in any case.
const ANSWER: u8 = 1;

/// What the receiver lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// It is said because nothing has come for long: what is not known here is missing too.
    pub(super) is_silence: bool,
    /// Packet number of the newest packet that has come; 0 if none has.
    pub(super) newest: u64,
    /// Everything below this sequence number has come.
    pub(super) below: u64,
    /// The sequence number after the highest that is known here.
    pub(super) next: u64,
}

/// What the sender can still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holdings {
    /// A report is wanted even if nothing is missing.
    pub(super) confirm: bool,
    /// Everything below this sequence number has arrived or is lost for good.
    pub(super) oldest: u64,
    /// The sequence number after the highest that has left.
    pub(super) next: u64,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word<'b> {
    Report(Report, &'b [u8]),
    Holdings(Holdings),
}

fn put(into: &mut [u8], value: u64) {
    into.copy_from_slice(&value.to_be_bytes()[2..]);
}

fn get(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

impl Report {
    pub(super) fn write(&self, into: &mut [u8]) {
        into[..2].copy_from_slice(&[MISSING, if self.is_silence { ANSWER } else { 0 }]);
        put(&mut into[2..8], self.newest);
        put(&mut into[8..14], self.below);
        put(&mut into[14..20], self.next);
    }
}

impl Holdings {
    pub(super) fn write(&self, into: &mut [u8]) {
        into[..2].copy_from_slice(&[STATE, if self.confirm { ANSWER } else { 0 }]);
        put(&mut into[2..8], self.oldest);
        put(&mut into[8..14], self.next);
    }
}

/// Reads either; `None` if these are the bytes of neither.
pub(super) fn read(body: &[u8]) -> Option<Word<'_>> {
    let flag = match *body.get(1)? {
        0 => false,
        ANSWER => true,
        _ => return None,
    };
    match body[0] {
        MISSING => {
            let (fixed, stretches) = body.split_at_checked(FIXED)?;
            let (newest, below, next) = (get(&fixed[2..8]), get(&fixed[8..14]), get(&fixed[14..20]));
            let possible = below <= next && stretches.len().is_multiple_of(STRETCH);
            possible.then_some(Word::Report(Report { is_silence: flag, newest, below, next }, stretches))
        }
        STATE if body.len() == STATE_LEN => {
            let (oldest, next) = (get(&body[2..8]), get(&body[8..14]));
            (oldest <= next).then_some(Word::Holdings(Holdings { confirm: flag, oldest, next }))
        }
        _ => None,
    }
}

/// The stretches of a report as `from..to` sequence numbers.
pub(super) fn stretches(below: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let mut at = below;
    bytes.chunks_exact(STRETCH).map(move |stretch| {
        let half = |at: usize| u64::from(u16::from_be_bytes([stretch[at], stretch[at + 1]]));
        let from = at + half(0);
        at = from + half(2);
        (from, at)
    })
}

/// The stretches of a report, written.
pub(super) struct Stretches {
    bytes: [[u8; STRETCH]; MOST_STRETCHES],
    len: usize,
}

impl Stretches {
    /// As many stretches as can be said; one that is too long is cut.
    pub(super) fn of(below: u64, missing: impl Iterator<Item = std::ops::Range<u64>>) -> Self {
        let mut written = Self { bytes: [[0; STRETCH]; MOST_STRETCHES], len: 0 };
        let mut at = below;
        for (range, place) in missing.zip(&mut written.bytes) {
            let Ok(gap) = u16::try_from(range.start - at) else { break };
            let len = u16::try_from(range.end - range.start).unwrap_or(u16::MAX);
            place[..2].copy_from_slice(&gap.to_be_bytes());
            place[2..].copy_from_slice(&len.to_be_bytes());
            written.len += 1;
            at = range.start + u64::from(len);
            if at < range.end {
                break;
            }
        }
        written
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes[..self.len].as_flattened()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_survive(is_silence: bool, newest in 0u64..1 << 48, low in 0u64..1 << 47, more in 0u64..1 << 47) {
            let report = Report { is_silence, newest, below: low, next: low + more };
            let mut bytes = [0; FIXED];
            report.write(&mut bytes);
            prop_assert_eq!(read(&bytes), Some(Word::Report(report, &[][..])));
            let holdings = Holdings { confirm: is_silence, oldest: low, next: low + more };
            let mut bytes = [0; STATE_LEN];
            holdings.write(&mut bytes);
            prop_assert_eq!(read(&bytes), Some(Word::Holdings(holdings)));
        }

        #[test]
        fn stretches_survive(below in 0u64..1 << 40, pieces in prop::collection::vec((0u64..50, 1u64..90_000), 0..9)) {
            let (mut at, mut missing) = (below, Vec::new());
            for (gap, len) in pieces {
                missing.push(at + gap..at + gap + len);
                at += gap + len;
            }
            let written = Stretches::of(below, missing.iter().cloned());
            let said: Vec<_> = stretches(below, written.bytes()).collect();
            let long = missing.iter().position(|range| range.end - range.start > u64::from(u16::MAX));
            let whole = long.unwrap_or(missing.len());
            prop_assert_eq!(said.len(), (whole + usize::from(long.is_some())).min(missing.len()));
            for ((from, to), range) in said.iter().zip(&missing).take(whole) {
                prop_assert_eq!((*from, *to), (range.start, range.end));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), word in 0u8..4) {
            let _ = read(&bytes);
            let mut bytes = bytes;
            if bytes.len() > 1 {
                (bytes[0], bytes[1]) = (word, 1);
            }
            if let Some(Word::Report(report, rest)) = read(&bytes) {
                prop_assert!(stretches(report.below, rest).all(|(from, to)| from <= to));
            }
        }
    }
}
