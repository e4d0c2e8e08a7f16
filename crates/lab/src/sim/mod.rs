//! `haul-lab sim`: runs scenarios in the simulator.

mod build;
mod checks;
mod direct;
mod discriminate;
pub(crate) mod ends;
mod flows;
mod loads;
mod locate;
pub(crate) mod real;
mod report;
mod run;
mod scenario;
mod service;
mod shipped;
mod site;
mod sweep;
mod text;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::Args;
use serde::Serialize;
use toml::{Table, Value};

use crate::problem::{Problem, While};
pub(crate) use checks::{Measure, Subject};
use locate::{Fault, Step};
pub(crate) use report::{RecordedWindow, RunReport};
pub(crate) use run::{Job, Recorded, run_all};
pub(crate) use shipped::run_shipped;
pub(crate) use sweep::{Axis, Values, combinations, set, take_axes};

use run::TraceFile;
use scenario::Scenario;

const EXAMPLES: &str = "Examples:
  haul-lab sim crates/lab/scenarios/fixed-1-percent.toml
  haul-lab sim outage.toml --seed 7 --set path.wan.forward.delay=50ms
  haul-lab sim mtu.toml --trace packets.jsonl

Exit status: 0 if every check passes, 1 if one fails or a run reaches its cap, 2 for an invalid scenario.
Scenario files are described in docs/scenarios.md.";

/// Arguments of `haul-lab sim`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimArgs {
    /// Scenario file
    #[arg(value_name = "SCENARIO.toml")]
    pub file: PathBuf,

    /// Writes JSON to standard output (the default)
    #[arg(long)]
    pub json: bool,

    /// Writes the fate of every packet to this file, one JSON object per line; for a single run
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Overrides the scenario's seed
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Overrides a value: session.bulk.rate=1Gbit, path.wan.forward.delay=50ms; removes the key, and those
    /// below it, from the sweep
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Concurrent runs of a sweep [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
}

/// Printed results.
#[derive(Debug, Serialize)]
struct Output<'a> {
    scenario: String,
    about: &'a str,
    runs: Vec<RunReport>,
    passed: bool,
}

/// A scenario file and its overrides.
struct Plan {
    file: PathBuf,
    text: String,
    table: Table,
    fixed: Values,
    axes: Vec<Axis>,
}

impl Plan {
    fn read(args: &SimArgs) -> Result<Self, Problem> {
        let file = args.file.clone();
        let text = fs::read_to_string(&file).map_err(|error| {
            Problem::usage(format!("{}: {error}", file.display()), "give the path of a scenario file")
        })?;
        let unreadable = |error: toml::de::Error| locate::unreadable(&file, &text, &error);
        toml::from_str::<Scenario>(&text).map_err(unreadable)?;
        let mut table: Table = text.parse().map_err(unreadable)?;
        let mut axes = take_axes(&mut table).map_err(|(key, message)| {
            let mut field = vec![Step::Key("sweep".to_owned())];
            field.extend(Some(Step::Key(key)).filter(|step| *step != Step::Key(String::new())));
            locate::problem_at(&file, &text, &Fault { field, message })
        })?;
        let mut fixed = Values::new();
        for setting in &args.set {
            let bad =
                |problem| Problem::usage(format!("--set {setting}: {problem}"), "keys are in the scenario");
            fixed.push(sweep::parse_setting(setting).map_err(bad)?);
        }
        if let Some(seed) = args.seed {
            let seed = i64::try_from(seed).map_err(|_| {
                Problem::usage(format!("--seed {seed}: too large"), format!("at most {}", i64::MAX))
            })?;
            fixed.push(("seed".to_owned(), Value::from(seed)));
        }
        axes.retain(|(key, _)| !fixed.iter().any(|(other, _)| sweep::sets(other, key)));
        Ok(Self { file, text, table, fixed, axes })
    }

