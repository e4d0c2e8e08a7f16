//! The law's state besides its models of the path, in groups.

use haul_base::{Rate, Rng, Span, Time};

use super::loss::LossCounts;
use super::parameters::BbrConfig;
use crate::control::ControllerConfig;

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

/// Whether losses stop at a lower rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// The loss rate that is tried, the mean length of its runs of losses, and the rate of arrival beside it.
    pub(super) loss_rate: f64,
    pub(super) mean_run: f64,
    pub(super) arrival_rate: Rate,
    /// Its packets: they end where `ProbeBW_DOWN` does.
    pub(super) first_pn: u64,
    pub(super) end_pn: Option<u64>,
    /// What of them was lost.
    pub(super) lost: LossCounts,
    /// Packets before this one had left when the present round began.
    pub(super) round_pn: u64,
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

/// What acknowledgements tell of a probe (the draft's `ack_phase`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acks {
    /// Not of a probe.
    Init,
    Refilling,
    /// A probe has begun, and nothing of it has arrived yet.
    Starting,
    Feedback,
    /// It has ended, and what left in it still arrives.
    Stopping,
}

/// Where the cycle of probes for bandwidth is.
#[derive(Debug)]
pub(super) struct Cycle {
    pub(super) least_wait: Span,
    /// How long to wait for the next probe, and since when.
    pub(super) wait: Span,
    pub(super) began: Time,
    pub(super) rounds: u64,
    pub(super) acks: Acks,
    /// Feedback is of a probe that has not been judged too high yet.
    pub(super) is_probe_sample: bool,
    pub(super) was_too_high: bool,
    /// How often probes of the round trip out of turn have put off the next probe for bandwidth.
    pub(super) postponed: u32,
    pub(super) was_precautionary: bool,
    /// Rounds in `ProbeBW_DOWN`.
    pub(super) down_rounds: u32,
    pub(super) up_rounds: u32,
    pub(super) up_acked: u64,
    /// Bytes acknowledged for which the long-term bound grows by a packet.
    pub(super) up_per_packet: u64,
    /// Bandwidth at the start of the probe.
    pub(super) before: Rate,
    pub(super) rng: Option<Rng>,
}

/// A probe of the least round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RttProbe {
    /// Little enough has been in flight since then, and the least round trip from then on.
    pub(super) drained: Option<(Time, Span)>,
    /// A round has passed since.
    pub(super) round_done: bool,
    /// Why it was made out of turn: the least round trip of the round before it, and what was delivered then.
    pub(super) raised: Option<(Span, Rate)>,
}

impl Settings {
    pub(super) fn new(parameters: &BbrConfig, config: &ControllerConfig, datagram: u64) -> Self {
        Self {
            ceiling: config.ceiling.unwrap_or(Rate::MAX),
            beta: parameters.beta,
            headroom: parameters.headroom,
            rtt_rise: parameters.rtt_rise,
            initial_window: parameters.initial_window * datagram,
        }
    }
}
