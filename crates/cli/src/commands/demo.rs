//! `haul demo`: the main job on one machine.

mod beside;
mod busy;
mod path;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_engine::Listener;
use haul_wire::control::{Fault, Selection};
use tempfile::TempDir;

use self::beside::beside;
use self::busy::busy;
pub(crate) use self::busy::receiver;
use self::path::{path, show_counts};
use crate::args::DemoArgs;
use crate::demo::{EmulatedPath, FileSet, FileSetSpec, PathCounts, PathSpec};
use crate::fault;
use crate::output::RunReport;
use crate::transfer::context::Context;
use crate::transfer::facts::Cpu;
use crate::transfer::plan::path_bytes;
use crate::transfer::policy::Policy;
use crate::transfer::server::with_own_server;
use crate::transfer::session::upload;

/// Copies files to a receiver in this process over an emulated long path.
pub(crate) fn run(context: &Context, args: &DemoArgs) -> RunReport {
    let tried = if args.busy_receiver { busy(context, args) } else { try_demo(context, args) };
    match tried {
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
    let spec = path(context, args);
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
