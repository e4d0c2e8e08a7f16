//! `haul-lab services`: the services of wu-h-ctp section 5 on the emulator, beside TCP: rates held over round-trip
//! times, rates that the receiver changes, jitter beside UDT too, turn-around of small messages, packets per reading.

mod client;
mod connect;
mod emulated;
mod figures;
mod ideal;
mod incoming;
mod job;
mod server;
mod tables;
mod theft;
mod turns;
mod udt;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use crate::outcome::Outcome;
use crate::problem::Problem;

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

/// Who carries small messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Courier {
    /// The recipe `msg`
    Msg,
    /// The kernel's TCP
    Tcp,
    /// The same with timeouts for thin streams
    Thin,
    /// Bare datagrams
    Udp,
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

/// Which points of the tables, and how many times.
#[derive(Debug, Args)]
struct Points {
    /// Share of the full number of messages and seconds, for a quick look
    #[arg(long, value_name = "0.1..1", default_value = "1")]
    share: f64,

    /// Round-trip times of `rates` and `turnaround`
    #[arg(long, value_name = "MS,..", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=1_000))]
    rtt: Option<Vec<u64>>,

    /// Loss each way of `turnaround`
    #[arg(long, value_name = "PERCENT,..", value_delimiter = ',')]
    loss: Option<Vec<f64>>,

    /// Messages of a carrier in a round of `turnaround`
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    messages: Option<usize>,

    /// Who carries in `turnaround`; TCP takes longest where much is lost
    #[arg(
        long,
        value_enum,
        value_name = "CARRIER,..",
        value_delimiter = ',',
        default_value = "msg,tcp,thin,udp"
    )]
    carriers: Vec<Courier>,

    /// How long the ends of `msg` may look for a message themselves in `turnaround`; several are several carriers
    #[arg(long, value_name = "US,..", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    busy_poll: Option<Vec<u64>>,

    /// Rounds, every carrier in turn, each with other losses: 1 of `rates`, which takes 4 minutes, 5 of the others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,

    /// UDT in `jitter`, by the program that scripts/bench/udt.sh builds
    #[arg(long, value_name = "PROGRAM")]
    udt: Option<PathBuf>,
}

/// Rounds where none are asked for.
const ROUNDS: u32 = 5;

impl Points {
    fn rounds_or(&self, usual: u32) -> u64 {
        self.rounds.unwrap_or(usual).into()
    }

    fn check(&self) -> Result<(), Problem> {
        if !(0.01..=1.0).contains(&self.share) {
            return Err(Problem::usage("--share must lie between 0.01 and 1", "1 is the full measurement"));
        }
        if self.loss.iter().flatten().any(|loss| !(0.0..=50.0).contains(loss)) {
            return Err(Problem::usage("--loss must lie between 0 and 50", "as in --loss 0,0.1,5"));
        }
        if self.udt.as_ref().is_some_and(|program| !program.is_file()) {
            return Err(Problem::usage("--udt names no program", "scripts/bench/udt.sh prints where it is"));
        }
        Ok(())
    }
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
