//! Runs a job on the emulator: `haul-lab wan` as a program of its own, with an end on each side.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use super::job::{self, Job};
use crate::problem::{Problem, While};
use crate::run::Runs;

/// A path for a job, in the words of `haul-lab wan`.
#[derive(Clone, Debug)]
pub(super) struct Road {
    pub(super) rtt_ms: u64,
    pub(super) rate: &'static str,
    /// As `haul-lab wan --loss` takes it.
    pub(super) loss: String,
    /// TCP windows as the kernel gives them: an untuned host.
    pub(super) untuned: bool,
}

/// Runs jobs. Its files are removed with it.
#[derive(Debug)]
pub(super) struct Emulator {
    program: PathBuf,
    seed: u64,
    number: AtomicU64,
    runs: Runs,
}

/// Where the results of a run are, and the counters of the path.
pub(super) struct Results {
    pub(super) directory: PathBuf,
    counters: Value,
}

impl Results {
    /// Packets that entered the path: from A, from B.
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
        let program = std::env::current_exe().while_doing("cannot find this program")?;
        let runs = Runs::new("services")?;
        Ok(Self { program, seed, number: AtomicU64::new(0), runs })
    }

    /// Runs both ends of a job over a path.
    pub(super) fn run(&self, road: &Road, job: &Job) -> Result<Results, Problem> {
        self.run_round(0, road, job)
    }

    /// As [`run`](Self::run). Packets are lost in another way in each round, and in the same in all of one.
    pub(super) fn run_round(&self, round: u64, road: &Road, job: &Job) -> Result<Results, Problem> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let directory = self.runs.files().join(number.to_string());
        fs::create_dir_all(&directory).while_doing(&format!("cannot make {}", directory.display()))?;
        job.save(&directory)?;
        let counters = directory.join("counters.json");
        let mut command = self.command(round, road, &directory, &counters);
        let output = self.runs.output(&mut command, "cannot run haul-lab wan")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Problem::failed(format!("{job:?} over {road:?} failed: {said}"), ""));
        }
        let text = fs::read(&counters).while_doing("cannot read the counters")?;
        let counters = serde_json::from_slice(&text)
            .map_err(|e| Problem::failed(format!("the counters cannot be read: {e}"), ""))?;
        Ok(Results { directory, counters })
    }

    fn command(&self, round: u64, road: &Road, directory: &Path, counters: &Path) -> Command {
        let mut command = Command::new(&self.program);
        let server = format!("'{}' services-end b '{}'", self.program.display(), directory.display());
        command.args(["wan", "--quiet", "--rate", road.rate, "--loss", &road.loss]);
        command.args([
            "--rtt",
            &format!("{}ms", road.rtt_ms),
            "--seed",
            &self.seed.wrapping_add(round).to_string(),
        ]);
        if road.untuned {
            command.args(["--tcp-window", "kernel"]);
        }
        command.arg("--counters").arg(counters).args(["--server", &server, "--"]);
        command.arg(&self.program).args(["services-end", "a"]).arg(directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}
