//! Compares the transmission windows of a trace, packet by packet, with what the path dropped.

use std::collections::BTreeSet;

use haul_diagnosis::{Signature, read_signatures};
use haul_testing::attempts;

use super::suspended::suspended;
use super::*;

/// A packet's kind without the recipe generation bit, and the kinds that carry data (docs/wire-format.md).
const KIND: u64 = 0x7f;
const DATA: [u64; 3] = [1, 2, 7];

/// Numbers of the data packets lost on the way to the receiver, from the drop log.
fn dropped(far: &Far) -> BTreeSet<u64> {
    let log = fs::read_to_string(far.root.path().join("drops")).unwrap();
    let number = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let ["forth", "random", "udp", _, _, payload] = words[1..] else { return None };
        let start = u64::from_str_radix(payload.get(..14)?, 16).unwrap();
        DATA.contains(&(start >> 48 & KIND)).then_some(start & ((1 << 48) - 1))
    };
    log.lines().filter_map(number).collect()
}

/// The first packet number and the signature of each window in a trace.
fn windows(trace: &Path) -> Vec<(u64, Signature)> {
    let text = fs::read_to_string(trace).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let window = |event: Value| {
        let read = read_signatures(event["signature"].as_str().unwrap()).unwrap();
        (event["first_pn"].as_u64().unwrap(), read.into_iter().next().unwrap())
    };
    events.filter(|event| event["event"] == "window").map(window).collect()
}

/// One run: its report, its windows and the path's drops.
struct Run {
    far: Far,
    report: Value,
    dropped: BTreeSet<u64>,
    windows: Vec<(u64, Signature)>,
}

impl Run {
    fn new() -> Self {
        let far = Far::start(33, 0.004, &[]);
        let trace = far.root.path().join("trace");
        let name = trace.to_str().unwrap();
        let how = ["bench", "--json", "--preset", "fobs", "--rate", "120Mbit", "--bytes", "40MB", "--set"];
        let report =
            far.succeed(&[&how[..], &["rate_control.unit_window=2MB", "--events", name, &far.url]].concat());
        let (dropped, windows) = (dropped(&far), windows(&trace));
        Self { far, report, dropped, windows }
    }

    /// The first difference between the windows and the path's drops.
    fn difference(&self) -> Option<String> {
        let mut others = 0;
        for (first, signature) in &self.windows {
            let lost: BTreeSet<u64> = signature.lost_positions().map(|position| first + position).collect();
            let numbers = *first..first + signature.packets();
            let by_path: BTreeSet<u64> = self.dropped.range(numbers).copied().collect();
            if !by_path.is_subset(&lost) {
                return Some(format!("{by_path:?} {lost:?}"));
            }
            others += lost.len() - by_path.len();
        }
        // Packets that the path did not drop were lost in the receiving host.
        if others > 0 && self.report["receiver_drops"].as_u64().unwrap_or(0) == 0 {
            return Some(format!("{others} packets are lost, but neither the path nor the host dropped any"));
        }
        // Windows without a loss have no line.
        let end = self.windows.last().map_or(0, |(first, signature)| first + signature.packets());
        let has =
            |pn: u64| self.windows.iter().any(|(first, of)| (*first..first + of.packets()).contains(&pn));
        let missed = self.dropped.range(..end).find(|pn| !has(**pn))?;
        Some(format!("packet {missed} was dropped, and no window has lost it"))
    }
}

#[test]
fn the_losses_in_trace_windows_match_the_path_drops() {
    if !privileged("the_losses_in_trace_windows_match_the_path_drops") {
        return;
    }
    // On a busy machine packets can be so late that they are retransmitted. If such a duplicate is then lost,
    // nothing reports the loss.
    let run = attempts(Run::new, |run| run.difference().is_none());
    assert_eq!(run.difference(), None);
    let Run { far, windows, .. } = &run;
    assert!(windows.len() > 10, "{} windows", windows.len());
    let name = far.root.path().join("trace");
    let output = far.run(&["diagnose", "--json", name.to_str().unwrap()]);
    assert!(output.status.success());
    let output = String::from_utf8(output.stdout).unwrap();
    let windows_found = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let sizes: Vec<_> =
        windows_found.map(|window| (window["packets"].as_u64(), window["lost"].as_u64())).collect();
    let expected = windows.iter().map(|(_, of)| (Some(of.packets()), Some(of.lost_packets())));
    assert_eq!(sizes, expected.collect::<Vec<_>>());
}

