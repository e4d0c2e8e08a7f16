//! Names left out by rules are not removed with the names that the set does not have.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use haul_mover::{Expectations, MoveReport, ReceiveOptions, Root, SendLimits, receive_files, send_files};
use haul_wire::control::{
    Action, ExcludedNames, Extraneous, IgnoreFiles, Layout, ReceivePolicy, Rule, RunMode, Selection, Verdict,
};

use crate::harness::{Pump, bytes, link_pair, names_below, options};
use crate::receive_policy::{DELETE, content, places};

/// Parses rules written as `+ pattern` and `- pattern`.
fn rules(list: &[&str]) -> Selection {
    let rule = |text: &&str| {
        let verdict = if text.starts_with('+') { Verdict::Include } else { Verdict::Exclude };
        Rule { verdict, pattern: text.as_bytes()[2..].to_vec() }
    };
    Selection { rules: list.iter().map(rule).collect(), ..Selection::default() }
}

/// Copies the selected contents of `src` to `dst`; returns the names that the receiver removes or would
/// remove, and its report.
fn mirror_chosen(
    src: &Path,
    dst: &Path,
    selection: &Selection,
    options: ReceiveOptions,
) -> (Vec<String>, MoveReport) {
    copy_chosen(content(src), (dst, Layout::Into), selection, options)
}

fn copy_chosen(
    source: Vec<u8>,
    (dst, layout): (&Path, Layout),
    selection: &Selection,
    options: ReceiveOptions,
) -> (Vec<String>, MoveReport) {
    let (a, b) = link_pair();
    let items = b.items.clone();
    let mut receive = receive_files(&bytes(dst), &Root::Anywhere, layout, b, options).unwrap();
    let mut send = send_files(vec![source], Root::Anywhere, selection, a, SendLimits::default()).unwrap();
    let over = || send.handle.is_finished() || receive.handle.is_finished();
    Pump::default().run(&mut *send.source, &mut *receive.sink, &over);
    let (sent, received) = (send.handle.join().unwrap(), receive.handle.join().unwrap());
    assert_eq!(sent, received);
    let items = items.lock().unwrap();
    let removed = items.iter().filter(|item| item.action == Action::Delete);
    let mut removed: Vec<String> = removed.map(|item| item.path.to_string()).collect();
    removed.sort();
    (removed, received)
}

/// Creates a destination with many names that the source does not have.
fn crowded(dst: &Path) {
    for path in [
        "old",
        "x.o",
        "keep.o",
        "build/a",
        "build/deep/b.o",
        "sub/x.o",
        "sub/cache",
        "sub/gone/x.o",
        "sub/gone/y",
        "sub/build/c",
        "only/deep/x.o",
        "only/deep/y",
        "only/z",
    ] {
        fs::create_dir_all(dst.join(path).parent().unwrap()).unwrap();
        fs::write(dst.join(path), path).unwrap();
    }
    fs::create_dir(dst.join("cache")).unwrap();
    symlink("nowhere", dst.join("dangling.o")).unwrap();
}

/// The names below a directory, sorted.
fn names(root: &Path) -> Vec<PathBuf> {
    let all = names_below(root);
    let mut names: Vec<PathBuf> = all.iter().map(|p| p.strip_prefix(root).unwrap().to_path_buf()).collect();
    names.sort();
    names
}

#[test]
fn files_filtered_by_rules_are_kept_like_rsync() {
    if Command::new("rsync").arg("--version").output().is_err() {
        eprintln!("SKIPPED: rsync is missing");
        return;
    }
    let cases: [&[&str]; 9] = [
        &["- *.o"],
        &["- /build/"],
        &["- build"],
        &["+ keep.o", "- *.o"],
        &["- sub/gone/"],
        &["- cache/"],
        &["- /only/deep/***"],
        &["+ */", "+ *.o", "- *"],
        &["- *"],
    ];
    for case in cases {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = places(dir.path());
        fs::write(src.join("sub/own.o"), "own").unwrap();
        let rsync_destination = dir.path().join("rsync");
        fs::create_dir(&rsync_destination).unwrap();
        crowded(&dst);
        crowded(&rsync_destination);
        let filters: Vec<String> = case.iter().map(|rule| format!("--filter={rule}")).collect();
        same_as_rsync((&src, &dst, &rsync_destination), &rules(case), &filters);
    }
}

