//! `haul-lab list` and `haul-lab run`: the papers' tables and figures, and our own experiments. A plan
//! specifies what is varied and the expected results, and is committed before it is run.

mod args;
mod built_in;
mod check;
mod classes;
mod grid;
mod lines;
mod measure;
mod plan;
mod plot;
mod results;
mod signatures;
mod stats;
mod suspension;
mod verdict;
mod windows;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use serde::Serialize;

use crate::emulator::Emulator;
use crate::outcome::Outcome;
use crate::problem::{Problem, While};
use crate::sim::RunReport;
pub(crate) use args::RunArgs;
use check::CheckResult;
use plan::{Plan, Runner};
use verdict::Verdict;

/// Lists all experiments.
pub(crate) fn list() -> Result<ExitCode, Problem> {
    for name in Plan::names() {
        let plan = Plan::named(name)?;
        let from =
            if plan.figures.is_empty() { plan.paper } else { format!("{}, {}", plan.paper, plan.figures) };
        println!("{name:<18} {:<9} {from:<38} {}", plan.runner.name(), plan.about);
    }
    for known in &built_in::ALL {
        println!("{:<18} {:<9} {:<38} {}", known.name, "built in", known.paper, known.about);
    }
    Ok(ExitCode::SUCCESS)
}

/// One combination in the result file.
#[derive(Serialize)]
struct CellReport<'a> {
    values: serde_json::Map<String, serde_json::Value>,
    runs: &'a [RunReport],
}

/// Contents of an experiment's result file.
#[derive(Serialize)]
struct Report<'a> {
    experiment: &'a str,
    about: &'a str,
    paper: &'a str,
    figures: &'a str,
    notes: &'a str,
    profile: &'static str,
    seeds: u32,
    checks: &'a [CheckResult],
    problems: &'a [String],
    cells: Vec<CellReport<'a>>,
}

