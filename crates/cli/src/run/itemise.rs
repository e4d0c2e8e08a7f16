//! `haul cp --dry-run`: says what would be done to every name.

use haul_wire::control::Fault;
use serde_json::json;

use super::copy::{How, negotiate, parse, run, traced};
use super::plan::{CopyPlan, DryRun};
use super::{Context, by_ssh, stdio, third};
use crate::args::CpArgs;
use crate::fault::shown;
use crate::output::{RunReport, Summary, item_lists, json_value, out, out_json, tell};
use crate::ssh::SshPlan;

/// Looks, and prints what it sees on stdout. Returns the exit code.
///
/// # Errors
/// What would keep it from being done, as far as that shows without doing it.
pub(crate) fn itemise(context: &Context, args: &CpArgs) -> Result<u8, Fault> {
    stdio::refuse_dry_run(&args.paths)?;
    let (plan, selection) = parse(args)?;
    let mut dry = DryRun { actions: plan.actions(), negotiated: Vec::new() };
    let mut say = |negotiated| {
        dry.negotiated = negotiated;
        if !context.json {
            out(&dry);
        }
    };
    let report = if let CopyPlan::Ssh(SshPlan::Third(third)) = &plan {
        // Asking for it anew would start ssh twice on either machine.
        traced(context, &plan, || third::itemise(context, &args.ssh, third, &mut say))
    } else {
        say(match &plan {
            CopyPlan::Upload { to: url, .. } | CopyPlan::Download { from: url, .. } => {
                negotiate(context, url)?
            }
            CopyPlan::Ssh(plan) => by_ssh::negotiate(context, &args.ssh, plan)?,
            CopyPlan::Many(_) | CopyPlan::Local { .. } => Vec::new(),
        });
        run(context, &plan, How { selection: &selection, ssh: &args.ssh })
    };
    // Of several machines, others may have been looked at.
    if let Some(error) = report.error.clone().filter(|error| error.code.exit_code() == report.exit_code()) {
        return Err(error);
    }
    if context.json {
        out_json(&object(&dry, context, &report).to_string());
    } else {
        tell(Summary(&report).failures());
        context.say(Summary(&report).notes());
        if let Some(error) = &report.error {
            tell(shown(error));
        }
        out(Summary(&report).would_move());
    }
    Ok(report.exit_code())
}

/// The plan and the report in one.
fn object(dry: &DryRun, context: &Context, report: &RunReport) -> serde_json::Value {
    let whole = json_value(report);
    let mut object = dry.value();
    for key in [
        "ok",
        "bytes",
        "files",
        "kept_files",
        "resumed_bytes",
        "deleted_files",
        "failed_files",
        "failures",
        "error",
    ] {
        object[key] = whole[key].clone();
    }
    object["items"] = json!(item_lists(&context.items.collected()));
    object
}
