//! Copies of one file that are interrupted twice, on either side, and resumed by the same command: each
//! finishes within [`MARGIN`] of the time that the link needs, and the file is equal.
//!
//! Runs 20 random copies, or `HAUL_RESUMES`; `HAUL_RESUME_SEED` is the first seed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use haul_base::{Rate, Rng};
use haul_mover::find_journals;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Server, haul, lossy};

/// Allowed time beyond the link's: set-up, detecting a dead peer, syncing.
const MARGIN: Duration = Duration::from_secs(20);
/// Interval for polling a client.
const LOOK: Duration = Duration::from_millis(10);
/// The slowest link.
const SLOWEST: Rate = Rate::from_bps(4_000_000);
/// Time that the link needs for a large file.
const LINK_TIME_MS: u64 = 1_500;
/// Largest random file size, bytes.
const LARGEST: u64 = 64 << 20;
/// Size of a hash block: random sizes are often near a multiple.
const GROUP: u64 = 1 << 20;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The interrupted side, and how it is interrupted.
#[derive(Clone, Copy, Debug)]
struct Interruption {
    server: bool,
    signal: Signal,
    after: Duration,
}

/// One copy of one file. Its client is killed when a test fails.
struct Copy {
    size: u64,
    upload: bool,
    rate: Rate,
    from: PathBuf,
    to: PathBuf,
    server: Server,
}

/// A client, killed when dropped.
struct Client(Option<Child>);

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Client {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn has_ended(&mut self) -> bool {
        self.child().try_wait().unwrap().is_some()
    }

    /// Its exit code, if no signal ended it, and its output.
    #[track_caller]
    fn ends_within(mut self, bound: Duration, what: &str) -> (Option<i32>, String) {
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() >= bound {
                self.child().kill().unwrap();
                let output = self.0.take().unwrap().wait_with_output().unwrap();
                panic!("{what}: not ended after {bound:?}: {}", lossy(&output.stderr));
            }
            sleep(LOOK);
        }
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        (output.status.code(), lossy(&output.stderr))
    }
}

fn kill(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
}

