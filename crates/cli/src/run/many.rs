//! Several machines send to this one at the same time, each at the rate that it is allotted.

use std::thread;

use haul_base::Rate;
use haul_wire::control::{Fault, FaultCode};

use super::Context;
use super::allot::Allotments;
use super::copy::{self, How};
use super::plan::CopyPlan;
use crate::output::{EventLog, ProgressStyle, RunReport, Summary};
use crate::ssh::SshPlan;

/// Copies from all of them and adds up what comes of it.
pub(super) fn copy_all(context: &Context, plans: &[CopyPlan], how: How<'_>) -> RunReport {
    if let Some(fault) = without_destination(plans) {
        return context.failed(fault);
    }
    // What one may not exceed, all together must not.
    let each = Context {
        settings: context.settings.clone(),
        named: context.named.clone(),
        manners: context.manners,
        growth: context.growth,
        items: context.items.clone(),
        preserve: context.preserve,
        allotments: Allotments::new(context.settings.rate),
        cancel: context.cancel.clone(),
        events: EventLog::none(),
        style: ProgressStyle::Hidden,
        quiet: context.quiet,
        json: context.json,
        options: context.options.clone(),
    };
    let reports: Vec<RunReport> = thread::scope(|scope| {
        let one = |plan| {
            let each = &each;
            scope.spawn(move || {
                let report = copy::one(each, plan, how);
                context.say(&format!("{}: {}", from(plan), Summary(&report).moved()));
                report
            })
        };
        let running: Vec<_> = plans.iter().map(one).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| crashed())).collect()
    });
    added_up(context, reports)
}

/// The destination is a directory, which is made once.
fn without_destination(plans: &[CopyPlan]) -> Option<Fault> {
    let to = plans.iter().find_map(|plan| match plan {
        CopyPlan::Download { to, .. } | CopyPlan::Ssh(SshPlan::Download { to, .. }) => Some(to),
        _ => None,
    })?;
    match std::fs::create_dir(to) {
        Ok(()) => None,
        Err(_) if to.is_dir() => None,
        Err(error) => Some(crate::fault::io(format!("cannot make the directory {}", to.display()), &error)),
    }
}

fn from(plan: &CopyPlan) -> String {
    plan.actions().first().cloned().unwrap_or_default()
}

fn crashed() -> RunReport {
    RunReport::failed(Fault::new(FaultCode::Internal, "a copy has crashed", ""))
}

/// One report of all: sums, the longest time, and the first failure.
fn added_up(context: &Context, reports: Vec<RunReport>) -> RunReport {
    let mut sum = context.report(RunReport::default());
    let mut digests = blake3::Hasher::new();
    for report in reports {
        sum.bytes += report.bytes;
        sum.files += report.files;
        sum.kept_files += report.kept_files;
        sum.deleted_files += report.deleted_files;
        sum.hard_links += report.hard_links;
        sum.resumed_bytes += report.resumed_bytes;
        sum.failed_files += report.failed_files;
        sum.packets.sent += report.packets.sent;
        sum.packets.resent += report.packets.resent;
        sum.lost.receiver_host += report.lost.receiver_host;
        sum.lost.inconclusive += report.lost.inconclusive;
        sum.failed.extend(report.failed);
        sum.notes.extend(report.notes);
        sum.noted += report.noted;
        sum.elapsed = sum.elapsed.max(report.elapsed);
        sum.files_exit_code = sum.files_exit_code.or(report.files_exit_code);
        sum.files_fault = sum.files_fault.or(report.files_fault);
        sum.error = sum.error.or(report.error);
        sum.cipher = report.cipher;
        digests.update(report.digest.unwrap_or_default().as_bytes());
    }
    // Of the digests, one behind the other as they are written.
    sum.digest = sum.error.is_none().then(|| digests.finalize().to_hex().to_string());
    sum.goodput = Rate::from_transfer(sum.bytes - sum.resumed_bytes.min(sum.bytes), sum.elapsed);
    sum
}
