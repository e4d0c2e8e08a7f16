//! TCP beside our transfer in the demo.

use std::fmt::Write as _;

use haul_base::{Bytes, Rate, Span};
use haul_wire::control::Fault;
use serde_json::json;

use crate::demo::{CONGESTIONS, FlowError, PathSpec, TcpBeside, TcpFlow, flow};
use crate::output::{Progress, RunReport, Snapshot, clock, percent};
use crate::transfer::context::Context;

/// Runs the TCP flows over the path of the demo, each alone with as many bytes as we have moved.
///
/// # Errors
/// Only that somebody wants to stop: what cannot be shown is left out with a reason.
pub(crate) fn beside(
    context: &Context,
    spec: &PathSpec,
    ours: &RunReport,
    left_out: Option<String>,
) -> Result<TcpBeside, Fault> {
    let mut beside = TcpBeside { path: spec.rate, left_out, ..TcpBeside::default() };
    for congestion in CONGESTIONS {
        if beside.left_out.is_some() {
            break;
        }
        match one_flow(context, spec, congestion, ours.bytes) {
            Ok(flow) => beside.flows.push(flow),
            Err(FlowError::Missing(error)) => beside.missing.push((congestion.to_owned(), error.to_string())),
            Err(error) => beside.left_out = Some(error.to_string()),
        }
        if context.cancel.is_requested() {
            return Err(context.cancel.fault(""));
        }
    }
    show(context, &beside, ours);
    Ok(beside)
}

fn one_flow(context: &Context, spec: &PathSpec, congestion: &str, bytes: u64) -> Result<TcpFlow, FlowError> {
    context.say(format!("Now {} alone on this path, 10 s at most", name(congestion)));
    let mut progress = Progress::start(&context.style);
    let done = flow(spec, congestion, bytes, |there| {
        progress.update(&Snapshot { bytes: there, total_bytes: Some(bytes), ..Snapshot::default() });
        !context.cancel.is_requested()
    });
    progress.finish();
    done
}

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

/// A line of the table.
pub(super) fn row(who: &str, goodput: Rate, path: Rate, remark: &str) -> String {
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
