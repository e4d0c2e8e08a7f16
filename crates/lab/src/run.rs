//! Runs programs and waits for them, with a directory for files. Cleans up even if a signal ends the run.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::problem::{Problem, While};

/// Runs programs, one at a time. Its files are removed when it is dropped, or when a signal ends the process.
#[derive(Debug)]
pub(crate) struct Runs {
    files: PathBuf,
    state: Arc<Mutex<RunState>>,
}

#[derive(Debug, Default)]
struct RunState {
    running: Option<OwnedFd>,
    /// Signal that is to end this process.
    signal: Option<i32>,
}

impl Runs {
    /// Creates a directory for files, `haul-<name>-<PID>`, and installs signal handlers.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub(crate) fn new(name: &str) -> Result<Self, Problem> {
        let files = std::env::temp_dir().join(format!("haul-{name}-{}", std::process::id()));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).while_doing("cannot watch signals")?;
        fs::create_dir_all(&files).while_doing(&format!("cannot make {}", files.display()))?;
        let runs = Self { files: files.clone(), state: Arc::default() };
        let state = Arc::clone(&runs.state);
        let watch = move || signals.forever().for_each(|signal| on_signal(signal, &state, &files));
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(watch);
        thread.while_doing("cannot watch signals")?;
        Ok(runs)
    }

    /// Returns the directory for files.
    pub(crate) fn files(&self) -> &Path {
        &self.files
    }

    /// Runs a program and returns its output.
    ///
    /// # Errors
    /// If it cannot be started, or a signal has arrived.
    pub(crate) fn output(&self, command: &mut Command, what: &str) -> Result<Output, Problem> {
        let child = {
            let mut state = lock(&self.state);
            let child = command.spawn().while_doing(what)?;
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            state.running = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            child
        };
        let output = child.wait_with_output().while_doing(what);
        let mut state = lock(&self.state);
        state.running = None;
        match state.signal {
            Some(signal) => Err(Problem::ended_by(signal)),
            None => output,
        }
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        remove(&self.files);
    }
}

/// Handles a signal. A running program has namespaces to remove: it gets SIGTERM, and the thread that waits
/// for it continues with the clean-up. Without a running program, this function removes the files and ends
/// the process.
fn on_signal(signal: i32, state: &Mutex<RunState>, files: &Path) {
    let mut state = lock(state);
    state.signal.get_or_insert(signal);
    if let Some(running) = &state.running {
        // It may already have ended.
        let _ = pidfd_send_signal(running, Signal::TERM);
    } else {
        remove(files);
        std::process::exit(Problem::ended_by(signal).exit_code().into());
    }
}

fn remove(files: &Path) {
    // Files that cannot be removed are harmless among the system's temporary files.
    let _ = fs::remove_dir_all(files);
}

fn lock(state: &Mutex<RunState>) -> MutexGuard<'_, RunState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
