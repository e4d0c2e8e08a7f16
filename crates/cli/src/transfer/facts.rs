//! What a session is, and what this side counts of it.

use haul_base::{Cause, Rate, Span};
use haul_engine::{Counters, Session, Transfer};
use haul_proto::{Limit, LimitEvidence, SenderStats, limit_of_sender};
use haul_wire::control::{Counted, CountedSending};

use crate::output::LimitedBy;
use crate::transfer::usage;

/// Whose processor time the report gives for this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cpu {
    /// The whole process, from when it had used this much.
    Process {
        /// What other work had used before.
        since: Span,
    },
    /// The data thread, as both sides share the process.
    DataThread,
}

/// What a session was, besides what it moved.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) cipher: String,
    pub(crate) controller: String,
    pub(crate) round_trip: Span,
    pub(crate) ceiling: Option<Rate>,
    pub(crate) cpu: Cpu,
    /// The other machine, by the name or address that it was reached by; `None` if both sides are on this one.
    pub(crate) other: Option<String>,
}

impl Cpu {
    /// A process that does nothing else.
    pub(crate) const ALL: Self = Self::Process { since: Span::ZERO };

    /// A process that goes on after other work.
    pub(crate) fn from_now() -> Self {
        Self::Process { since: usage::process_cpu() }
    }

    pub(crate) fn used(self, data_thread: Span) -> Span {
        match self {
            Self::Process { since } => usage::process_cpu().saturating_sub(since),
            Self::DataThread => data_thread,
        }
    }
}

impl Facts {
    pub(crate) fn of(session: &Session, cpu: Cpu, other: &impl ToString) -> Self {
        Self {
            cpu,
            other: (cpu != Cpu::DataThread).then(|| other.to_string()),
            cipher: session.cipher().to_string(),
            controller: session.settings().controller.clone(),
            round_trip: session.round_trip(),
            ceiling: session.settings().rate_bps.map(Rate::from_bps),
        }
    }
}

/// What this side tells the other one.
pub(crate) fn counted(facts: &Facts, transfer: &Transfer, moving: Span) -> Counted {
    let cpu_us = facts.cpu.used(transfer.cpu()).as_micros();
    let sending = match transfer.counters() {
        Some(Counters::Sending(sending)) => Some(counted_sending(facts, &sending.stats, moving)),
        _ => None,
    };
    Counted { cpu_us, sending }
}

pub(crate) fn counted_sending(facts: &Facts, stats: &SenderStats, moving: Span) -> CountedSending {
    let limit = limit_as_sender(facts, stats, moving).map(|LimitedBy { what, evidence }| (what, evidence));
    let (limited_by, evidence) = limit.unwrap_or_default();
    CountedSending {
        packets: stats.packets,
        resent: stats.resent,
        lost: stats.lost,
        lost_by_host: stats.lost_by_cause.of(Cause::ReceiverHost),
        lost_by_congestion: stats.lost_by_cause.of(Cause::Congestion),
        lost_by_random: stats.lost_by_cause.of(Cause::Random),
        lost_by_outage: stats.lost_by_cause.of(Cause::Outage),
        min_rtt_us: stats.min_rtt.as_micros(),
        peak_delivery_bps: stats.peak_delivery_bps,
        limited_by,
        evidence,
    }
}

fn limit_as_sender(facts: &Facts, stats: &SenderStats, moving: Span) -> Option<LimitedBy> {
    let min_rtt = if stats.min_rtt > Span::ZERO { stats.min_rtt } else { facts.round_trip };
    let found = limit_of_sender(&LimitEvidence {
        waiting: stats.waiting,
        silent: stats.silent,
        min_rtt,
        elapsed: moving,
        sent: Rate::from_transfer(stats.datagram_bytes, moving),
        peak_delivery: Rate::from_bps(stats.peak_delivery_bps),
        ceiling: stats.law.map_or(facts.ceiling, |law| law.ceiling),
        packets: stats.packets,
        lost: stats.lost,
        lost_by_cause: stats.lost_by_cause,
        receiver_drops: u64::from(stats.receiver_drops),
    });
    found.map(|Limit { what, evidence }| LimitedBy { what: what.to_owned(), evidence })
}
