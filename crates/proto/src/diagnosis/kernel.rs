//! What the receiver's kernel dropped, and which losses that explains.

use haul_base::{Span, Time};

use crate::control::FeedbackSample;

/// Drops that no loss was found for in this time, or in this many round trips if that is longer, were of other packets: copies,
/// packets without data. Our choice: losses are found within two round trips.
const FORGET: Span = Span::from_millis(500);
const FORGET_ROUNDS: u64 = 4;

/// Socket buffers that were dropped, as packets that are still to be found lost. The kernel counts buffers, each of one or more
/// packets; one that was dropped has as many as those that were read have on average, and at least one.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    packets: f64,
    per_buffer: f64,
    /// When it was heard last of drops.
    told_at: Option<Time>,
}

impl Kernel {
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        if let Some(run) = sample.gro_run {
            self.per_buffer = run;
        }
        if !self.has_dropped_lately(sample) {
            self.packets = 0.0;
        }
        if sample.socket_drops > 0 {
            self.packets += sample.socket_drops as f64 * self.per_buffer.max(1.0);
            self.told_at = Some(sample.now);
        }
    }

    /// Whether losses that are found now can be of packets that it has dropped.
    pub(super) fn has_dropped_lately(&self, sample: &FeedbackSample<'_>) -> bool {
        let rounds = sample.rtt.smoothed() * FORGET_ROUNDS;
        self.told_at.is_some_and(|told_at| sample.now.since(told_at) <= FORGET.max(rounds))
    }

    /// How many of a feedback's losses were such drops.
    pub(super) fn claim(&mut self, sample: &FeedbackSample<'_>) -> u64 {
        let claimed = sample.lost_packets.min(self.packets.round() as u64);
        self.packets = (self.packets - claimed as f64).max(0.0);
        claimed
    }
}
