//! `haul-lab services`: the services of wu-h-ctp section 5 on the emulator, beside TCP: rates held over round-trip
//! times, rates that the receiver changes, turn-around of small messages, packets per reading.

mod client;
mod emulated;
mod figures;
mod job;
mod server;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::problem::Problem;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Throughput at a rate asked for, over the round-trip time
    Rates,
    /// Two streams whose rates the receiver sets, one of them changed on the way, and jitter
    Change,
    /// Turn-around of a 10-byte message, over round-trip time and loss
    Turnaround,
    /// Packets on the wire for each reading
    Readings,
}

/// What `haul-lab services` takes.
#[derive(Debug, Args)]
pub(crate) struct ServicesArgs {
    /// What to measure; everything if nothing is named
    #[arg(value_enum)]
    what: Vec<What>,

    /// Share of the full number of messages and seconds, for a quick look
    #[arg(long, value_name = "0.1..1", default_value = "1")]
    share: f64,

    /// Seed of the paths
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
}

/// What the hidden command of either end takes.
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    /// Which side
    #[arg(value_parser = ["a", "b"])]
    side: String,
    /// Where the job is, and where results go
    directory: PathBuf,
}

/// Measures, and prints tables.
pub(crate) fn services(args: &ServicesArgs) -> Result<ExitCode, Problem> {
    if !(0.01..=1.0).contains(&args.share) {
        return Err(Problem::usage("--share must lie between 0.01 and 1", "1 is the full measurement"));
    }
    let lab = emulated::Emulator::new(args.seed)?;
    let wanted = |what| args.what.is_empty() || args.what.contains(&what);
    println!("seed {}", args.seed);
    if wanted(What::Rates) {
        tables::rates(&lab, args.share)?;
    }
    if wanted(What::Change) {
        tables::change(&lab, args.share)?;
    }
    if wanted(What::Turnaround) {
        tables::turnaround(&lab, args.share)?;
    }
    if wanted(What::Readings) {
        tables::readings(&lab, args.share)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One end of a measurement, inside its namespace.
pub(crate) fn end(args: &EndArgs) -> Result<ExitCode, Problem> {
    let job = job::Job::load(&args.directory)?;
    match args.side.as_str() {
        "a" => client::run(&job, &args.directory)?,
        _ => server::run(&job, &args.directory)?,
    }
    Ok(ExitCode::SUCCESS)
}
