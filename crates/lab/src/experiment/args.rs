//! The options of `haul-lab run`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "Examples:
  haul-lab run asynch-1
  haul-lab run moving neighbours
  haul-lab run all --out figures
  haul-lab run asynch-1 --full --jobs 2

Exit status: 0 if every check is reproduced, has the same ordering, is undecided, or differs for a reason that the plan
knows; 1 if one differs without; 2 for an experiment that there is not.
What the verdicts mean: docs/experiments.md.";

/// What `haul-lab run` takes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// The experiments, `all` that are simulated, or plans of your own (files that end in .toml)
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// More values and more seeds
    #[arg(long)]
    pub full: bool,

    /// Runs each combination with seeds 1 to N, in place of the plan's number
    #[arg(long, value_name = "N")]
    pub seeds: Option<NonZeroU32>,

    /// Where the numbers (JSON) and the diagrams (SVG) go
    #[arg(long, value_name = "DIR", default_value = "experiments")]
    pub out: PathBuf,

    /// How many runs go at a time [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
}

impl RunArgs {
    pub(super) const fn profile(&self) -> &'static str {
        if self.full { "full" } else { "quick" }
    }
}
