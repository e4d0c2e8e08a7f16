//! `haul doctor`: finds what will limit a transfer.

use std::thread::available_parallelism;
use std::time::Duration;

use haul_base::Bytes;
use haul_engine::SOCKET_BUFFER;
use haul_host::{EarlyDropTotals, ProcessorTimes, QueueSettings};
use serde_json::{Value, json};

use crate::args::{BenchArgs, DoctorArgs};
use crate::commands::bench;
use crate::fault::Fault;
use crate::output::{RunReport, count, json_value, out, out_fields};
use crate::transfer::{Context, counters};

/// Smallest gain worth mentioning, as a factor.
const MIN_GAIN: f64 = 1.1;
/// A processor that is idle for this share of the time has room for a transfer.
const IDLE_SHARE: f64 = 0.5;
/// How long the processors are observed: some tens of the kernel's clock ticks.
const OBSERVATION_TIME: Duration = Duration::from_millis(300);

/// Command that raises the priority of the threads of the oldest running `haul`.
const RENICE_COMMAND: &str = "`sudo renice -n -10 $(ls /proc/$(pgrep -xo haul)/task)`";

/// Advice to move them to other processors, or to the `idle` ones if these are known.
fn other_processors(idle: Option<&[u32]>) -> String {
    let moved = |list: &str| format!("`taskset -acp {list} $(pgrep -xo haul)` moves it to processors that");
    match idle {
        None => format!("{} are idle there (`top`, then 1)", moved("LIST")),
        Some([]) => "no other processor was idle half of the time".to_owned(),
        Some(idle) => {
            let list: Vec<_> = idle.iter().map(ToString::to_string).collect();
            format!("{} were idle half of the time", moved(&list.join(",")))
        }
    }
}

/// Returns what to do about a measured limit. Both sides requested socket buffers of the size `requested`; `idle`
/// are the idle processors of the machine that limits, if it is this one.
fn advice(report: &RunReport, requested: Bytes, idle: Option<&[u32]>) -> Option<String> {
    let limit = report.limited_by.as_ref()?;
    let processor =
        || format!("{RENICE_COMMAND} gives it a processor before others; {}", other_processors(idle));
    Some(match &*limit.what {
        "receiver_host" => {
            let buffer = larger_buffer(report, requested).map(|text| text + "; ").unwrap_or_default();
            format!("on the receiving machine: {buffer}{}", processor())
        }
        "sender_cpu" => format!(
            "on the sending machine: {}; larger datagrams cost it least: `sudo ip link set dev DEVICE mtu 9000` on both, where \
             the whole path has it",
            processor()
        ),
        "path" | "path_or_sender" => "nothing on either machine: the path is full, or its losses look like congestion to the control law; see the causes of losses above, and `haul presets` for other laws"
            .to_owned(),
        "law" => "use a law that tolerates random loss or starts faster: `--controller bbr`, or `--preset default`".to_owned(),
        "rate_ceiling" => "`--rate unlimited` lifts this side's limit, `haul serve --capacity RATE` sets the server's".to_owned(),
        "receiver_share" => "on the receiving machine: a higher `haul serve --capacity RATE`, or fewer concurrent uploads".to_owned(),
        "start_up" | "round_trips" => "nothing, for longer transfers: `haul doctor --time 30s URL` measures for longer".to_owned(),
        "receiver_storage" => "on the receiving machine: another disk, if `vmstat 1` shows waits for this one (`wa`); `haul cp --sync none` does not \
            wait for it, and a crash there may then cost files that were reported"
            .to_owned(),
        "sender_storage" => "on the sending machine: another disk, if `vmstat 1` shows waits for this one (`wa`)".to_owned(),
        "application" => "speed up the program at the other end of the pipe: `top` shows whether it needs more processor time".to_owned(),
        _ => return None,
    })
}

/// Advises a receive buffer that holds what arrives while nobody reads; `None` if nothing was lost.
fn larger_buffer(report: &RunReport, requested: Bytes) -> Option<String> {
    let (rate, _) = report.capacity.as_ref().filter(|_| report.lost.total() > 0)?;
    let (pause, words) = match report.longest_read_delay {
        Some(pause) => (pause, "the longest time that a packet waited to be read"),
        None => (report.rtt?, "one round trip; the longest pause is unknown"),
    };
    let buffer = rate.bytes_in(pause).min(SOCKET_BUFFER[1].0);
    let setting = format!(" with `haul cp --set socket_buffer={buffer}`");
    let setting = if buffer > requested.0 { &*setting } else { "" };
    Some(format!(
        "`sudo sysctl -w net.core.rmem_max={buffer}`{setting} holds what comes at {rate} in {:.0} ms ({words})",
        pause.as_millis_f64().ceil()
    ))
}

