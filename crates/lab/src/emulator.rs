//! Runs jobs on emulated paths: starts `haul-lab wan` as a separate program, with this program as the
//! endpoint on both sides.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use haul_sim::PathSpec;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::problem::{Problem, While};
use crate::run::Runs;

/// Runs jobs, each with its own directory. The directories are removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Emulator {
    program: PathBuf,
    number: AtomicU64,
    runs: Runs,
}

/// Configuration of a run.
#[derive(Debug)]
pub(crate) struct Job {
    /// Options of `haul-lab wan`.
    pub options: Vec<OsString>,
    /// Arguments of this program on side B, which is ended when A has ended.
    pub server: Vec<OsString>,
    /// Arguments of this program on side A.
    pub client: Vec<OsString>,
}

/// Results of a run.
#[derive(Debug)]
pub(crate) struct Output {
    /// Standard output of A.
    pub printed: Vec<u8>,
    /// The path's counters, as written by `haul-lab wan --counters`.
    pub counters: Value,
}

/// Path file of `haul-lab wan`.
#[derive(Debug, Serialize)]
pub(crate) struct PathFile<'a> {
    pub forth: &'a PathSpec,
    pub back: &'a PathSpec,
}

impl PathFile<'_> {
    /// Writes the file into a directory and returns the options of `haul-lab wan` for it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn save(&self, directory: &Path) -> Result<[OsString; 2], Problem> {
        let text = toml::to_string(self).map_err(|e| Problem::failed(e.to_string(), ""))?;
        let file = directory.join("path.toml");
        fs::write(&file, text).while_doing("cannot write the path")?;
        Ok(["--path".into(), file.into()])
    }
}

impl Emulator {
    /// Creates an emulator whose directory among the system's temporary files is named after `name`.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub(crate) fn new(name: &str) -> Result<Self, Problem> {
        let program = std::env::current_exe().while_doing("cannot find this program")?;
        Ok(Self { program, number: AtomicU64::new(0), runs: Runs::new(name)? })
    }

    /// Creates a directory for a run.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn directory(&self) -> Result<PathBuf, Problem> {
        let directory = self.runs.files().join(self.number.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir_all(&directory).while_doing(&format!("cannot make {}", directory.display()))?;
        Ok(directory)
    }

    /// Returns why paths cannot be emulated here; `None` if they can.
    ///
    /// # Errors
    /// If this program cannot be run.
    pub(crate) fn missing(&self) -> Result<Option<String>, Problem> {
        let mut command = Command::new(&self.program);
        command.args(["wan", "--quiet", "--", "true"]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self.runs.output(&mut command, "cannot run haul-lab wan")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let why = stderr.lines().next().unwrap_or("haul-lab wan has failed").trim_start_matches("haul-lab: ");
        Ok((!output.status.success()).then(|| why.to_owned()))
    }

    /// Runs both ends.
    ///
    /// # Errors
    /// If the path cannot be created, or an end fails; includes the standard error output.
    pub(crate) fn run(&self, directory: &Path, job: &Job) -> Result<Output, Problem> {
        let counters = directory.join("counters.json");
        let words = job.server.iter().map(|word| format!("'{}'", word.display()));
        let server = format!("exec '{}' {}", self.program.display(), words.collect::<Vec<_>>().join(" "));
        let mut command = Command::new(&self.program);
        command.args(["wan", "--quiet"]).args(&job.options).arg("--counters").arg(&counters);
        command.args(["--server", &server, "--"]).arg(&self.program).args(&job.client);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = self.runs.output(&mut command, "cannot run haul-lab wan")?;
        if !done.status.success() {
            let stderr = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            return Err(Problem::failed(
                format!("a run of the emulator has failed ({}): {stderr}", done.status),
                "",
            ));
        }
        let counters = parsed(&fs::read(&counters).while_doing("cannot read the emulator's counters")?)?;
        Ok(Output { printed: done.stdout, counters })
    }
}

/// Parses the JSON output of an end.
///
/// # Errors
/// If it is not valid.
pub(crate) fn parsed<T: DeserializeOwned>(text: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(text)
        .map_err(|error| Problem::failed(format!("an unexpected result: {error}"), ""))
}
