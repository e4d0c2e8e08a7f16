//! Programs under test: started, observed, limited in time, and killed when dropped.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::tree::directory;

/// Interval for polling a process.
const LOOK: Duration = Duration::from_millis(10);

/// A running program whose output goes to files. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// The command line, for messages.
    what: String,
    output: TempDir,
    peak: u64,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    what: String,
    /// The exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// Its stdout.
    pub(crate) stdout: String,
    /// Its stderr.
    pub(crate) stderr: String,
    /// The largest resident memory observed, in bytes.
    pub(crate) peak_memory: u64,
    /// Time from start to end.
    pub(crate) took: Duration,
}

impl Running {
    /// Starts `command`.
    pub(crate) fn start(command: &mut Command) -> Self {
        let output = directory();
        let file = |name| File::create(output.path().join(name)).expect("temporary files can be made");
        let what = format!("{command:?}");
        let child = command
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        Self { child, what, output, peak: 0 }
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process has an id");
        kill_process(pid, signal).expect("the process is ours");
    }

    fn read(&self, name: &str) -> String {
        let bytes = std::fs::read(self.output.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its stderr so far.
    pub(crate) fn stderr(&self) -> String {
        self.read("stderr")
    }

    /// Whether it is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The largest resident memory so far, in bytes.
    pub(crate) fn peak_memory(&mut self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
        self.peak = self.peak.max(kib.unwrap_or_default() << 10);
        self.peak
    }

    /// Waits for the end.
    ///
    /// # Panics After `limit`, with the program's output.
    #[track_caller]
    pub(crate) fn wait(mut self, limit: Duration) -> Outcome {
        let start = Instant::now();
        loop {
            self.peak_memory();
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                return Outcome {
                    what: std::mem::take(&mut self.what),
                    code: status.code(),
                    signal: status.signal(),
                    stdout: self.read("stdout"),
                    stderr: self.stderr(),
                    peak_memory: self.peak,
                    took: start.elapsed(),
                };
            }
            assert!(
                start.elapsed() < limit,
                "{} has not ended after {limit:?}\n{}",
                self.what,
                self.stderr()
            );
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let state = if self.is_running() { "still runs" } else { "has ended" };
            eprintln!("{} {state}; stderr: {}", self.what, self.stderr());
        }
        // Fails if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Outcome {
    /// Asserts the exit code and returns the outcome.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        let Self { what, stdout, stderr, signal, .. } = &self;
        assert_eq!(
            self.code,
            Some(code),
            "exit code (signal {signal:?}) of {what}\nstdout: {stdout}\nstderr: {stderr}"
        );
        self
    }

    /// Asserts that stderr has an error with a hint and contains every one of `words`.
    #[track_caller]
    pub(crate) fn assert_shows(self, words: &[&str]) -> Self {
        let Self { what, stderr, .. } = &self;
        assert!(stderr.contains("error: ") || stderr.contains("failed: "), "no error from {what}:\n{stderr}");
        assert!(stderr.contains("hint: ") || stderr.contains('('), "no hint from {what}:\n{stderr}");
        for word in words {
            assert!(stderr.contains(word), "no `{word}` from {what}:\n{stderr}");
        }
        assert!(!stderr.contains("panicked"), "{what} panicked:\n{stderr}");
        self
    }
}

/// Children of a process.
pub(crate) fn children(pid: u32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it is running");
    text.split_whitespace().map(|pid| pid.parse().expect("they are numbers")).collect()
}

/// These processes and all their descendants, with the command line and environment of each.
pub(crate) fn descendants(of: &[u32]) -> Vec<(u32, Vec<u8>, Vec<u8>)> {
    let mut found = of.to_vec();
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("there is /proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The fields after the name, which may contain anything: state, parent.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let parent = fields.split_whitespace().nth(1).and_then(|field| field.parse().ok());
        parents.extend(parent.map(|parent| (parent, pid)));
    }
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(parents.iter().filter(|(of, _)| *of == parent).map(|&(_, pid)| pid));
        at += 1;
    }
    let read = |pid: u32, name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    found.into_iter().map(|pid| (pid, read(pid, "cmdline"), read(pid, "environ"))).collect()
}

/// Waits until a process catches SIGINT; before that, SIGINT would kill it without a message.
#[track_caller]
pub(crate) fn until_heeds_interrupts(pid: u32) {
    let is_caught = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 0b10 != 0)
    };
    until("the program to have its handlers", is_caught);
}

/// Waits until `condition` holds.
///
/// # Panics If it does not within a minute.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out waiting for {what}");
        std::thread::sleep(LOOK);
    }
}