/// Numbers of a trace's lost packets that are attributed to a cause with such a probability.
fn attributed(trace: &Path, cause: &str, is_enough: fn(f64) -> bool) -> BTreeSet<u64> {
    let text = fs::read_to_string(trace).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let windows = events.filter(|event| event["event"] == "window");
    let runs = windows.flat_map(|window| window["losses"].as_array().unwrap().clone());
    let likely = runs.filter(|run| run[cause].as_f64().is_some_and(is_enough));
    let number = |run: &Value, key: &str| run[key].as_u64().unwrap();
    likely
        .flat_map(|run| number(&run, "first_pn")..number(&run, "first_pn") + number(&run, "packets"))
        .collect()
}

#[test]
fn each_lost_packet_of_a_trace_is_attributed_to_the_path_or_a_suspended_receiver() {
    if !privileged("each_lost_packet_of_a_trace_is_attributed_to_the_path_or_a_suspended_receiver") {
        return;
    }
    let run = attempts(Attributed::new, |run| run.difference().is_none());
    assert_eq!(run.difference(), None);
}

/// A run over a path with random losses to a receiver that is suspended repeatedly.
struct Attributed {
    /// Lost packets without a cause.
    unattributed: Vec<u64>,
    /// Each cause, the minimum of precision and recall, and the packets attributed to it, truly due to it, and both.
    causes: Vec<(&'static str, [f64; 2], [usize; 3])>,
}

impl Attributed {
    fn new() -> Self {
        let far = Far::start(34, 0.01, &[]);
        let trace = far.root.path().join("trace");
        let name = trace.to_str().unwrap();
        let how = ["bench", "--preset", "fobs", "--rate", "150Mbit", "--bytes", "80MB"];
        let set =
            ["--set", "rate_control.unit_window=5MB", "--set", "socket_buffer=208KiB", "--events", name];
        let how = [&how[..], &["--json"], &set, &[&far.url]].concat();
        suspended(&far.serving, [240, 60], || far.succeed(&how));
        let (dropped, windows) = (dropped(&far), windows(&trace));
        let lost = windows.iter().flat_map(|(first, of)| of.lost_positions().map(move |at| first + at));
        let lost: BTreeSet<u64> = lost.collect();
        let causes = ["receiver_host", "congestion", "random", "outage", "inconclusive"];
        // Where the socket dropped half of a run and it is unknown which half, both causes have probability 0.5.
        let attributed_packets = causes.map(|cause| attributed(&trace, cause, |share| share >= 0.5));
        let attributed_packets = attributed_packets.into_iter().flatten().collect();
        let end = windows.last().unwrap().0;
        let unattributed = lost.difference(&attributed_packets).copied().filter(|pn| *pn < end).collect();
        let compared = |(cause, least, truth): (_, _, BTreeSet<u64>)| {
            let attributed_packets = &attributed(&trace, cause, |share| share > 0.5) & &lost;
            (cause, least, [attributed_packets.len(), truth.len(), (&attributed_packets & &truth).len()])
        };
        // While the receiver is suspended the path loses packets too, and within one gap the two kinds cannot be
        // told apart.
        let causes =
            [("receiver_host", [0.97, 0.98], &lost - &dropped), ("random", [0.97, 0.6], &lost & &dropped)];
        Self { unattributed, causes: causes.map(compared).into() }
    }

    /// Describes the first cause attributed wrongly, if any.
    fn difference(&self) -> Option<String> {
        let Self { unattributed, causes } = self;
        if !unattributed.is_empty() {
            return Some(format!("{} have no cause: {:?}...", unattributed.len(), unattributed.first()));
        }
        causes.iter().find_map(|(cause, least, [attributed_packets, truth, right])| {
            println!("{cause}: {right} correct of {attributed_packets} attributed and {truth} true");
            let found = [attributed_packets, truth].map(|of| *right as f64 / *of as f64);
            let is_enough = *truth > 300 && found[0] >= least[0] && found[1] >= least[1];
            (!is_enough).then(|| {
                format!(
                    "{cause}: {right} correct of {attributed_packets} attributed and {truth} true: {found:?}"
                )
            })
        })
    }
}