/// Asserts that both leave the same names, and that a dry run before reports the removed ones.
fn same_as_rsync(
    (src, dst, rsync_destination): (&Path, &Path, &Path),
    selection: &Selection,
    words: &[String],
) {
    let mut rsync = Command::new("rsync");
    rsync.args(["-rlpt", "--delete-after"]).args(words);
    let ended = rsync.arg(src.join("")).arg(rsync_destination).output().unwrap();
    assert!(ended.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ended.stderr));
    // First a dry run, then a run with just enough removals permitted.
    let before = names(dst);
    let run = |run, extraneous| {
        let receive_policy = ReceivePolicy { run, extraneous, ..DELETE };
        mirror_chosen(src, dst, selection, ReceiveOptions { receive_policy, ..options() })
    };
    let (would, _) = run(RunMode::ListChanges, Extraneous::Delete);
    assert_eq!(names(dst), before);
    let (went, report) = run(RunMode::Move, Extraneous::DeleteAtMost(would.len() as u64));
    assert_eq!((report.removal.removed, &report.removal.fault), (went.len() as u64, &None), "{words:?}");
    assert_eq!(would, went, "{words:?}");
    assert_eq!(names(dst), names(rsync_destination), "{words:?}");
    let (repeated, _) = run(RunMode::Move, Extraneous::Delete);
    assert_eq!(repeated, [""; 0], "{words:?}: nothing is left to do");
}

fn with_excluded_names(selection: Selection) -> Selection {
    Selection { left_out: ExcludedNames::Sent, ..selection }
}

#[test]
fn files_filtered_by_size_or_ignore_file_are_kept_like_rsync() {
    if Command::new("rsync").arg("--version").output().is_err() {
        eprintln!("SKIPPED: rsync is missing");
        return;
    }
    let obey = || Selection { ignore_files: IgnoreFiles::Obey, ..Selection::default() };
    let cases: [(Selection, &[&str]); 5] = [
        (Selection { max_bytes: Some(3000), ..Selection::default() }, &["--max-size=3000"]),
        (Selection { min_bytes: Some(3000), ..Selection::default() }, &["--min-size=3000"]),
        (obey(), &["--filter=:- .gitignore"]),
        (Selection { max_bytes: Some(3000), ..obey() }, &["--filter=:- .gitignore", "--max-size=3000"]),
        (
            Selection { rules: rules(&["- keep.o"]).rules, max_bytes: Some(10), ..obey() },
            &["--filter=- keep.o", "--filter=:- .gitignore", "--max-size=10"],
        ),
    ];
    for (selection, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = places(dir.path());
        let rsync_destination = dir.path().join("rsync");
        fs::create_dir(&rsync_destination).unwrap();
        for name in ["large", "sub/large", "sub/own.o", "sub/cache", "x.o"] {
            fs::write(src.join(name), [b'x'; 3001]).unwrap();
        }
        fs::create_dir_all(src.join("build/mine")).unwrap();
        for at in [&dst, &rsync_destination] {
            crowded(at);
            for name in ["large", "sub/large", "sub/large-and-gone", "sub/own.o"] {
                fs::write(at.join(name), [b'y'; 3002]).unwrap();
            }
        }
        for at in [&src, &dst, &rsync_destination] {
            fs::write(at.join(".gitignore"), "*.o\n/build/\n").unwrap();
            fs::write(at.join("sub/.gitignore"), "cache\ngone/y\n").unwrap();
        }
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        same_as_rsync((&src, &dst, &rsync_destination), &with_excluded_names(selection), &words);
    }
}

#[test]
fn ignore_files_outside_of_the_set_have_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    crowded(&dst);
    fs::write(dst.join(".gitignore"), "*\n").unwrap();
    fs::write(dst.join("only/.gitignore"), "*\n").unwrap();
    // An ignore file that ignores itself is not sent; the destination's is kept and applies.
    fs::write(src.join("sub/.gitignore"), ".gitignore\n").unwrap();
    fs::write(dst.join("sub/.gitignore"), "*.o\n").unwrap();
    let obey = with_excluded_names(Selection { ignore_files: IgnoreFiles::Obey, ..Selection::default() });
    let options = ReceiveOptions { receive_policy: DELETE, ..options() };
    let (_, report) = mirror_chosen(&src, &dst, &obey, options);
    assert_eq!(report.removal.fault, None);
    let remaining = ["a", "link", "sub", "sub/.gitignore", "sub/b", "sub/deeper", "sub/deeper/c", "sub/gone"];
    let remaining: Vec<PathBuf> =
        remaining.into_iter().chain(["sub/gone/x.o", "sub/x.o"]).map(PathBuf::from).collect();
    assert_eq!(names(&dst), remaining);
}

