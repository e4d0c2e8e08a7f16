//! Reports of changed names during a transfer.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::UNIX_EPOCH;

use haul_mover::{Expectations, ReceiveOptions, SendLimits};
use haul_wire::control::{Equal, Extraneous, Growth, Layout, Preserve, ReceivePolicy, RunMode, Selection};

use crate::harness::{bytes, options};
use crate::kinds::{has_attributes, set};
use crate::receive_policy::{DELETE, SyncResult, content, places, sync, sync_with, sync_within};
use crate::trees::set_mode;

const VERBOSE: ReceivePolicy = ReceivePolicy { run: RunMode::Verbose, ..DELETE };

#[test]
fn each_created_or_changed_name_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::hard_link(src.join("a"), src.join("z")).unwrap();
    let run = || -> SyncResult { sync(&[content(&src)], &dst, Layout::Into, VERBOSE, Growth::Refuse) };
    let result = run();
    result.ends.clean();
    let all = [
        "link link",
        "link z",
        "mkdir sub",
        "mkdir sub/deeper",
        "send a 3000",
        "send sub/b 3000",
        "send sub/deeper/c 3000",
    ];
    assert_eq!(result.lines(), all);
    // Equal files are not reported, nor are directories that only get their time.
    assert_eq!(run().lines(), [""; 0]);
    fs::write(src.join("sub/b"), "changed").unwrap();
    fs::write(src.join("sub/new"), "").unwrap();
    fs::remove_file(src.join("link")).unwrap();
    symlink("sub", src.join("link")).unwrap();
    fs::remove_file(src.join("z")).unwrap();
    let result = run();
    result.ends.clean();
    assert_eq!(result.lines(), ["delete z", "link link", "replace sub/b 7", "send sub/new 0"]);
}

/// A run reports the same as the dry run before it, and then nothing is left to do.
#[test]
fn files_with_different_permissions_or_attributes_are_adjusted() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    let run = |run: RunMode, equal: Equal, preserve: Preserve| {
        let receive_policy = ReceivePolicy { run, equal, ..DELETE };
        let receive = ReceiveOptions { receive_policy, permit: preserve, ..options() };
        let limits = SendLimits { preserve, ..SendLimits::default() };
        let result = sync_within(&[content(&src)], &dst, Layout::Into, receive, limits);
        result.ends.clean();
        result.lines().into_iter().filter(|line| !line.starts_with("keep")).collect::<Vec<_>>()
    };
    let plain = Preserve::default();
    run(RunMode::Move, Equal::SizeAndTime, plain);
    let both = |equal: Equal, preserve: Preserve, expected: &[&str]| {
        assert_eq!(run(RunMode::ListChanges, equal, preserve), expected);
        assert_eq!(run(RunMode::ListChanges, equal, preserve), expected, "a dry run changes nothing");
        assert_eq!(run(RunMode::Verbose, equal, preserve), expected);
        assert_eq!(run(RunMode::Verbose, equal, preserve), [""; 0]);
        assert_eq!(run(RunMode::ListChanges, equal, preserve), [""; 0]);
    };
    set_mode(&src.join("sub/b"), 0o640);
    both(Equal::SizeAndTime, plain, &["adjust sub/b"]);
    set_mode(&src.join("sub/b"), 0o600);
    both(Equal::Contents, plain, &["adjust sub/b"]);
    fs::File::open(src.join("a")).unwrap().set_modified(UNIX_EPOCH).unwrap();
    both(Equal::Contents, plain, &["adjust a"]);
    if has_attributes(dir.path()) {
        set(&src.join("a"), "user.colour", b"red").unwrap();
        both(Equal::SizeAndTime, Preserve::ALL, &["adjust a"]);
        set(&dst.join("sub/b"), "user.too-many", b"1").unwrap();
        both(Equal::SizeAndTime, Preserve::ALL, &["adjust sub/b"]);
    }
}

#[test]
fn reported_names_are_the_destination_names() {
    let dir = tempfile::tempdir().unwrap();
    let (src, _) = places(dir.path());
    let new = dir.path().join("new");
    let result = sync(&[bytes(&src)], &new, Layout::As, VERBOSE, Growth::Refuse);
    result.ends.clean();
    assert_eq!(result.lines()[..3], ["link new/link", "mkdir new", "mkdir new/sub"]);
}

#[test]
fn failed_names_are_not_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::create_dir_all(dst.join("a/in-the-way")).unwrap();
    let keep_policy = ReceivePolicy { extraneous: Extraneous::Keep, ..VERBOSE };
    let result = sync(&[content(&src)], &dst, Layout::Into, keep_policy, Growth::Refuse);
    assert_eq!(result.ends.one_failure().0, b"a");
    assert!(!result.lines().iter().any(|line| line.contains(" a ")), "{:?}", result.lines());
}

#[test]
fn a_requesting_receiver_reports_names_only_locally() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    let expectations = Some(Expectations::new(&[content(&src)], &Selection::default()));
    let options = ReceiveOptions { receive_policy: VERBOSE, expectations, ..options() };
    let result = sync_with(&[content(&src)], &dst, Layout::Into, options, Growth::Refuse);
    result.ends.clean();
    assert_eq!((result.receiver.len(), result.sender.len()), (6, 0));
}
