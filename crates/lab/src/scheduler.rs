//! `haul-lab scheduler-trace`: which task holds the core of a receiving host, and the receiver's sleep
//! average (figures 7 and 8 of the ASYNCH paper).

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use haul_base::{Bytes, Span, Time};
use haul_sim::host::scheduler::{
    FairConfig, O1Config, RunSlice, Sample, SchedulerKind, TaskId, TaskSpec, Trace,
};
use haul_sim::host::{
    AdmitRule, HostConfig, HostOutput, Incoming, Load, NicConfig, ReceiverConfig, ReceivingHost, SkbLayout,
    SocketConfig,
};
use serde_json::json;

use crate::outcome::Outcome;
use crate::problem::{Problem, While};

/// Scheduler of the simulated host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scheduler {
    /// Linux 2.6.21
    O1,
    /// Linux from 6.6 on
    Fair,
}

impl Scheduler {
    fn kind(self) -> SchedulerKind {
        match self {
            Self::O1 => SchedulerKind::O1(O1Config::default()),
            Self::Fair => SchedulerKind::Fair(FairConfig::default()),
        }
    }
}

/// Load beside the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Beside {
    /// CPU-bound
    Computation,
    /// CPU-bound, and slows the receiver by its use of memory
    Memory,
    /// System calls
    Calls,
}

/// Arguments of `haul-lab scheduler-trace`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TraceArgs {
    /// Scheduler of the core
    #[arg(long, value_enum, default_value = "o1")]
    scheduler: Scheduler,

    /// Load beside the receiver
    #[arg(long, value_enum, default_value = "memory")]
    load: Beside,

    /// Processes of the load
    #[arg(long, value_name = "N", default_value = "1")]
    processes: u32,

    /// Packets that arrive per second
    #[arg(
        long,
        value_name = "N",
        default_value = "42000",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    rate: u64,

    /// Start of the displayed window, from the start of the run
    #[arg(long, value_name = "MS", default_value = "3000")]
    from: u64,

    /// End of the displayed window
    #[arg(long, value_name = "MS", default_value = "4500", value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    to: u64,

    /// File for the diagram; its data are printed as CSV
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl TraceArgs {
    /// Options of the diagrams in the documentation.
    fn of(scheduler: Scheduler) -> Self {
        // The fair scheduler's slices are shorter by a factor of 30.
        let to = if scheduler == Scheduler::Fair { 3_100 } else { 4_500 };
        Self { scheduler, load: Beside::Memory, processes: 1, rate: 42_000, from: 3_000, to, svg: None }
    }

    fn window(&self) -> (Time, Time) {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        (at(self.from), at(self.to))
    }

    fn load(&self) -> Load {
        let processes = self.processes;
        match self.load {
            Beside::Computation => Load::Computation { processes, spec: TaskSpec::default() },
            Beside::Memory => Load::Memory { processes, slowdown_permille: 1_200 },
            Beside::Calls => Load::system_calls(processes),
        }
    }
}

/// Events in the displayed window.
#[derive(Debug)]
struct Record {
    receiver: TaskId,
    slices: Vec<RunSlice>,
    samples: Vec<Sample>,
    losses: Vec<Time>,
}

