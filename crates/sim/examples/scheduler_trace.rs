//! Who holds the core of a receiving host, and the receiver's sleep average: figures 7 and 8 of the ASYNCH paper.
//!
//! `scheduler_trace [--scheduler o1|fair] [--load computation|memory|calls] [--processes N] [--rate PACKETS_PER_SECOND]
//! [--from MS] [--to MS] [--svg FILE]` prints CSV, and draws the same window when given a file.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::str::FromStr;

use haul_base::{Bytes, Span, Time};
use haul_sim::host::scheduler::{FairConfig, Nice, O1Config, RunSlice, Sample, SchedulerKind, TaskId, Trace};
use haul_sim::host::{
    AdmitRule, HostConfig, HostOutput, Incoming, Load, NicConfig, ReceiverConfig, ReceivingHost, SkbLayout,
    SocketConfig,
};

const USAGE: &str = "scheduler_trace [--scheduler o1|fair] [--load computation|memory|calls] [--processes N] \
                     [--rate PACKETS_PER_SECOND] [--from MS] [--to MS] [--svg FILE]";

#[derive(Debug)]
struct Options {
    scheduler: SchedulerKind,
    load: Load,
    rate: u64,
    from: Time,
    to: Time,
    svg: Option<String>,
}

/// The value of `--name`, or what is usual.
fn option<T: FromStr>(args: &[String], name: &str, usual: T) -> Result<T, String> {
    match args.iter().position(|arg| arg == name) {
        None => Ok(usual),
        Some(at) => {
            args.get(at + 1).and_then(|value| value.parse().ok()).ok_or(format!("{name} needs a value"))
        }
    }
}

fn options(args: &[String]) -> Result<Options, String> {
    let scheduler = match option(args, "--scheduler", "o1".to_owned())?.as_str() {
        "o1" => SchedulerKind::O1(O1Config::default()),
        "fair" => SchedulerKind::Fair(FairConfig::default()),
        other => return Err(format!("no scheduler `{other}`")),
    };
    let processes = option(args, "--processes", 1)?;
    let load = match option(args, "--load", "memory".to_owned())?.as_str() {
        "computation" => Load::Computation { processes, nice: Nice::default() },
        "memory" => Load::Memory { processes, slowdown_permille: 1_200 },
        "calls" => Load::system_calls(processes),
        other => return Err(format!("no load `{other}`")),
    };
    let ms = |name, usual| option(args, name, usual).map(|ms| Time::ZERO + Span::from_millis(ms));
    let svg = option(args, "--svg", String::new())?;
    Ok(Options {
        scheduler,
        load,
        rate: option(args, "--rate", 42_000)?.clamp(1, 1_000_000),
        from: ms("--from", 3_000)?,
        to: ms("--to", 4_500)?,
        svg: (!svg.is_empty()).then_some(svg),
    })
}

/// What happened in the window.
#[derive(Debug)]
struct Record {
    receiver: TaskId,
    slices: Vec<RunSlice>,
    samples: Vec<Sample>,
    losses: Vec<Time>,
}

/// A receiver that needs 10 us a packet, with 8 MiB of socket buffer, as the papers' machines were: Linux 2.6.
fn simulate(options: &Options) -> Record {
    let socket = SocketConfig {
        asked: Bytes(4 << 20),
        permitted: Bytes(4 << 20),
        rule: AdmitRule::Linux26,
        layout: SkbLayout::Linear,
    };
    let receiver = ReceiverConfig {
        socket,
        per_call: Span::from_micros(1),
        per_skb: Span::from_micros(1),
        per_packet: Span::from_micros(8),
        batch: 1,
        ..ReceiverConfig::default()
    };
    let config = HostConfig {
        scheduler: options.scheduler,
        nic: NicConfig::default(),
        receivers: vec![receiver],
        loads: vec![options.load],
        seed: 1,
    };
    let mut host = ReceivingHost::new(&config, Time::ZERO);
    host.set_trace(Some(Trace::new(20_000_000, Span::from_millis(1))));
    let mut losses = Vec::new();
    for n in 0.. {
        let now = Time::from_nanos(n * 1_000_000_000 / options.rate);
        if now > options.to {
            break;
        }
        host.advance(now, &mut |output| {
            if let HostOutput::Dropped { at, .. } = output {
                losses.push(at);
            }
        });
        host.on_arrival(now, Incoming { tag: n, socket: 0, flow: 0, bytes: 1_472, packets: 1 });
    }
    let within = |at: Time| at >= options.from && at <= options.to;
    let receiver = host.task(0);
    let (slices, samples) = match host.cpu().scheduler().ledger().trace() {
        Some(trace) => (trace.joined(Span::from_millis(1)), trace.samples().to_vec()),
        None => (Vec::new(), Vec::new()),
    };
    Record {
        receiver,
        slices: slices.into_iter().filter(|slice| within(slice.to)).collect(),
        samples: samples.into_iter().filter(|sample| within(sample.at) && sample.task == receiver).collect(),
        losses: losses.into_iter().filter(|&at| within(at)).collect(),
    }
}

