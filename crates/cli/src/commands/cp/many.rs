//! Several machines send to this one at the same time, each at the rate that it is assigned.

mod sum;

use std::thread;

use haul_wire::control::{Fault, FaultCode, RunMode};

use self::sum::{Of, added_up};
use crate::fault::place;
use crate::output::{CombinedProgress, ProgressStyle, RunReport, Summary};
use crate::transfer::context::Context;
use crate::transfer::plan::CopyPlan;
use crate::transfer::quota::Quotas;

/// Copies from all of them and adds up what comes of it.
pub(crate) fn copy_all(
    context: &Context,
    plans: &[CopyPlan],
    copy: impl Fn(&Context, &CopyPlan) -> RunReport + Sync,
) -> RunReport {
    let only_looks = context.receive_policy.run == RunMode::ListChanges;
    if !only_looks && let Some(fault) = without_destination(plans) {
        return context.failed(fault);
    }
    let combined = CombinedProgress::start(&context.style, plans.len());
    // What one may not exceed, all together must not.
    let quotas = Quotas::new(context.settings.rate);
    let copy = &copy;
    let reports: Vec<Of> = thread::scope(|scope| {
        let one = |(at, plan)| {
            let (machine, part) = (machine(plan), combined.part(at));
            let each = Context {
                quotas: quotas.clone(),
                events: context.events.of(&machine),
                style: ProgressStyle::Part(part.clone()),
                ..context.clone()
            };
            let running = scope.spawn(move || {
                let report = copy(&each, plan);
                part.end();
                if !only_looks {
                    part.say(&said_of(plan, &report));
                }
                report
            });
            (machine, running)
        };
        let running: Vec<_> = plans.iter().enumerate().map(one).collect();
        let ended = running
            .into_iter()
            .map(|(machine, thread)| Of { machine, report: thread.join().unwrap_or_else(|_| crashed()) });
        ended.collect()
    });
    combined.finish();
    added_up(context.report(RunReport::default()), context.settings.rate, reports)
}

/// The destination is a directory, which is made once.
fn without_destination(plans: &[CopyPlan]) -> Option<Fault> {
    let to = plans.iter().find_map(|plan| match plan {
        CopyPlan::Download { to, .. } => Some(to),
        _ => None,
    })?;
    match std::fs::create_dir(to) {
        Ok(()) => None,
        Err(_) if to.is_dir() => None,
        Err(error) => Some(crate::fault::io(format!("cannot make the directory {}", to.display()), &error)),
    }
}

/// A machine's name for people.
fn machine(plan: &CopyPlan) -> String {
    match plan {
        CopyPlan::Download { from, .. } => from.name(),
        _ => String::new(),
    }
}

/// What became of one of them, as soon as it has ended.
fn said_of(plan: &CopyPlan, report: &RunReport) -> String {
    let what = plan.actions().first().cloned().unwrap_or_default();
    let summary = Summary(report);
    match &report.error {
        Some(error) => format!("{what}: failed: {}{}", place(error), error.message),
        None if summary.is_nothing_done() => format!("{what}: failed, nothing was moved"),
        None if summary.is_nothing_to_do() => format!("{what}: nothing to do"),
        None => format!("{what}: {}", summary.moved()),
    }
}

fn crashed() -> RunReport {
    RunReport::failed(Fault::new(FaultCode::Internal, "a copy has crashed", ""))
}
