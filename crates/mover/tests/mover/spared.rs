//! What rules leave out of a set is not removed with what the set does not have.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use haul_mover::{Asked, MoveReport, ReceiveOptions, Root, SendLimits, receive_files, send_files};
use haul_wire::control::{Action, Extraneous, Item, Layout, Manners, Rule, RunMode, Selection, Verdict};

use crate::harness::{Pump, bytes, link_pair, names_below, options};
use crate::manners::{DELETE, content, places};

/// Rules as `+ pattern` and `- pattern`.
fn rules(list: &[&str]) -> Selection {
    let rule = |text: &&str| {
        let verdict = if text.starts_with('+') { Verdict::Include } else { Verdict::Exclude };
        Rule { verdict, pattern: text.as_bytes()[2..].to_vec() }
    };
    Selection { rules: list.iter().map(rule).collect(), ..Selection::default() }
}

/// What is in `src` and chosen, to `dst`: the names that the receiver removes or would remove, and its report.
fn mirror_chosen(
    src: &Path,
    dst: &Path,
    selection: &Selection,
    options: ReceiveOptions,
) -> (Vec<String>, MoveReport) {
    let (a, b) = link_pair();
    let mut receive = receive_files(&bytes(dst), &Root::Anywhere, Layout::Into, b, options).unwrap();
    let sources = vec![content(src)];
    let mut send = send_files(sources, Root::Anywhere, selection, a, SendLimits::default()).unwrap();
    let items: Arc<Mutex<Vec<String>>> = Arc::default();
    let said = items.clone();
    let note = move |item: &Item| {
        if item.action == Action::Delete {
            said.lock().unwrap().push(item.path.to_string());
        }
    };
    receive.handle.progress().on_item(Arc::new(note));
    let over = || send.handle.is_finished() || receive.handle.is_finished();
    Pump::default().run(&mut *send.source, &mut *receive.sink, &over);
    let (sent, received) = (send.handle.join().unwrap(), receive.handle.join().unwrap());
    assert_eq!(sent, received);
    let mut items = items.lock().unwrap().clone();
    items.sort();
    (items, received)
}

/// A destination with much that the source does not have.
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
fn what_rules_leave_out_stays_as_with_rsync() {
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
        let theirs = dir.path().join("rsync");
        fs::create_dir(&theirs).unwrap();
        crowded(&dst);
        crowded(&theirs);
        let mut rsync = Command::new("rsync");
        rsync.args(["-rlpt", "--delete"]).args(case.iter().map(|rule| format!("--filter={rule}")));
        let ended = rsync.arg(src.join("")).arg(&theirs).output().unwrap();
        assert!(ended.status.success(), "{case:?}: {}", String::from_utf8_lossy(&ended.stderr));
        // First it is only looked, then done with just enough permitted.
        let before = names(&dst);
        let run = |run, extraneous| {
            let manners = Manners { run, extraneous, ..DELETE };
            mirror_chosen(&src, &dst, &rules(case), ReceiveOptions { manners, ..options() })
        };
        let (would, _) = run(RunMode::Itemise, Extraneous::Delete);
        assert_eq!(names(&dst), before);
        let (went, report) = run(RunMode::Move, Extraneous::DeleteAtMost(would.len() as u64));
        assert_eq!((report.removal.removed, &report.removal.fault), (went.len() as u64, &None), "{case:?}");
        assert_eq!(would, went, "{case:?}");
        assert_eq!(names(&dst), names(&theirs), "{case:?}");
    }
}

#[test]
fn a_receiver_that_has_asked_spares_what_its_own_rules_leave_out() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    crowded(&dst);
    // The sender says nothing of rules, as if there were none.
    let asked = Some(Asked::new(&[b"src/.".to_vec()], &rules(&["- *.o", "- build"])));
    let options = ReceiveOptions { manners: DELETE, asked, ..options() };
    let (went, report) = mirror_chosen(&src, &dst, &Selection::default(), options);
    assert_eq!(report.removal.fault, None);
    assert_eq!(went, ["cache", "old", "only/deep/y", "only/z", "sub/cache", "sub/gone/y"]);
    assert!(dst.join("build/a").exists() && dst.join("sub/gone/x.o").exists());
}

#[test]
fn a_selection_that_the_receiver_cannot_judge_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    crowded(&dst);
    let selection = Selection { min_bytes: Some(1), ..rules(&["- *.o"]) };
    let options = ReceiveOptions { manners: DELETE, ..options() };
    let (went, report) = mirror_chosen(&src, &dst, &selection, options);
    assert!(went.is_empty() && report.removal.fault.is_some());
}
