//! Events between micro-protocols, and what they carry. Get one with `declaration.event::<T>(NAME)`.

use haul_base::{Span, Time};

/// What acknowledgements say; raised by `positive_ack`, `negative_ack`, `cumulative_ack` and `bitmap_ack`, handled by
/// `retransmit`, which fills in what it meant.
pub const ACKNOWLEDGED: &str = "acknowledged";

/// The notice of [`ACKNOWLEDGED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Everything below this sequence number has arrived.
    pub below: u64,
    /// Statements about 64 sequence numbers each.
    pub words: Vec<Statement>,
    /// Which of those that have not arrived count as lost; `None`: none of them.
    pub loss: Option<LossBoundary>,
    /// Filled in by whoever keeps what is outstanding.
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

/// A round trip was measured; raised by whoever measures, after it has written `context.path_mut()`.
pub const RTT_SAMPLE: &str = "rtt sample";

/// The notice of [`RTT_SAMPLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttSample {
    /// When.
    pub at: Time,
    /// How long.
    pub rtt: Span,
}

/// The other side asks for another rate, and it is to be in force now; raised by `rate_feedback` with a
/// [`haul_base::Rate`], obeyed by whoever limits the rate.
pub const RATE: &str = "rate";

/// Segments are kept no longer, whether they have arrived or not: where only what is missing is said, nobody knows.
/// Raised by `negative_ack`, handled by `retransmit`.
pub const FORGOTTEN: &str = "forgotten";

/// The notice of [`FORGOTTEN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// Everything below this sequence number.
    pub below: u64,
}
