//! Several machines send to this one at the same time; if there is a rate limit, each gets a share of it.

use std::thread;

use haul_base::{Bytes, Cause, Rate};
use haul_host::peak_memory;
use haul_mover::{SOME_FAILED, create_directory};
use haul_proto::{Limit, UNSEEN_LIMIT, limit_of_receiver};
use haul_wire::control::{Fault, FaultCode, MAX_NOTES, RunMode};

use crate::output::{FileFailure, Progress, ProgressStyle, RunReport, machine_prefix};
use crate::transfer::{Context, CopyPlan, Quotas};

pub(crate) fn copy_all(
    context: &Context,
    plan: &CopyPlan,
    copy: impl Fn(&Context, &CopyPlan) -> RunReport + Sync,
) -> RunReport {
    let crashed = || RunReport::failed(Fault::new(FaultCode::Internal, "a copy has crashed", ""));
    let is_dry_run = context.transfer.receive_policy.run == RunMode::ListChanges;
    if !is_dry_run && let Err(fault) = create_directory(&plan.path) {
        return context.failed(fault);
    }
    let plans = plan.of_each_machine();
    let parts = Progress::several(&context.style, plans.len());
    // The rate limit applies to all machines together.
    let quotas = Quotas::new(context.settings.rate());
    let copy = &copy;
    let reports: Vec<MachineReport> = thread::scope(|scope| {
        let running = plans.iter().zip(&parts).map(|(plan, part)| {
            let (machine, part) = (plan.sources[0].0.name(), part.clone());
            let each = Context {
                quotas: quotas.clone(),
                events: context.events.of(&machine),
                on_negotiated: None,
                style: ProgressStyle::Part(part.clone()),
                ..context.clone()
            };
            let running = thread::Builder::new().spawn_scoped(scope, move || {
                let report = copy(&each, plan);
                part.finish();
                if !is_dry_run {
                    each.inform(summary_of(plan, &report));
                }
                report
            });
            (machine, running)
        });
        let running: Vec<_> = running.collect();
        let ended = running.into_iter().map(|(machine, thread)| MachineReport {
            machine,
            report: match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| crashed()),
                Err(error) => context.failed(crate::fault::io("cannot start a thread", &error)),
            },
        });
        ended.collect()
    });
    parts.iter().for_each(Progress::finish);
    combined(context.report(RunReport::default()), context.settings.rate(), reports)
}

fn summary_of(plan: &CopyPlan, report: &RunReport) -> String {
    let what = plan.actions().first().cloned().unwrap_or_default();
    match &report.error {
        Some(error) => format!("{what}: failed: {}{}", machine_prefix(error), error.message),
        None if report.is_nothing_done() => format!("{what}: failed, nothing was moved"),
        None if report.is_nothing_to_do() => format!("{what}: nothing to send"),
        None => format!("{what}: {}", report.moved()),
    }
}

pub(crate) struct MachineReport {
    pub(crate) machine: String,
    pub(crate) report: RunReport,
}

