//! `haul doctor`: what limits a transfer, before there is one.

use std::thread::available_parallelism;

use haul_host::{EarlyDropTotals, QueueSettings};
use serde_json::{Value, json};

use crate::args::{BenchArgs, DoctorArgs};
use crate::commands::bench;
use crate::fault::Fault;
use crate::output::{LimitedBy, Lines, RunReport, Summary, json_value, out, out_fields};
use crate::transfer::context::Context;
use crate::transfer::facts::{self, Cpu};

/// A gain that is worth a word.
const LEAST_GAIN: f64 = 1.1;

/// What to do about a limit that a measurement has found; nothing where it is as it should be.
fn advice(limit: &LimitedBy) -> Option<&'static str> {
    Some(match limit.what.as_str() {
        "receiver_host" => {
            "take load off the receiving machine, or raise net.core.rmem_max there; a law with `cause_aware` (the default) \
             does not slow down for its losses"
        }
        "sender_cpu" => {
            "take load off the sending machine; larger datagrams cost it least (an MTU of 9000 where the path has it)"
        }
        "path" | "path_or_sender" => {
            "nothing on either machine: the path carries no more, or loses what a law takes for congestion; the causes of \
             losses stand above, and `haul presets` lists other laws"
        }
        "law" => {
            "take a law that bears losses at random, or starts faster: --controller bbr, or --preset default"
        }
        "start_up" => "nothing: measure for longer with --time",
        _ => return None,
    })
}

/// How many times as fast it could be without the limit, at most: the path has delivered so much at its best. `None`
/// where that is not known, or where it is no more than was moved.
fn expected_gain(report: &RunReport) -> Option<f64> {
    let limit = report.limited_by.as_ref()?.what.as_str();
    let (path, _) = report.capacity.filter(|(_, name)| *name != "ceiling")?;
    let times = path.as_bps() as f64 / report.goodput.as_bps().max(1) as f64;
    (["receiver_host", "sender_cpu", "law"].contains(&limit) && times >= LEAST_GAIN).then_some(times)
}

/// Programs that want a processor, a minute's mean, and how many processors there are.
fn load() -> Option<(f64, usize)> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some((text.split_whitespace().next()?.parse().ok()?, available_parallelism().ok()?.get()))
}

/// Twice what was not enough, and at least this; the kernel takes no more than an `int`.
fn enlarged(now: u64, least: u64) -> u64 {
    now.saturating_mul(2).max(least).min(i32::MAX as u64)
}

/// What to do about packets that were dropped before any socket saw them.
fn dropped_early(drops: EarlyDropTotals, settings: QueueSettings) -> Vec<String> {
    let EarlyDropTotals { backlog, cards, squeezes } = drops;
    let of_backlog = (backlog > 0).then(|| {
        format!(
            "the kernel has dropped {backlog} packets since it started because a processor's queue was full: sudo sysctl -w \
             net.core.netdev_max_backlog={}",
            enlarged(settings.backlog, 10_000)
        )
    });
    let of_cards = (cards > 0).then(|| {
        format!(
            "the network cards had no room for {cards} packets since this machine started: give them larger rings \
             (ethtool -G DEVICE rx N; ethtool -g shows the most)"
        )
    });
    // By itself this loses nothing.
    let of_budget = (cards > 0 && squeezes > 0).then(|| {
        format!(
            "the kernel has left packets on the network cards {squeezes} times because it may take in no more at a time: sudo \
             sysctl -w net.core.netdev_budget={} net.core.netdev_budget_usecs={}",
            enlarged(settings.budget, 600),
            enlarged(settings.budget_usecs, 8_000)
        )
    });
    [of_backlog, of_cards, of_budget].into_iter().flatten().collect()
}

fn findings(context: &Context) -> Vec<String> {
    let mut found = facts::fallbacks(&context.settings);
    found.extend(dropped_early(EarlyDropTotals::of_this_machine(), QueueSettings::in_force()));
    let crowded = load().filter(|(load, processors)| *load > *processors as f64);
    found.extend(crowded.map(|(load, processors)| {
        format!(
            "{load:.1} programs want this machine's {processors} processors: a receiver here may lose packets; nice(1) or \
             another machine for the others helps"
        )
    }));
    found
}

