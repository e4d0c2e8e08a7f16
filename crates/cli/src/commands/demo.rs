//! `haul demo`: the main job on one machine.

mod beside;
mod busy;
mod path;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_wire::control::{Fault, Selection};
use tempfile::TempDir;

use self::beside::beside;
use self::busy::busy;
pub(crate) use self::busy::receiver;
use self::path::{path, show_counts, through_relay};
use crate::args::DemoArgs;
use crate::demo::{EmulatedPath, FileSet, FileSetSpec, Namespaces};
use crate::fault;
use crate::output::RunReport;
use crate::transfer::context::Context;
use crate::transfer::facts::Cpu;
use crate::transfer::plan::path_bytes;
use crate::transfer::policy::Policy;
use crate::transfer::server::with_own_server;
use crate::transfer::session::upload;

/// Copies files to a receiver in this process over an emulated long path.
pub(crate) fn run(context: &Context, args: &DemoArgs, namespaces: &Namespaces) -> RunReport {
    let tried = if args.busy_receiver {
        busy(context, args, namespaces)
    } else {
        try_demo(context, args, namespaces)
    };
    match tried {
        Ok(report) => {
            context.trace_end(&report);
            report
        }
        Err(fault) => context.failed(fault),
    }
}

fn try_demo(context: &Context, args: &DemoArgs, namespaces: &Namespaces) -> Result<RunReport, Fault> {
    let scratch = scratch_directory()?;
    let source = source(context, args, scratch.path())?;
    let spec = path(context, args);
    let path = EmulatedPath::start(&spec, namespaces)?;
    if let Some(why) = path.why_relay() {
        context.say(through_relay(why));
    }
    let mut report = copy(context, &path, source, &scratch.path().join("received"))?;
    show_counts(context, &path.counts()?);
    report.capacity = Some((spec.rate, "path"));
    if report.is_ok() && report.bytes > 0 && !args.no_tcp {
        let why = path.why_relay().map(str::to_owned);
        drop(path);
        match beside(context, &spec, &report, why) {
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

/// Copies to a server of this process at the other end of the path.
fn copy(context: &Context, path: &EmulatedPath, source: PathBuf, to: &Path) -> Result<RunReport, Fault> {
    let policy = Policy::own(context);
    path.at_server(|| {
        with_own_server(context, &policy, path.server_ip(), |listener| {
            path.at_client(|| {
                let address = path.address_of(listener.local_addr())?;
                let mut url = listener.url(&address.ip().to_string(), to.as_os_str().as_bytes());
                url.port = address.port();
                Ok(upload(context, &url, path_bytes(&[source]), &Selection::default(), Cpu::DataThread))
            })
        })?
    })
}
