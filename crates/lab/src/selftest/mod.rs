//! `haul-lab wan --self-test`: measures the emulator against its specification.

mod probes;
mod tcp;
mod udp;

use clap::Parser;
use haul_base::{Rate, Span};
use haul_wan::Privilege;
use serde::Serialize;

use crate::problem::{Problem, While};
use crate::wan::{Plan, Report, Running, WanArgs};

use probes::Probes;
use udp::{Blast, Method, Outcome};

/// Half-width of the 99 % interval of a normal distribution, in standard deviations.
const NINETY_NINE: f64 = 2.576;

/// One measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    /// What was measured.
    pub what: String,
    /// Expected value, as text.
    pub wanted: String,
    /// Measured value with its unit, as text.
    pub measured: String,
    /// Whether the measurement meets the expectation.
    pub ok: bool,
}

/// Parameters of the measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bench {
    /// How namespaces are created.
    pub privilege: Privilege,
    /// Seed of the paths' random decisions.
    pub seed: u64,
    /// Duration of each measurement.
    pub time: Span,
}

#[derive(Debug, Parser)]
struct Words {
    #[command(flatten)]
    wan: WanArgs,
}

/// Starts a path with these options.
fn path(bench: Bench, words: &str) -> Result<Running, Problem> {
    let words = std::iter::once("self-test").chain(words.split_whitespace());
    let args = Words::try_parse_from(words).map_err(|e| Problem::failed(e.to_string(), ""))?.wan;
    let plan = Plan::from_args(&args.path, args.mtu)?;
    Running::start(&args, plan, bench.privilege, bench.seed)
}

/// Runs all measurements; passes each line to `report_line` when it is available.
pub(crate) fn run(bench: Bench, mut report_line: impl FnMut(&Line)) -> Result<Vec<Line>, Problem> {
    let mut lines = Vec::new();
    let mut add = |line: Result<Line, Problem>| {
        line.map(|line| {
            report_line(&line);
            lines.push(line);
        })
    };
    for millis in [0, 1, 20, 100, 200] {
        add(round_trip(bench, Span::from_millis(millis)))?;
    }
    for rate in [10, 100, 1_000].map(Rate::from_mbps) {
        add(rate_of(bench, rate))?;
    }
    for percent in [0.1, 1.0, 10.0] {
        add(loss(bench, percent))?;
    }
    add(jitter(bench, Rate::from_mbps(500)))?;
    add(emulator_loss(bench, Rate::from_mbps(2_500), Method::PacketByPacket))?;
    add(emulator_loss(bench, Rate::from_mbps(4_500), Method::Batched))?;
    add(tcp(bench))?;
    Ok(lines)
}

fn report_of(running: &Running) -> Result<Report, Problem> {
    running.report().ok_or_else(|| Problem::failed("the emulated path has failed", ""))
}

fn round_trip(bench: Bench, rtt: Span) -> Result<Line, Problem> {
    let running = path(bench, &format!("--rtt {}ns", rtt.as_nanos()))?;
    let probes = Probes { every: Span::from_millis(4), time: bench.time };
    let [forth, back] = probes.both_directions(running.world()).while_doing("cannot measure delays")?;
    let median = forth.median() + back.median();
    let error = median.as_millis_f64() - rtt.as_millis_f64();
    Ok(Line {
        what: format!("round trip of {} ms", rtt.as_millis_f64()),
        wanted: "within 0.2 ms".to_owned(),
        measured: format!(
            "{error:+.3} ms (99 %: {:+.3} ms)",
            (forth.p99() + back.p99()).as_millis_f64() - rtt.as_millis_f64()
        ),
        ok: error.abs() <= 0.2,
    })
}

fn rate_of(bench: Bench, rate: Rate) -> Result<Line, Problem> {
    let running = path(bench, &format!("--rate {}bit --queue 200ms", rate.as_bps()))?;
    let blast =
        Blast { rate: rate.mul_f64(1.3), method: Method::PacketByPacket, time: bench.time, stamps: false };
    let outcome = blast.run(running.world()).while_doing("cannot measure a rate")?;
    let arrived = report_of(&running)?.forth.snapshot.received.packets;
    let measured = outcome.rate(arrived);
    let error = measured.as_bps() as f64 / rate.as_bps() as f64 - 1.0;
    Ok(Line {
        what: format!("rate of {rate}"),
        wanted: "within 1 %".to_owned(),
        measured: format!("{:+.3} %{}", error * 100.0, socket_loss(&outcome, arrived)),
        ok: error.abs() <= 0.01,
    })
}

