//! `haul cp`, and with `--dry-run` what would be done to every name.

mod many;
mod stdio;
mod third;

use haul_engine::HaulUrl;
use haul_wire::control::{Fault, Selection};
use serde_json::json;

use crate::args::{CpArgs, SshArgs};
use crate::fault::{self, shown};
use crate::output::{RunReport, Summary, item_lists, json_value, out, out_json, tell};
use crate::ssh::Permit;
use crate::transfer::by_ssh::{self, at_server};
use crate::transfer::context::Context;
use crate::transfer::facts::Cpu;
use crate::transfer::plan::{CopyPlan, DryRun, path_bytes};
use crate::transfer::select::chosen;
use crate::transfer::server::at_own_server;
use crate::transfer::session::{download, negotiate, upload};

pub(crate) use stdio::check_options as check_streams;

/// What of the sources travels, and how to get to other machines.
#[derive(Clone, Copy)]
pub(crate) struct How<'a> {
    pub selection: &'a Selection,
    pub ssh: &'a SshArgs,
}

pub(crate) fn run(context: &Context, args: &CpArgs) -> RunReport {
    if let Some(report) = stdio::run(context, args) {
        return report;
    }
    match parse(context, args) {
        Ok((plan, selection)) => copy(context, &plan, How { selection: &selection, ssh: &args.ssh }),
        Err(fault) => context.failed(fault),
    }
}

fn parse(context: &Context, args: &CpArgs) -> Result<(CopyPlan, Selection), Fault> {
    let plan = CopyPlan::parse(&args.paths)?;
    context.check_loss_model(plan.is_sent_from_here())?;
    if args.ssh.detach && !matches!(plan, CopyPlan::Third(_)) {
        return Err(by_ssh::not_detached());
    }
    let selection = chosen(args, plan.sources())?;
    if args.sync.delete && matches!(plan, CopyPlan::Many(_)) {
        // Each is a session of its own that knows of nothing but its own set.
        return Err(fault::usage(
            "--delete with sources on several machines is not in this release: each would remove what the others bring",
            "copy each machine into a directory of its own, with a command for each, or leave --delete out",
        ));
    }
    Ok((plan, selection))
}

pub(crate) fn copy(context: &Context, plan: &CopyPlan, how: How<'_>) -> RunReport {
    traced(context, plan, || Ok(one(context, plan, how)))
}

/// Does `work` between the beginning and the end of a trace.
fn traced(context: &Context, plan: &CopyPlan, work: impl FnOnce() -> Result<RunReport, Fault>) -> RunReport {
    context.events.write("start", json!({ "actions": plan.actions() }));
    let report = work().unwrap_or_else(|fault| context.failed(fault));
    context.trace_end(&report);
    report
}

/// The copy without its place in a trace.
fn one(context: &Context, plan: &CopyPlan, how: How<'_>) -> RunReport {
    let How { selection, ssh } = how;
    let result = match plan {
        CopyPlan::Upload { sources, to, path } => {
            let permit =
                Permit::Put(path.clone(), context.transfer.receive_policy, context.transfer.preserve);
            at_server(context, ssh, to, &permit, |url| {
                let url = HaulUrl { path: path.clone(), ..url };
                upload(context, &url, path_bytes(sources), selection, Cpu::ALL)
            })
        }
        CopyPlan::Download { from, sources, to } => {
            let permit = Permit::Get(sources.clone());
            at_server(context, ssh, from, &permit, |url| download(context, &url, sources, selection, to))
        }
        CopyPlan::Third(third) => third::copy(context, ssh, third, &mut |_| {}),
        CopyPlan::Many(plans) => Ok(many::copy_all(context, plans, |each, plan| one(each, plan, how))),
        CopyPlan::Local { sources, to } => at_own_server(context, to, |url| {
            upload(context, &url, path_bytes(sources), selection, Cpu::DataThread)
        }),
    };
    result.unwrap_or_else(|fault| context.failed(fault))
}

/// Looks, and prints what it sees on stdout. Returns the exit code.
pub(crate) fn dry_run(context: &Context, args: &CpArgs) -> Result<u8, Fault> {
    stdio::refuse_dry_run(&args.paths)?;
    let (plan, selection) = parse(context, args)?;
    let mut dry = DryRun { actions: plan.actions(), negotiated: Vec::new() };
    let mut say = |negotiated| {
        dry.negotiated = negotiated;
        if !context.json {
            out(&dry);
        }
    };
    let report = if let CopyPlan::Third(third) = &plan {
        // Asking for it anew would start ssh twice on either machine.
        traced(context, &plan, || third::copy(context, &args.ssh, third, &mut say))
    } else {
        say(match plan.other_end(context) {
            Some((server, permit)) => {
                at_server(context, &args.ssh, server, &permit, |url| negotiate(context, &url))??
            }
            None => Vec::new(),
        });
        copy(context, &plan, How { selection: &selection, ssh: &args.ssh })
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
