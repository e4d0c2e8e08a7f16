//! A running emulator, and threads on its sides.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

pub(crate) const A: &str = "10.201.0.1";
pub(crate) const B: &str = "10.201.0.2";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a command for the built program.
pub(crate) fn haul_lab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haul-lab"));
    command.stdin(Stdio::null());
    command
}

/// Waits until `attempt` returns a value.
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < end, "timed out waiting for {what}");
        sleep(Duration::from_millis(5));
    }
}

/// A running emulator.
pub(crate) struct Wan {
    pub(crate) child: Child,
    directory: tempfile::TempDir,
}

impl Wan {
    /// Starts an emulator with these options, and waits until both sides exist.
    pub(crate) fn start(options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = haul_lab();
        command.arg("wan").args(options.split_whitespace());
        command.arg("--counters").arg(directory.path().join("counters.json"));
        command.arg("--control").arg(directory.path().join("control"));
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let wan = Self { child, directory };
        // The control socket is opened last.
        eventually("the path", || wan.socket().exists().then_some(()));
        wan
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("control")
    }

    /// Returns the path of a side's namespace.
    pub(crate) fn namespace(&self, side: char) -> PathBuf {
        let (begin, end) = (format!("haul-wan-{}-", self.child.id()), format!("-{side}"));
        let names = fs::read_dir("/run/netns").unwrap().map(|entry| entry.unwrap().file_name());
        let is_of_process = |name: &String| name.starts_with(&begin) && name.ends_with(&end);
        let name = names.filter_map(|name| name.into_string().ok()).find(is_of_process);
        PathBuf::from("/run/netns").join(name.unwrap())
    }

    /// Runs a function on a side, in a separate thread.
    pub(crate) fn on<T: Send + 'static>(
        &self,
        side: char,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let file = File::open(self.namespace(side)).unwrap();
        thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Ends the emulator with `signal`. Returns its exit status and counters.
    pub(crate) fn end(mut self, signal: Signal) -> (ExitStatus, Value) {
        self.signal(signal);
        let status = self.child.wait().unwrap();
        let text = fs::read_to_string(self.directory.path().join("counters.json")).unwrap();
        let counters: Value = serde_json::from_str(&text).unwrap();
        for way in ["forth", "back"] {
            assert_eq!(counters[way]["adds_up"], true, "{text}");
            assert_adds_up(&counters[way]);
        }
        (status, counters)
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        // It has already ended unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Recomputes the balance from the numbers in the file.
fn assert_adds_up(way: &Value) {
    let number = |value: &Value| value.as_u64().unwrap();
    let drops: u64 = way["drops"].as_object().unwrap().values().map(number).sum();
    let entered = number(&way["sent"]["packets"]) + number(&way["copies"]);
    let accounted = number(&way["received"]["packets"]) + drops + number(&way["inside"]);
    assert_eq!(entered, accounted, "{way}");
}
