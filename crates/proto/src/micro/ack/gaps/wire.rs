//! The two packets of `negative_ack`, all big-endian.
//!
//! *Missing*, from the receiver:
//! `1 | flags u8 | newest packet u48 | below u48 | next u48 | (gap u16 | length u16) ...`. The ranges are
//! missing, starting from `below`. *State*, from the sender: `2 | flags u8 | oldest u48 | next u48`.

use haul_stack::{AttributeType, U48};

use crate::micro::ranges::Ranges;

const MISSING: u8 = 1;
const STATE: u8 = 2;
/// Bytes before the ranges; `STATE_LEN`: length of the state message.
pub(super) const FIXED: usize = 20;
pub(super) const STATE_LEN: usize = 14;
/// Bit of `flags`: an answer is requested in any case.
const ANSWER: u8 = 1;

/// The receiver's report of what is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// Sent because nothing was received for long: segments unknown to the receiver are missing too.
    pub(super) is_silence: bool,
    /// Packet number of the newest packet received; 0 if there is none.
    pub(super) newest: u64,
    /// Everything below this sequence number has arrived.
    pub(super) below: u64,
    /// The sequence number after the highest known to the receiver.
    pub(super) next: u64,
}

/// The sender's state: what it can still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SenderState {
    /// Whether a report is requested even if nothing is missing.
    pub(super) confirm: bool,
    /// Everything below this sequence number has arrived or is lost for good.
    pub(super) oldest: u64,
    /// The sequence number after the highest sent.
    pub(super) next: u64,
}

/// Either message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message<'b> {
    Report(Report, Ranges<'b>),
    SenderState(SenderState),
}

impl Report {
    pub(super) fn write(&self, into: &mut [u8]) {
        into[..2].copy_from_slice(&[MISSING, if self.is_silence { ANSWER } else { 0 }]);
        U48::write(self.newest, &mut into[2..8]);
        U48::write(self.below, &mut into[8..14]);
        U48::write(self.next, &mut into[14..20]);
    }
}

impl SenderState {
    pub(super) fn write(&self, into: &mut [u8]) {
        into[..2].copy_from_slice(&[STATE, if self.confirm { ANSWER } else { 0 }]);
        U48::write(self.oldest, &mut into[2..8]);
        U48::write(self.next, &mut into[8..14]);
    }
}

/// Parses either message; `None` if the bytes are invalid.
pub(super) fn read(body: &[u8]) -> Option<Message<'_>> {
    let flag = match *body.get(1)? {
        0 => false,
        ANSWER => true,
        _ => return None,
    };
    match body[0] {
        MISSING => {
            let (fixed, ranges) = body.split_at_checked(FIXED)?;
            let (newest, below, next) =
                (U48::read(&fixed[2..8]), U48::read(&fixed[8..14]), U48::read(&fixed[14..20]));
            let report = Report { is_silence: flag, newest, below, next };
            (below <= next).then_some(Message::Report(report, Ranges::read(below, ranges)?))
        }
        STATE if body.len() == STATE_LEN => {
            let (oldest, next) = (U48::read(&body[2..8]), U48::read(&body[8..14]));
            (oldest <= next).then_some(Message::SenderState(SenderState { confirm: flag, oldest, next }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_messages_round_trip(is_silence: bool, newest in 0u64..1 << 48, low in 0u64..1 << 47, more in 0u64..1 << 47) {
            let report = Report { is_silence, newest, below: low, next: low + more };
            let mut bytes = [0; FIXED];
            report.write(&mut bytes);
            prop_assert_eq!(read(&bytes), Some(Message::Report(report, Ranges::read(low, &[]).unwrap())));
            let sender_state = SenderState { confirm: is_silence, oldest: low, next: low + more };
            let mut bytes = [0; STATE_LEN];
            sender_state.write(&mut bytes);
            prop_assert_eq!(read(&bytes), Some(Message::SenderState(sender_state)));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), word in 0u8..4) {
            let _ = read(&bytes);
            let mut bytes = bytes;
            if bytes.len() > 1 {
                (bytes[0], bytes[1]) = (word, 1);
            }
            if let Some(Message::Report(report, ranges)) = read(&bytes) {
                prop_assert!(ranges.end() >= report.below);
            }
        }
    }
}
