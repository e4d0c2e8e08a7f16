//! The contract between a sans-IO machine and whatever runs it.
//!
//! Inputs are `on_*(now, …)`, outputs `poll_*`, and there is one absolute [`Machine::deadline`] with its
//! reason. After any input the runner drains `poll_transmit`, then `poll_event`, then reads the deadline.
//! `now` never goes back. Nothing performs I/O, and hostile bytes are counted, never returned as errors.

use std::fmt;
use std::ops::Range;

use crate::Time;

/// Which of the runner's paths (peer and socket) a batch came from or goes to. A session with one peer has
/// only path 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PathId(pub u16);

/// The ECN bits of the IP header (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct = 0,
    /// ECN-capable transport (1), used by L4S.
    Ect1 = 1,
    /// ECN-capable transport (0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// Takes the two low bits of a TOS or traffic class byte.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            1 => Self::Ect1,
            2 => Self::Ect0,
            3 => Self::Ce,
            _ => Self::NotEct,
        }
    }
}

/// A stretch of the object inside a receive buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it belongs in the object, bytes from the start.
    pub offset: u64,
    /// Where it lies in the buffer.
    pub range: Range<usize>,
}

/// One received buffer: one datagram, or several of equal size that the kernel put together (GRO).
pub struct Received<'a> {
    /// The datagrams without gaps between them. Machines may change the bytes (decryption happens in place).
    pub data: &'a mut [u8],
    /// Size of every datagram but the last, which may be shorter. Equal to `data.len()` for one datagram.
    pub stride: usize,
    /// When the kernel received the buffer, on the runner's clock; `None` where it does not say.
    pub arrival: Option<Time>,
    /// Where it came from.
    pub path: PathId,
    /// The ECN bits that all its datagrams carry.
    pub ecn: Ecn,
    /// The socket's wrapping count of dropped socket buffers up to this one, once it is known.
    pub socket_drops: Option<u32>,
}

impl Received<'_> {
    /// How many datagrams the buffer holds.
    pub fn count(&self) -> usize {
        self.data.len().div_ceil(self.stride.max(1))
    }
}

/// What a machine wrote into a transmit slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes used of the slot.
    pub len: usize,
    /// Size of every datagram but the last, which may be shorter.
    pub segment_size: usize,
    /// ECN bits to send.
    pub ecn: Ecn,
    /// The path on which the driver sends the packets.
    pub path: PathId,
    /// Earliest time of release; not later than the `now` of the call unless the runner can delay packets.
    pub release: Time,
}

/// Why a machine wants to be called at its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineReason {
    /// The pacer releases the next batch.
    Pacing,
    /// Feedback is due.
    Feedback,
    /// Nothing was heard for too long: probe for what is outstanding.
    ProbeTimeout,
    /// A timer of a micro-protocol.
    Timer,
}

/// An absolute point in time at which [`Machine::on_deadline`] should be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When [`Machine::on_deadline`] is due, on the driver's clock.
    pub at: Time,
    /// What the machine will do then; for logs and tests.
    pub reason: DeadlineReason,
}

impl Deadline {
    /// The earlier of two optional deadlines.
    pub fn earlier(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if b.at < a.at { b } else { a }),
            (a, b) => a.or(b),
        }
    }
}

/// A protocol state machine without I/O; see the module's text for the calling order.
pub trait Machine {
    /// What it tells the runner besides packets.
    type Event: fmt::Debug;

    /// Takes one received buffer.
    fn on_receive(&mut self, now: Time, batch: &mut Received<'_>);

    /// The deadline has passed (calling early is harmless).
    fn on_deadline(&mut self, now: Time);

    /// Writes the next packets into `slot`; `None` when there is nothing to send at `now`.
    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit>;

    /// Writes the next message for the session's control channel, which is reliable and in order, behind what `out`
    /// holds. False when there is none at `now`. The driver calls this only when the channel has room, so that at most
    /// one message waits there.
    fn poll_channel(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        let _ = (now, out);
        false
    }

    /// Takes a message that the other side's [`Machine::poll_channel`] wrote.
    fn on_channel(&mut self, now: Time, message: &[u8]) {
        let _ = (now, message);
    }

    /// The next event, if any.
    fn poll_event(&mut self) -> Option<Self::Event>;

    /// When to call [`Machine::on_deadline`] or to poll again, and why.
    fn deadline(&self) -> Option<Deadline>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_deadline_wins_and_none_loses() {
        let at = |n| Some(Deadline { at: Time::from_nanos(n), reason: DeadlineReason::Pacing });
        assert_eq!(Deadline::earlier(at(3), at(2)), at(2));
        assert_eq!(Deadline::earlier(None, at(2)), at(2));
        assert_eq!(Deadline::earlier(None, None), None);
    }

    #[test]
    fn a_buffer_counts_its_last_short_datagram() {
        let mut data = [0u8; 25];
        let batch = Received {
            data: &mut data,
            stride: 10,
            arrival: None,
            path: PathId::default(),
            ecn: Ecn::NotEct,
            socket_drops: None,
        };
        assert_eq!(batch.count(), 3);
    }
}
