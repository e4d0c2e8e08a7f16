//! The shipped scenarios.

use std::fs;
use std::path::Path;
use std::thread;

use serde_json::json;

use super::{Plan, SimArgs, print_problems, run_all};
use crate::outcome::Outcome;
use crate::problem::{Problem, While};

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*]
    };
}

const SCENARIOS: &[(&str, &str)] = shipped![
    "busy-receiver",
    "cost-of-a-law",
    "default-lossy-gigabit",
    "fixed-1-percent",
    "late-comer",
    "many-to-one",
    "marks",
    "mtu-change",
    "other-ceilings",
    "outage",
    "rtt-loss-sweep",
    "services",
    "tcp-both-ways",
];

/// Runs all of them, writes their results into `out`, and returns which passed.
///
/// # Errors
/// If files cannot be written.
pub(crate) fn run_shipped(out: &Path, jobs: Option<u16>) -> Result<Outcome, Problem> {
    let threads = jobs.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
    let mut outcome = Outcome::default();
    for (name, text) in SCENARIOS {
        let file = out.join(format!("{name}.toml"));
        fs::write(&file, text).while_doing(&format!("cannot write {}", file.display()))?;
        let args = SimArgs { file, json: true, trace: None, seed: None, set: Vec::new(), jobs };
        let runs = run_all(Plan::read(&args)?.jobs()?, threads);
        let passed = runs.iter().filter(|run| run.passed).count();
        print_problems(&args.file, &runs);
        let ours = format!("{passed} of {} runs passed", runs.len());
        outcome.claim(*name, "", ours, passed == runs.len());
        outcome.row("scenarios", json!({ "scenario": name, "passed": passed, "runs": runs.len() }));
        let report = out.join(format!("{name}.json"));
        let text = serde_json::to_vec(&runs).map_err(std::io::Error::from);
        let context = format!("cannot write {}", report.display());
        fs::write(&report, text.while_doing(&context)?).while_doing(&context)?;
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_file_is_shipped() {
        let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, SCENARIOS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}
