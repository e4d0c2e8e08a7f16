//! From what the engine and the mover counted to the report of a run.

use haul_base::{Cause, CauseCounts, Rate, Span};
use haul_engine::{Counters, Session, Transfer};
use haul_mover::{Failures, MoveReport};
use haul_proto::{ReceiverStats, SenderStats};
use haul_wire::control::{Counted, CountedSending, Fault, MAX_NOTES};

use super::bench::Carried;
use super::drive::Moved;
use super::limits::{self, SenderEvidence};
use super::link::Sides;
use super::{Context, usage};
use crate::output::{CpuSeconds, FileFailure, LimitedBy, Name, Packets, RunReport};

/// Whose processor time the report gives for this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cpu {
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
pub(super) struct Facts {
    cipher: String,
    controller: String,
    round_trip: Span,
    ceiling: Option<Rate>,
    cpu: Cpu,
    /// The other machine, by the name or address that it was reached by; `None` if both sides are on this one.
    pub(super) other: Option<String>,
}

/// What was measured of the data path, and for how long it ran.
struct Measured {
    counters: Option<Counters>,
    data_cpu: Span,
    moving: Span,
}

impl Cpu {
    /// A process that does nothing else.
    pub(super) const ALL: Self = Self::Process { since: Span::ZERO };

    /// A process that goes on after other work.
    pub(super) fn from_now() -> Self {
        Self::Process { since: usage::process_cpu() }
    }

    fn used(self, data_thread: Span) -> Span {
        match self {
            Self::Process { since } => usage::process_cpu().saturating_sub(since),
            Self::DataThread => data_thread,
        }
    }
}

