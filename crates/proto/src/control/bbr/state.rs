//! The law's state besides its models of the path, in groups.

use haul_base::{Rate, Time};
use haul_stack::Parameters;

use super::loss::LossCounts;
use super::trial::Trial;
use crate::control::ControllerConfig;
use crate::control::window::INITIAL_WINDOW;

/// What the recipe and the session set.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) ceiling: Rate,
    pub(super) beta: f64,
    pub(super) headroom: f64,
    pub(super) rtt_rise: f64,
    pub(super) initial_window: u64,
}

/// Packets since the session began.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) marked: u64,
}

/// Round trips, counted by packets.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    pub(super) count: u32,
    pub(super) end_pn: u64,
    pub(super) drain_until: u32,
    pub(super) totals: RoundTotals,
    /// Highest sample and volume of the present round (the draft's `bw_latest` and `inflight_latest`).
    pub(super) latest: (Rate, u64),
    /// The same of the round before.
    pub(super) last: (Rate, u64),
    /// Whether the window was full in this round and in the one before.
    pub(super) is_full: [bool; 2],
}

/// When packets last left and feedback last came, and what follows from longer pauses.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    pub(super) sent_at: Time,
    pub(super) heard_at: Time,
    /// Sending begins after idleness or silence: that has drained the queue.
    pub(super) is_restart: bool,
    pub(super) in_outage: bool,
    /// Losses of packets below this number say nothing.
    pub(super) ignore_below: u64,
}

/// Whether losses follow from the rate, as a policer's do ([`trial`](super::trial)).
#[derive(Debug, Default)]
pub(super) struct PolicerSearch {
    pub(super) trial: Option<Trial>,
    /// A trial has shown lately that what exceeds a rate is lost.
    pub(super) policed_until: Time,
    /// From this packet on the sender did not probe.
    pub(super) steady_pn: u64,
    /// The rate of arrival that was measured last, and last between probes.
    pub(super) arrival_rate: Option<Rate>,
    pub(super) steady_arrival_rate: Option<Rate>,
}

impl Settings {
    pub(super) fn new(parameters: &Parameters, config: &ControllerConfig, datagram: u64) -> Self {
        Self {
            ceiling: config.ceiling.unwrap_or(Rate::MAX),
            beta: parameters.number("beta"),
            headroom: parameters.number("headroom"),
            rtt_rise: parameters.number("rtt_rise"),
            initial_window: parameters.integer(INITIAL_WINDOW.name) * datagram,
        }
    }
}

/// What is counted in a round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTotals {
    pub(super) acked: u64,
    pub(super) lost: u64,
    /// Of these, those that left since the last probe.
    pub(super) steady: LossCounts,
    pub(super) marked: u64,
    pub(super) runs: u64,
}
