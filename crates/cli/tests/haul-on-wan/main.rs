//! `haul cp` and `haul bench` with the object recipes, and `haul pipe` with every preset, between two
//! namespaces on the WAN emulator with packet loss in both directions. Needs root and `/dev/net/tun`; without
//! them each test reports SKIPPED and passes, or fails with `HAUL_E2E=required`. The test program's name
//! begins with `haul`, because the emulator's cleanup removes namespaces named after other programs.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod damage;
mod pipes;
mod random_paths;
mod suspended;
mod windows;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use haul_base::{Bytes, Probability, Rate, Rng, Span};
use haul_sim::{BottleneckSpec, DropReason, Limit, PathSpec, QueueSpec, StageSpec};
use haul_testing::{privileged, unconfigured};
use haul_wan::{Emulator, EmulatorOptions, Names, Namespace, TcpWindow, V4, sweep};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Namespaces are named after the process, so only one emulator can exist at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// `haul` on one side, without the user's configuration.
fn haul(side: &Namespace) -> Command {
    let mut command = unconfigured(Command::new("ip"));
    command.args(["netns", "exec", side.name(), env!("CARGO_BIN_EXE_haul")]).env("HOME", "/nonexistent");
    command
}

/// A path of 200 Mbit/s with this `delay` and loss rate in each direction.
fn lossy(loss: f64, delay: Span) -> PathSpec {
    let (rate, queue) = (Rate::from_mbps(200), QueueSpec::TailDrop(Limit::Bytes(Bytes(4 << 20))));
    let bottleneck = StageSpec::Bottleneck(BottleneckSpec { rate, queue });
    PathSpec {
        stages: vec![bottleneck, StageSpec::Loss(Probability::new(loss).unwrap()), StageSpec::Delay(delay)],
    }
}

/// An emulator with this path in each direction. Bind the returned guard before the emulator, so that it is
/// dropped after it.
fn emulator(seed: u64, path: &PathSpec, drop_log: Option<&Path>) -> (MutexGuard<'static, ()>, Emulator) {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    sweep(haul_wan::PREFIX);
    let emulator = Emulator::start(&EmulatorOptions {
        forth: path,
        back: path,
        seed,
        mtu: 1_500,
        offload: true,
        window: TcpWindow::Path,
        cpu: None,
        names: Names::Listed,
        drop_log,
    })
    .unwrap();
    (alone, emulator)
}

/// The URL that a server writes to a file.
fn url_in(file: &Path) -> String {
    eventually("the server's URL", || {
        let text = fs::read_to_string(file).unwrap_or_default();
        (!text.trim().is_empty()).then(|| text.trim().to_owned())
    })
}

/// A server behind 20 ms and 200 Mbit/s, with packet loss in both directions.
struct Far {
    serving: Child,
    url: String,
    root: TempDir,
    log: PathBuf,
    emulator: Emulator,
    _alone: MutexGuard<'static, ()>,
}

impl Far {
    fn start(seed: u64, loss: f64, options: &[&str]) -> Self {
        Self::beyond(seed, &lossy(loss, Span::from_millis(10)), options)
    }

    fn beyond(seed: u64, path: &PathSpec, options: &[&str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let drops = root.path().join("drops");
        let (alone, emulator) = emulator(seed, path, Some(&drops));
        let (file, log) = (root.path().join("url"), root.path().join("log"));
        let mut command = haul(&emulator.world.b.namespace);
        command.args(["serve", "--json", "--listen", "0.0.0.0:2640", "--host", &V4[1].to_string(), "--root"]);
        command.arg(root.path()).arg("--url-file").arg(&file).args(options);
        command.stdout(fs::File::create(&log).unwrap()).stderr(Stdio::null());
        let mut far = Self {
            serving: command.spawn().unwrap(),
            url: String::new(),
            root,
            log,
            emulator,
            _alone: alone,
        };
        far.url = url_in(&file);
        far
    }

    fn at(&self, path: &str) -> String {
        let (place, key) = self.url.split_once('?').unwrap();
        let authority = place.strip_prefix("haul://").unwrap().split('/').next().unwrap();
        format!("haul://{authority}/{path}?{key}")
    }

    /// Runs `haul` at the near side.
    fn run(&self, arguments: &[&str]) -> Output {
        haul(&self.emulator.world.a.namespace).args(arguments).output().unwrap()
    }

    /// Runs a command that must succeed, and parses its report.
    fn succeed(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The sessions that the server has logged so far, once there are `count`.
    fn sessions(&self, count: usize) -> Vec<Value> {
        eventually("the server's log", || {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let sessions: Vec<_> = events.filter(|event| event["event"] == "session").collect();
            (sessions.len() >= count).then_some(sessions)
        })
    }

    fn random_losses(&self) -> [u64; 2] {
        self.emulator.snapshots().unwrap().map(|way| way.drops.of(DropReason::Random))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let id = Pid::from_raw(self.serving.id().cast_signed()).unwrap();
        // May have ended already if the test is failing.
        let _ = kill_process(id, Signal::TERM);
        let _ = self.serving.wait();
    }
}

fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < end, "timed out waiting for {what}");
        sleep(Duration::from_millis(10));
    }
}

/// A directory with files of these sizes and pseudo-random contents.
fn tree(seed: u64, sizes: &[usize]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("below")).unwrap();
    let mut rng = Rng::from_seed(seed);
    for (number, &size) in sizes.iter().enumerate() {
        let mut data = vec![0; size];
        rng.fill(&mut data);
        let place = if number % 2 == 0 { "" } else { "below" };
        fs::write(directory.path().join(place).join(format!("file{number}")), data).unwrap();
    }
    directory
}