impl Facts {
    pub(super) fn of(session: &Session, cpu: Cpu, other: &impl ToString) -> Self {
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

/// The report of a job that moved files; `elapsed` counts from the first connection.
pub(super) fn of_files(context: &Context, sides: &Sides, moved: Moved, elapsed: Span) -> RunReport {
    let facts = sides.facts();
    let Moved { result, notes, counters, data_cpu, elapsed: moving } = moved;
    let mut report = of_counters(context, facts, &Measured { counters, data_cpu, moving });
    report.elapsed = elapsed;
    match result {
        Ok(done) => add_files(&mut report, &done),
        Err(fault) => {
            fail(&mut report, fault, counters.as_ref());
            report.noted = notes.len() as u64;
            report.notes = notes.into_iter().take(MAX_NOTES).collect();
        }
    }
    report.goodput = Rate::from_transfer(report.bytes - report.resumed_bytes.min(report.bytes), elapsed);
    if facts.other.is_some() {
        report.happened_here();
    }
    complete(report, sides, counters.as_ref())
}

/// The report of a run without files.
pub(super) fn of_memory(context: &Context, sides: &Sides, carried: Carried) -> RunReport {
    let facts = sides.facts();
    let Carried { bytes, counters, data_cpu, elapsed } = carried;
    let mut report = of_counters(context, facts, &Measured { counters, data_cpu, moving: elapsed });
    report.elapsed = elapsed;
    match bytes {
        Ok(bytes) => report.bytes = bytes,
        Err(fault) => fail(&mut report, fault, counters.as_ref()),
    }
    report.goodput = Rate::from_transfer(report.bytes, elapsed);
    complete(report, sides, counters.as_ref())
}

/// Adds what limited it and what the other side has told.
fn complete(mut report: RunReport, sides: &Sides, counters: Option<&Counters>) -> RunReport {
    limit_as_receiver(&mut report, sides.facts(), counters);
    add_other_side(&mut report, sides.theirs(), counters);
    if report.bytes == 0 && report.files == 0 {
        // What delivered nothing was not kept from being faster.
        report.limited_by = None;
    }
    report
}

fn limit_as_receiver(report: &mut RunReport, facts: &Facts, counters: Option<&Counters>) {
    if let (Some(Counters::Receiving(stats)), None) = (counters, &report.error) {
        let drops = u64::from(stats.socket_drops);
        report.limited_by = Some(limits::of_receiver(report.goodput, facts.ceiling, stats.packets, drops));
    }
}

fn of_counters(context: &Context, facts: &Facts, measured: &Measured) -> RunReport {
    let mut report = context.report(RunReport {
        cipher: facts.cipher.clone(),
        rtt: Some(facts.round_trip).filter(|&rtt| rtt > Span::ZERO),
        max_rss: usage::max_rss(),
        capacity: facts.ceiling.map(|rate| (rate, "ceiling")),
        ..RunReport::default()
    });
    report.controller.clone_from(&facts.controller);
    report.fallbacks = usage::fallbacks(&context.settings);
    let own_cpu = Some(facts.cpu.used(measured.data_cpu).as_secs_f64());
    match measured.counters {
        Some(Counters::Sending(sending)) => {
            report.cpu = CpuSeconds { sender: own_cpu, receiver: None };
            add_sending(&mut report, counted_sending(facts, &sending.stats, measured.moving));
        }
        Some(Counters::Receiving(stats)) => {
            report.cpu = CpuSeconds { sender: None, receiver: own_cpu };
            add_receiver(&mut report, &stats);
        }
        None => {}
    }
    report
}

/// What this side tells the other one.
pub(super) fn counted(facts: &Facts, transfer: &Transfer, moving: Span) -> Counted {
    let cpu_us = facts.cpu.used(transfer.cpu()).as_micros();
    let sending = match transfer.counters() {
        Some(Counters::Sending(sending)) => Some(counted_sending(facts, &sending.stats, moving)),
        _ => None,
    };
    Counted { cpu_us, sending }
}

fn counted_sending(facts: &Facts, stats: &SenderStats, moving: Span) -> CountedSending {
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
    limits::of_sender(&SenderEvidence {
        waiting: stats.waiting,
        min_rtt,
        elapsed: moving,
        sent: Rate::from_transfer(stats.datagram_bytes, moving),
        peak_delivery: Rate::from_bps(stats.peak_delivery_bps),
        ceiling: facts.ceiling,
        packets: stats.packets,
        lost: stats.lost,
        lost_by_host: stats.lost_by_cause.of(Cause::ReceiverHost),
        receiver_drops: u64::from(stats.receiver_drops),
    })
}

/// Fills in what the other side has told and this side cannot know.
fn add_other_side(report: &mut RunReport, theirs: Option<Counted>, counters: Option<&Counters>) {
    let Some(theirs) = theirs else { return };
    let cpu = Some(theirs.cpu_us as f64 / 1e6);
    match (counters, theirs.sending) {
        (Some(Counters::Sending(_)), _) => report.cpu.receiver = cpu,
        (Some(Counters::Receiving(_)), Some(sending)) => {
            report.cpu.sender = cpu;
            add_sending(report, sending);
        }
        _ => {}
    }
}

/// Losses without a cause are inconclusive. A peer may say anything.
fn causes(sending: &CountedSending) -> CauseCounts {
    let told = [
        (Cause::ReceiverHost, sending.lost_by_host),
        (Cause::Congestion, sending.lost_by_congestion),
        (Cause::Random, sending.lost_by_random),
        (Cause::Outage, sending.lost_by_outage),
        (Cause::Inconclusive, u64::MAX),
    ];
    let mut left = sending.lost;
    let of_what_is_left = told.map(|(cause, packets)| {
        let packets = packets.min(left);
        left -= packets;
        (cause, packets)
    });
    of_what_is_left.into_iter().collect()
}

fn add_sending(report: &mut RunReport, sending: CountedSending) {
    if sending.min_rtt_us > 0 {
        report.rtt = Some(Span::from_micros(sending.min_rtt_us));
    }
    report.packets = Packets { sent: sending.packets, resent: sending.resent };
    report.lost = causes(&sending);
    let peak = Rate::from_bps(sending.peak_delivery_bps);
    if report.capacity.is_none() && peak > Rate::ZERO {
        report.capacity = Some((peak, "measured path"));
    }
    let limit = LimitedBy { what: sending.limited_by, evidence: sending.evidence };
    report.limited_by = Some(limit).filter(|limit| !limit.what.is_empty());
}

/// A receiver sees what arrived, not what was sent.
fn add_receiver(report: &mut RunReport, stats: &ReceiverStats) {
    report.packets = Packets { sent: stats.packets + stats.duplicates, resent: stats.duplicates };
    report.lost.add(Cause::ReceiverHost, u64::from(stats.socket_drops));
}

fn add_files(report: &mut RunReport, done: &MoveReport) {
    report.bytes = done.bytes;
    report.files = done.files;
    report.kept_files = done.kept;
    report.deleted_files = done.removal.removed;
    report.not_deleted.clone_from(&done.removal.fault);
    report.resumed_bytes = done.resumed_bytes;
    report.hard_links = done.hard_links;
    (report.notes, report.noted) = (done.notes.first.clone(), done.notes.count);
    report.digest = Some(hex(&done.digest));
    report.failed_files = done.failures.count();
    report.failed = done.failures.named().iter().map(|named| failure(named, &done.failures)).collect();
    report.files_exit_code = Some(done.exit_code()).filter(|&code| code != 0);
    report.files_fault = done.fault();
}

fn failure((path, fault): &(Vec<u8>, Fault), all: &Failures) -> FileFailure {
    FileFailure { machine: None, path: Name(path.clone()), fault: fault.clone(), below: all.below(path) }
}

fn fail(report: &mut RunReport, fault: Fault, counters: Option<&Counters>) {
    report.error = Some(fault);
    report.bytes = match counters {
        Some(Counters::Sending(sending)) => sending.stats.object_acked,
        Some(Counters::Receiving(stats)) => stats.object_bytes,
        None => 0,
    };
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_in_hexadecimal() {
        assert_eq!(hex(&[0, 0xab, 0x10]), "00ab10");
    }
}
