//! Kills either side at random moments on a long path that loses packets. The same command resumes the copy;
//! in the end the trees are equal in everything that rsync compares, and few bytes were sent twice.
//!
//! Runs 30 kills, or `HAUL_KILLS`; `HAUL_KILL_SEED` is the first seed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use haul_base::{Bytes, Probability, Rate, Rng, Span};
use haul_sim::{BottleneckSpec, Limit, PathSpec, QueueSpec, StageSpec};
use haul_wan::{Emulator, EmulatorOptions, Names, TcpWindow, V4};
use rustix::process::Signal;

use crate::support::{
    HAUL, LIMIT, Outcome, PORT, Running, assert_holes, assert_same, assert_same_to_rsync, at,
    can_be_particular, clean, directory, file, many, particular, possible, until,
};

/// The path's rate: a copy takes about 3 s.
const RATE: Rate = Rate::from_bps(100_000_000);
const RTT: Span = Span::from_millis(20);
const LOSS: f64 = 0.003;

/// Size of the large file.
const LARGE: usize = 24 << 20;

/// Bytes of the files with links, attributes and holes.
const PARTICULAR: usize = (2 << 20) + 305_000;

/// Allowance for headers, retransmissions, handshakes and the journal's small files.
const OVERHEAD: f64 = 1.15;

/// Bytes that one kill may cost: what the journal had not recorded (8 MiB at most), and what was in flight.
const PER_KILL: u64 = 12 << 20;

/// Kills per copy.
const KILLS_OF_A_COPY: u64 = 5;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn path() -> PathSpec {
    let queue = QueueSpec::TailDrop(Limit::Bytes(Bytes(1 << 20)));
    PathSpec {
        stages: vec![
            StageSpec::Bottleneck(BottleneckSpec { rate: RATE, queue }),
            StageSpec::Loss(Probability::new(LOSS).unwrap()),
            StageSpec::Delay(RTT / 2),
        ],
    }
}

fn emulator() -> Option<Emulator> {
    if !possible() {
        return None;
    }
    let path = path();
    let options = EmulatorOptions {
        forth: &path,
        back: &path,
        seed: 1,
        mtu: 1500,
        offload: true,
        window: TcpWindow::Path,
        cpu: None,
        names: Names::Listed,
        drop_log: None,
    };
    Some(Emulator::start(&options).unwrap())
}

/// `haul` on one of the two sides.
fn haul(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, HAUL]);
    clean(&mut command);
    command
}

struct Server {
    process: Running,
    url: String,
}

impl Server {
    fn start(emulator: &Emulator, root: &Path) -> Self {
        let place = directory();
        let urls = place.path().join("url");
        let mut command = haul(emulator.world.b.namespace.name());
        command.args(["serve", "--listen", &format!("0.0.0.0:{PORT}"), "--host", &V4[1].to_string()]);
        // Permits what a copy with all attributes sets.
        command.args(["--preserve", "owner,xattrs,acls"]);
        let mut process = Running::start(command.arg("--root").arg(root).arg("--url-file").arg(&urls));
        let mut url = String::new();
        until("the server's URL", || {
            assert!(process.is_running(), "the server has ended: {}", process.stderr());
            std::fs::read_to_string(&urls).unwrap_or_default().trim().clone_into(&mut url);
            !url.is_empty()
        });
        Self { process, url }
    }

    /// Asserts that a copy succeeded; on failure shows the server's stderr.
    #[track_caller]
    fn has_served(&mut self, copy: &Outcome) {
        let state = if self.process.is_running() { "runs" } else { "has ended" };
        assert_eq!(copy.code, Some(0), "{copy:?}; the server {state}: {}", self.process.stderr());
    }
}

/// One copy in one direction.
struct Copy<'a> {
    emulator: &'a Emulator,
    upload: bool,
    /// The source: a directory that contains only the tree.
    from: PathBuf,
    /// The destination, an existing directory.
    to: PathBuf,
}

/// Name of the tree.
const TREE: &str = "tree";

