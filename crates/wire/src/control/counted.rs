use haul_base::{Cause, CauseCounts};
use serde::{Deserialize, Serialize};

/// What one side has counted, told to the other before the last message of a session. It is for reports only:
/// the peer may say anything, and nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Processor time of the session in microseconds.
    pub cpu_us: u64,
    /// What only the sending side knows.
    pub sending: Option<CountedSending>,
}

/// What the sending side has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedSending {
    /// Data packets sent, repeated ones included.
    pub packets: u64,
    /// Of these, repeated ones.
    pub resent: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Of these, those for which the diagnosis names a cause: the receiving host, ...
    pub lost_by_host: u64,
    /// ... a full queue of the path, ...
    pub lost_by_congestion: u64,
    /// ... a medium that damages packets, ...
    pub lost_by_random: u64,
    /// ... a path that carried nothing for a while.
    pub lost_by_outage: u64,
    /// Smallest round-trip time in microseconds.
    pub min_rtt_us: u64,
    /// Highest rate of delivery in bits per second.
    pub peak_delivery_bps: u64,
    /// What limited the transfer, in a word for scripts; empty if too little was measured to tell.
    pub limited_by: String,
    /// What it was seen by, for people.
    pub evidence: String,
}

impl CountedSending {
    /// The lost packets by cause; those without one are inconclusive. A peer may say anything: there are never more
    /// than it has lost.
    pub fn causes(&self) -> CauseCounts {
        let told = [
            (Cause::ReceiverHost, self.lost_by_host),
            (Cause::Congestion, self.lost_by_congestion),
            (Cause::Random, self.lost_by_random),
            (Cause::Outage, self.lost_by_outage),
            (Cause::Inconclusive, u64::MAX),
        ];
        let mut left = self.lost;
        let of_what_is_left = told.map(|(cause, packets)| {
            let packets = packets.min(left);
            left -= packets;
            (cause, packets)
        });
        of_what_is_left.into_iter().collect()
    }
}