impl Copy {
    /// Creates the file and starts its server.
    fn new(place: &Path, (size, salt): (u64, u64), upload: bool) -> Self {
        let (from, to) = (place.join("from"), place.join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        Rng::from_seed(salt).fill(&mut bytes);
        fs::write(from.join("file"), bytes).unwrap();
        let rate = Rate::from_bps(size * 8 * 1_000 / LINK_TIME_MS).max(SLOWEST);
        let server = Server::start(if upload { &to } else { &from }, &[]);
        Self { size, upload, rate, from, to, server }
    }

    fn start(&self) -> Client {
        let mut command = haul();
        command.args(["cp", "--rate", &format!("{}kbit", self.rate.as_bps() / 1_000)]);
        if self.upload {
            command.arg(self.from.join("file")).arg(self.server.at(""));
        } else {
            command.arg(self.server.at("file")).arg(&self.to);
        }
        Client(Some(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    /// Time limit of an attempt.
    fn bound(&self) -> Duration {
        Duration::from(self.rate.time_for(self.size)) + MARGIN
    }

    /// Starts the copy and interrupts it; both sides end in time. Returns whether the copy had finished
    /// before.
    fn interrupt(&mut self, how: Interruption, what: &str) -> bool {
        let mut client = self.start();
        sleep(how.after);
        if client.has_ended() {
            return true;
        }
        if how.server {
            kill(&self.server.child, how.signal);
        } else {
            kill(client.child(), how.signal);
        }
        client.ends_within(self.bound(), what);
        if how.server {
            let begun = Instant::now();
            while self.server.child.try_wait().unwrap().is_none() {
                assert!(begun.elapsed() < MARGIN, "{what}: the server does not end");
                sleep(LOOK);
            }
            self.server = Server::start(if self.upload { &self.to } else { &self.from }, &[]);
        }
        false
    }

    /// Repeats the command: it ends in time, the file is equal, and nothing else remains. Returns the
    /// client's output.
    #[track_caller]
    fn complete(&self, what: &str) -> String {
        println!("{what}: at {} within {:?}", self.rate, self.bound());
        let (code, stderr) = self.start().ends_within(self.bound(), what);
        assert_eq!(code, Some(0), "{what}: {stderr}");
        assert!(
            fs::read(self.from.join("file")).unwrap() == fs::read(self.to.join("file")).unwrap(),
            "{what}: the file differs"
        );
        let names: Vec<_> = fs::read_dir(&self.to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["file"], "{what}");
        stderr
    }
}

/// Interrupted at a fifth, half and four fifths of the link's time, by Ctrl-C, and the retry by SIGKILL.
#[test]
fn interrupted_copies_of_unusual_sizes_finish() {
    let sizes = [GROUP, GROUP + 1, 1_500_000, 2 * GROUP, 3 * GROUP + 1, 100_000_000];
    let mut resumed = 0;
    for (salt, size) in (0..).zip(sizes) {
        for upload in [true, false] {
            let place = tempfile::tempdir().unwrap();
            let mut copy = Copy::new(place.path(), (size, salt), upload);
            let part = |percent: u32| Duration::from(copy.rate.time_for(size)) * percent / 100;
            let first =
                Interruption { server: false, signal: Signal::INT, after: part(60 + 10 * (salt as u32 % 3)) };
            let second = Interruption { server: false, signal: Signal::KILL, after: part(20) };
            let what = format!("{size} bytes, upload {upload}");
            copy.interrupt(first, &what);
            copy.interrupt(second, &what);
            let stderr = copy.complete(&what);
            resumed += u32::from(stderr.contains(" resumed"));
        }
    }
    // On a busy machine some interruptions come before the first byte or after the last.
    assert!(resumed >= 6, "{resumed} of 12 were interrupted during their transfer");
}

/// Any size, but often one near a hash block boundary.
fn any_size(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.below(LARGEST + 1),
        1 => rng.below(2 * GROUP),
        2 => (1 + rng.below(8)) * GROUP + rng.below(3) - 1,
        _ => rng.below(8 * GROUP),
    }
}

#[test]
fn randomly_interrupted_copies_finish() {
    let (count, first) = (number("HAUL_RESUMES", 20), number("HAUL_RESUME_SEED", 1));
    let mut resumed = 0;
    for seed in first..first + count {
        let mut rng = Rng::from_seed(seed);
        let (size, upload) = (any_size(&mut rng), rng.chance(0.5));
        let place = tempfile::tempdir().unwrap();
        let mut copy = Copy::new(place.path(), (size, seed), upload);
        let link_ms = copy.rate.time_for(size).as_millis_f64() as u64;
        let mut interruptions = Vec::new();
        for _ in 0..2 {
            let how = Interruption {
                server: rng.chance(0.5),
                signal: if rng.chance(0.5) { Signal::INT } else { Signal::KILL },
                after: Duration::from_millis(rng.below(300 + link_ms)),
            };
            interruptions.push(how);
        }
        let what = format!("seed {seed}: {size} bytes, upload {upload}, {interruptions:?}");
        for how in interruptions {
            if copy.interrupt(how, &what) {
                break;
            }
        }
        let stderr = copy.complete(&what);
        resumed += u32::from(stderr.contains(" resumed"));
    }
    println!("{count} copies, {resumed} of which resumed existing data");
}

/// The receiver of the killed copy still runs when the next one begins.
#[test]
fn a_copy_restarted_right_after_a_kill_resumes() {
    for salt in 0..6 {
        let place = tempfile::tempdir().unwrap();
        let mut copy = Copy::new(place.path(), (2 * GROUP, salt), true);
        copy.rate = SLOWEST;
        let mut client = copy.start();
        let begun = Instant::now();
        while find_journals(&copy.to).unwrap().iter().all(|journal| journal.files.is_empty()) {
            assert!(begun.elapsed() < MARGIN && !client.has_ended(), "the journal has no record");
            sleep(LOOK);
        }
        kill(client.child(), Signal::KILL);
        let stderr = copy.complete("right after a kill");
        assert!(stderr.contains(" resumed"), "{stderr}");
    }
}

#[test]
fn a_stall_shows_its_reason() {
    let place = tempfile::tempdir().unwrap();
    let copy = Copy::new(place.path(), (2 * GROUP, 1), true);
    let log_file = place.path().join("said");
    let mut command = haul();
    command.args(["cp", "--rate", "2Mbit"]).arg(copy.from.join("file")).arg(copy.server.at(""));
    let stderr = fs::File::create(&log_file).unwrap();
    let mut client = Client(Some(command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap()));
    let until = |what: &str| {
        let begun = Instant::now();
        while !fs::read_to_string(&log_file).unwrap().contains(what) {
            assert!(begun.elapsed() < MARGIN, "no `{what}` in {}", fs::read_to_string(&log_file).unwrap());
            sleep(LOOK);
        }
    };
    until(" of 2.1 MB");
    kill(&copy.server.child, Signal::STOP);
    until("waiting for contents to arrive at the receiver for ");
    kill(&copy.server.child, Signal::CONT);
    assert!(!client.has_ended());
    let (code, _) = client.ends_within(MARGIN, "a copy that was stopped for a while");
    assert_eq!(code, Some(0), "{}", fs::read_to_string(&log_file).unwrap());
}
