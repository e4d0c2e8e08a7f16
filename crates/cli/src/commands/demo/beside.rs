//! TCP beside our transfer in the demo, as the process that makes the namespaces tells it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use haul_base::{Bytes, Rate, Span};
use haul_wire::control::Fault;
use serde_json::json;

use crate::demo::{CONGESTIONS, PathSpec, TcpBeside, TcpFlow, TcpJob, TcpNews};
use crate::output::{Progress, RunReport, Snapshot, clock, percent};
use crate::transfer::context::Context;

/// How soon Ctrl-C is noticed.
const LOOK: Duration = Duration::from_millis(100);
/// Lines under way.
const LINES: usize = 64;

/// The process that runs the flows; ended when dropped, and its namespaces with it.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the TCP flows over the path of the demo, each with as many bytes as we have moved.
///
/// # Errors
/// Only that somebody wants to stop: what cannot be shown is left out with a reason.
pub(crate) fn beside(context: &Context, spec: &PathSpec, ours: &RunReport) -> Result<TcpBeside, Fault> {
    let mut beside = TcpBeside { path: spec.rate, ..TcpBeside::default() };
    match start(&TcpJob::new(spec, ours.bytes)) {
        Ok((mut helper, output)) => {
            // Closed when the helper has ended; it ends when this is closed.
            let input = helper.0.stdin.take();
            follow(context, &listen(output), ours.bytes, &mut beside)?;
            drop(input);
        }
        Err(error) => beside.left_out = Some(format!("cannot start another process: {error}")),
    }
    show(context, &beside, ours);
    Ok(beside)
}

fn start(job: &TcpJob) -> std::io::Result<(Helper, ChildStdout)> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--quiet", "demo-tcp"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut helper = Helper(command.spawn()?);
    let line = serde_json::to_string(job)?;
    if let Some(input) = &mut helper.0.stdin {
        writeln!(input, "{line}")?;
    }
    let output = helper.0.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    Ok((helper, output))
}

/// What the helper says, line by line, until it ends.
fn listen(output: ChildStdout) -> Receiver<TcpNews> {
    let (sender, news) = sync_channel(LINES);
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        for line in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    news
}

fn follow(
    context: &Context,
    news: &Receiver<TcpNews>,
    bytes: u64,
    beside: &mut TcpBeside,
) -> Result<(), Fault> {
    let mut progress: Option<(String, Progress)> = None;
    loop {
        if context.cancel.is_requested() {
            return Err(context.cancel.fault(""));
        }
        match news.recv_timeout(LOOK) {
            Ok(TcpNews::Progress { congestion, bytes: there }) => {
                if progress.as_ref().is_none_or(|(shown, _)| *shown != congestion) {
                    context.say(format!("Now {} alone on this path, 10 s at most", name(&congestion)));
                    progress = Some((congestion, Progress::start(&context.style)));
                }
                if let Some((_, progress)) = &mut progress {
                    let total_bytes = Some(bytes);
                    progress.update(&Snapshot { bytes: there, total_bytes, ..Snapshot::default() });
                }
            }
            Ok(TcpNews::Done(flow)) => {
                progress.take().into_iter().for_each(|(_, progress)| progress.finish());
                beside.flows.push(flow);
            }
            Ok(TcpNews::Missing { congestion, why }) => beside.missing.push((congestion, why)),
            Ok(TcpNews::LeftOut { why }) => beside.left_out = Some(why),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // Ctrl-C reaches the helper as well, and may end it first.
    if context.cancel.is_requested() {
        return Err(context.cancel.fault(""));
    }
    let told = beside.flows.len() + beside.missing.len();
    if beside.left_out.is_none() && told < CONGESTIONS.len() {
        beside.left_out = Some("the process that runs it has ended early".to_owned());
    }
    Ok(())
}

/// For people.
fn name(congestion: &str) -> String {
    format!("TCP {}", congestion.to_ascii_uppercase())
}

/// The table, and the events.
fn show(context: &Context, beside: &TcpBeside, ours: &RunReport) {
    if !beside.flows.is_empty() {
        context.say("Each alone on this path:  goodput        share of it");
        context.say(row("haul", ours.goodput, beside.path, ""));
    }
    for flow in &beside.flows {
        context.say(row(&name(&flow.congestion), flow.goodput(), beside.path, &remark(flow, ours)));
        context.events.write("tcp", flow.json(beside.path));
    }
    for (congestion, why) in &beside.missing {
        context.say(format!("  {:<22}  not shown: {why}", name(congestion)));
        context.events.write("tcp", json!({ "congestion": congestion, "missing": why }));
    }
    if let Some(why) = &beside.left_out {
        context.say(format!("TCP on this path is left out: {why}"));
        context.events.write("tcp", json!({ "left_out": why }));
    }
}

fn row(who: &str, goodput: Rate, path: Rate, remark: &str) -> String {
    let share = goodput.as_bps() as f64 / path.as_bps().max(1) as f64;
    format!("  {who:<22}  {:<13}  {:<7}{remark}", goodput.to_string(), percent(share)).trim_end().to_owned()
}

fn remark(flow: &TcpFlow, ours: &RunReport) -> String {
    let mut words = String::new();
    if flow.bytes < ours.bytes {
        let (bytes, time) = (Bytes(flow.bytes), Span::from_secs_f64(flow.seconds));
        words = format!("  {bytes} when it was ended after {}", clock(time));
    }
    if flow.emulator_lost > 0 {
        let _ = write!(words, "  (the emulator itself lost {} packets)", flow.emulator_lost);
    }
    words
}