/// Runs experiments and prints the verdicts. All names are resolved before the first run.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Problem> {
    let (mut plans, mut built_in) = (Vec::new(), Vec::new());
    for name in &args.names {
        match (name.as_str(), built_in::named(name)) {
            (_, Some(known)) => built_in.push(known),
            ("all", None) => plans.extend(simulated()?),
            (name, None) => plans.push((name, Plan::named(name)?)),
        }
    }
    fs::create_dir_all(&args.out).while_doing(&format!("cannot make {}", args.out.display()))?;
    let mut all: Vec<CheckResult> = Vec::new();
    for known in built_in {
        all.extend(run_built_in(known, args)?);
    }
    let is_successful = run_plans(plans, args, &mut all)? && is_explained(&all, args);
    Ok(if is_successful { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Returns all plans except those that measure this machine, which run only when named.
fn simulated() -> Result<Vec<(&'static str, Plan)>, Problem> {
    let plans = Plan::names().map(|name| Plan::named(name).map(|plan| (name, plan)));
    let is_simulated =
        |plan: &Result<(_, Plan), _>| !matches!(plan, Ok((_, plan)) if plan.runner != Runner::Simulator);
    plans.filter(is_simulated).collect()
}

fn run_built_in(known: &built_in::BuiltIn, args: &RunArgs) -> Result<Vec<CheckResult>, Problem> {
    let Outcome { claims, tables } = (known.run)(args)?;
    let check_results = built_in::assess(claims);
    let report = known.report(args, &check_results, &tables);
    write(&args.out.join(format!("{}.json", known.name)), &report)?;
    print_verdicts(known.name, known.about, &check_results, &[]);
    Ok(check_results)
}

/// Runs plans. Returns whether all runs succeeded.
fn run_plans(plans: Vec<(&str, Plan)>, args: &RunArgs, all: &mut Vec<CheckResult>) -> Result<bool, Problem> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = args.jobs.map_or(cores, usize::from);
    let mut is_successful = true;
    for (name, mut plan) in plans {
        plan.set_seeds(args.seeds);
        let name = Path::new(name).file_stem().map_or(name.into(), |stem| stem.to_string_lossy());
        let emulator = match emulator_for(&plan)? {
            Ok(emulator) => emulator,
            Err(why) => {
                println!("SKIPPED {name}: it needs the emulator, and {why}");
                continue;
            }
        };
        let (check_results, problems) = run_one(&name, &plan, args, threads, emulator.as_ref())?;
        is_successful &= problems.is_empty();
        all.extend(check_results);
    }
    Ok(is_successful)
}

/// Prints the number of checks by verdict. Returns whether every check passed or has a reason in its plan.
fn is_explained(all: &[CheckResult], args: &RunArgs) -> bool {
    let count = |verdict| all.iter().filter(|check_results| check_results.verdict == verdict).count();
    let unexplained = all
        .iter()
        .filter(|check_results| check_results.verdict == Verdict::Differs && check_results.why.is_empty());
    let is_explained = unexplained.count() == 0;
    println!(
        "{} checks: {} reproduced, {} same ordering, {} undecided, {} differ; numbers and diagrams are in {}",
        all.len(),
        count(Verdict::Reproduced),
        count(Verdict::SameOrdering),
        count(Verdict::Undecided),
        count(Verdict::Differs),
        args.out.display()
    );
    is_explained
}

/// Returns the emulator, if the plan needs one, or why it is not available.
fn emulator_for(plan: &Plan) -> Result<Result<Option<Emulator>, String>, Problem> {
    if plan.runner == Runner::Simulator {
        return Ok(Ok(None));
    }
    let emulator = Emulator::new("experiment")?;
    Ok(emulator.missing()?.map_or(Ok(Some(emulator)), Err))
}

fn run_one(
    name: &str,
    plan: &Plan,
    args: &RunArgs,
    threads: usize,
    emulator: Option<&Emulator>,
) -> Result<(Vec<CheckResult>, Vec<String>), Problem> {
    let profile = plan.profile(args.full);
    let results = plan.run(profile, threads, emulator)?;
    let bad = |message: String| Problem::failed(format!("experiment {name}: {message}"), "");
    let check_results: Vec<CheckResult> =
        plan.check.iter().map(|check| check.assess(&results)).collect::<Result<_, _>>().map_err(bad)?;
    let problems = results.problems();
    plot::draw_all(name, &plan.plot, &results, &args.out).map_err(bad)?;
    let files = args.out.join(format!("{name}-signatures"));
    signatures::write_signatures(&results, &files)
        .while_doing(&format!("writing into {}", files.display()))?;
    let report = Report {
        experiment: name,
        about: &plan.about,
        paper: &plan.paper,
        figures: &plan.figures,
        notes: &plan.notes,
        profile: args.profile(),
        seeds: profile.seeds.get(),
        checks: &check_results,
        problems: &problems,
        cells: results.cells.iter().map(cell_report).collect(),
    };
    write(&args.out.join(format!("{name}.json")), &report)?;
    print_verdicts(name, &plan.about, &check_results, &problems);
    Ok((check_results, problems))
}

fn cell_report(cell: &results::Cell) -> CellReport<'_> {
    let value =
        |(key, value): &(String, toml::Value)| (key.clone(), serde_json::to_value(value).unwrap_or_default());
    CellReport { values: cell.values.iter().map(value).collect(), runs: &cell.runs }
}

fn write(file: &Path, report: &impl Serialize) -> Result<(), Problem> {
    let text = serde_json::to_vec(report).map_err(std::io::Error::from);
    let context = format!("writing {}", file.display());
    fs::write(file, text.while_doing(&context)?).while_doing(&context)
}

/// Prints the verdicts: the paper's values and ours.
fn print_verdicts(name: &str, about: &str, check_results: &[CheckResult], problems: &[String]) {
    println!("{name}: {about}");
    for check in check_results {
        println!("  {:<13} {}", check.verdict.name(), check.name);
        if !check.paper.is_empty() {
            println!("{:16}paper: {}", "", check.paper);
        }
        println!("{:16}here:  {}", "", check.ours);
        if check.verdict != Verdict::Reproduced && !check.why.is_empty() {
            println!("{:16}why:   {}", "", check.why);
        }
    }
    for problem in problems.iter().take(5) {
        println!("  problem: {problem}");
    }
    if let Some(more) = problems.len().checked_sub(5).filter(|more| *more > 0) {
        println!("  and {more} more problems; all are in the JSON");
    }
}
