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
use crate::output::{RunReport, eprint_lines, item_lists, json_value, out, out_json};
use crate::ssh::Permit;
use crate::transfer::{Context, CopyPlan, DryRun, Route, at_server, by_ssh, chosen, download, upload};

pub(crate) use stdio::{check_options as check_streams, is_stream};

pub(crate) fn run(context: &Context, args: &CpArgs) -> Result<RunReport, Fault> {
    if let Some(report) = stdio::run(context, args) {
        return Ok(report);
    }
    Ok(copy(context, &parse(context, args)?, &args.ssh))
}

fn parse(context: &Context, args: &CpArgs) -> Result<CopyPlan, Fault> {
    let mut plan = CopyPlan::parse(&args.paths)?;
    context.check_loss_model(plan.is_sent_from_here())?;
    if args.ssh.detach && !matches!(plan.route()?, Route::Between(..)) {
        return Err(by_ssh::not_detached());
    }
    let is_ssh_option = |option: &&String| heading_in_cp(option).starts_with("Over ssh");
    if let Some(option) = context.typed.iter().find(is_ssh_option).filter(|_| !plan.has_ssh()) {
        return Err(fault::usage(
            format!("--{option} applies to ssh, but neither a source nor the destination is HOST:PATH"),
            "leave it out; the port of a server is in its URL",
        ));
    }
    plan.selection = chosen(args, plan.count())?;
    if args.sync.delete && plan.route()? == Route::Many {
        // Each machine has its own session, which knows only its own files.
        return Err(fault::usage(
            "--delete does not support sources on several machines: each would delete what the others send",
            "copy each machine into its own directory with a separate command, or leave --delete out",
        ));
    }
    Ok(plan)
}

fn copy(context: &Context, plan: &CopyPlan, ssh: &SshArgs) -> RunReport {
    context.traced(json!({ "actions": plan.actions() }), || copy_route(context, plan, ssh))
}

/// Copies without the trace's `start` and `end`.
fn copy_route(context: &Context, plan: &CopyPlan, ssh: &SshArgs) -> Result<RunReport, Fault> {
    let selection = &plan.selection;
    match plan.route()? {
        Route::Send(sources) => {
            at_server(context, ssh, &plan.to, &by_ssh::put_permit(context, plan), |context, url| {
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
            if let Some(callback) = &context.on_negotiated {
                callback(Vec::new());
            }
            Ok(many::copy_all(context, plan, |each, plan| {
                copy_route(each, plan, ssh).unwrap_or_else(|fault| each.failed(fault))
            }))
        }
    }
}

pub(crate) fn dry_run(context: &Context, args: &CpArgs) -> Result<u8, Fault> {
    let plan = parse(context, args)?;
    let dry = Arc::new(Mutex::new(DryRun { actions: plan.actions(), negotiated: Vec::new() }));
    let items = Arc::<Mutex<Vec<Item>>>::default();
    let mut context = context.clone();
    let (dry_state, collected, is_json) = (dry.clone(), items.clone(), context.json);
    if is_json {
        context.on_item = Some(Arc::new(move |item| collected.lock().push(item.clone())));
    }
    context.on_negotiated = Some(Arc::new(move |negotiated| {
        let mut dry = dry_state.lock();
        dry.negotiated = negotiated;
        if !is_json {
            out(&*dry);
        }
    }));
    let mut report = copy(&context, &plan, &args.ssh);
    context.add_trace_error(&mut report);
    // With another exit code only some of several machines failed, and the others are shown.
    if let Some(error) = report.error.clone().filter(|error| error.code.exit_code() == report.exit_code()) {
        return Err(error);
    }
    if context.json {
        out_json(&object(&dry.lock(), &items.lock(), &report));
    } else {
        eprint_lines(report.problems());
        context.inform(report.note_lines());
        out(report.would_move());
    }
    Ok(report.exit_code())
}

fn object(dry: &DryRun, items: &[Item], report: &RunReport) -> serde_json::Value {
    let report_object = json_value(report);
    let mut object = dry.value();
    let keys = "schema ok bytes files kept_files resumed_bytes deleted_files failed_files failures error";
    for key in keys.split(' ') {
        object[key] = report_object[key].clone();
    }
    object["items"] = json!(item_lists(items));
    object
}