/// Simulates a receiver that needs 10 us per packet and has 8 MiB of socket buffer, as in the papers (Linux
/// 2.6).
fn simulate(options: &TraceArgs) -> Record {
    let (from, to) = options.window();
    let socket = SocketConfig {
        requested: Bytes(4 << 20),
        permitted: Bytes(4 << 20),
        rule: AdmitRule::Linux26,
        layout: SkbLayout::Linear,
    };
    let receiver = ReceiverConfig::packet_by_packet(socket);
    let config = HostConfig {
        scheduler: options.scheduler.kind(),
        nic: NicConfig::default(),
        receivers: vec![receiver],
        loads: vec![options.load()],
        seed: 1,
    };
    let mut host = ReceivingHost::new(&config, Time::ZERO);
    host.set_trace(Some(Trace::new(20_000_000, Span::from_millis(1))));
    let mut losses = Vec::new();
    for n in 0.. {
        let now = Time::from_nanos(n * 1_000_000_000 / options.rate);
        if now > to {
            break;
        }
        host.advance(now, &mut |output| {
            if let HostOutput::Dropped { at, .. } = output {
                losses.push(at);
            }
        });
        host.on_arrival(now, Incoming { tag: n, socket: 0, flow: 0, bytes: 1_472, packets: 1 });
    }
    let within = |at: Time| at >= from && at <= to;
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

impl Record {
    /// Returns the number of losses while another task has the core.
    fn without_core(&self) -> usize {
        let others = || self.slices.iter().filter(|slice| slice.task != self.receiver);
        let is_without = |&&at: &&Time| others().any(|slice| slice.from <= at && at <= slice.to);
        self.losses.iter().filter(is_without).count()
    }
}

fn ms(at: Time) -> f64 {
    at.since(Time::ZERO).as_millis_f64()
}

fn csv(record: &Record) -> Result<String, std::fmt::Error> {
    let mut out = "kind,task,from_ms,to_ms,sleep_average_ms,priority\n".to_owned();
    for slice in &record.slices {
        writeln!(out, "slice,{},{:.3},{:.3},,", slice.task.0, ms(slice.from), ms(slice.to))?;
    }
    for sample in &record.samples {
        let (at, average) = (ms(sample.at), sample.sleep_average.as_millis_f64());
        writeln!(out, "sample,{},{at:.3},{at:.3},{average:.3},{}", sample.task.0, sample.priority)?;
    }
    for &loss in &record.losses {
        writeln!(out, "loss,,{0:.3},{0:.3},,", ms(loss))?;
    }
    Ok(out)
}

const WIDTH: f64 = 960.0;
const LEFT_MARGIN: f64 = 90.0;
const RIGHT_MARGIN: f64 = 20.0;

/// Draws two plots: the task on the core, with losses marked, and below the receiver's sleep average.
fn svg(options: &TraceArgs, record: &Record) -> Result<String, std::fmt::Error> {
    let (from, to) = (options.from as f64, options.to as f64);
    let x = |at: Time| {
        LEFT_MARGIN + (ms(at).clamp(from, to) - from) / (to - from) * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN)
    };
    // The fair scheduler has no sleep average.
    let has_average = record.samples.iter().any(|sample| sample.sleep_average > Span::ZERO);
    let height = if has_average { 430 } else { 160 };
    let mut out = String::new();
    writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{height}" fill="#fff"/>
<g fill="#333"><text x="{LEFT_MARGIN}" y="20" font-size="14">Time slices; losses are marked below</text>
<text x="10" y="52">receiver</text><text x="10" y="87">load</text><text x="10" y="118">losses</text></g>"##
    )?;
    for slice in &record.slices {
        let (y, colour) = if slice.task == record.receiver { (38, "#2a6fb0") } else { (73, "#c9602c") };
        let (left, width) = (x(slice.from), (x(slice.to) - x(slice.from)).max(0.3));
        writeln!(out, r#"<rect x="{left:.2}" y="{y}" width="{width:.2}" height="20" fill="{colour}"/>"#)?;
    }
    let mut marked = f64::NEG_INFINITY;
    for at in record.losses.iter().map(|&at| x(at)) {
        // At most one mark per half unit, not one per packet.
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
        let place = LEFT_MARGIN + (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) * f64::from(tick) / 6.0;
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
    writeln!(out, r##"<text x="{LEFT_MARGIN}" y="160" font-size="14" fill="#333">{title}</text>"##)?;
    let y = |average: f64| 385.0 - average / top * 205.0;
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let (at, right) = (y(value), WIDTH - RIGHT_MARGIN);
        writeln!(out, r##"<path d="M{LEFT_MARGIN} {at:.1}H{right}" stroke="#ddd"/>"##)?;
        writeln!(
            out,
            r##"<text x="{}" y="{:.1}" text-anchor="end" fill="#333">{value:.0}</text>"##,
            LEFT_MARGIN - 8.0,
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

fn save(options: &TraceArgs, record: &Record, file: &Path) -> Result<(), Problem> {
    let drawing = svg(options, record).map_err(io::Error::other);
    let context = format!("writing {}", file.display());
    fs::write(file, drawing.while_doing(&context)?).while_doing(&context)
}

/// Prints the trace, and draws it if a file is given.
pub(crate) fn trace(options: &TraceArgs) -> Result<ExitCode, Problem> {
    if options.from >= options.to {
        return Err(Problem::usage("--from is not before --to", ""));
    }
    let record = simulate(options);
    let text = csv(&record).map_err(io::Error::other);
    let context = "writing to standard output";
    io::stdout().write_all(text.while_doing(context)?.as_bytes()).while_doing(context)?;
    if let Some(file) = &options.svg {
        save(options, &record, file)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws both schedulers into a directory.
pub(crate) fn draw_both(out: &Path) -> Result<Outcome, Problem> {
    let mut outcome = Outcome::default();
    for (scheduler, name) in [(Scheduler::O1, "o1"), (Scheduler::Fair, "fair")] {
        let options = TraceArgs::of(scheduler);
        let record = simulate(&options);
        let file = out.join(format!("scheduler-{name}.svg"));
        save(&options, &record, &file)?;
        let (losses, slices) = (record.losses.len(), record.slices.len());
        println!("{}: {losses} losses in {slices} time slices", file.display());
        let without_core = record.without_core();
        let row = json!({ "scheduler": name, "slices": slices, "losses": losses, "losses_without_core": without_core });
        outcome.row("schedulers", row);
        if scheduler == Scheduler::O1 {
            let ours = format!("{without_core} of {losses} while the load has the core");
            let is_met = losses > 0 && without_core * 10 >= losses * 9;
            outcome.claim("packets are lost while the receiver has no core", "figure 7", ours, is_met);
        }
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_displayed_window_is_drawn_and_listed() {
        let options = TraceArgs { to: 3_300, ..TraceArgs::of(Scheduler::O1) };
        let record = simulate(&options);
        let text = csv(&record).unwrap();
        for kind in ["slice,", "sample,", "loss,"] {
            assert!(text.lines().any(|line| line.starts_with(kind)), "{kind}");
        }
        let drawing = svg(&options, &record).unwrap();
        assert!(drawing.contains("Sleep average") && drawing.contains("3300 ms"), "{drawing}");
        let fair = TraceArgs::of(Scheduler::Fair);
        assert!(!svg(&fair, &simulate(&fair)).unwrap().contains("Sleep average"));
    }
}