#[test]
fn an_unusable_ignore_file_at_the_destination_stops_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::write(src.join(".gitignore"), "*.o\n").unwrap();
    fs::write(src.join("sub/.gitignore"), ".gitignore\n").unwrap();
    fs::create_dir(dst.join("sub")).unwrap();
    fs::write(dst.join("sub/old"), "x").unwrap();
    fs::write(dst.join("sub/.gitignore"), vec![b'\n'; (1 << 20) + 1]).unwrap();
    let obey = with_excluded_names(Selection { ignore_files: IgnoreFiles::Obey, ..Selection::default() });
    let options = ReceiveOptions { receive_policy: DELETE, ..options() };
    let (went, report) = mirror_chosen(&src, &dst, &obey, options);
    assert!(went.is_empty() && dst.join("sub/old").exists());
    assert!(report.removal.fault.unwrap().message.contains("`sub/.gitignore` cannot be used"));
}

#[test]
fn a_requesting_receiver_applies_its_ignore_files() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    crowded(&dst);
    fs::write(src.join(".gitignore"), "*.o\nbuild\n").unwrap();
    let obey = Selection { ignore_files: IgnoreFiles::Obey, ..Selection::default() };
    let expectations = Some(Expectations::new(&[b"src/.".to_vec()], &obey));
    let options = ReceiveOptions { receive_policy: DELETE, expectations, ..options() };
    let (went, report) = mirror_chosen(&src, &dst, &Selection::default(), options);
    assert_eq!(report.removal.fault, None);
    assert!(!went.is_empty() && !dst.join("old").exists());
    assert!(dst.join("build/a").exists() && dst.join("sub/gone/x.o").exists());
}

#[test]
fn a_requesting_receiver_keeps_files_filtered_by_its_rules() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    crowded(&dst);
    // The sender does not send the rules.
    let expectations = Some(Expectations::new(&[b"src/.".to_vec()], &rules(&["- *.o", "- build"])));
    let options = ReceiveOptions { receive_policy: DELETE, expectations, ..options() };
    let (went, report) = mirror_chosen(&src, &dst, &Selection::default(), options);
    assert_eq!(report.removal.fault, None);
    assert_eq!(went, ["cache", "old", "only/deep/y", "only/z", "sub/cache", "sub/gone/y"]);
    assert!(dst.join("build/a").exists() && dst.join("sub/gone/x.o").exists());
}

#[test]
fn a_selection_unknown_to_the_receiver_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    crowded(&dst);
    let selection = Selection { min_bytes: Some(1), ..rules(&["- *.o"]) };
    let options = ReceiveOptions { receive_policy: DELETE, ..options() };
    let (went, report) = mirror_chosen(&src, &dst, &selection, options);
    assert!(went.is_empty() && report.removal.fault.is_some());
}

#[test]
fn a_conflicting_directory_with_filtered_files_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    for path in ["a/keep", "a/gone", "sub/deeper/c/gone"] {
        fs::create_dir_all(dst.join(path).parent().unwrap()).unwrap();
        fs::write(dst.join(path), path).unwrap();
    }
    let options = ReceiveOptions { receive_policy: DELETE, ..options() };
    let (removed, report) = mirror_chosen(&src, &dst, &rules(&["- keep"]), options);
    assert_eq!(removed, ["a/gone", "sub/deeper/c", "sub/deeper/c/gone"]);
    assert_eq!((report.failures.count(), report.removal.removed), (1, 3));
    assert_eq!(report.failures.named()[0].0, b"a");
    assert_eq!(fs::read(dst.join("a/keep")).unwrap(), b"a/keep");
    assert!(dst.join("sub/deeper/c").is_file());
}

/// The rules are about the source's name, not about the one that it gets.
#[test]
fn rules_for_an_obstacle_to_a_renamed_source_see_the_name_of_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    let fifo = dst.join("x.bak");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
    let options = ReceiveOptions { receive_policy: DELETE, ..options() };
    let (_, report) = copy_chosen(bytes(&src.join("a")), (&fifo, Layout::As), &rules(&["- *.bak"]), options);
    assert_eq!((report.failures.count(), report.removal.removed), (0, 1));
    assert_eq!(fs::read(&fifo).unwrap(), fs::read(src.join("a")).unwrap());
}
