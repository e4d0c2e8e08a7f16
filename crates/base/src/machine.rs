//! The contract between a sans-IO machine and its driver.
//!
//! Inputs are `on_*(now, …)`, outputs `poll_*`, and there is one absolute [`Machine::deadline`] with its
//! reason. After any input, the driver drains `poll_transmit`, then `poll_event`, then reads the deadline.
//! `now` never decreases. Nothing performs I/O. Malformed input is counted, never returned as an error.

use std::fmt;
use std::ops::Range;

use crate::Time;

/// Identifies one of the driver's paths (peer and socket). A session with one peer has only path 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PathId(pub u16);

/// ECN bits of the IP header (RFC 3168).
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
    /// Returns the ECN bits of a TOS or traffic class byte, its two low bits.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            1 => Self::Ect1,
            2 => Self::Ect0,
            3 => Self::Ce,
            _ => Self::NotEct,
        }
    }
}

/// A range of the object inside a receive buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the object in bytes.
    pub offset: u64,
    /// Range in the buffer.
    pub range: Range<usize>,
}

/// One received buffer: one datagram, or several of equal size that the kernel coalesced (GRO).
pub struct Received<'a> {
    /// Contiguous datagrams. Machines may modify the bytes, as decryption happens in place.
    pub data: &'a mut [u8],
    /// Size of every datagram but the last, which may be shorter. Equals `data.len()` for one datagram.
    pub stride: usize,
    /// When the kernel received the buffer, on the driver's clock; `None` if unknown.
    pub arrival: Option<Time>,
    /// Path on which it arrived.
    pub path: PathId,
    /// ECN bits of all its datagrams.
    pub ecn: Ecn,
    /// The socket's count of dropped socket buffers up to this one, wrapping; `None` until known.
    pub socket_drops: Option<u32>,
}

impl Received<'_> {
    /// Returns the number of datagrams in the buffer.
    pub fn count(&self) -> usize {
        self.data.len().div_ceil(self.stride.max(1))
    }
}

/// Describes what a machine wrote into a transmit slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Number of bytes written.
    pub len: usize,
    /// Size of every datagram but the last, which may be shorter.
    pub segment_size: usize,
    /// ECN bits to send.
    pub ecn: Ecn,
    /// Path on which to send.
    pub path: PathId,
    /// Earliest time to send; not later than the call's `now` unless the driver can delay packets.
    pub release: Time,
}

/// Reason for a machine's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineReason {
    /// The pacer releases the next batch.
    Pacing,
    /// Feedback is due.
    Feedback,
    /// Nothing was received for too long: probe for outstanding packets.
    ProbeTimeout,
    /// A timer of a micro-protocol.
    Timer,
}

/// An absolute point in time at which [`Machine::on_deadline`] should be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Absolute time on the driver's clock.
    pub at: Time,
    /// Action due then; for logs and tests.
    pub reason: DeadlineReason,
}

impl Deadline {
    /// Returns the earlier of two optional deadlines.
    pub fn earlier(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if b.at < a.at { b } else { a }),
            (a, b) => a.or(b),
        }
    }
}

/// A protocol state machine without I/O. See the module documentation for the calling order.
pub trait Machine {
    /// Reported to the driver besides packets.
    type Event: fmt::Debug;

    /// Handles one received buffer.
    fn on_receive(&mut self, now: Time, batch: &mut Received<'_>);

    /// Handles an expired deadline. Calling it early is harmless.
    fn on_deadline(&mut self, now: Time);

    /// Writes the next packets into `slot`; returns `None` if there is nothing to send at `now`.
    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit>;

    /// Appends the next message for the session's control channel, which is reliable and ordered, to `out`.
    /// Returns false if there is none at `now`. The driver calls this only when the channel has capacity, so
    /// at most one message is queued there.
    fn poll_channel(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        let _ = (now, out);
        false
    }

    /// Handles a message that the peer's [`Machine::poll_channel`] wrote.
    fn on_channel(&mut self, now: Time, message: &[u8]) {
        let _ = (now, message);
    }

    /// Returns the next event, if any.
    fn poll_event(&mut self) -> Option<Self::Event>;

    /// Returns when to call [`Machine::on_deadline`] or to poll again, and why.
    fn deadline(&self) -> Option<Deadline>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_deadline_wins_and_none_is_last() {
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
