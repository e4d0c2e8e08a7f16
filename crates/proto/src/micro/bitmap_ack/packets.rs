//! The kinds of packets of `bitmap_ack`.

use haul_stack::Kind;

/// What has arrived, and counters of the receiver.
pub(super) const FEEDBACK: Kind = Kind(3);
/// The sender has nothing more to send before it knows what is missing; the body is its timestamp.
pub(super) const ROUND: Kind = Kind(16);
/// The sender asks for another interval of reports; the body is microseconds, u32.
pub(super) const REPORT_INTERVAL: Kind = Kind(17);
/// The receiver asks the sender to send nothing for a while; the body is microseconds, u32.
pub(super) const PAUSE: Kind = Kind(18);

/// Longest report on the control channel, bytes: the bitmaps of 25 segments. What does not fit follows in the next one.
pub(super) const CHANNEL_REPORT: usize = 32 << 10;
