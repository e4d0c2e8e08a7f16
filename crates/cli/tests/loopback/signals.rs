//! Being told to stop.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Server, exits, haul, lossy};

const PATIENCE: Duration = Duration::from_secs(60);

/// A copy that takes longer than any test waits.
struct Copy {
    _server: Server,
    client: Child,
    trace: PathBuf,
    _places: [TempDir; 2],
}

impl Copy {
    fn start() -> Self {
        let places = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [here, root] = places.each_ref().map(TempDir::path);
        let (source, trace) = (here.join("source"), here.join("trace"));
        fs::write(&source, vec![7; 32_000_000]).unwrap();
        let server = Server::start(root, &[]);
        let mut command = haul();
        command.args(["cp", "--rate", "1Mbit", "--events"]).arg(&trace).arg(&source).arg(server.at("copy"));
        let client = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let copy = Self { _server: server, client, trace, _places: places };
        copy.until_event("progress");
        copy
    }

    /// The events so far.
    fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.trace).unwrap_or_default();
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn until_event(&self, name: &str) {
        let begun = Instant::now();
        while !self.events().iter().any(|event| event["event"] == name) {
            assert!(begun.elapsed() < PATIENCE, "no `{name}` in {:?}", self.events());
            sleep(Duration::from_millis(5));
        }
    }

    fn tell(&self, signal: Signal) {
        kill(&self.client, signal);
    }

    fn output(self) -> (Output, Vec<Value>) {
        let Self { client, trace, .. } = self;
        let output = client.wait_with_output().unwrap();
        let text = fs::read_to_string(trace).unwrap();
        (output, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }
}

fn kill(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn signals_that_come_together_count_as_one() {
    for pair in [[Signal::INT, Signal::TERM], [Signal::TERM, Signal::INT]] {
        let copy = Copy::start();
        // timeout(1) tells the process and then its group.
        for signal in pair {
            copy.tell(signal);
        }
        let (output, events) = copy.output();
        exits(&output, 130);
        assert!(lossy(&output.stderr).contains("cp --rate 1Mbit"), "{}", lossy(&output.stderr));
        assert_eq!(events.last().unwrap()["event"], "end", "{events:?}");
    }
}
