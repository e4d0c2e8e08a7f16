//! `haul doctor`: what limits a transfer, before there is one.

use std::thread::available_parallelism;

use serde_json::{Value, json};

use crate::args::{BenchArgs, DoctorArgs};
use crate::commands::bench;
use crate::fault::Fault;
use crate::output::{LimitedBy, Lines, RunReport, Summary, json_value, out, out_json};
use crate::transfer::context::Context;
use crate::transfer::usage;

/// What to do about a limit that a measurement has found; nothing where it is as it should be.
fn advice(limit: &LimitedBy) -> Option<&'static str> {
    Some(match limit.what.as_str() {
        "receiver_host" => {
            "take load off the receiving machine, raise net.core.rmem_max there, or let the law know whose losses they are: \
             --preset fobs-classifier, or --set rate_control.cause_aware=true"
        }
        "sender_cpu" => {
            "take load off the sending machine; larger datagrams cost it least (an MTU of 9000 where the path has it)"
        }
        "path" | "path_or_sender" => {
            "nothing on either machine: the path carries no more, or loses what a law takes for congestion; the causes of \
             losses stand above, and `haul presets` lists other laws"
        }
        "start_up" => "nothing: measure for longer with --time",
        _ => return None,
    })
}

/// Programs that want a processor, a minute's mean, and how many processors there are.
fn load() -> Option<(f64, usize)> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some((text.split_whitespace().next()?.parse().ok()?, available_parallelism().ok()?.get()))
}

/// What is wrong with this machine.
fn findings(context: &Context) -> Vec<String> {
    let mut found = usage::fallbacks(&context.settings);
    let crowded = load().filter(|(load, processors)| *load > *processors as f64);
    found.extend(crowded.map(|(load, processors)| {
        format!(
            "{load:.1} programs want this machine's {processors} processors: a receiver here may lose packets; nice(1) or \
             another machine for the others helps"
        )
    }));
    found
}

/// Measures one way.
fn measure(context: &Context, args: &DoctorArgs, reverse: bool) -> Result<RunReport, Fault> {
    let bench_args =
        BenchArgs { url: args.url.clone(), time: Some(args.time), reverse, ..BenchArgs::default() };
    let report = bench::run(context, &bench_args);
    report.error.clone().map_or(Ok(report), Err)
}

fn tell_way(name: &str, report: &RunReport) {
    let mut lines = Lines::default();
    lines.push(format_args!("{name}:"));
    lines.append(&Lines::from(Summary(report)));
    if let Some(advice) = report.limited_by.as_ref().and_then(advice) {
        lines.push(format_args!("What to do: {advice}"));
    }
    out(lines);
}

fn object(found: &[String], ways: &[(&str, RunReport)]) -> Value {
    let mut object = json!({ "schema": 1, "ok": true, "findings": found, "error": null });
    for (name, report) in ways {
        object[*name] = json_value(report);
        object[*name]["advice"] = json!(report.limited_by.as_ref().and_then(advice));
    }
    object
}

/// Says what this machine lacks, measures the path there and back if one is given, and says what to do. Gives the exit code.
///
/// # Errors
/// That the path cannot be measured.
pub(crate) fn run(context: &Context, args: &DoctorArgs) -> Result<u8, Fault> {
    let found = findings(context);
    if !context.json {
        let mut lines = Lines::default();
        for finding in &found {
            lines.push(format_args!("here: {finding}"));
        }
        if found.is_empty() {
            lines.push("here: the kernel grants all that a transfer asks for, and the processors are free");
        }
        out(lines);
    }
    let mut ways = Vec::new();
    if args.url.is_some() {
        for (name, words, reverse) in
            [("there", "From here to there", false), ("back", "From there to here", true)]
        {
            let report = measure(context, args, reverse)?;
            if !context.json {
                tell_way(words, &report);
            }
            ways.push((name, report));
        }
    }
    if context.json {
        out_json(&object(&found, &ways).to_string());
    }
    Ok(0)
}
