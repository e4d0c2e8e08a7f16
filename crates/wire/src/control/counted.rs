use haul_base::{Cause, CauseCounts};
use serde::{Deserialize, Serialize};

/// Counters that one peer sends to the other before the last message of a session. For reports only: the peer
/// may send any values, and no decision depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// CPU time of the session in microseconds.
    pub cpu_us: u64,
    /// Counters of the sender of the object.
    pub sending: Option<CountedSending>,
}

/// Counters of the sender of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedSending {
    /// Data packets sent, including retransmissions.
    pub packets: u64,
    /// Of these, retransmissions.
    pub resent: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Of these, packets lost at the receiving host.
    pub lost_by_host: u64,
    /// Of these, packets lost at a full queue of the path.
    pub lost_by_congestion: u64,
    /// Of these, packets lost in a medium that corrupts packets.
    pub lost_by_random: u64,
    /// Of these, packets lost on a path that delivered nothing for a while.
    pub lost_by_outage: u64,
    /// Smallest round-trip time in microseconds.
    pub min_rtt_us: u64,
    /// Highest delivery rate in bits per second.
    pub peak_delivery_bps: u64,
    /// What limited the transfer, as a word for scripts; empty if too little was measured.
    pub limited_by: String,
    /// Evidence for that, for users.
    pub evidence: String,
}

impl CountedSending {
    /// Returns the lost packets by cause; the remainder is inconclusive. As a peer may send any values, the
    /// sum is limited to the lost packets.
    pub fn causes(&self) -> CauseCounts {
        let counts = [
            (Cause::ReceiverHost, self.lost_by_host),
            (Cause::Congestion, self.lost_by_congestion),
            (Cause::Random, self.lost_by_random),
            (Cause::Outage, self.lost_by_outage),
            (Cause::Inconclusive, u64::MAX),
        ];
        let mut remaining = self.lost;
        let limited = counts.map(|(cause, packets)| {
            let packets = packets.min(remaining);
            remaining -= packets;
            (cause, packets)
        });
        limited.into_iter().collect()
    }
}
