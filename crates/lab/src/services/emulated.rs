//! Runs a job on the emulator: `haul-lab wan` as a separate program, with an end on each side.

use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::Value;

use super::job::{self, Job};
use crate::emulator;
use crate::problem::Problem;

/// Path of a job, in the options of `haul-lab wan`.
#[derive(Clone, Debug)]
pub(super) struct PathConfig {
    pub(super) rtt_ms: u64,
    pub(super) rate: &'static str,
    /// In the syntax of `haul-lab wan --loss`.
    pub(super) loss: String,
    /// Whether TCP windows are the kernel's defaults, as on an untuned host.
    pub(super) untuned: bool,
}

/// Runs jobs on the emulator.
#[derive(Debug)]
pub(super) struct Emulator {
    emulator: emulator::Emulator,
    seed: u64,
}

/// Directory with the results of a run, and the path's counters.
pub(super) struct Results {
    pub(super) directory: PathBuf,
    counters: Value,
}

impl Results {
    /// Returns the packets that entered the path from A and from B.
    pub(super) fn packets(&self) -> (u64, u64) {
        let sent = |way: &str| self.counters[way]["sent"]["packets"].as_u64().unwrap_or(0);
        (sent("forth"), sent("back"))
    }

    pub(super) fn load<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, Problem> {
        job::load(&self.directory, name)
    }
}

impl Emulator {
    pub(super) fn new(seed: u64) -> Result<Self, Problem> {
        Ok(Self { emulator: emulator::Emulator::new("services")?, seed })
    }

    /// Runs both ends of a job over a path.
    pub(super) fn run(&self, path: &PathConfig, job: &Job) -> Result<Results, Problem> {
        self.run_round(0, path, job)
    }

    /// As [`run`](Self::run). The losses differ between rounds and are the same for all jobs of one round.
    pub(super) fn run_round(&self, round: u64, path: &PathConfig, job: &Job) -> Result<Results, Problem> {
        let directory = self.emulator.directory()?;
        job.save(&directory)?;
        let end = |side: &str| -> Vec<OsString> {
            vec!["services-end".into(), side.into(), directory.clone().into()]
        };
        let options = self.options(round, path);
        let output =
            self.emulator.run(&directory, &emulator::Job { options, server: end("b"), client: end("a") });
        let output = output.map_err(|problem| problem.during(&format!("{job:?} over {path:?}")))?;
        Ok(Results { directory, counters: output.counters })
    }

    fn options(&self, round: u64, path: &PathConfig) -> Vec<OsString> {
        let (rtt, seed) = (format!("{}ms", path.rtt_ms), self.seed.wrapping_add(round).to_string());
        let mut options = vec!["--rate", path.rate, "--loss", &path.loss, "--rtt", &rtt, "--seed", &seed];
        if path.untuned {
            options.extend(["--tcp-window", "kernel"]);
        }
        options.into_iter().map(OsString::from).collect()
    }
}
