//! `haul cp`, and its `--dry-run`, which lists what would be changed.

mod many;
mod stdio;
mod third;

use std::sync::Arc;

use haul_engine::HaulUrl;
use haul_wire::control::{Fault, Item};
use parking_lot::Mutex;
use serde_json::json;

use crate::args::{CpArgs, SshArgs};
use crate::config::heading_in_cp;
use crate::fault;
use crate::output::{RunReport, error_lines, item_lists, json_value, out, out_json, tell};
use crate::ssh::Permit;
use crate::transfer::{Context, CopyPlan, DryRun, Route, at_server, by_ssh, chosen, download, upload};

pub(crate) use stdio::check_options as check_streams;

pub(crate) fn run(context: &Context, args: &CpArgs) -> RunReport {
    if let Some(report) = stdio::run(context, args) {
        return report;
    }
    match parse(context, args) {
        Ok(plan) => copy(context, &plan, &args.ssh),
        Err(fault) => context.failed(fault),
    }
}

fn parse(context: &Context, args: &CpArgs) -> Result<CopyPlan, Fault> {
    let mut plan = CopyPlan::parse(&args.paths)?;
    context.check_loss_model(plan.is_sent_from_here())?;
    if args.ssh.detach && !matches!(plan.way()?, Route::Between(..)) {
        return Err(by_ssh::not_detached());
    }
    let is_of_ssh = |option: &&String| heading_in_cp(option).starts_with("Over ssh");
    if let Some(option) = context.typed.iter().find(is_of_ssh).filter(|_| !plan.has_ssh()) {
        return Err(fault::usage(
            format!("--{option} applies to ssh, but neither a source nor the destination is HOST:PATH"),
            "leave it out; the port of a server is in its URL",
        ));
    }
    plan.selection = chosen(args, plan.count())?;
    if args.sync.delete && plan.way()? == Route::Many {
        // Each machine has its own session, which knows only its own files.
        return Err(fault::usage(
            "--delete does not support sources on several machines: each would delete what the others send",
            "copy each machine into its own directory with a separate command, or leave --delete out",
        ));
    }
    Ok(plan)
}

fn copy(context: &Context, plan: &CopyPlan, ssh: &SshArgs) -> RunReport {
    context.traced(json!({ "actions": plan.actions() }), || one(context, plan, ssh))
}

/// Copies without the trace's `start` and `end`.
fn one(context: &Context, plan: &CopyPlan, ssh: &SshArgs) -> Result<RunReport, Fault> {
    let selection = &plan.selection;
    match plan.way()? {
        Route::Send(sources) => {
            at_server(context, ssh, &plan.to, &by_ssh::put(context, plan), |context, url| {
                let url = HaulUrl { path: plan.path.clone(), ..url };
                upload(context, &url, sources.to_vec(), selection)
            })
        }
        Route::Fetch(from, sources) => {
            at_server(context, ssh, from, &Permit::Get(sources.to_vec()), |context, url| {
                download(context, &url, sources, selection, &plan.path)
            })
        }
        Route::Between(at, serves) => third::copy(context, ssh, (plan, at, serves)),
        Route::Many => {
            if let Some(tell) = &context.on_agreed {
                tell(Vec::new());
            }
            Ok(many::copy_all(context, plan, |each, plan| {
                one(each, plan, ssh).unwrap_or_else(|fault| each.failed(fault))
            }))
        }
    }
}

pub(crate) fn dry_run(context: &Context, args: &CpArgs) -> Result<u8, Fault> {
    let plan = parse(context, args)?;
    let dry = Arc::new(Mutex::new(DryRun { actions: plan.actions(), negotiated: Vec::new() }));
    let items = Arc::<Mutex<Vec<Item>>>::default();
    let mut context = context.clone();
    let (told, kept, is_json) = (dry.clone(), items.clone(), context.json);
    if is_json {
        context.on_item = Some(Arc::new(move |item| kept.lock().push(item.clone())));
    }
    context.on_agreed = Some(Arc::new(move |negotiated| {
        let mut dry = told.lock();
        dry.negotiated = negotiated;
        if !is_json {
            out(&*dry);
        }
    }));
    let report = copy(&context, &plan, &args.ssh);
    // With another exit code only some of several machines failed, and the others are shown.
    if let Some(error) = report.error.clone().filter(|error| error.code.exit_code() == report.exit_code()) {
        return Err(error);
    }
    if context.json {
        out_json(&object(&dry.lock(), &items.lock(), &report));
    } else {
        tell(report.failures());
        context.say(report.note_lines());
        if let Some(error) = &report.error {
            tell(error_lines(error));
        }
        out(report.would_move());
    }
    Ok(report.exit_code())
}

fn object(dry: &DryRun, items: &[Item], report: &RunReport) -> serde_json::Value {
    let whole = json_value(report);
    let mut object = dry.value();
    let keys = "ok bytes files kept_files resumed_bytes deleted_files failed_files failures error";
    for key in keys.split(' ') {
        object[key] = whole[key].clone();
    }
    object["items"] = json!(item_lists(items));
    object
}