/// Adds up reports. `sum` contains the names of preset and law; `ceiling` limited all together.
pub(crate) fn combined(mut sum: RunReport, ceiling: Option<Rate>, all: Vec<MachineReport>) -> RunReport {
    let mut ciphers = Vec::new();
    let mut controllers = Vec::new();
    for MachineReport { report, .. } in &all {
        add_counts(&mut sum, report);
        add_once(&mut ciphers, &report.cipher);
        if !report.cipher.is_empty() {
            add_once(&mut controllers, &report.controller);
        }
        report.fallbacks.iter().for_each(|fallback| add_once(&mut sum.fallbacks, fallback));
    }
    sum.cipher = ciphers.join(", ");
    if !controllers.is_empty() {
        sum.controller = controllers.join(", ");
    }
    sum.max_rss = peak_memory();
    sum.goodput = Rate::from_transfer(sum.bytes - sum.resumed_bytes.min(sum.bytes), sum.elapsed);
    sum.capacity = ceiling.map(|rate| (rate, "ceiling".into()));
    // Only if one machine has any: the output describes those of several.
    let mut files_faults = all.iter().filter_map(|one| one.report.files_fault.as_ref());
    sum.files_fault = files_faults.next().filter(|_| files_faults.next().is_none()).cloned();
    sum.files_exit_code = exit_code(&all);
    sum.error = fault(&all);
    sum.digest = digest(&all);
    sum.limited_by = limit(&sum, ceiling, &all);
    for MachineReport { machine, report } in all {
        let with_machine = |failure| FileFailure { machine: Some(machine.clone()), ..failure };
        sum.failed.extend(report.failed.into_iter().map(with_machine));
        sum.notes.extend(report.notes);
        sum.not_deleted = sum.not_deleted.or(report.not_deleted);
    }
    sum.notes.truncate(MAX_NOTES);
    sum
}

fn add_counts(sum: &mut RunReport, report: &RunReport) {
    sum.bytes += report.bytes;
    sum.files += report.files;
    sum.kept_files += report.kept_files;
    sum.deleted_files += report.deleted_files;
    sum.hard_links += report.hard_links;
    sum.resumed_bytes += report.resumed_bytes;
    sum.failed_files += report.failed_files;
    sum.noted += report.noted;
    sum.packets.sent += report.packets.sent;
    sum.packets.resent += report.packets.resent;
    sum.lost.merge(&report.lost);
    sum.elapsed = sum.elapsed.max(report.elapsed);
    sum.rtt = sum.rtt.into_iter().chain(report.rtt).min();
    sum.cpu.sender = report.cpu.sender.map(|one| sum.cpu.sender.unwrap_or_default() + one).or(sum.cpu.sender);
    // All share the receiving process: the last one to end reports its total.
    sum.cpu.receiver = sum.cpu.receiver.into_iter().chain(report.cpu.receiver).reduce(f64::max);
}

fn add_once(known: &mut Vec<String>, word: &str) {
    if !word.is_empty() && !known.iter().any(|other| other == word) {
        known.push(word.to_owned());
    }
}

/// Returns the code that all failures share, if every machine failed or if it means that sources changed or
/// verification failed; otherwise `SOME_FAILED`. An interruption takes precedence; `None` without failures.
fn exit_code(all: &[MachineReport]) -> Option<u8> {
    const PARTIAL_FAILURE_CODES: [FaultCode; 2] = [FaultCode::SourceChanged, FaultCode::VerifyFailed];
    if let Some(interrupted) = interrupted(all) {
        return Some(interrupted.code.exit_code());
    }
    let failed: Vec<u8> = all.iter().map(|one| one.report.exit_code()).filter(|&code| code != 0).collect();
    let first = *failed.first()?;
    let all_equal = failed.iter().all(|&code| code == first);
    let is_partial_code = PARTIAL_FAILURE_CODES.iter().any(|code| code.exit_code() == first);
    Some(if all_equal && (is_partial_code || failed.len() == all.len()) { first } else { SOME_FAILED })
}

/// Returns the interruption, if any: it counts for all machines, even if some had ended before.
fn interrupted(all: &[MachineReport]) -> Option<&Fault> {
    let mut errors = all.iter().filter_map(|one| one.report.error.as_ref());
    errors.find(|error| error.code == FaultCode::Interrupted)
}

/// Returns one fault for all machines whose copy failed as a whole.
fn fault(all: &[MachineReport]) -> Option<Fault> {
    if let Some(interrupted) = interrupted(all) {
        return Some(interrupted.clone());
    }
    let failed: Vec<(&str, &Fault)> =
        all.iter().filter_map(|one| Some((one.machine.as_str(), one.report.error.as_ref()?))).collect();
    let (machine, first) = failed.first()?;
    let more = if failed.len() > 1 { "; the first is " } else { ": " };
    let message =
        format!("{} of {} machines failed{more}{machine}: {}", failed.len(), all.len(), first.message);
    let retryable = failed.iter().all(|(_, fault)| fault.retryable);
    Some(Fault { message, retryable, ..(*first).clone() })
}

