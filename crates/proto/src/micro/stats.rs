//! Counters of the micro-protocols, a struct each, as returned by [`haul_stack::Stack::statistics`].

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

/// Counters of `positive_ack` and `cumulative_ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckStats {
    /// Acknowledgements sent.
    pub acknowledgements: u64,
    /// Timeouts of sent segments.
    pub timeouts: u64,
    /// Smoothed round-trip time.
    pub rtt: Span,
}

/// Counters of `bitmap_ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapAckStats {
    /// Feedback packets processed.
    pub reports_received: u64,
    /// Socket buffers dropped at the receiver, as last reported.
    pub peer_drops: u32,
    /// Duplicates at the receiver, as last reported.
    pub peer_duplicates: u32,
    /// Packets marked "congestion experienced" at the receiver, as last reported.
    pub peer_ecn_ce: u32,
    /// Data packets received.
    pub packets_received: u64,
    /// UDP payload bytes of received data packets.
    pub bytes_received: u64,
    /// Duplicate data packets received.
    pub duplicates: u64,
    /// Data packets received with the mark "congestion experienced".
    pub ecn_ce: u64,
    /// Feedback packets sent.
    pub reports_sent: u64,
}

/// Counters of `deadline`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadlineStats {
    /// Messages dropped by the sender.
    pub dropped: u64,
    /// Messages that arrived too late.
    pub late: u64,
}

/// Counters of `fec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FecStats {
    /// Repair packets sent.
    pub repairs_sent: u64,
    /// Packets recovered from repair packets.
    pub recovered: u64,
    /// Blocks with too many losses.
    pub unrepaired_blocks: u64,
}

/// Counters of `fixed_rate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedRateStats {
    /// The rate in force.
    pub rate: Rate,
    /// Number of changes.
    pub changes: u64,
}

/// Counters of `fixed_size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedSizeStats {
    /// Messages with missing segments now.
    pub incomplete: u64,
    /// Messages given up.
    pub given_up: u64,
    /// Segments refused for lack of memory.
    pub refused: u64,
}

/// Counters of `in_order`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InOrderStats {
    /// Messages waiting for earlier ones now.
    pub waiting: u64,
    /// Messages given up.
    pub given_up: u64,
    /// Messages dropped because they arrived after later ones.
    pub late: u64,
}

/// Counters of `liveness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivenessStats {
    /// Total length of silences of 2 s or longer, including the present one if it was reported.
    pub silent: Span,
}

/// Counters of `negative_ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegativeAckStats {
    /// Reports of missing segments.
    pub reports: u64,
    /// Answers to the reports.
    pub answers: u64,
}

/// Counters of `object`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStats {
    /// Bytes sent at least once.
    pub bytes_sent: u64,
    /// Bytes delivered.
    pub bytes_delivered: u64,
    /// Packets that arrived without space for their bytes or another gap.
    pub without_room: u64,
    /// Length of the object, once the receiver knows it.
    pub length: Option<u64>,
}

/// Counters of `path_mtu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathMtuStats {
    /// Datagram size in use, in UDP payload bytes.
    pub datagram: u16,
    /// Probes sent.
    pub probes: u64,
}

/// Counters of `priority`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityStats {
    /// Messages of the highest priority.
    pub most_urgent: u64,
}

/// Counters of `rate_control`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateControlStats {
    /// Data packets sent, including repeated ones.
    pub sent: PacketCount,
    /// Changes of the law by a rule of the recipe.
    pub switches: u64,
    /// Changes of the law's ceiling.
    pub ceiling_changes: u64,
    /// Highest delivery rate over about one round trip, UDP payload.
    pub peak_delivery: Rate,
    /// Packets declared lost, by diagnosed cause.
    pub lost_by_cause: CauseCounts,
    /// Transmission windows with losses, by signature.
    pub windows: WindowCounts,
}

/// Counters of `rate_feedback`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateFeedbackStats {
    /// Rates requested.
    pub requests: u64,
    /// Packets sent.
    pub packets: u64,
}

/// Counters of `rate_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrivalStats {
    /// Data packets received.
    pub received: PacketCount,
    /// Packets missing below the newest one.
    pub missing: u64,
    /// Rate of arrival, UDP payload.
    pub rate: Rate,
    /// Mean time between arrivals.
    pub spacing: Span,
    /// Mean deviation of that time.
    pub jitter: Span,
}

/// Counters of `receiver_report`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverReportStats {
    /// Reports processed.
    pub reports_received: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// UDP payload bytes in flight.
    pub in_flight_bytes: u64,
    /// Data packets received.
    pub packets_received: u64,
    /// UDP payload bytes of received data packets.
    pub bytes_received: u64,
    /// Duplicate data packets received.
    pub duplicates: u32,
    /// Data packets received with the mark "congestion experienced".
    pub ecn_ce: u32,
    /// Reports sent.
    pub reports_sent: u64,
}

/// Counters of `retransmit` with `keep = "object"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepObjectStats {
    /// Packets retransmitted.
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

/// Counters of `retransmit` with `keep = "copies"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepCopiesStats {
    /// Packets outstanding now.
    pub outstanding: u64,
    /// UDP payload bytes in flight.
    pub in_flight_bytes: u64,
    /// Messages given up.
    pub given_up: u64,
}

/// Counters of `seal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealStats {
    /// Packets that did not authenticate.
    pub refused: u64,
}

/// Counters of `selective_transfer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelectiveTransferStats {
    /// Suppressed readings.
    pub suppressed: u64,
}

/// Counters of `sequenced_segment`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequencedSegmentStats {
    /// Segments numbered.
    pub sent: u64,
    /// Duplicate segments dropped.
    pub duplicates: u64,
    /// Segments given up.
    pub given_up: u64,
}

/// Counters of `statistics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficStats {
    /// Data packets sent.
    pub sent: PacketCount,
    /// Data packets received.
    pub received: PacketCount,
    /// Data packets that arrived at the peer, as last reported.
    pub arrived: PacketCount,
}

/// Counters of `transport_driver`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportDriverStats {
    /// Packets of other sessions.
    pub foreign: u64,
}

/// Counters of `witness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WitnessStats {
    /// Gaps caused by the receiving host's kernel.
    pub gaps: u64,
    /// Messages sent about them.
    pub messages_sent: u64,
}
