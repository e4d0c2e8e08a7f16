use haul_base::{Cause, Rate, Span};
use haul_proto::Limit;
use proptest::prelude::*;

use super::format::grouped;
use super::*;
use crate::fault::{self, Fault, FaultCode, Host};

fn finished() -> RunReport {
    RunReport {
        bytes: 256_000_000,
        files: 64,
        elapsed: Span::from_millis(2_401),
        goodput: Rate::from_bps(853_000_000),
        rtt: Some(Span::from_micros(65_210)),
        preset: "default".to_owned(),
        controller: "delivery".to_owned(),
        cipher: "aes-128-gcm".to_owned(),
        packets: Packets { sent: 180_500, resent: 320 },
        lost: [(Cause::Random, 181), (Cause::Inconclusive, 100)].into_iter().collect(),
        capacity: Some((Rate::from_mbps(1_000), "path".into())),
        limited_by: Some(Limit { what: "path".into(), evidence: "delivery rate stayed level".to_owned() }),
        digest: Some("ab".repeat(32)),
        cpu: CpuSeconds { sender: Some(0.5), receiver: Some(0.75) },
        max_rss: Some(123_456_789),
        ..RunReport::default()
    }
}

fn broken() -> RunReport {
    let fault = Fault::new(FaultCode::UdpBlocked, "no UDP came through to port 2640", "open UDP port 2640");
    RunReport { preset: "default".to_owned(), controller: "delivery".to_owned(), ..RunReport::failed(fault) }
}

fn partly() -> RunReport {
    let fault = Fault::new(FaultCode::Unreadable, "permission denied", "check the permissions");
    let failed = vec![FileFailure { machine: None, path: b"a/b\x1b".to_vec(), fault, below: 0 }];
    RunReport { failed, failed_files: 3, limited_by: None, ..finished() }
}

fn pretty(report: &RunReport) -> String {
    serde_json::to_string_pretty(&json_value(report)).unwrap()
}

#[test]
fn the_json_object_of_a_finished_run() {
    insta::assert_snapshot!(pretty(&finished()));
}

#[test]
fn the_json_object_of_a_failed_run() {
    insta::assert_snapshot!(pretty(&broken()));
}

#[test]
fn the_json_object_of_a_run_with_failed_files() {
    insta::assert_snapshot!(pretty(&partly()));
}

