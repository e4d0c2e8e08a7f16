//! `haul doctor`: what limits a transfer, before there is one.

use std::thread::available_parallelism;

use serde_json::{Value, json};

use crate::args::{BenchArgs, DoctorArgs};
use crate::commands::bench;
use crate::fault::Fault;
use crate::output::{LimitedBy, Lines, RunReport, Summary, json_value, out, out_fields};
use crate::transfer::context::Context;
use crate::transfer::facts::Cpu;
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
        "law" => "take a law that bears losses at random: --set rate_control.controller=bbr",
        "start_up" => "nothing: measure for longer with --time",
        _ => return None,
    })
}

/// Programs that want a processor, a minute's mean, and how many processors there are.
fn load() -> Option<(f64, usize)> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some((text.split_whitespace().next()?.parse().ok()?, available_parallelism().ok()?.get()))
}

/// Packets that this machine has dropped since it started before any socket saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EarlyDrops {
    /// The kernel's queue of a processor was full.
    backlog: u64,
    /// Network cards had no room for them.
    cards: u64,
    /// How often the kernel left packets on the cards because it had taken its share of a processor.
    squeezes: u64,
}

impl EarlyDrops {
    /// What cannot be read counts nothing.
    fn of_this_machine() -> Self {
        let softnet = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
        let devices = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        // Drivers have two names for the same.
        let missed = devices.map(|device| {
            let counted = |counter: &str| {
                let text = std::fs::read_to_string(device.path().join("statistics").join(counter)).ok()?;
                text.trim().parse::<u64>().ok()
            };
            counted("rx_missed_errors").max(counted("rx_fifo_errors")).unwrap_or(0)
        });
        let cards = missed.fold(0, u64::saturating_add);
        Self { backlog: of_processors(&softnet, 1), cards, squeezes: of_processors(&softnet, 2) }
    }

    fn findings(self) -> Vec<String> {
        let Self { backlog, cards, squeezes } = self;
        let of_backlog = (backlog > 0).then(|| {
            format!(
                "the kernel has dropped {backlog} packets since it started because a processor's queue was full: sudo sysctl -w \
                 net.core.netdev_max_backlog=10000"
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
                 sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=8000"
            )
        });
        [of_backlog, of_cards, of_budget].into_iter().flatten().collect()
    }
}

/// A column of `/proc/net/softnet_stat`, all hexadecimal; a line is a processor, column 1 what was dropped, 2 squeezes
/// (`softnet_seq_show` of Linux).
fn of_processors(softnet: &str, column: usize) -> u64 {
    let counted = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    softnet.lines().filter_map(counted).fold(0, u64::saturating_add)
}

fn findings(context: &Context) -> Vec<String> {
    let mut found = usage::fallbacks(&context.settings);
    found.extend(EarlyDrops::of_this_machine().findings());
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
    out(lines);
}

fn object(found: &[String], ways: &[(&str, RunReport)]) -> Value {
    let mut object = json!({ "findings": found });
    for (name, report) in ways {
        object[*name] = json_value(report);
        object[*name]["advice"] = json!(report.limited_by.as_ref().and_then(advice));
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
        out_fields(object(&found, &ways));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_no_socket_saw_are_counted_in_hexadecimal_over_all_processors() {
        let softnet = "0000a9f4 00000010 00000003 00000000\n00008be1 0000000a 00000001 00000000\n";
        assert_eq!((of_processors(softnet, 1), of_processors(softnet, 2)), (26, 4));
        for strange in ["", "\n\n", "1", "1 zz 3", "1 -2 3", "1 fffffffffffffffff 3"] {
            assert_eq!(of_processors(strange, 1), 0, "{strange}");
        }
        assert_eq!(of_processors("0 ffffffffffffffff\n0 1\n", 1), u64::MAX);
    }

    #[test]
    fn only_what_was_dropped_is_told_and_with_what_mends_it() {
        assert_eq!(EarlyDrops::default().findings(), Vec::<String>::new());
        let found = EarlyDrops { backlog: 7, cards: 9, squeezes: 3 }.findings();
        assert!(
            found[0].contains("dropped 7 packets")
                && found[0].contains("sysctl -w net.core.netdev_max_backlog")
        );
        assert!(found[1].contains("for 9 packets") && found[1].contains("ethtool -G"), "{found:?}");
        assert!(found[2].contains("3 times") && found[2].contains("net.core.netdev_budget="), "{found:?}");
        assert!(EarlyDrops { squeezes: 3, ..EarlyDrops::default() }.findings().is_empty());
    }
}
