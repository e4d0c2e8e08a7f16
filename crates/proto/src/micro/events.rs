//! Events between micro-protocols, and their arguments. Get one with `declaration.event(NAME)`.

use haul_base::{HostSample, Rate, Span, Time, Verdict};
use haul_stack::{Event, Name};

/// The receiver has assigned this sender a rate, because others send to it too. Raised by the driver, handled
/// by `rate_control`.
pub const QUOTA: Name<Event<Quota>> = Name::new("quota");

/// Argument of [`QUOTA`]: UDP payload rate; [`Rate::MAX`] if there is no limit any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota(pub Rate);

/// Contents of an acknowledgement. Raised by `positive_ack`, `negative_ack`, `cumulative_ack` and
/// `bitmap_ack`; handled by `retransmit`, which fills in the outcome.
pub const ACKNOWLEDGED: Name<Event<Acknowledgement>> = Name::new("acknowledged");

/// Argument of [`ACKNOWLEDGED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Everything below this sequence number has arrived.
    pub below: u64,
    /// Statements about 64 sequence numbers each.
    pub words: Vec<Statement>,
    /// Nothing from this sequence number on has arrived, if known.
    pub nothing_from: Option<u64>,
    /// Decides which segments that have not arrived count as lost; `None`: none of them.
    pub loss: Option<LossBoundary>,
    /// Duplicates received since the previous acknowledgement.
    pub duplicates: u64,
    /// Filled in by `retransmit`.
    pub outcome: Outcome,
}

/// Which of 64 segments have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Sequence number of the lowest bit.
    pub first: u64,
    /// 1: has arrived.
    pub received: u64,
    /// 1: the statement covers this bit.
    pub known: u64,
}

/// The newest transmission known to have arrived, and how much older another must be to count as lost (RACK,
/// RFC 8985 section 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossBoundary {
    /// Packet number of that transmission.
    pub largest_pn: u64,
    /// Its send time in wrapped microseconds of the sender's clock.
    pub sent_at: u32,
    /// Reordering window: minimum age difference.
    pub reordering: Span,
}

impl LossBoundary {
    /// Whether a transmission with this packet number and send time counts as lost if it is not acknowledged.
    pub(crate) fn is_passed(&self, pn: u64, sent_at: u32) -> bool {
        // A lower number was sent earlier, but threads read the clock before they lock the connection, so its
        // time may be moments later. The difference wraps: around a multiple of 71.6 minutes a packet seems
        // new, and is found lost with a later boundary.
        const MAX_SKEW: u32 = 10_000_000;
        let age = self.sent_at.wrapping_sub(sent_at);
        let is_older = age <= u32::MAX - MAX_SKEW && u64::from(age) >= self.reordering.as_micros();
        pn < self.largest_pn && is_older
    }
}

/// Effect of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Newly acknowledged packets.
    pub acked_packets: u64,
    /// Payload bytes of the newly acknowledged packets.
    pub acked_bytes: u64,
    /// Packets newly declared lost.
    pub lost_packets: u64,
    /// Payload bytes of the packets newly declared lost.
    pub lost_bytes: u64,
    /// UDP payload bytes still in flight.
    pub in_flight: u64,
    /// Whether everything that was sent has arrived.
    pub nothing_outstanding: bool,
}

/// A round trip was measured; raised after `context.path_mut()` has been updated.
pub const RTT_SAMPLE: Name<Event<RttSample>> = Name::new("rtt sample");

/// Argument of [`RTT_SAMPLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttSample {
    /// When the acknowledgement arrived.
    pub at: Time,
    /// The round-trip time.
    pub rtt: Span,
}

/// The peer requests another rate, to be in force now. Raised by `rate_feedback`, handled by the
/// micro-protocol that limits the rate.
pub const RATE: Name<Event<Rate>> = Name::new("rate");

/// Segments were dropped after their retention time; negative acknowledgements do not tell whether they have
/// arrived. Raised by `negative_ack`, handled by `retransmit`.
pub const DISCARDED: Name<Event<Discarded>> = Name::new("forgotten");

/// Argument of [`DISCARDED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// Everything below this sequence number was dropped.
    pub below: u64,
}

/// A report from the peer was processed. Raised by `bitmap_ack` after [`ACKNOWLEDGED`].
pub const PEER_REPORT: Name<Event<PeerReport>> = Name::new("peer report");

/// Argument of [`PEER_REPORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// Effect of the report on outstanding packets.
    pub outcome: Outcome,
    /// Total number of data packets that have arrived at the peer.
    pub packets: u64,
    /// Largest packet number that has arrived at the peer.
    pub largest_pn: u64,
    /// Decides which packets count as lost; `None` if the report does not cover arrivals.
    pub loss: Option<LossBoundary>,
    /// Values of the newest report only; `None` for one that was overtaken.
    pub newest: Option<Newest>,
}

/// Limit of a receiver without flow control: the largest offset.
pub(crate) const NO_LIMIT: u64 = haul_wire::packet::MAX_OFFSET;