#[test]
fn the_json_object_always_has_every_field_of_the_contract() {
    let fields = "schema ok bytes files seconds goodput_bps rtt_ms preset controller packets_sent \
                  packets_resent loss_rate lost_by_cause limited_by digest cpu_seconds resumed_bytes kept_files error";
    for report in [finished(), broken(), partly()] {
        let text = json_value(&report).to_string();
        assert_eq!(text.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for field in fields.split_whitespace() {
            assert!(value.get(field).is_some(), "{field}");
        }
        assert_eq!(value["ok"].as_bool().unwrap(), value["error"].is_null());
    }
}

#[test]
fn the_summary_of_a_finished_run() {
    insta::assert_snapshot!(Lines::from(&finished()).as_str());
}

#[test]
fn the_summary_of_a_failed_run() {
    insta::assert_snapshot!(Lines::from(&broken()).as_str());
}

#[test]
fn the_summary_of_a_run_with_failed_files() {
    insta::assert_snapshot!(Lines::from(&partly()).as_str());
}

#[test]
fn the_summary_of_a_run_that_moved_nothing() {
    let report = RunReport { files: 0, bytes: 0, ..partly() };
    insta::assert_snapshot!(Lines::from(&report).as_str());
}

#[test]
fn the_summary_of_a_bench() {
    let report = RunReport { files: 0, digest: None, capacity: None, ..finished() };
    insta::assert_snapshot!(Lines::from(&report).as_str());
}

/// The failure of `path`, plus the reported failures of `named` of its `below` entries.
fn below(machine: Option<&str>, path: &str, named: u64, below: u64) -> Vec<FileFailure> {
    let failure = |path: String, fault, below| FileFailure {
        machine: machine.map(str::to_owned),
        path: path.as_bytes().to_vec(),
        fault,
        below,
    };
    let cause = Fault::new(FaultCode::Unreadable, "permission denied", "check the permissions");
    // The receiver's report for an entry of a failed directory.
    let follows = || Fault::new(FaultCode::NotADirectory, "no directory", "see the error of its directory");
    let mut all = vec![failure(path.to_owned(), cause, below)];
    all.extend((0..named).map(|entry| failure(format!("{path}/{entry}"), follows(), 0)));
    all
}

#[test]
fn failures_below_a_failed_directory_share_one_line() {
    let failed = [below(None, "x", 3, 301), below(None, "x2", 1, 1), below(None, "y", 0, 0)].concat();
    let report = RunReport { failed, failed_files: 306, ..finished() };
    let lines = report.failures();
    let lines = lines.as_str();
    assert_eq!(
        lines,
        "failed: x: permission denied (check the permissions)\n\
         failed: x: 301 names below it, whose directory is missing\n\
         failed: x2: permission denied (check the permissions)\n\
         failed: x2: 1 name below it, whose directory is missing\n\
         failed: y: permission denied (check the permissions)\n\
         failed: 1 more\n"
    );
    // JSON output lists every known name and the exact total.
    let value = json_value(&report);
    assert_eq!((&value["failed_files"], value["failures"].as_array().unwrap().len()), (&306.into(), 7));
    assert!(value["failures"][0].get("below").is_none());
}

#[test]
fn failures_whose_directory_is_not_listed_are_named() {
    let mut failed = [below(Some("a"), "x", 0, 5), below(Some("b"), "x", 1, 0)].concat();
    // Removes the failure that explains the following ones.
    failed.remove(1);
    let report = RunReport { failed, failed_files: 7, ..finished() };
    let lines = report.failures();
    let lines = lines.as_str();
    assert!(lines.contains("failed: x/0 from b: no directory"), "{lines}");
    assert_eq!((lines.lines().count(), lines.contains("more")), (3, false), "{lines}");
}

#[test]
fn exit_codes_follow_the_contract() {
    assert_eq!(finished().exit_code(), 0);
    assert_eq!(broken().exit_code(), 5);
    assert_eq!(partly().exit_code(), 3);
}

#[test]
fn a_goodput_above_the_ceiling_is_not_shown_as_a_share_of_it() {
    let capacity = Some((Rate::from_bps(1_000), "ceiling".into()));
    let moved = |goodput| RunReport { goodput, capacity: capacity.clone(), ..finished() }.moved();
    assert!(moved(Rate::from_bps(900)).contains("(90 % of the ceiling's"));
    assert!(!moved(Rate::from_bps(9_050)).contains("ceiling"));
}

#[test]
fn quantities_are_formatted_for_people() {
    assert_eq!(clock(Span::from_micros(27_400)), "27 ms");
    assert_eq!(clock(Span::from_millis(1_840)), "1.8 s");
    assert_eq!(clock(Span::from_secs(187)), "3:07");
    assert_eq!(clock(Span::from_secs(7384)), "2:03:04");
    assert_eq!(grouped(1_234_567), "1,234,567");
    assert_eq!(grouped(999), "999");
    assert_eq!(count(1, "file"), "1 file");
    assert_eq!(percent(0.00001), "<0.01 %");
    assert_eq!(percent(0.0018), "0.2 %");
    assert_eq!(percent(0.0), "0 %");
}

/// Text with control and formatting characters that could mislead a reader of the terminal.
fn hostile() -> impl Strategy<Value = String> {
    const THREATS: [&str; 9] = [
        "\n",
        "\r",
        "\u{1b}[2J",
        "\u{1b}]0;title\u{7}",
        "\u{9b}2K",
        "\u{85}",
        "\u{202e}",
        "\u{2066}",
        "\u{2028}",
    ];
    let forged = "\nMoved 9.9 GB in 1 file, all verified\n";
    let word = prop_oneof![
        Just(forged.to_owned()),
        proptest::sample::select(&THREATS[..]).prop_map(str::to_owned),
        ".*"
    ];
    prop::collection::vec(word, 1..4).prop_map(|words| format!("x{}", words.concat()))
}

/// A report with `word` in every field that a peer, a file name or another program can set.
fn all_of(word: &str) -> RunReport {
    let text = || word.to_owned();
    let fault = || Fault::new(FaultCode::Io, text(), text()).on(Host::Named(text()));
    let failure =
        |machine, below| FileFailure { machine, path: word.as_bytes().to_vec(), fault: fault(), below };
    RunReport {
        preset: text(),
        controller: text(),
        cipher: text(),
        limited_by: Some(Limit { what: text().into(), evidence: text() }),
        digest: Some(text()),
        notes: vec![text(); 2],
        noted: 2,
        fallbacks: vec![text()],
        failed: vec![failure(None, 7), failure(Some(text()), 1)],
        failed_files: 20,
        not_deleted: Some(fault()),
        error: Some(fault()),
        ..finished()
    }
}

proptest! {
    #[test]
    fn no_text_of_a_report_adds_a_line_or_a_control_character(word in hostile()) {
        let [lines, plain] = [&*word, "x"].map(|word| Lines::from(&all_of(word)).as_str().to_owned());
        prop_assert_eq!(lines.lines().count(), plain.lines().count(), "{}", lines);
        prop_assert!(!lines.replace('\n', "").contains(haul_base::is_unprintable), "{:?}", lines);
        let object = escape_controls(&json_value(&all_of(&word)).to_string());
        prop_assert!(!object.contains(haul_base::is_unprintable), "{:?}", object);
        let value: serde_json::Value = serde_json::from_str(&object).unwrap();
        prop_assert_eq!(value["failures"][0]["path"].as_str(), Some(word.as_str()), "names are exact");
    }
}

#[test]
fn a_report_round_trips_through_json() {
    let report = RunReport {
        bytes: u64::MAX,
        elapsed: Span::from_nanos(1_234_567_891),
        goodput: Rate::from_bps(987_654_321),
        rtt: Some(Span::from_nanos(50_000_001)),
        packets: Packets { sent: 5, resent: 1 },
        lost: Cause::ALL.into_iter().zip(1..).collect(),
        capacity: Some((Rate::from_mbps(5), "measured path".into())),
        limited_by: Some(Limit { what: "path".into(), evidence: "seen".to_owned() }),
        digest: Some("00ff".to_owned()),
        cpu: CpuSeconds { sender: Some(0.1), receiver: None },
        failed: vec![FileFailure {
            machine: None,
            path: b"x\xff".to_vec(),
            fault: fault::usage("no", "yes"),
            below: 7,
        }],
        failed_files: 1,
        files_exit_code: Some(8),
        error: Some(fault::usage("a", "b")),
        ..RunReport::default()
    };
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<RunReport>(&json).unwrap(), report);
    assert_eq!(serde_json::from_str::<RunReport>("{}").unwrap(), RunReport::default());
}

#[test]
fn a_capacity_keeps_the_name_of_another_version() {
    let report: RunReport = serde_json::from_str(r#"{"capacity":[5,"odd"]}"#).unwrap();
    assert_eq!(report.capacity, Some((Rate::from_bps(5), "odd".into())));
}
