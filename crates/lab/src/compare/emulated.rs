//! The emulated half: runs `haul-lab wan` as a separate program, with an endpoint on each side.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use haul_base::Span;
use haul_sim::PathSpec;
use serde_json::Value;

use super::cases::{TcpCase, UdpCase};
use super::end::Task;
use super::figures::{Arrivals, Series};
use crate::emulator::{self, Job, Output, PathFile, parsed};
use crate::problem::{Problem, While};

/// Maximum TCP window: large enough not to limit a flow here.
const WINDOW: &str = "64MiB";

/// Runs cases on emulated paths.
#[derive(Debug)]
pub(super) struct Emulator(emulator::Emulator);

impl Emulator {
    /// # Errors
    /// If the directory for files cannot be created.
    pub(super) fn new() -> Result<Self, Problem> {
        emulator::Emulator::new("compare").map(Self)
    }

    /// Runs the flows of a case.
    ///
    /// # Errors
    /// If the path cannot be created, or an end fails.
    pub(super) fn tcp(&self, case: &TcpCase, seed: u64) -> Result<Series, Problem> {
        let (forward, back) = case.paths();
        let source = Task::TcpSource { laws: case.laws.clone(), time_ms: case.time.as_micros() / 1_000 };
        let plan = PathFile { forth: &forward, back: &back };
        let output = self.run(&self.0.directory()?, &plan, seed, &Task::TcpSink, &source)?;
        let mut series: Series = parsed(&output.printed)?;
        // The kernel includes the SYN in the delivered segments.
        for sample in series.flows.iter_mut().flatten() {
            sample.delivered = sample.delivered.saturating_sub(1);
        }
        Ok(series)
    }

    /// Sends the packets of a case.
    ///
    /// # Errors
    /// If the path cannot be created, or an end fails.
    pub(super) fn udp(&self, case: &UdpCase, time: Span, seed: u64) -> Result<Arrivals, Problem> {
        let forth = PathSpec { stages: case.stages.clone() };
        let back = PathSpec { stages: Vec::new() };
        let directory = self.0.directory()?;
        let results = directory.join("arrivals.json");
        let sink = Task::UdpSink { out: results.clone() };
        let time_ms = time.as_micros() / 1_000;
        let source = Task::UdpSource { offer: case.offer, time_ms, seed, results: results.clone() };
        let output = self.run(&directory, &PathFile { forth: &forth, back: &back }, seed, &sink, &source)?;
        let text = fs::read(&results).while_doing("cannot read the arrivals")?;
        let mut arrivals: Arrivals = parsed(&text)?;
        arrivals.sent_at = parsed(&output.printed)?;
        arrivals.sent = arrivals.sent_at.len() as u64;
        let missing = arrivals.sent.saturating_sub(arrivals.delays.len() as u64);
        arrivals.foreign = missing.abs_diff(path_drops(&output.counters));
        Ok(arrivals)
    }

    fn run(
        &self,
        directory: &Path,
        path: &PathFile<'_>,
        seed: u64,
        sink: &Task,
        source: &Task,
    ) -> Result<Output, Problem> {
        let words = |task: &Task| -> Result<Vec<OsString>, Problem> {
            let task = serde_json::to_string(task).map_err(|e| Problem::failed(e.to_string(), ""))?;
            Ok(vec!["compare-end".into(), task.into()])
        };
        let mut options: Vec<OsString> =
            ["--tcp-window", WINDOW, "--seed", &seed.to_string()].map(OsString::from).into();
        options.extend(path.save(directory)?);
        self.0.run(directory, &Job { options, server: words(sink)?, client: words(source)? })
    }
}

/// Returns the packets dropped by the forward stages; `carrier` counts the emulator's own drops.
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
    fn the_path_file_matches_the_simulated_path() {
        for case in cases::tcp(Span::from_secs(1)) {
            let (forth, back) = case.paths();
            let text = toml::to_string(&PathFile { forth: &forth, back: &back }).unwrap();
            let table: toml::Table = text.parse().unwrap();
            let read: PathSpec = table["forth"].clone().try_into().unwrap();
            assert_eq!(read, forth, "{text}");
        }
    }

    #[test]
    fn drops_outside_of_the_path_are_counted_separately() {
        let counters =
            serde_json::json!({ "forth": { "drops": { "random": 3, "carrier": 9, "queue_full": 4 } } });
        assert_eq!(path_drops(&counters), 7);
        assert_eq!(path_drops(&Value::Null), 0);
    }
}
