//! `haul demo`: copies files on one machine over an emulated long path, and compares with TCP: one flow at a
//! time between two network namespaces, with the same path parameters and seed.

mod busy;
mod fileset;
mod path;

pub(crate) use busy::receiver;
pub(crate) use path::acquire_namespaces;

use std::net::TcpListener;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use haul_base::{Bytes, Rate, Span};
use haul_engine::Role;
use haul_sim::DropReason;
use haul_wan::{V4, accept, drain, fill};
use haul_wire::control::{Fault, Selection};
use serde::Serialize;
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};
use tempfile::TempDir;

use crate::args::{DemoArgs, PathArgs};
use crate::fault;
use crate::output::{Progress, RunReport, Snapshot, clock, count};
use crate::transfer::{Context, Cpu, upload, with_local_server};
use busy::busy;
use path::{EmulatedPath, Namespaces, counts, emulator, parameters, row, show_counts, start};

/// Maximum duration of a TCP flow, from its first packet.
const MAX_DURATION: Duration = Duration::from_secs(10);
/// Interval of progress reports and of checks whether a flow is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Congestion controls to show, in this order.
const CONGESTIONS: [&str; 2] = ["cubic", "bbr"];

pub(crate) fn run(context: &Context, args: &DemoArgs, namespaces: &Namespaces) -> RunReport {
    let run = if args.busy_receiver { busy } else { try_demo };
    context.traced(parameters(&args.emulated), || run(context, args, namespaces))
}