impl Copy<'_> {
    /// The server's root.
    fn root(&self) -> &Path {
        if self.upload { &self.to } else { &self.from }
    }

    fn start(&self, server: &Server) -> Running {
        let url = at(&server.url, if self.upload { "" } else { TREE });
        let mut command = haul(self.emulator.world.a.namespace.name());
        command.args(["cp", "--archive", "--numeric-ids"]);
        if self.upload {
            command.arg(self.from.join(TREE)).arg(url);
        } else {
            command.arg(url).arg(&self.to);
        }
        Running::start(&mut command)
    }

    /// Kills one side `kills` times, then lets the copy finish. Returns the bytes that the path carried.
    fn run(&self, rng: &mut Rng, kills: u64) -> u64 {
        let before = self.sent_bytes();
        let mut server = Server::start(self.emulator, self.root());
        let mut done = 0;
        while done < kills {
            let mut copy = self.start(&server);
            std::thread::sleep(Duration::from_millis(rng.below(2500)));
            if !copy.is_running() {
                // The copy finished before the kill, so this copy can have no further kills.
                server.has_served(&copy.wait(LIMIT));
                break;
            }
            done += 1;
            if rng.chance(0.5) {
                copy.signal(Signal::KILL);
                copy.wait(LIMIT);
            } else {
                server.process.signal(Signal::KILL);
                let outcome = copy.wait(LIMIT);
                // Exit code 5 is expected after the server's death; anything else is reported.
                assert!(matches!(outcome.code, Some(0 | 5)), "{outcome:?} {}", server.process.stderr());
                server = Server::start(self.emulator, self.root());
            }
        }
        let last = self.start(&server).wait(LIMIT);
        server.has_served(&last);
        self.sent_bytes() - before
    }

    fn sent_bytes(&self) -> u64 {
        let snapshots = self.emulator.snapshots().expect("both directions work");
        snapshots[usize::from(!self.upload)].sent.bytes
    }

    /// Compares the trees, and has rsync compare them as an independent check.
    fn assert_same(&self) {
        assert_same(&self.from, &self.to);
        assert_same_to_rsync(&self.from.join(TREE), &self.to.join(TREE));
        assert_holes(&self.to.join(TREE).join("particular"));
    }
}

#[test]
fn kills_at_any_moment_lose_nothing() {
    let Some(emulator) = emulator() else { return };
    if !can_be_particular() {
        return;
    }
    let (kills, first) = (number("HAUL_KILLS", 30), number("HAUL_KILL_SEED", 1));
    let place = directory();
    let from = place.path().join("from");
    let tree = from.join(TREE);
    many(&tree, 300, LARGE);
    file(&tree.join("second"), 5, 3 << 20);
    particular(&tree.join("particular"));
    let size = (LARGE + (3 << 20) + PARTICULAR) as f64;
    let (mut total, mut seed, mut sent_bytes, mut copies) = (0, first, 0, 0);
    while total < kills {
        let mut rng = Rng::from_seed(seed);
        let these = (kills - total).min(KILLS_OF_A_COPY);
        let to = place.path().join(format!("to-{seed}"));
        std::fs::create_dir(&to).unwrap();
        let copy = Copy { emulator: &emulator, upload: rng.chance(0.5), from: from.clone(), to };
        let sent = copy.run(&mut rng, these);
        println!("seed {seed}: {these} kills, upload {}, {} KiB carried", copy.upload, sent >> 10);
        copy.assert_same();
        let bound = (size * OVERHEAD) as u64 + these * PER_KILL;
        assert!(sent <= bound, "seed {seed}: {sent} bytes sent, {bound} permitted");
        std::fs::remove_dir_all(&copy.to).unwrap();
        (total, seed, sent_bytes, copies) = (total + these, seed + 1, sent_bytes + sent, copies + 1);
    }
    let ideal = size * f64::from(copies);
    println!("{total} kills in {copies} copies: {:.3} of the set's bytes carried", sent_bytes as f64 / ideal);
}