fn ms(at: Time) -> f64 {
    at.since(Time::ZERO).as_millis_f64()
}

fn csv(record: &Record) {
    println!("kind,task,from_ms,to_ms,sleep_average_ms,priority");
    for slice in &record.slices {
        println!("slice,{},{:.3},{:.3},,", slice.task.0, ms(slice.from), ms(slice.to));
    }
    for sample in &record.samples {
        let (at, average) = (ms(sample.at), sample.sleep_average.as_millis_f64());
        println!("sample,{},{at:.3},{at:.3},{average:.3},{}", sample.task.0, sample.priority);
    }
    for &loss in &record.losses {
        println!("loss,,{0:.3},{0:.3},,", ms(loss));
    }
}

const WIDTH: f64 = 960.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;

/// Two plots one above the other: who held the core, with losses marked, and the receiver's sleep average.
fn svg(options: &Options, record: &Record) -> Result<String, std::fmt::Error> {
    let (from, to) = (ms(options.from), ms(options.to));
    let x = |at: Time| LEFT + (ms(at).clamp(from, to) - from) / (to - from) * (WIDTH - LEFT - RIGHT);
    // The fair scheduler has no sleep average.
    let has_average = record.samples.iter().any(|sample| sample.sleep_average > Span::ZERO);
    let height = if has_average { 430 } else { 160 };
    let mut out = String::new();
    writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{height}" fill="#fff"/>
<g fill="#333"><text x="{LEFT}" y="20" font-size="14">Time slices; losses are marked below</text>
<text x="10" y="52">receiver</text><text x="10" y="87">load</text><text x="10" y="118">losses</text></g>"##
    )?;
    for slice in &record.slices {
        let (y, colour) = if slice.task == record.receiver { (38, "#2a6fb0") } else { (73, "#c9602c") };
        let (left, width) = (x(slice.from), (x(slice.to) - x(slice.from)).max(0.3));
        writeln!(out, r#"<rect x="{left:.2}" y="{y}" width="{width:.2}" height="20" fill="{colour}"/>"#)?;
    }
    let mut marked = f64::NEG_INFINITY;
    for at in record.losses.iter().map(|&at| x(at)) {
        // A mark for each half unit, not for each packet.
        if at - marked >= 0.5 {
            marked = at;
            writeln!(out, r##"<path d="M{at:.1} 108v12" stroke="#a00" stroke-width="0.6"/>"##)?;
        }
    }
    if has_average {
        plot_average(&mut out, record, x)?;
    }
    let bottom = height - 15;
    for tick in 0..=6 {
        let at = from + (to - from) * f64::from(tick) / 6.0;
        let place = LEFT + (WIDTH - LEFT - RIGHT) * f64::from(tick) / 6.0;
        writeln!(
            out,
            r##"<text x="{place:.1}" y="{bottom}" text-anchor="middle" fill="#333">{at:.0} ms</text>"##
        )?;
    }
    out.push_str("</svg>\n");
    Ok(out)
}

fn plot_average(out: &mut String, record: &Record, x: impl Fn(Time) -> f64) -> std::fmt::Result {
    let averages = || record.samples.iter().map(|sample| sample.sleep_average.as_millis_f64());
    let top = (averages().fold(1.0, f64::max) / 50.0).ceil() * 50.0;
    let title = "Sleep average of the receiver, ms";
    writeln!(out, r##"<text x="{LEFT}" y="160" font-size="14" fill="#333">{title}</text>"##)?;
    let y = |average: f64| 385.0 - average / top * 205.0;
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let (at, right) = (y(value), WIDTH - RIGHT);
        writeln!(out, r##"<path d="M{LEFT} {at:.1}H{right}" stroke="#ddd"/>"##)?;
        writeln!(
            out,
            r##"<text x="{}" y="{:.1}" text-anchor="end" fill="#333">{value:.0}</text>"##,
            LEFT - 8.0,
            at + 4.0
        )?;
    }
    out.push_str(r##"<path fill="none" stroke="#2a6fb0" stroke-width="1.2" d=""##);
    for (n, sample) in record.samples.iter().enumerate() {
        let command = if n == 0 { 'M' } else { 'L' };
        write!(out, "{command}{:.1} {:.1}", x(sample.at), y(sample.sleep_average.as_millis_f64()))?;
    }
    out.push_str("\"/>\n");
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let options = options(&args)?;
    let record = simulate(&options);
    csv(&record);
    if let Some(path) = &options.svg {
        std::fs::write(path, svg(&options, &record)?)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}\nusage: {USAGE}");
            ExitCode::FAILURE
        }
    }
}