/// Returns how many times the goodput the path delivers at most; `None` if unknown, low, or the path limits.
fn expected_gain(report: &RunReport) -> Option<f64> {
    let limit = &*report.limited_by.as_ref()?.what;
    let (path, _) = report.capacity.as_ref().filter(|(_, name)| *name != "ceiling")?;
    let times = path.as_bps() as f64 / report.goodput.as_bps().max(1) as f64;
    (!["path", "path_or_sender", "rate_ceiling"].contains(&limit) && times >= MIN_GAIN).then_some(times)
}

fn gain_in_words(report: &RunReport) -> String {
    let limit = report.limited_by.as_ref().map(|limit| &*limit.what);
    match (expected_gain(report), &report.capacity) {
        (Some(times), Some((path, _))) => {
            format!("up to {times:.1} times: the next known limit is the path, with at most {path}")
        }
        _ if limit == Some("path") => "none without another path or control law".to_owned(),
        (None, Some((path, name)))
            if name == "measured path" && !matches!(limit, Some("path_or_sender" | "rate_ceiling")) =>
        {
            format!("none measured: the path delivered at most {path}")
        }
        _ => "not known".to_owned(),
    }
}

/// Returns the load average of one minute, and the number of processors.
fn load() -> Option<(f64, usize)> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some((text.split_whitespace().next()?.parse().ok()?, available_parallelism().ok()?.get()))
}

/// Returns twice the present value, at least `least`, and at most what fits into the kernel's `int`.
fn enlarged(now: u64, least: u64) -> u64 {
    now.saturating_mul(2).max(least).min(i32::MAX as u64)
}

/// Returns what to do about packets that were dropped before they reached any socket.
fn early_drop_findings(drops: EarlyDropTotals, settings: QueueSettings) -> Vec<String> {
    let EarlyDropTotals { backlog, cards, taken, squeezes } = drops;
    let gain = |lost: u64| {
        let share = lost as f64 / taken.saturating_add(lost).max(1) as f64;
        format!("gain to expect: {:.4} % of the packets that came since then were lost so", share * 100.0)
    };
    let of_backlog = (backlog > 0).then(|| {
        format!(
            "the kernel has dropped {} since it started because a processor's queue was full: sudo sysctl -w \
             net.core.netdev_max_backlog={} ({})",
            count(backlog, "packet"),
            enlarged(settings.backlog, 10_000),
            gain(backlog)
        )
    });
    let of_cards = (cards > 0).then(|| {
        format!(
            "the network cards had no room for {} since this machine started: give them larger rings \
             (ethtool -G DEVICE rx N; ethtool -g DEVICE shows the most; {})",
            count(cards, "packet"),
            gain(cards)
        )
    });
    // Squeezes alone lose nothing.
    let of_budget = (cards > 0 && squeezes > 0).then(|| {
        format!(
            "the kernel has left packets on the network cards {} because it may take in no more at a time: sudo \
             sysctl -w net.core.netdev_budget={} net.core.netdev_budget_usecs={} (gain to expect: at most that of larger rings)",
            count(squeezes, "time"),
            enlarged(settings.budget, 600),
            enlarged(settings.budget_usecs, 8_000)
        )
    });
    [of_backlog, of_cards, of_budget].into_iter().flatten().collect()
}

/// Advice if programs wait for a processor.
fn overload_finding(load: f64, processors: usize, idle: &[u32]) -> String {
    format!(
        "{load:.1} programs want this machine's {}: a receiver here may lose packets; {RENICE_COMMAND} gives a \
         transfer one before others; {} (gain to expect: up to {:.1} times where the processor is the limit)",
        count(processors as u64, "processor"),
        other_processors(Some(idle)),
        load / processors as f64
    )
}

fn findings(context: &Context) -> Vec<String> {
    let not_known =
        |text: String| format!("{text} (gain to expect: not known without a measurement, `haul doctor URL`)");
    let mut found: Vec<_> = counters::fallbacks(&context.settings).iter().cloned().map(not_known).collect();
    found.extend(early_drop_findings(EarlyDropTotals::of_this_machine(), QueueSettings::in_force()));
    let load = load().filter(|(load, processors)| *load > *processors as f64);
    found.extend(load.map(|(load, processors)| {
        let before = ProcessorTimes::now();
        std::thread::sleep(OBSERVATION_TIME);
        overload_finding(load, processors, &ProcessorTimes::now().idle_since(&before, IDLE_SHARE))
    }));
    found
}

