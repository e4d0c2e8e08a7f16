//! The report of a run, from the counters of the engine and the mover.

use data_encoding::HEXLOWER;
use haul_base::{Cause, Rate, Span};
use haul_engine::Counters;
use haul_host::peak_memory;
use haul_mover::MoveReport;
use haul_proto::{Limit, limit_of_receiver};
use haul_wire::control::{CountedSending, Fault, FaultCode, MAX_NOTES};

use crate::fault;
use crate::output::{CpuSeconds, FileFailure, Packets, RunReport};
use crate::transfer::watch::Measured;
use crate::transfer::{Sides, counters};

/// Limits that follow from waiting times, which after a loss of contact may mean the peer.
const WAIT_LIMITS: [&str; 4] = ["receiver_storage", "sender_storage", "receiver_share", "round_trips"];

/// Returns the report of a job that moved files; `notes` are those of a failed job, which has no report.
pub(crate) fn of_files(
    sides: &Sides,
    result: Result<MoveReport, Fault>,
    notes: Vec<String>,
    measured: &Measured,
) -> RunReport {
    let mut report = of_measured(sides, measured);
    match result {
        Ok(done) => add_files(&mut report, &done),
        Err(fault) => {
            fail(&mut report, fault, measured);
            report.noted = notes.len() as u64;
            report.notes = notes.into_iter().take(MAX_NOTES).collect();
        }
    }
    if sides.peer_name.is_some() {
        report.each_fault(|fault| *fault = fault::on_this_machine(fault.clone()));
    }
    complete(report, sides.began.elapsed().into(), sides, measured)
}

pub(crate) fn of_memory(sides: &Sides, bytes: Result<u64, Fault>, measured: &Measured) -> RunReport {
    let mut report = of_measured(sides, measured);
    match bytes {
        Ok(bytes) => report.bytes = bytes,
        Err(fault) => fail(&mut report, fault, measured),
    }
    complete(report, measured.moving, sides, measured)
}

fn complete(mut report: RunReport, elapsed: Span, sides: &Sides, measured: &Measured) -> RunReport {
    let counters = measured.counters.as_ref();
    report.elapsed = elapsed;
    report.goodput = Rate::from_transfer(report.bytes.saturating_sub(report.resumed_bytes), elapsed);
    let mut ceiling = sides.ceiling;
    for (name, value) in &measured.requested {
        match name.as_str() {
            "controller" => report.controller.clone_from(value),
            "rate" => (ceiling, report.capacity) = (None, None),
            _ => {}
        }
    }
    let theirs = sides.theirs();
    let their_cpu = theirs.as_ref().map(|theirs| theirs.cpu_us as f64 / 1e6);
    match counters {
        Some(Counters::Sending(_)) => report.cpu.receiver = their_cpu,
        Some(Counters::Receiving(stats)) => {
            if report.error.is_none() && report.goodput > Rate::ZERO {
                let drops = u64::from(stats.socket_drops);
                report.limited_by = Some(limit_of_receiver(report.goodput, ceiling, stats.packets, drops));
            }
            if let Some(sending) = theirs.and_then(|theirs| theirs.sending) {
                report.cpu.sender = their_cpu;
                add_sending(&mut report, sending);
            }
        }
        None => {}
    }
    if report.bytes == 0 && report.files == 0 {
        report.limited_by = None;
    }
    report
}

fn of_measured(sides: &Sides, measured: &Measured) -> RunReport {
    let mut report = sides.context.report(RunReport {
        cipher: sides.cipher.clone(),
        rtt: Some(sides.round_trip).filter(|&rtt| rtt > Span::ZERO),
        max_rss: peak_memory(),
        capacity: sides.ceiling.map(|rate| (rate, "ceiling".into())),
        ..RunReport::default()
    });
    report.controller.clone_from(&sides.controller);
    report.fallbacks = counters::fallbacks(&sides.context.settings).to_vec();
    let own_cpu = Some(sides.context.cpu.used(measured.data_cpu).as_secs_f64());
    match measured.counters {
        Some(Counters::Sending(sending)) => {
            report.cpu = CpuSeconds { sender: own_cpu, receiver: None };
            if let Some(law) = sending.stats.law {
                law.name.clone_into(&mut report.controller);
            }
            let ceiling = counters::ceiling_of_all(&sending.stats, sides.ceiling);
            report.capacity = ceiling.map(|rate| (rate, "ceiling".into()));
            report.longest_read_delay = sending.stats.receiver_host.longest_read_delay;
            add_sending(&mut report, sides.counted_sending(&sending.stats, measured.moving));
        }
        Some(Counters::Receiving(stats)) => {
            report.cpu = CpuSeconds { sender: None, receiver: own_cpu };
            // A receiver knows only the packets that arrived.
            let (sent, resent) = (stats.packets + stats.duplicates, stats.duplicates);
            report.packets = Packets { sent, resent };
            report.lost.add(Cause::ReceiverHost, u64::from(stats.socket_drops));
        }
        None => {}
    }
    report
}

fn add_sending(report: &mut RunReport, sending: CountedSending) {
    if sending.min_rtt_us > 0 {
        report.rtt = Some(Span::from_micros(sending.min_rtt_us));
    }
    report.packets = Packets { sent: sending.packets, resent: sending.resent };
    report.lost = sending.causes();
    let peak = Rate::from_bps(sending.peak_delivery_bps);
    if report.capacity.is_none() && peak > Rate::ZERO {
        report.capacity = Some((peak, "measured path".into()));
    }
    let limit = Limit { what: sending.limited_by.into(), evidence: sending.evidence };
    report.limited_by = Some(limit).filter(|limit| !limit.what.is_empty());
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
    report.digest = Some(HEXLOWER.encode(&done.digest));
    report.failed_files = done.failures.count();
    let failure = |(path, fault): &(Vec<u8>, Fault)| {
        let below = done.failures.below(path);
        FileFailure { machine: None, path: path.clone(), fault: fault.clone(), below }
    };
    report.failed = done.failures.named().iter().map(failure).collect();
    report.files_exit_code = Some(done.exit_code()).filter(|&code| code != 0);
    report.files_fault = done.fault();
}

fn fail(report: &mut RunReport, fault: Fault, measured: &Measured) {
    if matches!(fault.code, FaultCode::ControlLost | FaultCode::PeerSilent) {
        report.limited_by.take_if(|limit| WAIT_LIMITS.contains(&&*limit.what));
    }
    report.error = Some(fault);
    report.bytes = counters::arrived_bytes(measured.counters.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_contact_clears_limits_that_come_from_waiting() {
        let limit_after = |code, what: &str| {
            let limit = Limit { what: what.to_owned().into(), evidence: String::new() };
            let mut report = RunReport { limited_by: Some(limit), ..RunReport::default() };
            fail(&mut report, Fault::new(code, "no", ""), &Measured::default());
            report.limited_by.map(|limit| limit.what)
        };
        assert_eq!(limit_after(FaultCode::ControlLost, "receiver_storage"), None);
        assert_eq!(limit_after(FaultCode::PeerSilent, "sender_storage"), None);
        assert_eq!(limit_after(FaultCode::ControlLost, "rate_ceiling").as_deref(), Some("rate_ceiling"));
        assert_eq!(limit_after(FaultCode::DiskFull, "receiver_storage").as_deref(), Some("receiver_storage"));
    }
}
