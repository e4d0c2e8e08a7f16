//! Events between micro-protocols, and what they carry. Get one with `declaration.event(NAME)`.

use haul_base::{HostSample, Rate, Span, Time, Verdict};
use haul_stack::{Event, Name};

/// The receiver has assigned this sender a rate, because others send to it too; raised by whoever runs the stack,
/// handled by `rate_control`.
pub const QUOTA: Name<Event<Quota>> = Name::new("quota");

/// The argument of [`QUOTA`]: UDP payload, [`Rate::MAX`] if there is no bound any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota(pub Rate);

/// What acknowledgements say; raised by `positive_ack`, `negative_ack`, `cumulative_ack` and `bitmap_ack`, handled by
/// `retransmit`, which fills in what it meant.
pub const ACKNOWLEDGED: Name<Event<Acknowledgement>> = Name::new("acknowledged");

/// The argument of [`ACKNOWLEDGED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Everything below this sequence number has arrived.
    pub below: u64,
    /// Statements about 64 sequence numbers each.
    pub words: Vec<Statement>,
    /// Nothing from this sequence number on has arrived, if that is known.
    pub nothing_from: Option<u64>,
    /// Which of those that have not arrived count as lost; `None`: none of them.
    pub loss: Option<LossBoundary>,
    /// Segments that came again since the acknowledgement before.
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
    /// 1: the statement is about this bit at all.
    pub known: u64,
}

/// The newest transmission that is known to have arrived, and how much older one must be to count as lost (RACK, RFC
/// 8985 section 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossBoundary {
    /// Its packet number.
    pub largest_pn: u64,
    /// When it was sent, wrapped microseconds of the sender's clock.
    pub sent_at: u32,
    /// Older by at least this.
    pub reordering: Span,
}

impl LossBoundary {
    /// Whether a transmission of this number and time would be known if it had arrived.
    pub(crate) fn is_passed(&self, pn: u64, sent_at: u32) -> bool {
        let age = self.sent_at.wrapping_sub(sent_at).cast_signed();
        pn < self.largest_pn && i64::from(age) >= self.reordering.as_micros().cast_signed()
    }
}

/// What an acknowledgement changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets that are newly known to have arrived.
    pub acked_packets: u64,
    /// Their payload bytes.
    pub acked_bytes: u64,
    /// Packets newly taken for lost.
    pub lost_packets: u64,
    /// Their payload bytes.
    pub lost_bytes: u64,
    /// UDP payload bytes that are still on their way.
    pub in_flight: u64,
    /// Whether everything that was sent has arrived.
    pub nothing_outstanding: bool,
}

/// A round trip was measured; raised after `context.path_mut()` has been updated.
pub const RTT_SAMPLE: Name<Event<RttSample>> = Name::new("rtt sample");

/// The argument of [`RTT_SAMPLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttSample {
    /// When the acknowledgement came.
    pub at: Time,
    /// The round-trip time.
    pub rtt: Span,
}

/// The other side asks for another rate, and it is to be in force now; raised by `rate_feedback`,
/// obeyed by the micro-protocol that limits the rate.
pub const RATE: Name<Event<Rate>> = Name::new("rate");

/// Segments were dropped after their retention time. Negative acknowledgements do not tell whether they have arrived.
/// Raised by `negative_ack`, handled by `retransmit`.
pub const FORGOTTEN: Name<Event<Forgotten>> = Name::new("forgotten");

/// The argument of [`FORGOTTEN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// Everything below this sequence number.
    pub below: u64,
}

/// A report of the other side was processed; raised by `bitmap_ack` behind [`ACKNOWLEDGED`].
pub const PEER_REPORT: Name<Event<PeerReport>> = Name::new("peer report");

/// The argument of [`PEER_REPORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// What it meant for what is outstanding.
    pub outcome: Outcome,
    /// Data packets that have arrived there in all.
    pub packets: u64,
    /// The largest packet number that has arrived there.
    pub largest_pn: u64,
    /// Which of what has not arrived counts as lost; `None` if the report says nothing of what has arrived.
    pub loss: Option<LossBoundary>,
    /// What only the newest report tells; `None` for one that was overtaken.
    pub newest: Option<Newest>,
}

/// The limit of a receiver that does not bound the object: the largest offset.
pub(crate) const NO_LIMIT: u64 = haul_wire::packet::MAX_OFFSET;

/// What is true only at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The other side takes bytes of the object below this offset.
    pub limit: u64,
    /// The path MTU probe that arrived there last, UDP payload bytes; 0 before the first.
    pub last_probe: u16,
    /// Wrapped microseconds of the other side's clock when its kernel got the last packet, and UDP payload bytes that
    /// had arrived by then; `None` before the first.
    pub arrived: Option<(u32, u64)>,
    /// The receiver's counters, as totals.
    pub receiver: ReceiverCounters,
    /// The load of its host, if it was looked at anew: totals as they stand there.
    pub host: Option<HostSample>,
}

