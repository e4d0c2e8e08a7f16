//! Copies with random presets over random paths, with processes killed or stopped at random: each is complete
//! after at most five attempts.
//!
//! Runs three copies, or `HAUL_PATHS`; `HAUL_PATH_SEED` is the first seed.

use super::*;

/// Presets that adapt to a path of unknown capacity, also at high loss rates.
const ROBUST: [&str; 2] = ["default", "bulk"];
/// Presets of the papers.
const OTHERS: [&str; 9] = [
    "fobs-state",
    "fobs-gentle",
    "fobs-classifier",
    "rbudp+",
    "rapid+",
    "asynch",
    "proactive",
    "udt",
    "sabul",
];
/// Time limit of an attempt: a resumed copy hashes, and a path may be down for up to six seconds.
const LONGEST: Duration = Duration::from_secs(100);

/// Picks one at random.
fn any<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// A random path of this rate as a list of stages; high loss rates only for robust laws.
fn path(rng: &mut Rng, rate: Rate, is_robust: bool) -> String {
    let losses = if is_robust { [0.0, 1.0, 5.0, 15.0] } else { [0.0, 0.0, 0.1, 0.1] };
    let mut stages = Vec::new();
    if rng.chance(0.4) {
        stages.push(format!("{{ mtu = {} }}", any(rng, &[1_280, 1_300, 1_400])));
    }
    let queue = any(rng, &["tail_drop = \"20ms\"", "tail_drop = \"300ms\"", "codel = { limit = \"200ms\" }"]);
    stages.push(format!("{{ bottleneck = {{ rate = \"{}bit\", queue = {{ {queue} }} }} }}", rate.as_bps()));
    stages.push(format!("{{ loss = \"{}%\" }}", any(rng, &losses)));
    if rng.chance(0.3) {
        stages.push(format!("{{ jitter = {{ delay = {{ uniform = \"{}ms\" }} }} }}", any(rng, &[1, 5, 20])));
    }
    if rng.chance(0.3) {
        let (share, extra) = (any(rng, &[1, 10, 30]), any(rng, &[1, 10, 50]));
        stages.push(format!(
            "{{ reordering = {{ share = \"{share}%\", extra = {{ uniform = \"{extra}ms\" }} }} }}"
        ));
    }
    if rng.chance(0.3) {
        stages.push(format!("{{ duplication = \"{}%\" }}", any(rng, &[1, 20])));
    }
    if rng.chance(0.3) {
        let (at, length) = (any(rng, &[1, 2, 3]), any(rng, &[1, 3, 6]));
        stages.push(format!("{{ outages = [{{ at = \"{at}s\", length = \"{length}s\" }}] }}"));
    }
    stages.push(format!("{{ delay = \"{}ms\" }}", any(rng, &[0, 2, 10, 50, 200])));
    format!("stages = [{}]", stages.join(", "))
}

/// What happens to a process of the copy.
#[derive(Clone, Copy, Debug)]
enum Event {
    ClientKilled,
    ClientStopped,
    ServerStopped,
}

/// Stops a process for a while.
fn stop(process: &Child, duration: Duration) {
    let id = Pid::from_raw(process.id().cast_signed()).unwrap();
    // It may have ended.
    let _ = kill_process(id, Signal::STOP);
    sleep(duration);
    let _ = kill_process(id, Signal::CONT);
}

/// Runs a copy, with `event` after a delay. Returns whether it succeeded.
fn attempt(
    far: &Far,
    arguments: &[&str],
    event: Option<(Event, Duration)>,
    rng: &mut Rng,
    what: &str,
) -> bool {
    let mut copy =
        haul(&far.emulator.world.a.namespace).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    if let Some((event, after)) = event {
        sleep(after);
        let duration = Duration::from_millis(rng.below(5_000));
        match event {
            Event::ClientKilled => copy.kill().unwrap(),
            Event::ClientStopped => stop(&copy, duration),
            Event::ServerStopped => stop(&far.serving, duration),
        }
    }
    let end = Instant::now() + LONGEST;
    while copy.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            copy.kill().unwrap();
            panic!("{what}: it hangs: {}", String::from_utf8_lossy(&copy.wait_with_output().unwrap().stderr));
        }
        sleep(Duration::from_millis(20));
    }
    copy.wait().unwrap().success()
}

fn copy_at_random(seed: u64) {
    let mut rng = Rng::from_seed(seed);
    let is_robust = rng.chance(0.5);
    let preset = if is_robust { any(&mut rng, &ROBUST) } else { any(&mut rng, &OTHERS) };
    let rate = Rate::from_mbps(any(&mut rng, &[5, 20, 100, 300]));
    let path = path(&mut rng, rate, is_robust);
    let (events, upload) = (rng.below(3), rng.chance(0.5));
    let files = any(&mut rng, &[1, 3, 30, 300]);
    let what =
        format!("seed {seed}: {preset} at {rate}, {files} files, upload {upload}, {events} events, {path}");
    println!("{what}");

    let far = Far::beyond(seed, &toml::from_str(&path).unwrap(), &[]);
    // One second of data at the path's rate.
    let here = tree(seed, &vec![rate.bytes_in(Span::from_secs(1)) as usize / files; files]);
    let elsewhere = tempfile::tempdir().unwrap();
    let expected = hashes(here.path());
    let (source, target, found) = if upload {
        (here.path().to_str().unwrap().to_owned(), far.at("tree"), far.root.path().join("tree"))
    } else {
        fs::rename(here.path(), far.root.path().join("tree")).unwrap();
        let target = elsewhere.path().join("tree");
        (far.at("tree"), target.to_str().unwrap().to_owned(), target)
    };
    let ceiling = format!("{}bit", rate.as_bps());
    let arguments = ["cp", "-q", "--preset", preset, "--rate", &ceiling, &source, &target];
    let mut events: Vec<_> = (0..events)
        .map(|_| {
            let event = any(&mut rng, &[Event::ClientKilled, Event::ClientStopped, Event::ServerStopped]);
            (event, Duration::from_millis(rng.below(3_000)))
        })
        .collect();
    let succeeded = (0..5).any(|_| attempt(&far, &arguments, events.pop(), &mut rng, &what));
    assert!(succeeded, "{what}: no attempt succeeded");
    assert_eq!(hashes(&found), expected, "{what}");
}

#[test]
fn copies_are_complete_on_random_paths_with_random_end_failures() {
    if !privileged("copies_are_complete_on_random_paths_with_random_end_failures") {
        return;
    }
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (count, first) = (number("HAUL_PATHS", 3), number("HAUL_PATH_SEED", 1));
    (first..first + count).for_each(copy_at_random);
}
