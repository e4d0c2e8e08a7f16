//! `haul demo`: copies files on one machine over an emulated long path, and compares with TCP.

mod beside;
mod busy;
mod fileset;
mod path;

pub(crate) use busy::receiver;
pub(crate) use path::acquire_namespaces;

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use haul_base::{Bytes, Rate, Span};
use haul_engine::Role;
use haul_wire::control::{Fault, Selection};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::args::{DemoArgs, PathArgs};
use crate::fault;
use crate::output::{Progress, RunReport, Snapshot, clock, count};
use crate::transfer::{Context, Cpu, upload, with_own_server};
use beside::{CONGESTIONS, FlowError, TcpFlow, flow};
use busy::busy;
use fileset::FileSet;
use path::{EmulatedPath, Namespaces, row, show_counts, start};

pub(crate) fn run(context: &Context, args: &DemoArgs, namespaces: &Namespaces) -> RunReport {
    let run = if args.busy_receiver { busy } else { try_demo };
    let tried = run(context, args, namespaces);
    tried.inspect(|report| context.trace_end(report)).unwrap_or_else(|fault| context.failed(fault))
}

fn try_demo(context: &Context, args: &DemoArgs, namespaces: &Namespaces) -> Result<RunReport, Fault> {
    let scratch = scratch_directory()?;
    let source = source(context, args, scratch.path())?;
    let spec = &args.emulated;
    let path = start(context, spec, namespaces)?;
    let mut report = copy(context, &path, source, &scratch.path().join("received"))?;
    show_counts(context, &path)?;
    report.capacity = Some((spec.path_rate, "path"));
    if report.is_ok() && report.bytes > 0 && !args.no_tcp {
        let why = path.why_relay().map(str::to_owned);
        drop(path);
        match beside(context, spec, &report, why) {
            Ok(tcp) => report.compared = Some(("tcp", tcp)),
            Err(fault) => report.error = Some(fault),
        }
    }
    Ok(report)
}

fn scratch_directory() -> Result<TempDir, Fault> {
    let made = tempfile::Builder::new().prefix("haul-demo-").tempdir();
    made.map_err(|e| {
        let place = std::env::temp_dir();
        fault::io(format!("cannot make a directory in {} (TMPDIR names another)", place.display()), &e)
    })
}

fn source(context: &Context, args: &DemoArgs, scratch: &Path) -> Result<PathBuf, Fault> {
    if let Some(path) = &args.path {
        return Ok(path.clone());
    }
    let set = FileSet::plan(args.size, args.files, args.emulated.seed);
    let root = scratch.join("demo");
    std::fs::create_dir(&root).map_err(|e| fault::io(format!("cannot make {}", root.display()), &e))?;
    set.write(&root, &context.cancel)?;
    let files = count(set.files.len() as u64, "file");
    context.say(format!("Files: {} in {files} (seed {})", set.total(), args.emulated.seed));
    Ok(root)
}

/// Copies to a server in this process at the other end of the path.
fn copy(context: &Context, path: &EmulatedPath, source: PathBuf, to: &Path) -> Result<RunReport, Fault> {
    let context = &Context { cpu: Cpu::DataThread, ..context.clone() };
    path.at(Role::Server, || {
        with_own_server(context, path.server_ip(), |listener| {
            path.at(Role::Client, || {
                let address = path.address_of(listener.local_addr())?;
                let mut url = listener.url(&address.ip().to_string(), to.as_os_str().as_bytes());
                url.port = address.port();
                let sources = vec![source.into_os_string().into_vec()];
                Ok(upload(context, &url, sources, &Selection::default()))
            })
        })?
    })
}

/// Runs TCP flows over the same kind of path, each alone and with as many bytes as `ours`. Prints the results
/// and returns them as JSON; a flow that cannot be shown is left out with a reason.
fn beside(
    context: &Context,
    spec: &PathArgs,
    ours: &RunReport,
    mut left_out: Option<String>,
) -> Result<Value, Fault> {
    let (mut flows, mut missing, mut table) = (Vec::new(), Vec::new(), Vec::new());
    for congestion in CONGESTIONS {
        if left_out.is_some() {
            break;
        }
        match one_flow(context, spec, congestion, ours.bytes) {
            Ok(flow) => {
                let goodput = Rate::from_bps(flow.goodput_bps as u64);
                table.push(row(&name(congestion), goodput, spec.path_rate, &remark(&flow, ours)));
                context.events.write("tcp", json!(flow));
                flows.push(json!(flow));
            }
            Err(FlowError::Missing(why)) => {
                let why = format!("the kernel does not support it ({why})");
                table.push(format!("  {:<22}  not shown: {why}", name(congestion)));
                context.events.write("tcp", json!({ "congestion": congestion, "missing": why }));
                missing.push(json!({ "congestion": congestion, "why": why }));
            }
            Err(FlowError::Failed(error)) => left_out = Some(error.to_string()),
        }
        if context.cancel.is_requested() {
            return Err(context.cancel.fault(""));
        }
    }
    if !flows.is_empty() {
        context.say("Each alone on this path:  goodput        share of it");
        context.say(row("haul", ours.goodput, spec.path_rate, ""));
    }
    for line in table {
        context.say(line);
    }
    if let Some(why) = &left_out {
        context.say(format!("TCP is not shown on this path: {why}"));
        context.events.write("tcp", json!({ "left_out": why }));
    }
    Ok(json!({ "flows": flows, "missing": missing, "left_out": left_out }))
}

fn one_flow(context: &Context, spec: &PathArgs, congestion: &str, bytes: u64) -> Result<TcpFlow, FlowError> {
    context.say(format!("Now {} alone on this path, 10 s at most", name(congestion)));
    let progress = Progress::start(&context.style);
    let done = flow(spec, congestion, bytes, |there| {
        progress.update(Snapshot { bytes: there, total_bytes: Some(bytes), ..Snapshot::default() });
        !context.cancel.is_requested()
    });
    progress.finish();
    done
}

fn name(congestion: &str) -> String {
    format!("TCP {}", congestion.to_ascii_uppercase())
}

fn remark(flow: &TcpFlow, ours: &RunReport) -> String {
    let (bytes, time) = (Bytes(flow.bytes), Span::from_secs_f64(flow.seconds));
    let ended = format!("  {bytes} when it was ended after {}", clock(time));
    let lost = format!("  (the emulator itself lost {})", count(flow.emulator_lost, "packet"));
    let remarks = [(flow.bytes < ours.bytes, ended), (flow.emulator_lost > 0, lost)];
    remarks.into_iter().filter(|(applies, _)| *applies).map(|(_, remark)| remark).collect()
}
