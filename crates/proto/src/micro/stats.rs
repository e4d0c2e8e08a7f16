//! What the micro-protocols count, a struct each. [`haul_stack::Stack::statistics`] tells them.

use haul_base::{CauseCounts, Rate, Span};

use crate::diagnosis::WindowCounts;

/// Data packets and their UDP payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCount {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Of `positive_ack` and `cumulative_ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckStats {
    /// Acknowledgements sent.
    pub acknowledgements: u64,
    /// Timeouts of segments sent.
    pub timeouts: u64,
    /// Smoothed round-trip time.
    pub rtt: Span,
}

/// Of `bitmap_ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapAckStats {
    /// Feedback packets processed.
    pub reports_received: u64,
    /// Socket buffers dropped at the receiver, as it last said.
    pub peer_drops: u32,
    /// Duplicates at the receiver, as it last said.
    pub peer_duplicates: u32,
    /// Packets marked "congestion experienced", as the receiver last said.
    pub peer_ecn_ce: u32,
    /// Data packets that have come.
    pub packets_received: u64,
    /// Their UDP payload bytes.
    pub bytes_received: u64,
    /// Of the packets, those that had come before.
    pub duplicates: u64,
    /// Of the packets, those marked "congestion experienced".
    pub ecn_ce: u64,
    /// Feedback packets sent.
    pub reports_sent: u64,
}

/// Of `deadline`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadlineStats {
    /// Messages that the sender dropped.
    pub dropped: u64,
    /// Messages that came too late.
    pub late: u64,
}

/// Of `fec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FecStats {
    /// Repair packets sent.
    pub repairs_sent: u64,
    /// Packets recovered from repair packets.
    pub recovered: u64,
    /// Blocks that lost too much.
    pub unrepaired_blocks: u64,
}

/// Of `fixed_rate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedRateStats {
    /// The rate in force.
    pub rate: Rate,
    /// How often it has changed.
    pub changes: u64,
}

/// Of `fixed_size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedSizeStats {
    /// Messages of which segments are missing now.
    pub incomplete: u64,
    /// Messages given up.
    pub given_up: u64,
    /// Segments refused for want of memory.
    pub refused: u64,
}

/// Of `in_order`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InOrderStats {
    /// Messages that wait for earlier ones now.
    pub waiting: u64,
    /// Messages given up.
    pub given_up: u64,
    /// Messages dropped because they came after later ones.
    pub late: u64,
}

/// Of `liveness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivenessStats {
    /// Time of silences that were told, the present one included.
    pub silent: Span,
}

/// Of `negative_ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegativeAckStats {
    /// Reports of what is missing.
    pub reports: u64,
    /// Answers to them.
    pub answers: u64,
}

/// Of `object`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStats {
    /// Bytes sent at least once.
    pub bytes_sent: u64,
    /// Bytes delivered.
    pub bytes_delivered: u64,
    /// Packets that came when the sink had no room for them.
    pub without_room: u64,
    /// Length of the object once the receiver knows it.
    pub length: Option<u64>,
}

/// Of `path_mtu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathMtuStats {
    /// Datagram size in use, UDP payload bytes.
    pub datagram: u16,
    /// Probes sent.
    pub probes: u64,
}

/// Of `priority`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityStats {
    /// Messages of the highest priority.
    pub most_urgent: u64,
}

/// Of `rate_control`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateControlStats {
    /// Data packets sent, repeated ones included.
    pub sent: PacketCount,
    /// How often a rule of the recipe has exchanged the law.
    pub switches: u64,
    /// How often the ceiling of the law has become another.
    pub ceiling_changes: u64,
    /// The highest delivery rate seen over about a round trip, UDP payload.
    pub peak_delivery: Rate,
    /// Packets declared lost, by the diagnosed cause.
    pub lost_by_cause: CauseCounts,
    /// Transmission windows with losses, by what their signatures say.
    pub windows: WindowCounts,
}

/// Of `rate_feedback`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateFeedbackStats {
    /// Rates asked for.
    pub wishes: u64,
    /// Packets sent.
    pub packets: u64,
}

/// Of `rate_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrivalStats {
    /// Data packets that have come.
    pub received: PacketCount,
    /// Packets sent before the newest that have not come.
    pub missing: u64,
    /// The rate of arrival, UDP payload.
    pub rate: Rate,
    /// Mean time between packets.
    pub spacing: Span,
    /// Mean deviation from it.
    pub jitter: Span,
}

/// Of `receiver_report`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverReportStats {
    /// Reports processed.
    pub reports_received: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// UDP payload bytes in flight.
    pub in_flight_bytes: u64,
    /// Data packets that have come.
    pub packets_received: u64,
    /// Their UDP payload bytes.
    pub bytes_received: u64,
    /// Of the packets, those that had come before.
    pub duplicates: u32,
    /// Of the packets, those marked "congestion experienced".
    pub ecn_ce: u32,
    /// Reports sent.
    pub reports_sent: u64,
}

/// Of `retransmit` with `keep = "object"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepObjectStats {
    /// Packets sent again.
    pub resent: u64,
    /// Packets known to have arrived.
    pub acked: u64,
    /// Object bytes known to have arrived.
    pub acked_bytes: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Probe timeouts.
    pub probe_timeouts: u32,
}

/// Of `retransmit` with `keep = "copies"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepCopiesStats {
    /// Packets outstanding now.
    pub outstanding: u64,
    /// Their bytes in flight.
    pub in_flight_bytes: u64,
    /// Messages given up.
    pub given_up: u64,
}

/// Of `seal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealStats {
    /// Packets that did not authenticate.
    pub refused: u64,
}

/// Of `selective_transfer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelectiveTransferStats {
    /// Readings that were not sent.
    pub suppressed: u64,
}

/// Of `sequenced_segment`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequencedSegmentStats {
    /// Segments numbered.
    pub sent: u64,
    /// Segments dropped because they had come before.
    pub duplicates: u64,
    /// Segments that are not waited for any more.
    pub given_up: u64,
}

/// Of `statistics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficStats {
    /// What was sent.
    pub sent: PacketCount,
    /// What has come.
    pub received: PacketCount,
    /// What has come at the other side, as it last said.
    pub arrived: PacketCount,
}

/// Of `transport_driver`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportDriverStats {
    /// Packets of other sessions.
    pub foreign: u64,
}

/// Of `witness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WitnessStats {
    /// Gaps that the kernel of the receiving host has made.
    pub gaps: u64,
    /// Messages sent about them.
    pub messages_sent: u64,
}
