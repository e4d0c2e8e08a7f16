//! Packet kinds of `bitmap_ack`.

use haul_stack::Kind;

/// Arrivals and counters of the receiver.
pub(super) const FEEDBACK: Kind = Kind(3);
/// The sender has nothing to send before it knows what is missing; the body is its timestamp.
pub(super) const ROUND: Kind = Kind(16);
/// The sender requests another report interval; the body is microseconds, u32.
pub(super) const REPORT_INTERVAL: Kind = Kind(17);
/// The receiver requests that the sender pause; the body is microseconds, u32.
pub(super) const PAUSE: Kind = Kind(18);

/// Maximum length of a report on the control channel, in bytes: the bitmaps of 25 segments. The rest follows
/// in the next.
pub(super) const CHANNEL_REPORT: usize = 32 << 10;
