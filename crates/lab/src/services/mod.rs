//! `haul-lab services`: the services of wu-h-ctp section 5 on the emulator, beside TCP: rates held over round-trip
//! times, rates that the receiver changes, jitter beside UDT too, turn-around of small messages, packets per reading.

mod client;
mod connect;
mod emulated;
mod figures;
mod ideal;
mod incoming;
mod job;
mod points;
mod server;
mod tables;
mod theft;
mod turns;
mod udt;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::outcome::Outcome;
use crate::problem::Problem;
use points::Points;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Throughput at a rate asked for, over the round-trip time
    Rates,
    /// Two streams whose rates the receiver sets, one of them changed on the way
    Change,
    /// Evenness of a stream alone on the path, and of two at once: viz, TCP, UDT
    Jitter,
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

    #[command(flatten)]
    points: Points,

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
pub(crate) fn services(args: &ServicesArgs) -> Result<Outcome, Problem> {
    let points = &args.points;
    points.check()?;
    let lab = emulated::Emulator::new(args.seed)?;
    let wanted = |what| args.what.is_empty() || args.what.contains(&what);
    let mut outcome = Outcome::default();
    println!("seed {}", args.seed);
    if wanted(What::Rates) {
        tables::rates(&lab, points, &mut outcome)?;
    }
    if wanted(What::Change) {
        tables::change(&lab, points, &mut outcome)?;
    }
    if wanted(What::Jitter) {
        tables::jitter(&lab, points, &mut outcome)?;
    }
    if wanted(What::Turnaround) {
        turns::table(&lab, points, &mut outcome)?;
    }
    if wanted(What::Readings) {
        tables::readings(&lab, points.share, &mut outcome)?;
    }
    Ok(outcome)
}

/// One end of a measurement, inside its namespace.
pub(crate) fn end(args: &EndArgs) -> Result<ExitCode, Problem> {
    let job = job::Job::load(&args.directory)?;
    if matches!(job, job::Job::Turnaround { .. }) {
        // What else the host does is not to be measured: 1 % of the turns is as many as it disturbs.
        haul_wan::hurry();
    }
    match args.side.as_str() {
        "a" => client::run(&job, &args.directory)?,
        _ => server::run(&job, &args.directory)?,
    }
    Ok(ExitCode::SUCCESS)
}
