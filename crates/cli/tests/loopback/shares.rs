//! A server divides its capacity among the processes that send to it at the same time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use haul_testing::attempts;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Server, exits, haul, object, run};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A process, killed when dropped.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `haul serve --json`: its sessions are read from stdout.
struct Watched {
    _process: Ending,
    lines: BufReader<std::process::ChildStdout>,
    url: String,
}

impl Watched {
    fn start(root: &Path, capacity: &str) -> Self {
        let mut command = haul();
        command
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--capacity", capacity, "--root"])
            .arg(root);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut watched = Self { _process: Ending(child), lines, url: String::new() };
        let listening = watched.next();
        Self { url: listening["url"].as_str().unwrap().to_owned(), ..watched }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn at(&self, path: &str) -> String {
        self.url.replacen("/?k=", &format!("/{path}?k="), 1)
    }
}

/// The limits of three simultaneous copies, as reported by each of them, and by the server for its three
/// sessions.
fn limits_of_three(here: &Path, server: &mut Watched) -> Vec<Value> {
    let running = ["a", "b", "c"].map(|name| {
        let source = here.join(name);
        fs::write(&source, vec![7; 3_000_000]).unwrap();
        let mut command = haul();
        command.args(["cp", "--json", "--ignore-times"]).arg(source).arg(server.at(""));
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    });
    let limits = running.map(|sender| {
        let output = sender.wait_with_output().unwrap();
        exits(&output, 0);
        [object(&output)["limited_by"].clone(), server.next()["result"]["limited_by"].clone()]
    });
    limits.into_iter().flatten().collect()
}

#[test]
fn both_sides_report_the_assigned_quota_as_the_limit() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut server = Watched::start(root.path(), "24Mbit");
    let are_shares = |limits: &Vec<Value>| limits.iter().all(|limit| limit == "receiver_share");
    let limits = attempts(|| limits_of_three(here.path(), &mut server), are_shares);
    assert!(are_shares(&limits), "{limits:?}");
}

#[test]
fn a_pulling_receiver_reports_the_quota_if_its_ceiling_was_not_reached() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let servers = [one.path(), two.path()].map(|root| Server::start(root, &[]));
    for (root, name, size) in [(&one, "a", 4_000_000), (&two, "b", 400_000)] {
        fs::write(root.path().join(name), vec![7; size]).unwrap();
    }
    let [a, b] = [servers[0].at("a"), servers[1].at("b")];
    let limit = || {
        let here = tempfile::tempdir().unwrap();
        let output = run(&["cp", "--json", "--rate", "12Mbit", &a, &b, here.path().to_str().unwrap()]);
        exits(&output, 0);
        object(&output)["limited_by"].clone()
    };
    let is_right = |limit: &Value| limit == "receiver_share" || limit == "rate_ceiling";
    let limit = attempts(limit, is_right);
    assert!(is_right(&limit), "{limit}");
}

/// Ten senders, each with one file too large to finish during the test.
struct Ten {
    traces: Vec<PathBuf>,
    _running: Vec<Ending>,
    _place: TempDir,
}

/// Values of a trace's latest line.
#[derive(Clone, Copy, Debug)]
struct Standing {
    /// Seconds since the process started.
    at: f64,
    acked: f64,
    rate: f64,
}

impl Standing {
    /// Bytes per second since `first`, by the process's own clock: lines of two traces differ in time.
    fn speed_since(&self, first: &Self) -> f64 {
        (self.acked - first.acked) / (self.at - first.at)
    }
}

impl Ten {
    fn start(server: &Watched) -> Self {
        let place = tempfile::tempdir().unwrap();
        let source = place.path().join("source");
        fs::write(&source, vec![7; 32_000_000]).unwrap();
        let traces: Vec<PathBuf> = (0..10).map(|at| place.path().join(format!("trace{at}"))).collect();
        let start = |(at, trace): (usize, &PathBuf)| {
            let mut command = haul();
            command
                .args(["cp", "-q", "--events"])
                .arg(trace)
                .arg(&source)
                .arg(server.at(&format!("copy{at}")));
            Ending(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        };
        let running = traces.iter().enumerate().map(start).collect();
        Self { traces, _running: running, _place: place }
    }

    fn stand(&self) -> Vec<Standing> {
        let of = |trace: &PathBuf| {
            let text = fs::read_to_string(trace).unwrap_or_default();
            // The last line may be incomplete.
            let complete_lines = text.rfind('\n').map_or("", |end| &text[..end]);
            let mut lines =
                complete_lines.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let latest = lines.find(|line| line.get("data").is_some()).unwrap_or_default();
            let number = |value: &Value| value.as_f64().unwrap_or_default();
            let data = &latest["data"];
            Standing {
                at: number(&latest["t"]),
                acked: number(&data["acked_bytes"]),
                rate: number(&data["rate_bps"]),
            }
        };
        self.traces.iter().map(of).collect()
    }

    /// The senders' state once each has sent this many bytes more than at `since`.
    fn when_all_have(&self, bytes: f64, since: Option<&[Standing]>) -> Vec<Standing> {
        let begun = Instant::now();
        loop {
            let now = self.stand();
            let before = |at: usize| since.map_or(0.0, |since| since[at].acked);
            if now.iter().enumerate().all(|(at, standing)| standing.acked - before(at) >= bytes) {
                return now;
            }
            assert!(begun.elapsed() < TIMEOUT, "{now:?}");
            sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn ten_senders_get_equal_shares_of_the_servers_capacity() {
    const CAPACITY: f64 = 80e6;
    let root = tempfile::tempdir().unwrap();
    let server = Watched::start(root.path(), "80Mbit");
    let ten = Ten::start(&server);
    // By then all of them send, and their rates are assigned.
    let mut first = ten.when_all_have(1e6, None);
    let next = || {
        let last = ten.when_all_have(3e6, Some(&first));
        (std::mem::replace(&mut first, last.clone()), last)
    };
    let least_and_most =
        |of: Vec<f64>| (of.iter().copied().fold(f64::MAX, f64::min), of.into_iter().fold(0f64, f64::max));
    let rates = |last: &[Standing]| last.iter().map(|standing| standing.rate).collect::<Vec<_>>();
    let are_equal = |last: &[Standing]| {
        let (least, most) = least_and_most(rates(last));
        least >= 0.9 * most
    };
    // On a busy machine not all ten processes use their assigned rates.
    let are_as_fast = |first: &[Standing], last: &[Standing]| {
        let speeds = first.iter().zip(last).map(|(first, last)| last.speed_since(first));
        let (least, most) = least_and_most(speeds.collect());
        least >= 0.5 * most
    };
    let are_used = |last: &[Standing]| rates(last).iter().sum::<f64>() >= 0.8 * CAPACITY;
    let is_right = |(first, last): &(Vec<Standing>, Vec<Standing>)| {
        are_equal(last) && are_as_fast(first, last) && are_used(last)
    };
    // Each time over the next 3 MB.
    let (first, last) = attempts(next, is_right);
    assert!(are_equal(&last), "{last:?}");
    assert!(are_as_fast(&first, &last), "{first:?} {last:?}");
    assert!(rates(&last).iter().sum::<f64>() <= 1.001 * CAPACITY, "{last:?}");
    assert!(are_used(&last), "the assigned rates do not add up to the capacity: {last:?}");
}