/// The hash of every file, by its path.
fn hashes(root: &Path) -> BTreeMap<PathBuf, blake3::Hash> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_owned();
                found.insert(name, blake3::hash(&fs::read(&path).unwrap()));
            }
        }
    }
    found
}

/// Uploads and downloads files with a recipe; the reports and the path's counters must show this recipe, and
/// loss.
fn there_and_back(preset: &str, shown: &str, controller: &str, options: &[&str], seed: u64) {
    let far = Far::start(seed, 0.02, &[]);
    let here = tree(seed, &[0, 1, 1_000, 70_000, 3_000_001, 20_000_000]);
    let back = tempfile::tempdir().unwrap();
    let (source, back_at) = (here.path().to_str().unwrap(), back.path().join("tree"));
    let remote = far.at("tree");
    let expected = hashes(here.path());
    for (from, to) in [(source, remote.as_str()), (remote.as_str(), back_at.to_str().unwrap())] {
        let before = far.random_losses();
        let report = far.succeed(&[&["cp", "--json", "--preset", preset], options, &[from, to]].concat());
        assert_eq!(
            (&report["preset"], &report["controller"]),
            (&shown.into(), &controller.into()),
            "{report}"
        );
        assert_eq!((&report["ok"], &report["files"]), (&true.into(), &6.into()), "{report}");
        assert!(report["packets_resent"].as_u64().unwrap() > 100, "{report}");
        let after = far.random_losses();
        assert!((0..2).all(|way| after[way] > before[way]), "{before:?} {after:?}");
    }
    assert_eq!(hashes(&far.root.path().join("tree")), expected);
    assert_eq!(hashes(&back_at), expected);
    for session in far.sessions(2) {
        assert_eq!(session["result"]["preset"], shown, "{session}");
    }
}

#[test]
fn files_are_copied_both_ways_with_bulk() {
    if privileged("files_are_copied_both_ways_with_bulk") {
        there_and_back("bulk", "bulk", "bbr", &[], 20);
    }
}

#[test]
fn files_are_copied_both_ways_with_fobs() {
    if privileged("files_are_copied_both_ways_with_fobs") {
        there_and_back("fobs", "fobs", "fixed", &["--rate", "150Mbit"], 21);
    }
}

#[test]
fn files_are_copied_both_ways_with_rbudp() {
    if privileged("files_are_copied_both_ways_with_rbudp") {
        there_and_back("rbudp", "rbudp", "fixed", &["--set", "rate_control.rate=150Mbit"], 22);
    }
}

#[test]
fn files_are_copied_both_ways_with_a_custom_recipe() {
    if privileged("files_are_copied_both_ways_with_a_custom_recipe") {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("mine.toml");
        // The recipe sets the rate and the controller.
        let text = "[sequenced_segment]\n[object]\nchunk = '1MB'\n[bitmap_ack]\ninterval = '5ms'\n\
                    [retransmit]\nkeep = 'object'\nwindow = 100000\n[rate_control]\ncontroller = 'fixed'\n\
                    rate = '120Mbit'\n[liveness]\n[seal]\n";
        fs::write(&file, text).unwrap();
        there_and_back(file.to_str().unwrap(), "mine", "fixed", &[], 23);
    }
}

/// A path like some tunnels and firewalls: it drops large packets without an ICMP message, so TCP retransmits
/// them forever.
#[test]
fn a_tree_crosses_a_path_that_drops_packets_above_1280_bytes() {
    if !privileged("a_tree_crosses_a_path_that_drops_packets_above_1280_bytes") {
        return;
    }
    let mut path = lossy(0.0, Span::from_millis(10));
    path.stages.push(StageSpec::Mtu(1_280));
    let far = Far::beyond(25, &path, &[]);
    // The names fill several packets of the control channel.
    let (here, back) = (tree(25, &[2_000; 300]), tempfile::tempdir().unwrap());
    let (source, back_at, remote) = (here.path().to_str().unwrap(), back.path().join("tree"), far.at("tree"));
    for (from, to) in [(source, remote.as_str()), (remote.as_str(), back_at.to_str().unwrap())] {
        let report = far.succeed(&["cp", "--json", "--sync", "none", from, to]);
        assert_eq!(report["files"], 300, "{report}");
    }
    assert_eq!(hashes(&back_at), hashes(here.path()));
}

#[test]
fn bench_runs_both_ways_with_both_recipes() {
    if !privileged("bench_runs_both_ways_with_both_recipes") {
        return;
    }
    let far = Far::start(24, 0.01, &["--set", "rate=100Mbit"]);
    let url = far.url.clone();
    for preset in ["fobs", "rbudp"] {
        for way in [&[][..], &["--reverse"][..]] {
            let options = ["bench", "--json", "--preset", preset, "--bytes", "20MB"];
            let report = far.succeed(&[&options, way, &[url.as_str()]].concat());
            assert_eq!(
                (&report["preset"], &report["bytes"]),
                (&preset.into(), &20_000_000.into()),
                "{report}"
            );
        }
    }
    // The negotiated settings: the lower of two ceilings applies, for every recipe.
    let plan = far.run(&["bench", "--dry-run", "--preset", "rbudp", &url]);
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(["rbudp", "fixed", "100.0 Mbit/s"].iter().all(|fact| plan.contains(fact)), "{plan}");
}