/// Returns the BLAKE3 hash of the concatenated hexadecimal digests; `None` if one is missing.
fn digest(all: &[MachineReport]) -> Option<String> {
    let digests: Option<String> = all.iter().map(|one| one.report.digest.as_deref()).collect();
    Some(blake3::hash(digests?.as_bytes()).to_hex().to_string())
}

/// Returns a limit of this machine or the common ceiling; otherwise the limit of the slowest copy.
fn limit(sum: &RunReport, ceiling: Option<Rate>, all: &[MachineReport]) -> Option<Limit> {
    let slowest =
        all.iter().filter(|one| one.report.limited_by.is_some()).max_by_key(|one| one.report.elapsed)?;
    let common = limit_of_receiver(sum.goodput, ceiling, sum.packets.sent, sum.lost.of(Cause::ReceiverHost));
    if common.what != UNSEEN_LIMIT {
        return Some(common);
    }
    let Limit { what, evidence } = slowest.report.limited_by.clone()?;
    let bytes = Bytes(slowest.report.bytes);
    let evidence = format!("{}, which took longest for {bytes}: {evidence}", slowest.machine);
    Some(Limit { what, evidence })
}

#[cfg(test)]
mod tests {
    use haul_base::Span;

    use super::*;
    use crate::output::{CpuSeconds, Packets};

    /// A machine that sent 10 MB in one file.
    fn done(machine: &str, seconds: u64) -> MachineReport {
        let report = RunReport {
            bytes: 10_000_000,
            files: 1,
            elapsed: Span::from_secs(seconds),
            rtt: Some(Span::from_millis(10 * seconds)),
            controller: "delivery".to_owned(),
            cipher: "aes-128-gcm".to_owned(),
            packets: Packets { sent: 1000, resent: 10 },
            lost: [Cause::Random, Cause::Congestion, Cause::Outage, Cause::Inconclusive]
                .into_iter()
                .zip(1..)
                .collect(),
            limited_by: Some(Limit {
                what: format!("limit of {machine}").into(),
                evidence: "seen".to_owned(),
            }),
            digest: Some("ab".repeat(32)),
            cpu: CpuSeconds { sender: Some(1.0), receiver: Some(seconds as f64) },
            max_rss: Some(1),
            ..RunReport::default()
        };
        MachineReport { machine: machine.to_owned(), report }
    }

    fn failed(machine: &str, code: FaultCode) -> MachineReport {
        MachineReport {
            machine: machine.to_owned(),
            report: RunReport::failed(Fault::new(code, "no", "hint")),
        }
    }

    /// Of two files of this machine, one failed.
    fn partial(machine: &str, exit_code: u8) -> MachineReport {
        let fault = Fault::new(FaultCode::Unreadable, "closed", "");
        let mut one = done(machine, 1);
        one.report.failed =
            vec![FileFailure { machine: None, path: b"x".to_vec(), fault: fault.clone(), below: 0 }];
        (one.report.failed_files, one.report.files_exit_code) = (1, Some(exit_code));
        one.report.files_fault = Some(fault);
        one
    }

    fn sum(all: Vec<MachineReport>) -> RunReport {
        combined(RunReport::default(), None, all)
    }

