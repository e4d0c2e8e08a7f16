//! Selection of the measured points.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use crate::problem::Problem;

/// Transport of small messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MessageTransport {
    /// The recipe `msg`
    Msg,
    /// The kernel's TCP
    Tcp,
    /// TCP with linear timeouts for thin streams
    Thin,
    /// Plain datagrams
    Udp,
}

/// Selection of points and number of repetitions.
#[derive(Debug, Args)]
pub(super) struct Points {
    /// Share of the full number of messages and seconds, for quick runs
    #[arg(long, value_name = "0.1..1", default_value = "1")]
    pub(super) share: f64,

    /// Round-trip times of `rates` and `turnaround`
    #[arg(long, value_name = "MS,..", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=1_000))]
    pub(super) rtt: Option<Vec<u64>>,

    /// Loss in each direction of `turnaround`
    #[arg(long, value_name = "PERCENT,..", value_delimiter = ',')]
    pub(super) loss: Option<Vec<f64>>,

    /// Messages per carrier and round of `turnaround`
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub(super) messages: Option<usize>,

    /// Carriers of `turnaround`; TCP takes longest with high loss
    #[arg(
        long,
        value_enum,
        value_name = "CARRIER,..",
        value_delimiter = ',',
        default_value = "msg,tcp,thin,udp"
    )]
    pub(super) carriers: Vec<MessageTransport>,

    /// Busy-poll times of both ends of `msg` in `turnaround`, microseconds; each counts as a separate carrier
    #[arg(long, value_name = "US,..", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(super) busy_poll: Option<Vec<u64>>,

    /// Rounds over all carriers, each with different losses [default: 1 for `rates` (4 minutes), otherwise 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: Option<u32>,

    /// Divides the rates of `change`, for machines that are too slow or too busy for them
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(super) slower: u64,

    /// Program for UDT in `jitter`, built by scripts/bench/udt.sh
    #[arg(long, value_name = "PROGRAM")]
    pub(super) udt: Option<PathBuf>,
}

/// Default number of rounds.
pub(super) const ROUNDS: u32 = 5;

impl Points {
    pub(super) fn rounds_or_default(&self, default: u32) -> u64 {
        self.rounds.unwrap_or(default).into()
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