/// Totals of the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverCounters {
    /// Data packets that have arrived.
    pub packets: u64,
    /// Those that had arrived before, wrapping.
    pub duplicates: u32,
    /// Those marked "congestion experienced", wrapping.
    pub ecn_ce: u32,
    /// Socket buffers that its kernel dropped, wrapping.
    pub socket_drops: u32,
    /// Buffers in which data packets were read, wrapping.
    pub buffers: u32,
    /// How long the last packet waited in its kernel, microseconds.
    pub read_delay_us: u32,
}

/// The host was looked at; raised by the stack's runner, carried to the other side by `bitmap_ack`.
pub const HOST_SAMPLE: Name<Event<HostSample>> = Name::new("host sample");

/// The receiver's kernel has dropped packets; raised by `witness` at the sender, handled by `rate_control`.
pub(crate) const WITNESSED: Name<Event<DroppedGap>> = Name::new("witnessed");

/// A stretch of packets that the receiver is missing, and how many socket buffers its kernel has dropped in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DroppedGap {
    /// The first packet.
    pub(crate) first_pn: u64,
    /// Packets of the stretch.
    pub(crate) packets: u64,
    /// Those of them that have not arrived.
    pub(crate) missing: u64,
    /// Socket buffers, each of one or more packets.
    pub(crate) drops: u32,
}

impl DroppedGap {
    /// The number behind the last packet.
    pub(crate) fn end(&self) -> u64 {
        self.first_pn + self.packets
    }
}

/// The sender is to be asked to send nothing for a while; raised by `rate_control` at the receiving end, carried to the
/// other side by `bitmap_ack`.
pub(crate) const PAUSE_WANTED: Name<Event<Pause>> = Name::new("pause wanted");

/// The other side asks to be sent nothing for a while, no longer than a law may hold; raised by `bitmap_ack`, handled
/// by `rate_control`.
pub(crate) const PAUSE_ASKED: Name<Event<Pause>> = Name::new("pause asked");

/// The argument of [`PAUSE_WANTED`] and [`PAUSE_ASKED`]: for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause(pub(crate) Span);

/// What the diagnosis says of losses found from now on; raised by the stack's runner, handled by `rate_control`.
pub const VERDICT: Name<Event<Option<Verdict>>> = Name::new("verdict");

/// A blast round has ended: all of it has left. Raised by `bitmap_ack`.
pub const ROUND_ENDED: Name<Event<()>> = Name::new("round ended");

/// The sender has said that it has given up segments, which are no longer waited for; raised by the receiver's half of
/// an acknowledgement.
pub const ABANDONED: Name<Event<()>> = Name::new("segments abandoned");

/// A report to the other side is about to be written; whoever has something to say in it fills it in.
pub const REPORT: Name<Event<OwnReport>> = Name::new("report");

/// The argument of [`REPORT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnReport {
    /// The other side may send bytes of the object below this offset.
    pub limit: u64,
    /// The path MTU probe that arrived last, UDP payload bytes.
    pub last_probe: u16,
}

/// Something has happened that the other side should know soon.
pub const REPORT_SOON: Name<Event<()>> = Name::new("report soon");

/// A part of a segment has arrived, or a whole one in parts; raised by `object`, counted by `bitmap_ack`.
pub const PART_ARRIVED: Name<Event<PartArrived>> = Name::new("part arrived");

/// The argument of [`PART_ARRIVED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartArrived {
    /// Its packet number.
    pub pn: u64,
    /// When it was sent, wrapped microseconds of the sender's clock.
    pub sent_at: u32,
    /// UDP payload bytes.
    pub size: usize,
    /// Whether it brought nothing new.
    pub duplicate: bool,
    /// Whether it completed a segment and shows that an earlier one is missing.
    pub gap: bool,
}

/// Nothing was acknowledged for a probe timeout; raised by `retransmit`.
pub const PROBE_TIMEOUT: Name<Event<ProbeTimeout>> = Name::new("probe timeout");

/// The argument of [`PROBE_TIMEOUT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTimeout {
    /// How many there were in a row, this one included.
    pub in_row: u32,
    /// Packets that may leave whatever the window says.
    pub packets: u32,
}

/// All of the object that was to be sent has arrived; raised by `object`.
pub const DELIVERED: Name<Event<()>> = Name::new("object delivered");

/// Nothing more will be heard of what was sent; raised by the stack's runner.
pub const ENDED: Name<Event<()>> = Name::new("transmission ended");

/// A datagram of this size was refused by the local interface; raised by the stack's runner with its UDP payload bytes.
pub const SIZE_REFUSED: Name<Event<u16>> = Name::new("size refused");

/// A datagram of this size has passed the path; raised by the stack's runner with its UDP payload bytes.
pub const SIZE_PASSED: Name<Event<u16>> = Name::new("size passed");
