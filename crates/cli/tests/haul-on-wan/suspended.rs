//! A receiver that is suspended again and again, with Linux's default limit on socket buffers, so its kernel
//! drops the packets that arrive meanwhile. The path's own counters are the reference: a packet that it did
//! not drop and that did not arrive was lost in the receiving host. A suspended sender is itself the limit.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_testing::attempts;

use super::*;

/// Linux's default of `net.core.rmem_max`.
const SMALL: &str = "socket_buffer=208KiB";

/// Alternately runs and stops a process for these numbers of milliseconds while `work` runs.
pub(super) fn suspended<T>(process: &Child, [runs, stops]: [u64; 2], work: impl FnOnce() -> T) -> T {
    let process = Pid::from_raw(process.id().cast_signed()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(runs));
                kill_process(process, Signal::STOP).unwrap();
                sleep(Duration::from_millis(stops));
                kill_process(process, Signal::CONT).unwrap();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Losses that the sender reports by cause, and packets that the path dropped.
struct Attribution {
    host: f64,
    /// At random or by congestion.
    path: f64,
    all: f64,
    dropped: f64,
}

/// Sends 60 MB to a suspended receiver.
fn attribution_of(far: &Far, options: &[&str]) -> Attribution {
    let here = tree(7, &[60_000_000]);
    let (from, to) = (here.path().to_str().unwrap(), far.at("tree"));
    let dropped = || far.emulator.snapshots().unwrap()[0].drops.total() as f64;
    let before = dropped();
    let arguments = [&["cp", "--json", "--set", SMALL], options, &[from, &to]].concat();
    let report = suspended(&far.serving, [240, 60], || far.succeed(&arguments));
    let causes = report["lost_by_cause"].as_object().unwrap();
    let count = |cause: &str| causes[cause].as_f64().unwrap();
    let all = causes.values().map(|count| count.as_f64().unwrap()).sum();
    println!("{options:?}: {causes:?}, {} bit/s", report["goodput_bps"]);
    let path = count("random") + count("congestion");
    Attribution { host: count("receiver_host"), path, all, dropped: dropped() - before }
}

#[test]
fn losses_of_a_suspended_receiver_are_attributed_to_it() {
    if !privileged("losses_of_a_suspended_receiver_are_attributed_to_it") {
        return;
    }
    let far = Far::start(31, 0.0, &[]);
    let with = || attribution_of(&far, &["--preset", "fobs-classifier", "--rate", "180Mbit"]);
    let is_hosts = |Attribution { host, all, .. }: &Attribution| *all > 500.0 && *host >= 0.98 * all;
    let with = attempts(with, is_hosts);
    assert!(with.dropped < 1.0, "a path without loss dropped {}", with.dropped);
    assert!(is_hosts(&with), "{} of {}", with.host, with.all);
    // Without the diagnosis no loss has a cause.
    let without = || attribution_of(&far, &["--preset", "fobs", "--rate", "150Mbit", "--diagnosis", "off"]);
    let Attribution { host, path, all, .. } = attempts(without, |attribution| attribution.all > 500.0);
    assert!(all > 500.0 && host + path < 1.0, "{host} and {path} of {all}");
}

#[test]
fn shares_of_host_and_path_losses_are_distinguished() {
    if !privileged("shares_of_host_and_path_losses_are_distinguished") {
        return;
    }
    let far = Far::start(32, 0.03, &[]);
    let shares = |Attribution { host, all, dropped, .. }: &Attribution| [host / all, 1.0 - dropped / all];
    let is_shared = |attribution: &Attribution| attribution.dropped > 500.0 && shares(attribution)[1] > 0.2;
    let is_close = |attribution: &Attribution| (shares(attribution)[0] - shares(attribution)[1]).abs() <= 0.1;
    let attempt = || {
        let attribution = attribution_of(&far, &["--preset", "fobs", "--rate", "150Mbit"]);
        let ([attributed_share, truth], Attribution { path, dropped, .. }) =
            (shares(&attribution), &attribution);
        println!(
            "the host's share: {attributed_share} told, {truth} in truth; {path} of the path's {dropped}"
        );
        attribution
    };
    let attribution = attempts(attempt, |attribution| is_shared(attribution) && is_close(attribution));
    assert!(is_shared(&attribution), "{} of {}", attribution.dropped, attribution.all);
    assert!(is_close(&attribution), "{:?}", shares(&attribution));
}

#[test]
fn a_sender_without_a_processor_does_not_blame_the_path() {
    if !privileged("a_sender_without_a_processor_does_not_blame_the_path") {
        return;
    }
    let far = Far::start(33, 0.0, &[]);
    let report = attempts(|| of_a_suspended_sender(&far), |report| report["limited_by"] == "sender_cpu");
    assert_eq!(report["limited_by"], "sender_cpu", "{report}");
}

/// Report of a sender that has the CPU half of the time.
fn of_a_suspended_sender(far: &Far) -> Value {
    let here = tree(8, &[30_000_000]);
    let mut command = haul(&far.emulator.world.a.namespace);
    command.args(["cp", "--json", here.path().to_str().unwrap(), &far.at("tree")]);
    let mut sender = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = sender.stdout.take().unwrap();
    // The process exists until it is waited for.
    let report = suspended(&sender, [25, 25], || {
        let mut report = String::new();
        output.read_to_string(&mut report).unwrap();
        report
    });
    assert!(sender.wait().unwrap().success(), "{report}");
    serde_json::from_str(&report).unwrap()
}