/// The part of a report that only the newest one determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// Flow-control limit: the peer accepts bytes of the object below this offset.
    pub limit: u64,
    /// Size of the last path MTU probe that arrived at the peer, in UDP payload bytes; 0 before the first.
    pub last_probe: u16,
    /// When the peer's kernel received the last packet, in wrapped microseconds of the peer's clock, and the
    /// UDP payload bytes that had arrived by then; `None` before the first.
    pub arrived: Option<(u32, u64)>,
    /// The receiver's counters, as totals.
    pub receiver: ReceiverCounters,
    /// Load of the receiver's host if it was sampled again, as totals on that host.
    pub host: Option<HostSample>,
}

/// Total counters of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverCounters {
    /// Data packets that have arrived.
    pub packets: u64,
    /// Duplicate packets, wrapping.
    pub duplicates: u32,
    /// Packets marked "congestion experienced", wrapping.
    pub ecn_ce: u32,
    /// Socket buffers that the peer's kernel dropped, wrapping.
    pub socket_drops: u32,
    /// Buffers with data packets that were read, wrapping.
    pub buffers: u32,
    /// How long the last packet waited in the peer's kernel, in microseconds.
    pub read_delay_us: u32,
}

/// The host's load was sampled. Raised by the driver, sent to the peer by `bitmap_ack`.
pub const HOST_SAMPLE: Name<Event<HostSample>> = Name::new("host sample");

/// The receiver's kernel dropped packets. Raised by `witness` at the sender, handled by `rate_control`.
pub(crate) const WITNESSED: Name<Event<DroppedGap>> = Name::new("witnessed");

/// A range of packets with gaps at the receiver, and the number of socket buffers that its kernel dropped in
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DroppedGap {
    /// Number of the first packet.
    pub(crate) first_pn: u64,
    /// Number of packets in the range.
    pub(crate) packets: u64,
    /// Packets that have not arrived.
    pub(crate) missing: u64,
    /// Dropped socket buffers, each of one or more packets.
    pub(crate) drops: u32,
}

impl DroppedGap {
    /// The number after the last packet.
    pub(crate) fn end(&self) -> u64 {
        self.first_pn + self.packets
    }
}

/// Requests the sender to pause for a while. Raised by `rate_control` at the receiver, sent to the peer by
/// `bitmap_ack`.
pub(crate) const PAUSE_NEEDED: Name<Event<Pause>> = Name::new("pause wanted");

/// The peer requests a pause, no longer than a law may hold. Raised by `bitmap_ack`, handled by
/// `rate_control`.
pub(crate) const PAUSE_REQUESTED: Name<Event<Pause>> = Name::new("pause asked");

/// Argument of [`PAUSE_NEEDED`] and [`PAUSE_REQUESTED`]: length of the pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause(pub(crate) Span);

/// Diagnosis of losses found from now on. Raised by the driver, handled by `rate_control`.
pub const VERDICT: Name<Event<Option<Verdict>>> = Name::new("verdict");

/// A blast round has ended: all of it was sent. Raised by `bitmap_ack`.
pub const ROUND_ENDED: Name<Event<()>> = Name::new("round ended");

/// The sender has reported that it gave up segments, for which the receiver no longer waits. Raised by the
/// receiver side of an acknowledgement.
pub const ABANDONED: Name<Event<()>> = Name::new("segments abandoned");

/// A report to the peer is about to be written; handlers fill in their fields.
pub const REPORT: Name<Event<OutgoingReport>> = Name::new("report");

/// Argument of [`REPORT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutgoingReport {
    /// Flow-control limit: the peer may send bytes of the object below this offset.
    pub limit: u64,
    /// Size of the last path MTU probe received, in UDP payload bytes.
    pub last_probe: u16,
}

/// Requests an early report to the peer.
pub const REPORT_SOON: Name<Event<()>> = Name::new("report soon");

/// A part of a segment has arrived, or a whole one in parts. Raised by `object`, counted by `bitmap_ack`.
pub const PART_ARRIVED: Name<Event<PartArrived>> = Name::new("part arrived");

/// Argument of [`PART_ARRIVED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartArrived {
    /// Packet number.
    pub pn: u64,
    /// Send time in wrapped microseconds of the sender's clock.
    pub sent_at: u32,
    /// UDP payload bytes.
    pub size: usize,
    /// Whether the part contained nothing new.
    pub duplicate: bool,
    /// Whether the part completed a segment and shows that an earlier one is missing.
    pub gap: bool,
}

/// Nothing was acknowledged for a probe timeout. Raised by `retransmit`.
pub const PROBE_TIMEOUT: Name<Event<ProbeTimeout>> = Name::new("probe timeout");

/// Argument of [`PROBE_TIMEOUT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTimeout {
    /// Number of consecutive timeouts, including this one.
    pub in_row: u32,
    /// Packets that may be sent regardless of the window.
    pub packets: u32,
}

/// The whole object to be sent has arrived. Raised by `object`.
pub const DELIVERED: Name<Event<()>> = Name::new("object delivered");

/// No further acknowledgements will arrive. Raised by the driver.
pub const ENDED: Name<Event<()>> = Name::new("transmission ended");

/// The peer has closed, so nothing more will arrive. Raised by the driver.
pub const CLOSED: Name<Event<()>> = Name::new("closed by the peer");

/// The local interface refused a datagram of this size. Raised by the driver with the UDP payload bytes.
pub const SIZE_REFUSED: Name<Event<u16>> = Name::new("size refused");

/// A datagram of this size has passed the path. Raised by the driver with the UDP payload bytes.
pub const SIZE_PASSED: Name<Event<u16>> = Name::new("size passed");