    #[test]
    fn the_combined_report_sums_up_all_machines() {
        let report = sum(vec![done("a", 2), done("b", 4), done("c", 1)]);
        assert_eq!((report.bytes, report.files, report.exit_code()), (30_000_000, 3, 0));
        assert_eq!((report.elapsed, report.rtt), (Span::from_secs(4), Some(Span::from_millis(10))));
        assert_eq!(report.goodput, Rate::from_mbps(60));
        assert_eq!(report.cpu, CpuSeconds { sender: Some(3.0), receiver: Some(4.0) });
        assert_eq!(
            (report.packets.sent, report.lost.of(Cause::Congestion), report.lost.of(Cause::Outage)),
            (3000, 6, 9)
        );
        assert_eq!((report.cipher.as_str(), report.controller.as_str()), ("aes-128-gcm", "delivery"));
        let limit = report.limited_by.as_ref().unwrap();
        assert_eq!(limit.what, "limit of b");
        assert!(limit.evidence.starts_with("b, which took longest"), "{limit:?}");
        assert!(report.max_rss.is_some() && report.digest.is_some() && report.is_ok());
        let capped =
            combined(RunReport::default(), Some(Rate::from_mbps(62)), vec![done("a", 2), done("b", 2)]);
        assert_eq!(capped.limited_by.unwrap().what, "rate_ceiling");
    }

    #[test]
    fn the_exit_code_is_3_unless_all_failed_alike() {
        use FaultCode::{Interrupted, NotAuthorised, Unreachable};
        for (all, code) in [
            (vec![failed("a", Unreachable), failed("b", Unreachable)], 5),
            (vec![failed("a", Unreachable), failed("b", NotAuthorised)], 3),
            (vec![done("a", 1), failed("b", Unreachable)], 3),
            (vec![done("a", 1), partial("b", 7)], 3),
            (vec![partial("a", 7), partial("b", 7)], 7),
            (vec![done("a", 1), partial("b", 8)], 8),
            (vec![failed("a", Unreachable), partial("b", 8)], 3),
            (vec![done("a", 1), failed("b", Interrupted), partial("c", 7)], 130),
        ] {
            let names: Vec<&str> = all.iter().map(|one| one.machine.as_str()).collect();
            let shown = format!("{names:?}: {code}");
            let report = sum(all);
            assert_eq!(report.exit_code(), code, "{shown}");
            assert!(!report.is_ok(), "{shown}");
        }
    }

    #[test]
    fn failures_name_their_machine() {
        use FaultCode::{NotAuthorised, Unreachable};
        let report = sum(vec![done("a", 1), failed("far:1", Unreachable)]);
        let error = report.error.unwrap();
        assert_eq!(
            (error.message.as_str(), error.hint.as_str()),
            ("1 of 2 machines failed: far:1: no", "hint")
        );
        assert_eq!((report.bytes, report.digest), (10_000_000, None));
        let error = sum(vec![failed("a", Unreachable), failed("b", NotAuthorised)]).error.unwrap();
        assert_eq!(error.message, "2 of 2 machines failed; the first is a: no");
        let report = sum(vec![done("a", 1), partial("b", 3)]);
        assert_eq!((report.failed_files, report.files_fault.unwrap().message.as_str()), (1, "closed"));
        let report = sum(vec![partial("a", 3), partial("b", 3)]);
        assert!(report.files_fault.is_none());
        let machines: Vec<_> = report.failed.iter().map(|one| one.machine.as_deref()).collect();
        assert_eq!(machines, [Some("a"), Some("b")]);
        assert!(report.failures().as_str().starts_with("failed: x from a: closed\n"));
    }

    #[test]
    fn the_combined_report_keeps_skipped_deletions_and_notes() {
        let mut one = done("a", 1);
        one.report.not_deleted = Some(Fault::new(FaultCode::NotPermitted, "too many", ""));
        let mut other = done("b", 1);
        (other.report.notes, other.report.noted) = (vec!["owner".to_owned(); 15], 15);
        one.report.notes.clone_from(&other.report.notes);
        one.report.noted = 15;
        let report = sum(vec![one, other]);
        assert_eq!((report.exit_code(), report.not_deleted.is_some()), (3, true));
        assert_eq!((report.notes.len(), report.noted), (MAX_NOTES, 30));
    }
}
