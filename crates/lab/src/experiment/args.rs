//! The options of `haul-lab run`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "Examples:
  haul-lab run asynch-1
  haul-lab run moving neighbours
  haul-lab run all --out figures
  haul-lab run asynch-1 --full --jobs 2

Exit status: 0 if every check is reproduced, has the same ordering, is undecided, or differs for a reason given in
the plan; 1 if one differs without a reason; 2 if there is no such experiment.
docs/experiments.md explains the verdicts.";

/// Arguments of `haul-lab run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Experiments, `all` simulated ones, or your own plans (files ending in .toml)
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// Runs more values and more seeds
    #[arg(long)]
    pub full: bool,

    /// Runs each combination with seeds 1 to N, instead of the plan's number
    #[arg(long, value_name = "N")]
    pub seeds: Option<NonZeroU32>,

    /// Directory for results (JSON) and diagrams (SVG)
    #[arg(long, value_name = "DIR", default_value = "experiments")]
    pub out: PathBuf,

    /// Concurrent runs [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
}

impl RunArgs {
    pub(super) const fn profile(&self) -> &'static str {
        if self.full { "full" } else { "quick" }
    }
}