/// Describes the packets lost by the receiving socket, which are not the emulator's fault.
fn socket_loss(outcome: &Outcome, arrived: u64) -> String {
    match arrived.saturating_sub(outcome.received) {
        0 => String::new(),
        lost => format!(" (the receiving socket lost {lost})"),
    }
}

fn loss(bench: Bench, percent: f64) -> Result<Line, Problem> {
    let running = path(bench, &format!("--loss {percent}%"))?;
    let blast =
        Blast { rate: Rate::from_mbps(400), method: Method::PacketByPacket, time: bench.time, stamps: false };
    let outcome = blast.run(running.world()).while_doing("cannot measure loss")?;
    let (packets, share) = (outcome.sent as f64, percent / 100.0);
    let lost = outcome.sent.saturating_sub(outcome.received) as f64;
    let interval = NINETY_NINE * (packets * share * (1.0 - share)).sqrt();
    Ok(Line {
        what: format!("loss of {percent} % of {} packets", outcome.sent),
        wanted: format!("{:.0} ± {interval:.0} packets (99 %)", packets * share),
        measured: format!("{lost} packets"),
        ok: (lost - packets * share).abs() <= interval,
    })
}

fn jitter(bench: Bench, rate: Rate) -> Result<Line, Problem> {
    // Without a bottleneck, whose queue would show the bursts of a delayed sender.
    let running = path(bench, "--rtt 20ms")?;
    let blast = Blast { rate, method: Method::PacketByPacket, time: bench.time, stamps: true };
    let outcome = blast.run(running.world()).while_doing("cannot measure jitter")?;
    let added = outcome.delays.p99().saturating_sub(outcome.delays.median());
    Ok(Line {
        what: format!("jitter at {rate}"),
        wanted: "99 % within 0.3 ms".to_owned(),
        measured: format!("99 %: +{:.3} ms", added.as_millis_f64()),
        ok: added <= Span::from_micros(300),
    })
}

fn emulator_loss(bench: Bench, rate: Rate, method: Method) -> Result<Line, Problem> {
    let running = path(bench, "--rtt 1ms")?;
    // Slightly more than the rate, so that a sender that is delayed near the end has sent enough.
    let blast = Blast { rate: rate.mul_f64(1.02), method, time: bench.time, stamps: false };
    let outcome = blast.run(running.world()).while_doing("cannot measure own loss")?;
    let report = report_of(&running)?;
    let dropped = report.forth.snapshot.drops.total() + report.forth.overrun_buffers;
    let sent = Rate::from_transfer(outcome.sent * outcome.packet_bytes, outcome.elapsed);
    let kind = if method == Method::PacketByPacket { "without offload" } else { "with USO" };
    let is_sufficient = sent.as_bps() as f64 >= rate.as_bps() as f64 * 0.99;
    let mut measured = format!("{dropped} packets of {} at {sent}", outcome.sent);
    if !is_sufficient {
        measured.push_str(" (the sender could not send faster)");
    }
    measured.push_str(&socket_loss(&outcome, report.forth.snapshot.received.packets));
    Ok(Line {
        what: format!("own loss at {rate} of UDP {kind}"),
        wanted: "none".to_owned(),
        measured,
        ok: dropped == 0 && is_sufficient,
    })
}

fn tcp(bench: Bench) -> Result<Line, Problem> {
    let running = path(bench, "--rtt 10ms --tcp-window 256MiB")?;
    let rate = tcp::measure(running.world(), bench.time).while_doing("cannot measure TCP")?;
    Ok(Line {
        what: "TCP at 10 ms".to_owned(),
        wanted: "at least 10 Gbit/s".to_owned(),
        measured: rate.to_string(),
        ok: rate >= Rate::from_mbps(10_000),
    })
}
