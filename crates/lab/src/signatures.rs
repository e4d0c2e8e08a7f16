//! `haul-lab signatures`: training data for the diagnosis.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::PoisonError;
use std::thread;

use clap::Args;
use haul_diagnosis::write_signature;

use crate::problem::{Problem, While};
use crate::sim::{Recorded, RunReport, SimArgs, jobs_of, run_all};

const EXAMPLES: &str = "Examples:
  haul-lab signatures crates/lab/training/host.toml --out signatures
  haul train --host signatures/host-*.sig --network signatures/network-*.sig -o model.toml

Every run is written to a separate file, SCENARIO-NUMBER.sig, with its parameters and drops as comments.
docs/diagnosis.md describes the files.";

/// Arguments of `haul-lab signatures`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SignaturesArgs {
    /// Scenario files
    #[arg(value_name = "SCENARIO.toml", required = true)]
    files: Vec<PathBuf>,

    /// Output directory; created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Overrides the scenarios' seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Overrides a value: session.bulk.rate=1Gbit; removes the key from the sweep
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Concurrent runs [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
}

/// Returns the text and number of a run's windows with losses.
fn text(name: &str, report: &RunReport, recorded: &[Recorded]) -> (String, usize) {
    let (mut text, mut windows) = (format!("# {name}: {}\n", report.run_values()), 0);
    for of in recorded {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# session {}: {}", of.session, report.drops_text(&of.session));
        let seen = of.windows.lock().unwrap_or_else(PoisonError::into_inner);
        for window in seen.iter().filter(|window| window.sample.lost > 0) {
            text.push_str(&write_signature(&window.signature));
            windows += 1;
        }
    }
    (text, windows)
}

fn record(file: &Path, args: &SignaturesArgs, threads: usize) -> Result<(), Problem> {
    let (seed, set) = (args.seed, args.set.clone());
    let scenario = SimArgs { file: file.to_owned(), json: false, trace: None, seed, set, jobs: None };
    let mut jobs = jobs_of(&scenario)?;
    let recorded: Vec<Vec<Recorded>> = jobs.iter_mut().map(crate::sim::Job::record_windows).collect();
    let reports = run_all(jobs, threads);
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut sum = 0;
    for (number, (report, recorded)) in reports.iter().zip(&recorded).enumerate() {
        let (text, windows) = text(&name, report, recorded);
        let to = args.out.join(format!("{name}-{number:04}.sig"));
        fs::write(&to, text).while_doing(&format!("writing {}", to.display()))?;
        sum += windows;
    }
    eprintln!("{name}: {sum} windows with losses, of {} runs", reports.len());
    Ok(())
}

/// Runs the scenarios and writes their signatures.
pub(crate) fn signatures(args: &SignaturesArgs) -> Result<ExitCode, Problem> {
    fs::create_dir_all(&args.out).while_doing(&format!("making {}", args.out.display()))?;
    let threads =
        args.jobs.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
    args.files.iter().try_for_each(|file| record(file, args, threads))?;
    Ok(ExitCode::SUCCESS)
}
