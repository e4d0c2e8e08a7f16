//! What a stream of bytes has done so far.

use haul_base::{Rate, Span};
use haul_engine::Counters;

/// What a stream of bytes has done so far; at most a twentieth of a second old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStatistics {
    /// Bytes of the stream that have arrived: at the writer, that are known to.
    pub bytes: u64,
    /// Data packets that were sent or received, repeated ones included.
    pub packets: u64,
    /// The writer: of these, repeated ones.
    pub resent: u64,
    /// Packets that came although they had come before: at the writer, as the reader last said.
    pub duplicates: u64,
    /// The writer: the rate at which the control law sends at present.
    pub rate: Option<Rate>,
    /// The round trip: the writer's is smoothed, the reader's that of the control channel.
    pub rtt: Option<Span>,
}

impl StreamStatistics {
    pub(super) fn of(counters: Option<&Counters>, control: Option<Span>) -> Self {
        match counters {
            None => Self { rtt: control, ..Self::default() },
            Some(Counters::Sending(sending)) => Self {
                bytes: sending.stats.object_acked,
                packets: sending.stats.packets,
                resent: sending.stats.resent,
                duplicates: u64::from(sending.stats.receiver_duplicates),
                rate: Some(sending.rate),
                rtt: Some(sending.stats.rtt),
            },
            Some(Counters::Receiving(stats)) => Self {
                bytes: stats.object_bytes,
                packets: stats.packets,
                duplicates: stats.duplicates,
                rtt: control,
                ..Self::default()
            },
        }
    }
}