/// The report of one direction, and what to do about its limit.
type Measured = (RunReport, Option<String>);

fn measure(context: &Context, args: &DoctorArgs, reverse: bool) -> Result<Measured, Fault> {
    let bench_args =
        BenchArgs { url: args.url.clone(), time: Some(args.time), reverse, ..BenchArgs::default() };
    let before = ProcessorTimes::now();
    let report = bench::run(context, &bench_args)?;
    if let Some(fault) = report.error {
        return Err(fault);
    }
    let limited_here = if reverse { "receiver_host" } else { "sender_cpu" };
    let is_here = report.limited_by.as_ref().is_some_and(|limit| limit.what == limited_here);
    let idle = is_here.then(|| ProcessorTimes::now().idle_since(&before, IDLE_SHARE));
    let advice = advice(&report, context.settings.socket_buffer, idle.as_deref());
    Ok((report, advice))
}

fn print_direction(name: &str, (report, advice): &Measured) {
    out(format_args!("{name}:"));
    out(report);
    if let Some(advice) = advice {
        out(format_args!("What to do: {advice}"));
        out(format_args!("Gain to expect: {}", gain_in_words(report)));
    }
}

fn object(found: &[String], directions: &[(&str, Measured)]) -> Value {
    let mut object = json!({ "findings": found });
    for (name, (report, advice)) in directions {
        object[*name] = json_value(report);
        object[*name]["advice"] = json!(advice);
        object[*name]["expected_gain"] = json!(expected_gain(report));
    }
    object
}