    fn job(&self, values: Values) -> Result<Job, Problem> {
        let mut table = self.table.clone();
        for (index, (keys, value)) in values.iter().enumerate() {
            set(&mut table, keys, value).map_err(|message| {
                if index < self.fixed.len() {
                    return Problem::usage(
                        format!("--set: {message}"),
                        "docs/scenarios.md says how keys are made",
                    );
                }
                let field = vec![Step::Key("sweep".to_owned()), Step::Key(keys.clone())];
                locate::problem_at(&self.file, &self.text, &Fault { field, message })
            })?;
        }
        let run_values =
            || values.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ");
        let scenario: Scenario = if values.is_empty() {
            toml::from_str(&self.text).map_err(|error| locate::unreadable(&self.file, &self.text, &error))?
        } else {
            Value::Table(table).try_into().map_err(|error: toml::de::Error| {
                let message = error.to_string().trim().replace('\n', " ");
                Problem::usage(format!("{}: with {}: {message}", self.file.display(), run_values()), "")
            })?
        };
        let built =
            build::build(&scenario).map_err(|fault| locate::problem_at(&self.file, &self.text, &fault))?;
        Ok(Job { scenario, values, built })
    }

    fn jobs(&self) -> Result<Vec<Job>, Problem> {
        let combinations = combinations(&self.axes).ok_or_else(|| {
            let field = vec![Step::Key("sweep".to_owned())];
            let message = format!("more than {} runs; use fewer values", sweep::MAX_RUNS);
            locate::problem_at(&self.file, &self.text, &Fault { field, message })
        })?;
        combinations.into_iter().map(|values| self.job([self.fixed.clone(), values].concat())).collect()
    }
}

/// Returns the runs of a scenario file.
pub(crate) fn jobs_of(args: &SimArgs) -> Result<Vec<Job>, Problem> {
    Plan::read(args)?.jobs()
}

/// Builds a run of a scenario that has no file. The error describes the problem.
pub(crate) fn prepare(scenario: Table, values: Values) -> Result<Job, String> {
    let scenario: Scenario =
        Value::Table(scenario).try_into().map_err(|error: toml::de::Error| error.to_string())?;
    let built = build::build(&scenario).map_err(|fault| {
        let (field, message) = (locate::key_of(&fault.field), fault.message);
        format!("`{field}`: {message}")
    })?;
    Ok(Job { scenario, values, built })
}

/// Prints failed conditions and problems to standard error.
fn print_problems(file: &Path, runs: &[RunReport]) {
    for run in runs.iter().filter(|run| !run.passed) {
        let values = run.values.iter().map(|(key, value)| format!("{key} = {value}"));
        let run_values =
            std::iter::once(format!("seed {}", run.seed)).chain(values).collect::<Vec<_>>().join(", ");
        let place = format!("{} ({run_values})", file.display());
        for problem in &run.problems {
            eprintln!("haul-lab: {place}: {problem}");
        }
        for check in run.checks.iter().filter(|check| !check.passed) {
            eprintln!("haul-lab: {place}: {}: not {}; it was {}", check.of, check.that, check.was);
        }
    }
}

/// Runs a scenario and prints the results.
pub(crate) fn sim(args: &SimArgs) -> Result<ExitCode, Problem> {
    let plan = Plan::read(args)?;
    let mut jobs = plan.jobs()?;
    let about = jobs.first().map(|job| job.scenario.about.clone()).unwrap_or_default();
    let trace = match (&args.trace, jobs.as_mut_slice()) {
        (None, _) => None,
        (Some(path), [job]) => Some((TraceFile::attach(path, &mut job.built.world)?, path)),
        (Some(_), jobs) => {
            let keys = plan.axes.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(", ");
            let message = format!("--trace is for a single run, and this sweep has {}", jobs.len());
            return Err(Problem::usage(message, format!("choose a value with --set for each of: {keys}")));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let runs = run_all(jobs, args.jobs.map_or(cores, usize::from));
    if let Some((trace, path)) = trace {
        trace.finish(path)?;
    }
    let passed = runs.iter().all(|run| run.passed);
    print_problems(&args.file, &runs);
    let scenario = args.file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let output = Output { scenario, about: &about, runs, passed };
    let mut out = std::io::stdout().lock();
    let written = serde_json::to_writer_pretty(&mut out, &output).map_err(std::io::Error::from);
    written.and_then(|()| writeln!(out)).while_doing("writing to standard output")?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
