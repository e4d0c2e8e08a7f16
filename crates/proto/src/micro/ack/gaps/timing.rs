//! Timing of both sides: parameters, timers, repetition.

use haul_base::Span;
use haul_stack::{Context, Part, configuration};

/// IDs of the timers.
pub(super) const GAP: u8 = 0;
pub(super) const SILENCE: u8 = 1;
pub(super) const DISCARD: u8 = 2;
pub(super) const CONFIRM: u8 = 3;

/// Minimum time before a report or a request is repeated.
const SHORTEST_REPEAT: Span = Span::from_millis(10);
/// Number of reports of silence that must fit into the time for which segments are stored.
const MIN_REPORTS: u64 = 8;

configuration! {
    /// Parameters of `negative_ack`.
    #[derive(Copy)]
    pub struct NegativeAckConfig: "negative_ack" {
        silence: Span = "5s", "time without a packet after which the receiver sends a request";
        reordering: Span = "5ms", "delay before a gap is reported";
        retention: Span = "120s", "how long the sender keeps segments; at least 8 times `silence`";
    }
}

impl NegativeAckConfig {
    pub(super) fn checked(parameters: &Part) -> Result<Self, String> {
        let limits: Self = parameters.read();
        if limits.silence == Span::ZERO || limits.retention < limits.silence * MIN_REPORTS {
            return Err(format!(
                "retention must be at least {MIN_REPORTS} times silence, and silence above zero"
            ));
        }
        Ok(limits)
    }
}

/// Returns the time after which an unanswered report or request is repeated.
pub(super) fn repeat_after(context: &Context<'_>) -> Span {
    (context.path().rtt * 3 / 2).max(SHORTEST_REPEAT)
}
