//! State of the law besides its models of the path, in groups.

use haul_base::{Rate, Rng, Span, Time};

use super::loss::LossCounts;
use super::parameters::BbrConfig;
use crate::control::ControllerConfig;

/// Settings from the recipe and the session.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) ceiling: Rate,
    pub(super) beta: f64,
    pub(super) headroom: f64,
    pub(super) rtt_rise: f64,
    pub(super) initial_window: u64,
}

/// Packet counts since the session began.
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
    /// Highest rate sample and volume of the current round (the draft's `bw_latest` and `inflight_latest`).
    pub(super) latest: (Rate, u64),
    /// The same of the previous round.
    pub(super) last: (Rate, u64),
    /// Whether the window was full in this round and in the previous one.
    pub(super) is_full: [bool; 2],
}

/// When packets were last sent and feedback last arrived, and the consequences of longer pauses.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    pub(super) sent_at: Time,
    pub(super) feedback_at: Time,
    /// Sending resumes after idleness or silence, which has drained the queue.
    pub(super) is_restart: bool,
    pub(super) in_outage: bool,
    /// Losses of packets below this number are ignored.
    pub(super) ignore_below: u64,
}

/// Detection of losses that depend on the rate, as a policer's do ([`trial`](super::trial)).
#[derive(Debug, Default)]
pub(super) struct PolicerSearch {
    pub(super) trial: Option<Trial>,
    /// Until then, a recent trial's result holds: traffic above a rate is lost.
    pub(super) policed_until: Time,
    /// First packet sent since the last probe.
    pub(super) steady_pn: u64,
    /// Last measured rate of arrival, and the last one between probes.
    pub(super) arrival_rate: Option<Rate>,
    pub(super) steady_arrival_rate: Option<Rate>,
}

/// Trial whether losses stop at a lower rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// Loss rate to test, mean length of its runs of losses, and the rate of arrival at that time.
    pub(super) loss_rate: f64,
    pub(super) mean_run: f64,
    pub(super) arrival_rate: Rate,
    /// Range of its packets; it ends where `ProbeBW_DOWN` does.
    pub(super) first_pn: u64,
    pub(super) end_pn: Option<u64>,
    /// Losses among them.
    pub(super) lost: LossCounts,
    /// Next packet number when the current round began.
    pub(super) round_pn: u64,
}

/// Counts of a round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTotals {
    pub(super) acked: u64,
    pub(super) lost: u64,
    /// Losses among packets sent since the last probe.
    pub(super) steady: LossCounts,
    pub(super) marked: u64,
    pub(super) runs: u64,
}

/// Relation of acknowledgements to a probe (the draft's `ack_phase`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acks {
    /// No probe.
    Init,
    Refilling,
    /// A probe has begun, and none of its packets is acknowledged yet.
    Starting,
    Feedback,
    /// The probe has ended, and some of its packets are still being acknowledged.
    Stopping,
}

/// State of the cycle of bandwidth probes.
#[derive(Debug)]
pub(super) struct Cycle {
    pub(super) least_wait: Span,
    /// Time to wait for the next probe, and since when.
    pub(super) wait: Span,
    pub(super) began: Time,
    pub(super) rounds: u64,
    pub(super) acks: Acks,
    /// Whether feedback is of a probe that has not been judged too high yet.
    pub(super) is_probe_sample: bool,
    pub(super) was_too_high: bool,
    /// How often extra probes of the round trip have postponed the next bandwidth probe.
    pub(super) postponed: u32,
    pub(super) was_precautionary: bool,
    /// Rounds in `ProbeBW_DOWN`.
    pub(super) down_rounds: u32,
    pub(super) up_rounds: u32,
    pub(super) up_acked: u64,
    /// Bytes to be acknowledged before the long-term bound grows by a packet.
    pub(super) up_per_packet: u64,
    /// Bandwidth at the start of the probe.
    pub(super) before: Rate,
    pub(super) rng: Option<Rng>,
}

/// A probe of the minimum round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RttProbe {
    /// Since when little enough is in flight, and the minimum round-trip time since.
    pub(super) drained: Option<(Time, Span)>,
    /// Whether a round has ended since.
    pub(super) round_done: bool,
    /// Cause of an extra probe: minimum round-trip time of the previous round, and the delivery rate then.
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
