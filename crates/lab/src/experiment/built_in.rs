//! Experiments implemented in code rather than by plans. Each needs an entry here.

use clap::{Args, Parser};
use serde::Serialize;
use serde_json::{Map, Value};

use super::args::RunArgs;
use super::check::CheckResult;
use super::verdict::Verdict;
use crate::outcome::{Claim, Outcome};
use crate::problem::Problem;
use crate::{compare, scheduler, services, sim, stack_cost};

/// An experiment with its own runner, which prints its tables.
pub(super) struct BuiltIn {
    pub name: &'static str,
    pub paper: &'static str,
    pub about: &'static str,
    pub run: fn(&RunArgs) -> Result<Outcome, Problem>,
}

pub(super) const ALL: [BuiltIn; 5] = [
    BuiltIn {
        name: "services",
        paper: "wu-h-ctp, section 5, figures 10 and 11",
        about: "viz, msg and sensor on emulated paths, beside TCP (as `haul-lab services`)",
        run: |args| {
            services::services(&options(if args.full { &[] } else { &["--share=0.1", "--rounds=1"] }))
        },
    },
    BuiltIn {
        name: "compare",
        paper: "ours",
        about: "theory, simulator and emulator: delay, loss and TCP on the same paths (as `haul-lab compare`)",
        run: |args| {
            let quick = ["--time=5s", "--runs=1", "--simulations=3"];
            compare::compare(&options(if args.full { &[] } else { &quick }))
        },
    },
    BuiltIn {
        name: "sim",
        paper: "ours",
        about: "the shipped scenarios, each with its own checks (as `haul-lab sim FILE`)",
        run: |args| sim::run_shipped(&args.out, args.jobs),
    },
    BuiltIn {
        name: "stack-cost",
        paper: "wu-h-ctp, section 3.3, table 3",
        about: "cost of the framework, measured in memory (`haul-lab stack-cost` has more)",
        run: |_| stack_cost::in_memory(),
    },
    BuiltIn {
        name: "scheduler-trace",
        paper: "asynch, figures 7 and 8",
        about: "which process holds a receiver's core, with either scheduler (as `haul-lab scheduler-trace`)",
        run: |args| scheduler::draw_both(&args.out),
    },
];

/// Returns the experiment with this name.
pub(super) fn named(name: &str) -> Option<&'static BuiltIn> {
    ALL.iter().find(|known| known.name == name)
}

/// Contents of the experiment's result file.
#[derive(Serialize)]
pub(super) struct BuiltInReport<'a> {
    experiment: &'a str,
    about: &'a str,
    paper: &'a str,
    profile: &'static str,
    checks: &'a [CheckResult],
    tables: &'a Map<String, Value>,
}

/// Converts claims to verdicts.
pub(super) fn assess(claims: Vec<Claim>) -> Vec<CheckResult> {
    let assess_claim = |Claim { name, paper, ours, is_met, why }| {
        let (verdict, ours, interval) = Verdict::simple((is_met, ours));
        CheckResult { name, verdict, paper, ours, interval, why: why.to_owned() }
    };
    claims.into_iter().map(assess_claim).collect()
}

impl BuiltIn {
    /// Returns the contents of the result file.
    pub(super) fn report<'a>(
        &'a self,
        args: &RunArgs,
        checks: &'a [CheckResult],
        tables: &'a Map<String, Value>,
    ) -> BuiltInReport<'a> {
        let Self { name: experiment, paper, about, .. } = self;
        BuiltInReport { experiment, about, paper, profile: args.profile(), checks, tables }
    }
}

/// Parses the given options as those of a command.
fn options<T: Args>(arguments: &[&str]) -> T {
    #[derive(Parser)]
    struct Line<T: Args> {
        #[command(flatten)]
        options: T,
    }
    Line::parse_from(std::iter::once(&"haul-lab").chain(arguments)).options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_quick_runs_are_valid() {
        let _: services::ServicesArgs = options(&["--share=0.1", "--rounds=1"]);
        let _: compare::CompareArgs = options(&["--time=5s", "--runs=1", "--simulations=3"]);
    }
}