fn measure(context: &Context, args: &DoctorArgs, reverse: bool) -> Result<RunReport, Fault> {
    let bench_args =
        BenchArgs { url: args.url.clone(), time: Some(args.time), reverse, ..BenchArgs::default() };
    let report = bench::run(context, &bench_args, Cpu::ALL);
    report.error.clone().map_or(Ok(report), Err)
}

fn tell_way(name: &str, report: &RunReport) {
    let mut lines = Lines::default();
    lines.push(format_args!("{name}:"));
    lines.append(&Lines::from(Summary(report)));
    if let Some(advice) = report.limited_by.as_ref().and_then(advice) {
        lines.push(format_args!("What to do: {advice}"));
    }
    if let Some(times) = expected_gain(report) {
        lines.push(format_args!(
            "Gain to expect: up to {times:.1} times, what the path delivered at its best"
        ));
    }
    out(lines);
}

fn object(found: &[String], ways: &[(&str, RunReport)]) -> Value {
    let mut object = json!({ "findings": found });
    for (name, report) in ways {
        object[*name] = json_value(report);
        object[*name]["advice"] = json!(report.limited_by.as_ref().and_then(advice));
        object[*name]["expected_gain"] = json!(expected_gain(report));
    }
    object
}

/// Says what this machine lacks, measures the path there and back if one is given, and says what to do. Gives the exit code.
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
        out_fields(object(&found, &ways), None);
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use haul_base::Rate;

    use super::*;

    #[test]
    fn only_what_was_dropped_is_told_and_with_what_mends_it() {
        let findings = |drops| dropped_early(drops, QueueSettings::default());
        assert_eq!(findings(EarlyDropTotals::default()), Vec::<String>::new());
        let found = findings(EarlyDropTotals { backlog: 7, cards: 9, squeezes: 3 });
        assert!(
            found[0].contains("dropped 7 packets")
                && found[0].contains("sysctl -w net.core.netdev_max_backlog")
        );
        assert!(found[1].contains("for 9 packets") && found[1].contains("ethtool -G"), "{found:?}");
        assert!(found[2].contains("3 times") && found[2].contains("net.core.netdev_budget="), "{found:?}");
        assert!(findings(EarlyDropTotals { squeezes: 3, ..EarlyDropTotals::default() }).is_empty());
    }

    #[test]
    fn a_gain_is_told_where_the_path_was_not_the_limit() {
        let told = |what: &str, name, path| {
            let limited_by = Some(LimitedBy { what: what.to_owned(), evidence: String::new() });
            let capacity = Some((Rate::from_mbps(path), name));
            expected_gain(&RunReport {
                goodput: Rate::from_mbps(400),
                limited_by,
                capacity,
                ..RunReport::default()
            })
        };
        assert_eq!(told("receiver_host", "measured path", 1_000), Some(2.5));
        assert_eq!(told("receiver_host", "measured path", 420), None);
        assert_eq!(told("path", "measured path", 1_000), None);
        assert_eq!(told("law", "ceiling", 1_000), None);
    }

    /// It told machines that were tuned already to take less.
    #[test]
    fn no_advice_makes_a_queue_shorter() {
        let settings = QueueSettings { backlog: 30_000, budget: 300, budget_usecs: 8_000 };
        let found = dropped_early(EarlyDropTotals { backlog: 7, cards: 9, squeezes: 3 }, settings);
        assert!(found[0].ends_with("net.core.netdev_max_backlog=60000"), "{found:?}");
        let budget = "net.core.netdev_budget=600 net.core.netdev_budget_usecs=16000";
        assert!(found[2].ends_with(budget), "{found:?}");
        assert_eq!(enlarged(u64::MAX, 600), 2_147_483_647);
    }
}
