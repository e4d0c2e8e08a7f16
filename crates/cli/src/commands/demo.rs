//! `haul demo`: the main job on one machine.

mod beside;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_base::Bytes;
use haul_engine::Listener;
use haul_wire::control::{Fault, Selection};
use serde_json::json;
use tempfile::TempDir;

use self::beside::beside;
use crate::args::DemoArgs;
use crate::demo::{DirectionCounts, EmulatedPath, FileSet, FileSetSpec, PathCounts, PathSpec};
use crate::fault;
use crate::output::RunReport;
use crate::transfer::context::Context;
use crate::transfer::facts::Cpu;
use crate::transfer::plan::path_bytes;
use crate::transfer::policy::Policy;
use crate::transfer::server::with_own_server;
use crate::transfer::session::upload;

/// The MTU of the emulated path: Ethernet's.
const MTU: u16 = 1_500;

/// Copies files to a receiver in this process over an emulated long path.
pub(crate) fn run(context: &Context, args: &DemoArgs) -> RunReport {
    match try_demo(context, args) {
        Ok(report) => {
            context.trace_end(&report);
            report
        }
        Err(fault) => context.failed(fault),
    }
}

fn try_demo(context: &Context, args: &DemoArgs) -> Result<RunReport, Fault> {
    let scratch = scratch_directory()?;
    let source = source(context, args, scratch.path())?;
    let spec = PathSpec { rtt: args.rtt, rate: args.path_rate, loss: args.loss, mtu: MTU, seed: args.seed };
    context.say(describe(&spec));
    context.events.write(
        "start",
        json!({
            "rtt_ms": spec.rtt.as_millis_f64(), "rate_bps": spec.rate.as_bps(), "loss": spec.loss.get(),
            "seed": spec.seed, "queue_bytes": spec.queue().0,
        }),
    );
    let policy = Policy::own(context);
    let destination = scratch.path().join("received");
    let (mut report, counts) = with_own_server(context, &policy, |listener| {
        over_path(context, &spec, listener, source, &destination)
    })??;
    show_counts(context, &counts);
    report.capacity = Some((spec.rate, "path"));
    if report.is_ok() && report.bytes > 0 && !args.no_tcp {
        match beside(context, &spec, &report) {
            Ok(tcp) => report.tcp = Some(tcp),
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

/// What is to be copied: the path that was given, or a generated set.
fn source(context: &Context, args: &DemoArgs, scratch: &Path) -> Result<PathBuf, Fault> {
    if let Some(path) = &args.path {
        return Ok(path.clone());
    }
    let set = FileSet::plan(&FileSetSpec { size: args.size, files: args.files, seed: args.seed });
    let root = scratch.join("demo");
    std::fs::create_dir(&root).map_err(|e| fault::io(format!("cannot make {}", root.display()), &e))?;
    set.write(&root, &context.cancel)?;
    context.say(format!("Files: {} in {} files (seed {})", set.total(), set.files.len(), args.seed));
    Ok(root)
}

fn describe(spec: &PathSpec) -> String {
    format!(
        "Path:  {}, rtt {}, {:.3} % random loss each way, queue {}, seed {}",
        spec.rate,
        spec.rtt,
        spec.loss.get() * 100.0,
        spec.queue(),
        spec.seed
    )
}

fn over_path(
    context: &Context,
    spec: &PathSpec,
    listener: &Listener,
    source: PathBuf,
    destination: &Path,
) -> Result<(RunReport, PathCounts), Fault> {
    let path = EmulatedPath::start(spec, listener.local_addr())?;
    let mut url = listener.url("127.0.0.1", destination.as_os_str().as_bytes());
    url.port = path.address().port();
    let report = upload(context, &url, path_bytes(&[source]), &Selection::default(), Cpu::DataThread);
    Ok((report, path.counts()))
}

/// What the path did to the packets: the truth that the report can be held against.
fn show_counts(context: &Context, counts: &PathCounts) {
    for (name, direction) in [("Data", &counts.up), ("Back", &counts.down)] {
        context.say(format!("{name}:  {direction}; {} delivered", Bytes(direction.delivered_bytes)));
        context.events.write("path", path_event(name, direction));
    }
}

fn path_event(name: &str, counts: &DirectionCounts) -> serde_json::Value {
    json!({
        "direction": name.to_lowercase(),
        "offered": counts.offered,
        "delivered": counts.delivered,
        "queue_full": counts.queue_full,
        "random": counts.random,
        "too_large": counts.too_large,
        "relay": counts.relay,
        "overrun": counts.overrun,
    })
}
