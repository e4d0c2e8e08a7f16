//! Which points of the tables are measured.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use crate::problem::Problem;

/// Who carries small messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Courier {
    /// The recipe `msg`
    Msg,
    /// The kernel's TCP
    Tcp,
    /// The same with timeouts for thin streams
    Thin,
    /// Bare datagrams
    Udp,
}

/// Which points of the tables, and how many times.
#[derive(Debug, Args)]
pub(super) struct Points {
    /// Share of the full number of messages and seconds, for a quick look
    #[arg(long, value_name = "0.1..1", default_value = "1")]
    pub(super) share: f64,

    /// Round-trip times of `rates` and `turnaround`
    #[arg(long, value_name = "MS,..", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=1_000))]
    pub(super) rtt: Option<Vec<u64>>,

    /// Loss each way of `turnaround`
    #[arg(long, value_name = "PERCENT,..", value_delimiter = ',')]
    pub(super) loss: Option<Vec<f64>>,

    /// Messages of a carrier in a round of `turnaround`
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub(super) messages: Option<usize>,

    /// Who carries in `turnaround`; TCP takes longest where much is lost
    #[arg(
        long,
        value_enum,
        value_name = "CARRIER,..",
        value_delimiter = ',',
        default_value = "msg,tcp,thin,udp"
    )]
    pub(super) carriers: Vec<Courier>,

    /// How long the ends of `msg` may look for a message themselves in `turnaround`; several are several carriers
    #[arg(long, value_name = "US,..", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(super) busy_poll: Option<Vec<u64>>,

    /// Rounds, every carrier in turn, each with other losses: 1 of `rates`, which takes 4 minutes, 5 of the others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: Option<u32>,

    /// UDT in `jitter`, by the program that scripts/bench/udt.sh builds
    #[arg(long, value_name = "PROGRAM")]
    pub(super) udt: Option<PathBuf>,
}

/// Rounds where none are asked for.
pub(super) const ROUNDS: u32 = 5;

impl Points {
    pub(super) fn rounds_or(&self, usual: u32) -> u64 {
        self.rounds.unwrap_or(usual).into()
    }

    pub(super) fn check(&self) -> Result<(), Problem> {
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
