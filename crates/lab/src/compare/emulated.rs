//! The emulator's half: `haul-lab wan` runs as a program of its own, with the two ends on its sides.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use haul_base::Span;
use haul_sim::PathSpec;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::cases::{TcpCase, UdpCase};
use super::end::Task;
use super::figures::{Arrivals, Series};
use crate::problem::{Problem, While};
use crate::run::Runs;

/// Largest TCP window: never what limits a flow here.
const WINDOW: &str = "64MiB";

/// Runs cases on emulated paths. Its files are removed with it.
#[derive(Debug)]
pub(super) struct Emulator {
    program: PathBuf,
    number: AtomicU64,
    runs: Runs,
}

/// A path file of `haul-lab wan`.
#[derive(Serialize)]
struct Plan<'a> {
    forth: &'a PathSpec,
    back: &'a PathSpec,
}

/// What a run has printed, and what it has counted.
struct Output {
    printed: Vec<u8>,
    counters: Value,
}

impl Emulator {
    /// # Errors
    /// When there is no place for files.
    pub(super) fn new() -> Result<Self, Problem> {
        let program = std::env::current_exe().while_doing("cannot find this program")?;
        let runs = Runs::new("compare")?;
        Ok(Self { program, number: AtomicU64::new(0), runs })
    }

    /// Runs the flows of a case.
    ///
    /// # Errors
    /// When the path cannot be had, or an end fails.
    pub(super) fn tcp(&self, case: &TcpCase, seed: u64) -> Result<Series, Problem> {
        let (there, back) = case.paths();
        let source = Task::TcpSource { laws: case.laws.clone(), time_ms: case.time.as_micros() / 1_000 };
        let plan = Plan { forth: &there, back: &back };
        let output = self.run(&self.next(), &plan, seed, &Task::TcpSink, &source)?;
        let mut series: Series = parsed(&output.printed)?;
        // The kernel counts the SYN among what was delivered.
        for sample in series.flows.iter_mut().flatten() {
            sample.delivered = sample.delivered.saturating_sub(1);
        }
        Ok(series)
    }

    /// Sends the packets of a case.
    ///
    /// # Errors
    /// When the path cannot be had, or an end fails.
    pub(super) fn udp(&self, case: &UdpCase, time: Span, seed: u64) -> Result<Arrivals, Problem> {
        let forth = PathSpec { stages: case.stages.clone() };
        let back = PathSpec { stages: Vec::new() };
        let directory = self.next();
        let results = directory.join("arrivals.json");
        let sink = Task::UdpSink { out: results.clone() };
        let time_ms = time.as_micros() / 1_000;
        let source = Task::UdpSource { offer: case.offer, time_ms, seed, results: results.clone() };
        let output = self.run(&directory, &Plan { forth: &forth, back: &back }, seed, &sink, &source)?;
        let text = fs::read(&results).while_doing("cannot read what has arrived")?;
        let mut arrivals: Arrivals = parsed(&text)?;
        arrivals.sent_at = parsed(&output.printed)?;
        arrivals.sent = arrivals.sent_at.len() as u64;
        let missing = arrivals.sent.saturating_sub(arrivals.delays.len() as u64);
        arrivals.foreign = missing.abs_diff(path_drops(&output.counters));
        Ok(arrivals)
    }

    fn next(&self) -> PathBuf {
        self.runs.files().join(self.number.fetch_add(1, Ordering::Relaxed).to_string())
    }

    fn run(
        &self,
        directory: &Path,
        plan: &Plan<'_>,
        seed: u64,
        sink: &Task,
        source: &Task,
    ) -> Result<Output, Problem> {
        fs::create_dir_all(directory).while_doing("cannot make a directory")?;
        let (path, counters) = (directory.join("path.toml"), directory.join("counters.json"));
        let text = toml::to_string(plan).map_err(|e| Problem::failed(e.to_string(), ""))?;
        fs::write(&path, text).while_doing("cannot write the path")?;
        let words = |task: &Task| serde_json::to_string(task).map_err(|e| Problem::failed(e.to_string(), ""));
        let server = format!("exec '{}' compare-end '{}'", self.program.display(), words(sink)?);
        let mut command = Command::new(&self.program);
        command
            .args(["wan", "--quiet", "--tcp-window", WINDOW, "--seed", &seed.to_string(), "--path"])
            .args([path.as_os_str(), "--counters".as_ref(), counters.as_os_str(), "--server".as_ref()])
            .args([&server, "--"])
            .arg(&self.program)
            .args(["compare-end", &words(source)?])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let done = self.runs.output(&mut command, "cannot run the emulator")?;
        if !done.status.success() {
            let hint = "its words stand above; without the emulator: --no-emulator";
            return Err(Problem::failed(format!("a run of the emulator has failed ({})", done.status), hint));
        }
        let counters = parsed(&fs::read(&counters).while_doing("cannot read the emulator's counters")?)?;
        Ok(Output { printed: done.stdout, counters })
    }
}

fn parsed<T: DeserializeOwned>(text: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(text).map_err(|error| Problem::failed(format!("an odd result: {error}"), ""))
}

/// What the stages have dropped on the way there; `carrier` is what the emulator itself had no room for.
fn path_drops(counters: &Value) -> u64 {
    let drops = counters["forth"]["drops"].as_object();
    drops
        .into_iter()
        .flatten()
        .filter(|(reason, _)| *reason != "carrier")
        .filter_map(|(_, n)| n.as_u64())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    #[test]
    fn a_path_file_has_what_the_simulator_gets() {
        for case in cases::tcp(Span::from_secs(1)) {
            let (forth, back) = case.paths();
            let text = toml::to_string(&Plan { forth: &forth, back: &back }).unwrap();
            let table: toml::Table = text.parse().unwrap();
            let read: PathSpec = table["forth"].clone().try_into().unwrap();
            assert_eq!(read, forth, "{text}");
        }
    }

    #[test]
    fn drops_of_the_emulator_itself_are_not_the_paths() {
        let counters =
            serde_json::json!({ "forth": { "drops": { "random": 3, "carrier": 9, "queue_full": 4 } } });
        assert_eq!(path_drops(&counters), 7);
        assert_eq!(path_drops(&Value::Null), 0);
    }
}
