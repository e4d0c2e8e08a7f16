//! `haul-lab compare`: runs the same paths and traffic in the simulator and on the emulator, and compares the
//! results with each other and with theory where it exists.

mod cases;
mod diag;
mod emulated;
mod end;
mod figures;
mod simulated;
mod table;

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use haul_base::Span;

use crate::outcome::Outcome;
use crate::problem::Problem;
use cases::{TcpCase, UdpCase};
use emulated::Emulator;
pub(crate) use end::{EndArgs, end};
use figures::{Arrivals, Series};
use table::Measured;

const EXAMPLES: &str = "Examples:
  haul-lab compare --time 20s --seed 1
  haul-lab compare --only 'cubic 100.0 Mbit/s 50' --runs 3
  haul-lab compare --no-emulator --simulations 20

Prints Markdown tables on standard output and progress on standard error. The emulator requires root, or the
right to create user namespaces. TCP runs with the kernel's own congestion controls (tcp_reno, tcp_cubic, tcp_bbr).";

/// Arguments of `haul-lab compare`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompareArgs {
    /// Duration of each run; pairs of flows take three times as long
    #[arg(long, value_name = "TIME", default_value = "20s")]
    time: Span,

    /// Seed of the first run; later runs use consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Runs per case on the emulator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,

    /// Runs per case in the simulator
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..))]
    simulations: u64,

    /// Concurrent TCP runs on the emulator
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,

    /// Runs only cases whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,

    /// Runs only the simulator
    #[arg(long)]
    no_emulator: bool,

    /// Writes every sample of the TCP runs to this file as JSON
    #[arg(long, value_name = "FILE")]
    samples: Option<std::path::PathBuf>,
}

/// Runs the comparison and prints the tables.
///
/// # Errors
/// If the emulator is not available or a run fails.
pub(crate) fn compare(args: &CompareArgs) -> Result<Outcome, Problem> {
    let emulator = if args.no_emulator { None } else { Some(Emulator::new()?) };
    let emulator = emulator.as_ref();
    let is_selected = |name: &str| name.contains(&args.only);
    let mut udp = Vec::new();
    for case in cases::udp().into_iter().filter(|case| is_selected(&case.name)) {
        udp.push(one_udp(args, emulator, case)?);
    }
    let cases: Vec<TcpCase> =
        cases::tcp(args.time).into_iter().filter(|case| is_selected(&case.name())).collect();
    let tcp = all_tcp(args, emulator, &cases)?;
    if let Some(file) = &args.samples {
        table::write_samples(file, &tcp)?;
    }
    println!("seed {}, {} a run", args.seed, args.time);
    print!("{}", table::udp(&udp));
    print!("{}", table::tcp(&tcp));
    let mut outcome = Outcome::default();
    table::check_udp(&udp, &mut outcome);
    table::check_tcp(&tcp, &mut outcome);
    Ok(outcome)
}

fn one_udp(
    args: &CompareArgs,
    emulator: Option<&Emulator>,
    case: UdpCase,
) -> Result<Measured<UdpCase, Arrivals>, Problem> {
    let seeds = |count: u64| args.seed..args.seed.saturating_add(count);
    let run = |seed| simulated::udp(&case, args.time, seed);
    let simulated = seeds(args.simulations).map(run).collect::<Result<Vec<_>, _>>()?;
    let (mut replayed, mut emulated) = (Vec::new(), Vec::new());
    if let Some(emulator) = emulator {
        for seed in seeds(args.runs) {
            eprintln!("haul-lab: {}, seed {seed}", case.name);
            let run = emulator.udp(&case, args.time, seed)?;
            let times: Vec<Span> = run.sent_at.iter().copied().map(Span::from_nanos).collect();
            replayed.push(simulated::udp_at(&case, &times, seed)?);
            emulated.push(run);
        }
    }
    Ok(Measured { case, simulated, replayed, emulated })
}

/// Runs all TCP cases, several at a time.
fn all_tcp(
    args: &CompareArgs,
    emulator: Option<&Emulator>,
    cases: &[TcpCase],
) -> Result<Vec<Measured<TcpCase, Series>>, Problem> {
    let seeds = |count: u64| args.seed..args.seed.saturating_add(count);
    let jobs: Vec<(&TcpCase, u64)> =
        cases.iter().flat_map(|case| seeds(args.runs).map(move |seed| (case, seed))).collect();
    let mut emulated = Vec::new();
    if let Some(emulator) = emulator {
        emulated = in_parallel(&jobs, usize::from(args.jobs), |(case, seed)| {
            eprintln!("haul-lab: {}, seed {seed}", case.name());
            emulator.tcp(case, *seed)
        })
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    }
    let mut emulated = emulated.into_iter();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    cases
        .iter()
        .map(|case| {
            let seeds: Vec<u64> = seeds(args.simulations).collect();
            let simulated = in_parallel(&seeds, cores, |seed| simulated::tcp(case, *seed));
            let simulated = simulated.into_iter().collect::<Result<Vec<_>, _>>()?;
            Ok(Measured {
                case: case.clone(),
                simulated,
                replayed: Vec::new(),
                emulated: emulated.by_ref().take(args.runs as usize).collect(),
            })
        })
        .collect()
}

/// Applies `work` to every item on several threads. Results are in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let one = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = work(item);
            *results[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(one);
        }
        one();
    });
    results.into_iter().filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}