pub(crate) fn run(context: &Context, args: &DoctorArgs) -> Result<u8, Fault> {
    let found = findings(context);
    if !context.json {
        for finding in &found {
            out(format_args!("here: {finding}"));
        }
        if found.is_empty() {
            out("here: the kernel grants everything a transfer requests, and no processor is overloaded");
        }
    }
    let mut directions = Vec::new();
    if args.url.is_some() {
        // A typed loss model, which is for the sending side, would be rejected in one of the directions.
        let context = &Context { typed: Vec::new(), ..context.clone() };
        for (name, words, reverse) in
            [("there", "From here to there", false), ("back", "From there to here", true)]
        {
            let measured = measure(context, args, reverse)?;
            if !context.json {
                print_direction(words, &measured);
            }
            directions.push((name, measured));
        }
    }
    if context.json {
        out_fields(object(&found, &directions), None);
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use haul_base::{Cause, CauseCounts, Rate, Span};

    use super::*;
    use haul_proto::Limit;

    const REQUESTED: Bytes = Bytes(64 << 20);

    #[test]
    fn only_actual_drops_are_reported_with_the_command_that_helps() {
        let findings = |drops| early_drop_findings(drops, QueueSettings::default());
        assert_eq!(findings(EarlyDropTotals::default()), Vec::<String>::new());
        let found = findings(EarlyDropTotals { backlog: 7, cards: 9, taken: 993, squeezes: 3 });
        assert!(
            found[0].contains("dropped 7 packets")
                && found[0].contains("sysctl -w net.core.netdev_max_backlog")
        );
        assert!(found[1].contains("for 9 packets") && found[1].contains("ethtool -G"), "{found:?}");
        assert!(found[2].contains("3 times") && found[2].contains("net.core.netdev_budget="), "{found:?}");
        assert!(findings(EarlyDropTotals { squeezes: 3, ..EarlyDropTotals::default() }).is_empty());
    }

    #[test]
    fn a_gain_is_expected_only_if_the_path_was_not_the_limit() {
        let gain_of = |what: &str, name: &'static str, path| {
            let limited_by = Some(Limit { what: what.to_owned().into(), evidence: String::new() });
            let capacity = Some((Rate::from_mbps(path), name.into()));
            expected_gain(&RunReport {
                goodput: Rate::from_mbps(400),
                limited_by,
                capacity,
                ..RunReport::default()
            })
        };
        assert_eq!(gain_of("receiver_host", "measured path", 1_000), Some(2.5));
        assert_eq!(gain_of("receiver_host", "measured path", 420), None);
        assert_eq!(gain_of("path", "measured path", 1_000), None);
        assert_eq!(gain_of("law", "ceiling", 1_000), None);
    }

    /// The report of a run of 400 Mbit/s on a path of 1 Gbit/s, limited by `what`.
    fn limited_by(what: &str) -> RunReport {
        RunReport {
            goodput: Rate::from_mbps(400),
            rtt: Some(Span::from_millis(50)),
            lost: [(Cause::ReceiverHost, 7)].into_iter().collect(),
            limited_by: Some(Limit { what: what.to_owned().into(), evidence: String::new() }),
            capacity: Some((Rate::from_mbps(1_000), "measured path".into())),
            ..RunReport::default()
        }
    }

    #[test]
    fn every_limit_has_its_advice_and_its_gain() {
        for (what, command, gain) in [
            ("receiver_host", "sysctl -w net.core.rmem_max=", "up to 2.5 times"),
            ("sender_cpu", "renice -n", "up to 2.5 times"),
            ("sender_cpu", "taskset -acp", "up to 2.5 times"),
            ("path", "haul presets", "none without"),
            ("path_or_sender", "haul presets", "not known"),
            ("law", "--controller bbr", "up to 2.5 times"),
            ("rate_ceiling", "--rate unlimited", "not known"),
            ("receiver_share", "--capacity", "up to 2.5 times"),
            ("start_up", "--time", "up to 2.5 times"),
            ("round_trips", "--time", "up to 2.5 times"),
            ("receiver_storage", "--sync none", "up to 2.5 times"),
            ("sender_storage", "vmstat 1", "up to 2.5 times"),
            ("application", "top", "up to 2.5 times"),
        ] {
            let report = limited_by(what);
            assert!(advice(&report, REQUESTED, None).is_some_and(|text| text.contains(command)), "{what}");
            assert!(gain_in_words(&report).starts_with(gain), "{what}: {}", gain_in_words(&report));
        }
        let level = RunReport { goodput: Rate::from_mbps(990), ..limited_by("sender_cpu") };
        assert!(gain_in_words(&level).starts_with("none measured"));
        let capped = RunReport {
            capacity: Some((Rate::from_mbps(400), "ceiling".into())),
            ..limited_by("sender_cpu")
        };
        assert_eq!(gain_in_words(&capped), "not known");
    }

    #[test]
    fn the_advised_buffer_covers_the_longest_read_delay() {
        let hint = |pause| {
            larger_buffer(&RunReport { longest_read_delay: pause, ..limited_by("receiver_host") }, REQUESTED)
                .unwrap()
        };
        assert!(
            hint(Some(Span::from_millis(80)))
                .starts_with("`sudo sysctl -w net.core.rmem_max=10000000` holds")
        );
        assert!(hint(None).contains("rmem_max=6250000` holds") && hint(None).contains("is unknown"));
        let long = hint(Some(Span::from_secs(1)));
        assert!(long.contains("rmem_max=125000000` with `haul cp --set socket_buffer=125000000`"), "{long}");
        assert!(hint(Some(Span::from_secs(1_000))).contains("rmem_max=268435456`"));
        let without_losses = RunReport { lost: CauseCounts::default(), ..limited_by("receiver_host") };
        assert!(
            larger_buffer(&without_losses, REQUESTED).is_none()
                && advice(&without_losses, REQUESTED, Some(&[])).is_some_and(|text| text.contains("renice"))
        );
    }

    #[test]
    fn idle_processors_are_named_if_there_are_any() {
        let text = overload_finding(5.0, 4, &[1, 3]);
        assert!(text.contains("taskset -acp 1,3 $(pgrep") && text.contains("up to 1.2 times"), "{text}");
        assert!(!overload_finding(5.0, 4, &[]).contains("taskset"));
    }

    /// The advice once lowered the values of machines that were tuned already.
    #[test]
    fn no_advice_makes_a_queue_shorter() {
        let settings = QueueSettings { backlog: 30_000, budget: 300, budget_usecs: 8_000 };
        let found =
            early_drop_findings(EarlyDropTotals { backlog: 7, cards: 9, taken: 993, squeezes: 3 }, settings);
        let backlog = "net.core.netdev_max_backlog=60000 (gain to expect: 0.7000 % of the packets that came since then were lost so)";
        assert!(found[0].ends_with(backlog), "{found:?}");
        let budget = "net.core.netdev_budget=600 net.core.netdev_budget_usecs=16000";
        assert!(found[2].contains(budget), "{found:?}");
        assert_eq!(enlarged(u64::MAX, 600), 2_147_483_647);
    }
}
