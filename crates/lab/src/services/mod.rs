//! `haul-lab services`: the services of wu-h-ctp section 5 on the emulator, compared with TCP: constant rates
//! over round-trip times, rate changes by the receiver, jitter (also of UDT), turn-around of small messages,
//! packets per reading.

mod client;
mod connect;
mod emulated;
mod figures;
mod ideal;
mod incoming;
mod job;
mod points;
mod server;
mod stolen_time;
mod tables;
mod turns;
mod udt;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::outcome::Outcome;
use crate::problem::Problem;
use points::Points;

/// Available measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Table {
    /// Throughput at a requested rate, over round-trip times
    Rates,
    /// Two streams whose rates the receiver sets, and changes for one of them
    Change,
    /// Jitter of one stream on a path, and of two concurrent ones: viz, TCP, UDT
    Jitter,
    /// Turn-around of a 10-byte message, over round-trip times and loss
    Turnaround,
    /// Packets on the wire per reading
    Readings,
}

/// Arguments of `haul-lab services`.
#[derive(Debug, Args)]
pub(crate) struct ServicesArgs {
    /// Measurements to run; all if none is given
    #[arg(value_enum)]
    what: Vec<Table>,

    #[command(flatten)]
    points: Points,

    /// Seed of the paths
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
}

/// Arguments of the hidden command for one end.
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    /// Side, `a` or `b`
    #[arg(value_parser = ["a", "b"])]
    side: String,
    /// Directory of the job and its results
    directory: PathBuf,
}

/// Runs the measurements and prints tables.
pub(crate) fn services(args: &ServicesArgs) -> Result<Outcome, Problem> {
    let points = &args.points;
    points.check()?;
    let lab = emulated::Emulator::new(args.seed)?;
    let is_selected = |what| args.what.is_empty() || args.what.contains(&what);
    let mut outcome = Outcome::default();
    println!("seed {}", args.seed);
    if is_selected(Table::Rates) {
        tables::rates(&lab, points, &mut outcome)?;
    }
    if is_selected(Table::Change) {
        tables::change(&lab, points, &mut outcome)?;
    }
    if is_selected(Table::Jitter) {
        tables::jitter(&lab, points, &mut outcome)?;
    }
    if is_selected(Table::Turnaround) {
        turns::table(&lab, points, &mut outcome)?;
    }
    if is_selected(Table::Readings) {
        tables::readings(&lab, points.share, &mut outcome)?;
    }
    Ok(outcome)
}

/// Runs one end of a measurement inside its namespace.
pub(crate) fn end(args: &EndArgs) -> Result<ExitCode, Problem> {
    let job = job::Job::load(&args.directory)?;
    if matches!(job, job::Job::Turnaround { .. }) {
        // Reduces the influence of other load: the 99 % quantile is sensitive to it.
        haul_wan::end_soon();
    }
    match args.side.as_str() {
        "a" => client::run(&job, &args.directory)?,
        _ => server::run(&job, &args.directory)?,
    }
    Ok(ExitCode::SUCCESS)
}