fn try_demo(context: &Context, args: &DemoArgs, namespaces: &Namespaces) -> Result<RunReport, Fault> {
    let scratch = scratch_directory()?;
    let source = source(context, args, scratch.path())?;
    let spec = &args.emulated;
    let path = start(context, spec, namespaces)?;
    let mut report = copy(context, &path, source, &scratch.path().join("received"))?;
    show_counts(context, &path)?;
    report.capacity = Some((spec.path_rate, "path".into()));
    if report.is_ok() && report.bytes > 0 && !args.no_tcp {
        let why = path.why_relay().map(str::to_owned);
        drop(path);
        match compare_with_tcp(context, spec, &report, why) {
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
    let (root, seed) = (scratch.join("demo"), args.emulated.seed);
    let files = fileset::plan(args.size, args.files, seed);
    fileset::write(&files, seed, &root, &context.cancel)?;
    let files = count(files.len() as u64, "file");
    context.inform(format!("Files: {} in {files} (seed {seed})", args.size));
    Ok(root)
}

/// Copies to a server in this process at the other end of the path.
fn copy(context: &Context, path: &EmulatedPath, source: PathBuf, to: &Path) -> Result<RunReport, Fault> {
    let context = &Context { cpu: Cpu::DataThread, ..context.clone() };
    path.at(Role::Server, || {
        with_local_server(context, path.server_ip(), |listener| {
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

#[derive(Debug, Clone, PartialEq, Serialize)]
struct TcpFlow {
    congestion: String,
    bytes: u64,
    /// Seconds from the first packet of the handshake to the last byte, or until it was ended.
    seconds: f64,
    goodput_bps: f64,
    /// The goodput's share of the path's rate.
    share: f64,
    /// Packets that the emulator itself dropped: if there are any, the flow measured the emulator.
    emulator_lost: u64,
}

#[derive(Debug, derive_more::From)]
enum FlowError {
    /// The kernel lacks the congestion control.
    #[from(skip)]
    Missing(io::Error),
    Failed(io::Error),
}

/// Runs TCP flows over the same kind of path, each alone and with as many bytes as `haul_report`. Prints the
/// results and returns them as JSON; a flow that cannot be shown is left out with a reason.
fn compare_with_tcp(
    context: &Context,
    spec: &PathArgs,
    haul_report: &RunReport,
    mut left_out: Option<String>,
) -> Result<Value, Fault> {
    let (mut flows, mut missing, mut table) = (Vec::new(), Vec::new(), Vec::new());
    for congestion in CONGESTIONS {
        if left_out.is_some() {
            break;
        }
        match flow(context, spec, congestion, haul_report.bytes) {
            Ok(flow) => {
                let goodput = Rate::from_bps(flow.goodput_bps as u64);
                table.push(row(&name(congestion), goodput, spec.path_rate, &remark(&flow, haul_report)));
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
        context.cancel.check("")?;
    }
    if !flows.is_empty() {
        context.inform("Each alone on this path:  goodput        share of it");
        context.inform(row("haul", haul_report.goodput, spec.path_rate, ""));
    }
    for line in table {
        context.inform(line);
    }
    if let Some(why) = &left_out {
        context.inform(format!("TCP is not shown on this path: {why}"));
        context.events.write("tcp", json!({ "left_out": why }));
    }
    Ok(json!({ "flows": flows, "missing": missing, "left_out": left_out }))
}

fn name(congestion: &str) -> String {
    format!("TCP {}", congestion.to_ascii_uppercase())
}

fn remark(flow: &TcpFlow, haul_report: &RunReport) -> String {
    let (bytes, time) = (Bytes(flow.bytes), Span::from_secs_f64(flow.seconds));
    let ended = format!("  {bytes} when it was ended after {}", clock(time));
    let lost = format!("  (the emulator itself lost {})", count(flow.emulator_lost, "packet"));
    let remarks = [(flow.bytes < haul_report.bytes, ended), (flow.emulator_lost > 0, lost)];
    remarks.into_iter().filter(|(applies, _)| *applies).map(|(_, remark)| remark).collect()
}

/// Runs a TCP flow alone on a new path, and shows its progress.
fn flow(context: &Context, spec: &PathArgs, congestion: &str, bytes: u64) -> Result<TcpFlow, FlowError> {
    context.inform(format!("Now {} alone on this path, 10 s at most", name(congestion)));
    let mut emulator = emulator(spec).map_err(io::Error::other)?;
    let (a, b) = (&emulator.world.a.namespace, &emulator.world.b.namespace);
    let listener = b.run(|| TcpListener::bind((V4[1], 0)))?;
    let socket = a.run(|| Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)))?;
    socket.set_tcp_congestion(congestion.as_bytes()).map_err(FlowError::Missing)?;
    let progress = Progress::start(&context.style);
    let transferred = run_flow(socket, &listener, bytes, |received| {
        progress.update(Snapshot { bytes: received, total_bytes: Some(bytes), ..Snapshot::default() });
        !context.cancel.is_requested()
    });
    progress.finish();
    let (bytes, elapsed) = transferred?;
    if let Some(error) = emulator.failure() {
        return Err(io::Error::other(format!("the emulated path has failed: {error}")).into());
    }
    let emulator_lost =
        counts(&emulator)?.iter().map(|direction| direction.drops.of(DropReason::Carrier)).sum();
    let (congestion, seconds) = (congestion.to_owned(), elapsed.as_secs_f64());
    let goodput_bps = Rate::from_transfer(bytes, Span::from_secs_f64(seconds)).as_bps() as f64;
    let share = goodput_bps / spec.path_rate.as_bps().max(1) as f64;
    Ok(TcpFlow { congestion, bytes, seconds, goodput_bps, share, emulator_lost })
}

/// Sends `bytes` bytes from side A to side B, until 10 s are over or `should_continue`, called with the number
/// of bytes received, returns false. Returns how many arrived, and how long that took.
fn run_flow(
    socket: Socket,
    listener: &TcpListener,
    bytes: u64,
    mut should_continue: impl FnMut(u64) -> bool + Send,
) -> io::Result<(u64, Duration)> {
    let (sent, received, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let to = listener.local_addr()?;
    let started = Instant::now();
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> io::Result<()> {
            socket.connect_timeout(&to.into(), MAX_DURATION)?;
            fill(&socket.into(), bytes, &is_over, &sent)
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if !should_continue(received.load(Ordering::Relaxed)) || started.elapsed() >= MAX_DURATION {
                    is_over.store(true, Ordering::Relaxed);
                }
                thread::sleep(CHECK_INTERVAL);
            }
        });
        // There is no stream if the path lost the handshake.
        let drained = accept(listener, &is_over)
            .and_then(|stream| stream.map_or(Ok(()), |stream| drain(&stream, bytes, &is_over, &received)));
        let elapsed = started.elapsed();
        is_over.store(true, Ordering::Relaxed);
        // An error is no failure: the receiver may have gone; if nothing could be sent, no bytes arrived.
        drop(sender.join());
        drained.map(|()| (received.load(Ordering::Relaxed), elapsed))
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_tcp_flow_carries_the_given_bytes_and_stops() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let (bytes, elapsed) = run_flow(socket, &listener, 3_000_001, |_| true).unwrap();
        assert_eq!(bytes, 3_000_001);
        assert!(elapsed < MAX_DURATION);
    }
}
