//! What the receiver's kernel dropped, and which losses that explains.

use haul_base::{Span, Time};

use crate::control::FeedbackSample;

/// Drops that no loss was found for in this time, or in this many round trips if that is longer, were of other packets: copies,
/// packets without data. Our choice: losses are found within two round trips.
const FORGET: Span = Span::from_millis(500);
const FORGET_ROUNDS: u64 = 4;

/// Packets of which a host says that it dropped them, and that are still to be found lost: no more than are
/// outstanding.
#[derive(Debug, Default)]
struct Dropped {
    packets: f64,
    /// When it was heard last of drops.
    told_at: Option<Time>,
}

impl Dropped {
    fn hear(&mut self, sample: &FeedbackSample<'_>, packets: f64) {
        if !self.is_recent(sample) {
            self.packets = 0.0;
        }
        if packets > 0.0 {
            let outstanding = sample.in_flight / sample.datagram.max(1) + sample.lost_packets;
            self.packets = (self.packets + packets).min(outstanding as f64);
            self.told_at = Some(sample.now);
        }
    }

    /// Whether losses that are found now can be of these packets.
    fn is_recent(&self, sample: &FeedbackSample<'_>) -> bool {
        let rounds = sample.rtt.smoothed() * FORGET_ROUNDS;
        self.told_at.is_some_and(|told_at| sample.now.since(told_at) <= FORGET.max(rounds))
    }

    fn claim(&mut self, lost: u64) -> u64 {
        let claimed = lost.min(self.packets.round() as u64);
        self.packets = (self.packets - claimed as f64).max(0.0);
        claimed
    }
}

/// What the receiving host counts. Its kernel counts socket buffers, each of one or more packets; one that was dropped has as many
/// as those that were read have on average, and at least one. Drops at its network interface and in its backlog are counted in packets,
/// and are weaker evidence: they need not be this session's.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    socket: Dropped,
    early: Dropped,
    per_buffer: f64,
}

impl Kernel {
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        if let Some(run) = sample.gro_run {
            self.per_buffer = run;
        }
        self.socket.hear(sample, sample.socket_drops as f64 * self.per_buffer.max(1.0));
        let early = sample.host.and_then(|host| host.early_drops).unwrap_or(0);
        self.early.hear(sample, f64::from(early));
    }

    /// Whether a dropped buffer can hold several packets.
    pub(super) fn counts_groups(&self) -> bool {
        self.per_buffer > 1.0
    }

    /// Whether losses that are found now can be of packets that a socket has dropped.
    pub(super) fn has_dropped_lately(&self, sample: &FeedbackSample<'_>) -> bool {
        self.socket.is_recent(sample)
    }

    /// How many of so many losses were packets that a socket has dropped.
    pub(super) fn claim(&mut self, lost: u64) -> u64 {
        self.socket.claim(lost)
    }

    /// How many of so many losses that nothing else explains may have been dropped before any socket saw them.
    pub(super) fn claim_early(&mut self, unexplained: u64) -> u64 {
        self.early.claim(unexplained)
    }
}
