//! Handling of names that the set does not have, dry runs, and growing files.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use haul_mover::{Expectations, ReceiveOptions, Root, SendLimits, receive_files, send_files};
use haul_wire::control::{
    Action, Durability, Equal, Extraneous, Fault, FaultCode, Growth, Item, Layout, Leftovers, Readback,
    ReceivePolicy, RunMode, Selection,
};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::harness::{Ends, Pump, all, assert_no_parts, bytes, link_pair, names_below, options, start};
use crate::trees::{assert_same, contents, set_mtime};

const MIB: u64 = 1 << 20;

pub(crate) const DELETE: ReceivePolicy = ReceivePolicy {
    equal: Equal::SizeAndTime,
    newer: haul_wire::control::Newer::Replace,
    extraneous: Extraneous::Delete,
    leftovers: Leftovers::Resume,
    run: RunMode::Move,
    durability: Durability::Cached,
    readback: Readback::No,
};

/// Changes of names, as reported to the sender and to the receiver.
pub(crate) struct SyncResult {
    pub(crate) ends: Ends,
    pub(crate) sender: Vec<Item>,
    pub(crate) receiver: Vec<Item>,
    travelled: u64,
}

impl SyncResult {
    /// Returns the reports, sorted; asserts that both sides got the same.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = |items: &[Item]| {
            let line = |item: &Item| match item.action {
                Action::Send { size } | Action::Replace { size } => {
                    format!("{} {} {size}", item.action.as_str(), item.path)
                }
                Action::Resume { have, size } => format!("resume {} {have} of {size}", item.path),
                action => format!("{} {}", action.as_str(), item.path),
            };
            let mut lines: Vec<String> = items.iter().map(line).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&self.sender), lines(&self.receiver));
        lines(&self.sender)
    }
}

pub(crate) fn sync(
    sources: &[Vec<u8>],
    dst: &Path,
    layout: Layout,
    receive_policy: ReceivePolicy,
    growth: Growth,
) -> SyncResult {
    sync_with(sources, dst, layout, ReceiveOptions { receive_policy, ..options() }, growth)
}

pub(crate) fn sync_with(
    sources: &[Vec<u8>],
    dst: &Path,
    layout: Layout,
    options: ReceiveOptions,
    growth: Growth,
) -> SyncResult {
    sync_within(sources, dst, layout, options, SendLimits { growth, ..SendLimits::default() })
}

pub(crate) fn sync_within(
    sources: &[Vec<u8>],
    dst: &Path,
    layout: Layout,
    options: ReceiveOptions,
    limits: SendLimits,
) -> SyncResult {
    let (a, b) = link_pair();
    let items = [a.items.clone(), b.items.clone()];
    let mut receive = receive_files(&bytes(dst), &Root::Anywhere, layout, b, options).unwrap();
    let mut send = send_files(sources.to_vec(), Root::Anywhere, &all(), a, limits).unwrap();
    let over = || send.handle.is_finished() || receive.handle.is_finished();
    let travelled = Pump::default().run(&mut *send.source, &mut *receive.sink, &over);
    let ends = Ends { sent: send.handle.join(), received: receive.handle.join() };
    let [sender, receiver] = items.map(|items| items.lock().unwrap().clone());
    SyncResult { ends, sender, receiver, travelled }
}

pub(crate) fn content(path: &Path) -> Vec<u8> {
    [&bytes(path)[..], b"/."].concat()
}

/// Copies the contents of `src` to `dst`.
fn mirror(src: &Path, dst: &Path, receive_policy: ReceivePolicy) -> SyncResult {
    sync(&[content(src)], dst, Layout::Into, receive_policy, Growth::Refuse)
}

pub(crate) fn places(dir: &Path) -> (PathBuf, PathBuf) {
    let (src, dst) = (dir.join("src"), dir.join("dst"));
    fs::create_dir_all(src.join("sub/deeper")).unwrap();
    fs::create_dir(&dst).unwrap();
    for (salt, name) in ["a", "sub/b", "sub/deeper/c"].into_iter().enumerate() {
        fs::write(src.join(name), contents(3000, salt as u64)).unwrap();
    }
    symlink("a", src.join("link")).unwrap();
    (src, dst)
}

/// Asserts that both directories have the same contents; they themselves may differ in their time.
fn assert_same_below(src: &Path, dst: &Path) {
    let names = |path: &Path| {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(src), names(dst));
    for name in names(src) {
        assert_same(&src.join(&name), &dst.join(&name));
    }
}

fn set_link_mtime(path: &Path, secs: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Returns everything below a directory, with the contents of files.
fn picture(root: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut all: Vec<_> = names_below(root)
        .into_iter()
        .map(|path| {
            let is_file = path.symlink_metadata().unwrap().is_file();
            let contents = is_file.then(|| fs::read(&path).unwrap());
            (path, contents)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn names_missing_from_the_set_are_deleted_from_its_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "p").unwrap();
    mirror(&src, &dst, ReceivePolicy::default()).ends.clean();
    // Names of all kinds, trees, links that lead outside, and an empty directory.
    fs::write(dst.join("old"), "x").unwrap();
    fs::create_dir_all(dst.join("sub/gone/and/deep")).unwrap();
    fs::write(dst.join("sub/gone/and/deep/f"), "x").unwrap();
    symlink(&outside, dst.join("sub/out")).unwrap();
    symlink(&outside, dst.join("sub/gone/out")).unwrap();
    fs::create_dir(dst.join("sub/deeper/empty")).unwrap();
    let result = mirror(&src, &dst, DELETE);
    let report = result.ends.clean();
    assert_same_below(&src, &dst);
    assert_eq!(fs::read(outside.join("precious")).unwrap(), b"p");
    let expected = [
        "delete old",
        "delete sub/deeper/empty",
        "delete sub/gone",
        "delete sub/gone/and",
        "delete sub/gone/and/deep",
        "delete sub/gone/and/deep/f",
        "delete sub/gone/out",
        "delete sub/out",
    ];
    assert_eq!(result.lines(), expected);
    assert_eq!((report.removal.removed, &report.removal.fault), (8, &None));
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn without_the_option_nothing_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::write(dst.join("old"), "x").unwrap();
    let result = mirror(&src, &dst, ReceivePolicy::default());
    assert_eq!(result.ends.clean().removal.removed, 0);
    assert!(dst.join("old").exists());
}

#[test]
fn only_directories_of_the_set_have_deletions() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::create_dir_all(dst.join("src/sub")).unwrap();
    fs::write(dst.join("beside"), "x").unwrap();
    fs::write(dst.join("src/sub/old"), "x").unwrap();
    // The source has a name, so the destination directory itself is not part of the set.
    let result = sync(&[bytes(&src)], &dst, Layout::Into, DELETE, Growth::Refuse);
    result.ends.clean();
    assert_eq!(result.lines(), ["delete src/sub/old"]);
    assert!(dst.join("beside").exists());
    // Nor is the directory in which a source gets another name.
    let named = dir.path().join("named");
    fs::write(dir.path().join("neighbour"), "x").unwrap();
    sync(&[bytes(&src)], &named, Layout::As, DELETE, Growth::Refuse).ends.clean();
    assert_same(&src, &named);
    assert!(dir.path().join("neighbour").exists());
}

#[test]
fn a_sender_cannot_claim_the_whole_destination() {
    let dir = tempfile::tempdir().unwrap();
    let (here, dst) = (dir.path().join("here"), dir.path().join("dst"));
    fs::create_dir_all(here.join("src/sub")).unwrap();
    fs::create_dir_all(dst.join("src/sub")).unwrap();
    fs::write(dst.join("beside"), "x").unwrap();
    fs::write(dst.join("src/sub/old"), "x").unwrap();
    // `src` was requested; the contents of `here` are sent, which is only `src`.
    let expectations = Some(Expectations::new(&[b"somewhere/src".to_vec()], &Selection::default()));
    let options = ReceiveOptions { receive_policy: DELETE, expectations, ..options() };
    let pair = start(vec![content(&here)], &dst, Layout::Into, SendLimits::default(), options).unwrap();
    assert_eq!(pair.run(&Pump::default()).clean().removal.removed, 1);
    assert!(dst.join("beside").exists() && !dst.join("src/sub/old").exists());
}

#[test]
fn two_sources_that_share_a_directory_keep_each_others_names() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("dst");
    for (top, name) in [("one", "x"), ("two", "y")] {
        fs::create_dir_all(dir.path().join(top).join("shared")).unwrap();
        fs::write(dir.path().join(top).join("shared").join(name), name).unwrap();
    }
    fs::create_dir_all(dst.join("shared")).unwrap();
    fs::write(dst.join("shared/z"), "z").unwrap();
    let sources = [content(&dir.path().join("one")), content(&dir.path().join("two"))];
    let result = sync(&sources, &dst, Layout::Into, DELETE, Growth::Refuse);
    result.ends.clean();
    assert_eq!(result.lines(), ["delete shared/z"]);
    assert!(dst.join("shared/x").exists() && dst.join("shared/y").exists());
}

#[test]
fn an_incomplete_set_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::write(dst.join("old"), "x").unwrap();
    // Another source has a file of the same name: one of the two cannot be sent.
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("a"), "other").unwrap();
    let result = sync(&[content(&src), content(&other)], &dst, Layout::Into, DELETE, Growth::Refuse);
    let (sent, received) = (result.ends.sent.as_ref().unwrap(), result.ends.received.as_ref().unwrap());
    assert_eq!(sent, received);
    assert_eq!((sent.failures.count(), sent.removal.removed), (1, 0));
    assert!(sent.removal.fault.as_ref().unwrap().message.contains("not everything arrived"));
    assert!(dst.join("old").exists() && dst.join("sub/b").exists());
}

#[test]
fn unsupported_files_do_not_prevent_completion() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    let _socket = std::os::unix::net::UnixListener::bind(src.join("sub/socket")).unwrap();
    fs::create_dir(dst.join("sub")).unwrap();
    fs::write(dst.join("sub/socket"), "of the same name").unwrap();
    fs::write(dst.join("old"), "x").unwrap();
    let result = mirror(&src, &dst, DELETE);
    let (path, fault) = result.ends.one_failure();
    assert_eq!((path, fault.code), (&b"sub/socket"[..], FaultCode::SpecialFile));
    let report = result.ends.received.as_ref().unwrap();
    assert_eq!((report.removal.removed, &report.removal.fault, report.exit_code()), (1, &None, 3));
    assert_eq!(result.lines(), ["delete old"]);
    assert!(dst.join("sub/socket").exists());
    // A directory installed under the destination's name is finished too: the same command will not follow.
    let new = dir.path().join("new");
    sync(&[bytes(&src)], &new, Layout::As, ReceivePolicy::default(), Growth::Refuse).ends.one_failure();
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.as_encoded_bytes().starts_with(b".haul")), "{names:?}");
}

#[test]
fn nothing_is_deleted_above_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::create_dir(dst.join("old")).unwrap();
    fs::write(dst.join("old/x"), "x").unwrap();
    let delete_at_most = |most| ReceivePolicy { extraneous: Extraneous::DeleteAtMost(most), ..DELETE };
    let result = mirror(&src, &dst, delete_at_most(1));
    let report = result.ends.clean();
    assert_eq!((report.removal.removed, report.exit_code()), (0, 3));
    assert!(report.fault().unwrap().message.contains("more than the 1 permitted"), "{:?}", report.fault());
    assert!(dst.join("old/x").exists());
    assert_eq!(mirror(&src, &dst, delete_at_most(2)).ends.clean().removal.removed, 2);
    assert!(!dst.join("old").exists());
}

#[test]
fn leftovers_and_running_jobs_are_not_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::write(src.join("big"), contents(8 << 20, 9)).unwrap();
    // A partial file of another set, and one in a directory that is removed.
    fs::write(dst.join(".haul-0000abcd-7.part"), "half").unwrap();
    fs::create_dir_all(dst.join("old/er")).unwrap();
    fs::write(dst.join("old/er/.haul-0000abcd-8.part"), "half").unwrap();
    fs::write(dst.join("old/er/x"), "x").unwrap();
    let result = mirror(&src, &dst, DELETE);
    assert_eq!(result.ends.clean().removal.fault, None);
    assert_eq!(result.lines(), ["delete old/er/x"]);
    assert!(dst.join(".haul-0000abcd-7.part").exists() && dst.join("old/er/.haul-0000abcd-8.part").exists());
}

#[test]
fn a_dry_run_reports_the_changes_of_a_run_and_makes_none() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    mirror(&src, &dst, ReceivePolicy::default()).ends.clean();
    fs::write(src.join("new"), "new").unwrap();
    fs::write(src.join("a"), "changed").unwrap();
    fs::create_dir(src.join("made")).unwrap();
    fs::write(src.join("made/f"), "1").unwrap();
    symlink("new", src.join("another")).unwrap();
    fs::write(dst.join("old"), "x").unwrap();
    let before = picture(&dst);
    let result = mirror(&src, &dst, ReceivePolicy { run: RunMode::ListChanges, ..DELETE });
    let report = result.ends.clean();
    let expected = [
        "delete old",
        "keep link",
        "keep sub/b",
        "keep sub/deeper/c",
        "link another",
        "mkdir made",
        "replace a 7",
        "send made/f 1",
        "send new 3",
    ];
    assert_eq!(result.lines(), expected);
    assert_eq!((report.files, report.bytes, report.kept, report.removal.removed), (3, 11, 2, 1));
    assert_eq!(result.travelled, 0);
    assert_eq!(picture(&dst), before);
    // The run itself removes the reported names, and then nothing is left to do.
    assert_eq!(mirror(&src, &dst, DELETE).lines(), ["delete old"]);
    assert_same_below(&src, &dst);
    let after = mirror(&src, &dst, ReceivePolicy { run: RunMode::ListChanges, ..DELETE }).lines();
    assert!(after.iter().all(|line| line.starts_with("keep ")), "{after:?}");
}

#[test]
fn a_dry_run_creates_no_destination() {
    let dir = tempfile::tempdir().unwrap();
    let (src, _) = places(dir.path());
    let dry_run = ReceivePolicy { run: RunMode::ListChanges, ..DELETE };
    let new = dir.path().join("new");
    let into = sync(&[content(&src)], &new, Layout::Into, dry_run, Growth::Refuse);
    assert_eq!(into.lines()[..2], ["link link", "mkdir sub"]);
    assert_eq!(into.ends.clean().files, 3);
    let named = sync(&[bytes(&src)], &new, Layout::As, dry_run, Growth::Refuse);
    assert!(named.lines().contains(&"send new/sub/b 3000".to_owned()), "{:?}", named.lines());
    named.ends.clean();
    assert!(!new.exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn a_dry_run_compares_contents_if_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    mirror(&src, &dst, ReceivePolicy::default()).ends.clean();
    for path in ["a", "sub/b"] {
        set_mtime(&dst.join(path), 7, 0);
    }
    fs::write(dst.join("a"), contents(3000, 77)).unwrap();
    let before = picture(&dst);
    let dry_run = ReceivePolicy { equal: Equal::Contents, run: RunMode::ListChanges, ..DELETE };
    let result = mirror(&src, &dst, dry_run);
    let report = result.ends.clean();
    // Only the time of one differs.
    assert_eq!(result.lines(), ["adjust sub/b", "keep link", "keep sub/deeper/c", "replace a 3000"]);
    assert_eq!((report.files, report.kept, result.travelled), (1, 2, 0));
    assert_eq!(picture(&dst), before);
}

#[test]
fn a_dry_run_names_what_would_fail_and_what_would_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::write(src.join("big"), contents(12 << 20, 5)).unwrap();
    let pump = Pump { stop_after: Some(8 * MIB), loss: 0.0, ..Pump::default() };
    let mut pair = start(vec![content(&src)], &dst, Layout::Into, SendLimits::default(), options()).unwrap();
    let over = || pair.receive.handle.is_finished();
    pump.run(&mut *pair.send.source, &mut *pair.receive.sink, &over);
    pair.send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    assert!(pair.send.handle.join().is_err() && pair.receive.handle.join().is_err());
    drop((pair.send.source, pair.receive.sink));
    // A directory has the name of a file to install.
    let _ = fs::remove_file(dst.join("a"));
    fs::create_dir(dst.join("a")).unwrap();
    let before = picture(&dst);
    let result = mirror(&src, &dst, ReceivePolicy { run: RunMode::ListChanges, ..ReceivePolicy::default() });
    let (path, fault) = result.ends.one_failure();
    assert_eq!((path, fault.code), (&b"a"[..], FaultCode::IsADirectory));
    let lines = result.lines();
    let resumed = |line: &String| line.starts_with("resume big") && line.ends_with(" of 12582912");
    assert!(lines.iter().any(resumed), "{lines:?} {:?}", names_below(&dst));
    assert_eq!(picture(&dst), before, "the journal and the partial file have changed");
    fs::remove_dir(dst.join("a")).unwrap();
    let result = mirror(&src, &dst, ReceivePolicy { run: RunMode::Verbose, ..ReceivePolicy::default() });
    let resumed = result.ends.clean().resumed_bytes;
    assert!(resumed >= 7 * MIB, "{resumed}");
    assert!(result.lines().contains(&format!("resume big {resumed} of 12582912")), "{:?}", result.lines());
}

#[test]
fn equal_links_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::hard_link(src.join("a"), src.join("z")).unwrap();
    mirror(&src, &dst, DELETE).ends.clean();
    let ids = || ["link", "a", "z"].map(|name| dst.join(name).symlink_metadata().unwrap().ino());
    let before = ids();
    let looked = mirror(&src, &dst, ReceivePolicy { run: RunMode::ListChanges, ..DELETE });
    assert_eq!(looked.lines(), ["keep a", "keep link", "keep sub/b", "keep sub/deeper/c", "keep z"]);
    mirror(&src, &dst, DELETE).ends.clean();
    assert_eq!(ids(), before);
    // The time of a link is updated in place.
    set_link_mtime(&src.join("link"), 1_000_000_000);
    mirror(&src, &dst, DELETE).ends.clean();
    assert_eq!((dst.join("link").symlink_metadata().unwrap().mtime(), ids()), (1_000_000_000, before));
    // Hard links of a changed file are recreated, and this is reported first.
    fs::write(src.join("a"), "changed").unwrap();
    let looked = mirror(&src, &dst, ReceivePolicy { run: RunMode::ListChanges, ..DELETE });
    assert!(looked.lines().contains(&"link z".to_owned()), "{:?}", looked.lines());
    mirror(&src, &dst, DELETE).ends.clean();
    assert_eq!(fs::read(dst.join("z")).unwrap(), b"changed");
}

/// Writes a log of this many bytes; shorter ones are prefixes of longer ones.
fn grow(path: &Path, len: u64) {
    fs::write(path, &contents(16 << 20, 3)[..len as usize]).unwrap();
}

const EXTEND: ReceivePolicy =
    ReceivePolicy { leftovers: Leftovers::Extend, extraneous: Extraneous::Keep, ..DELETE };

#[test]
fn only_the_end_of_a_grown_file_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir_all(&src).unwrap();
    fs::create_dir_all(&dst).unwrap();
    let run = || mirror(&src, &dst, EXTEND);
    grow(&src.join("log"), 5 * MIB + 300);
    assert_eq!(run().travelled, 5 * MIB + 300);
    grow(&src.join("log"), 9 * MIB + 17);
    let looked = mirror(&src, &dst, ReceivePolicy { run: RunMode::ListChanges, ..EXTEND });
    assert_eq!(looked.lines(), [format!("resume log {} of {}", 5 * MIB + 300, 9 * MIB + 17)]);
    let result = run();
    assert_eq!(result.travelled, 4 * MIB + 17 - 300);
    assert_eq!(result.ends.clean().resumed_bytes, 5 * MIB + 300);
    assert_same(&src.join("log"), &dst.join("log"));
    assert_no_parts(&dst);
    // Data that is not a prefix is detected by comparing, and sent again.
    let mut spoiled = fs::read(dst.join("log")).unwrap();
    spoiled.truncate(6 << 20);
    spoiled[2_200_000] ^= 1;
    fs::write(dst.join("log"), spoiled).unwrap();
    assert_eq!(run().travelled, 4 * MIB + 17);
    assert_same(&src.join("log"), &dst.join("log"));
    // Without the option the whole file is sent.
    grow(&src.join("log"), 10 * MIB);
    assert_eq!(mirror(&src, &dst, ReceivePolicy::default()).travelled, 10 * MIB);
}

#[test]
fn a_growing_file_is_sent_with_its_initial_size() {
    let cases = [Growth::Accept, Growth::Refuse].map(|growth| [(growth, 3 << 20), (growth, 0)]);
    for (growth, found) in cases.into_iter().flatten() {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
        fs::create_dir_all(&src).unwrap();
        fs::create_dir_all(&dst).unwrap();
        let log = src.join("log");
        let complete = contents(4 << 20, 3);
        fs::write(&log, &complete[..found]).unwrap();
        set_mtime(&log, 1_000_000_000, 5);
        // Another file is read first, so that this one can grow between the walk and its reading.
        fs::write(src.join("a"), contents(30 << 20, 4)).unwrap();
        let limits = SendLimits { growth, read_ahead: 1 << 20, ..SendLimits::default() };
        let mut pair = start(vec![content(&src)], &dst, Layout::Into, limits, options()).unwrap();
        while !pair.send.handle.progress().all_known() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        fs::OpenOptions::new().append(true).open(&log).unwrap().write_all(&complete[found..]).unwrap();
        let over = || pair.send.handle.is_finished() || pair.receive.handle.is_finished();
        Pump::default().run(&mut *pair.send.source, &mut *pair.receive.sink, &over);
        let ends = Ends { sent: pair.send.handle.join(), received: pair.receive.handle.join() };
        if growth == Growth::Accept {
            ends.clean();
            assert!(fs::read(dst.join("log")).unwrap() == complete[..found]);
        } else {
            assert_eq!(ends.one_failure().1.code, FaultCode::SourceChanged);
        }
    }
}

/// The source has symbolic links to directories that were moved to the destination, for example to a larger
/// disk.
#[test]
fn a_link_does_not_replace_a_directory_that_contains_its_target() {
    for (extraneous, also) in
        [(Extraneous::Keep, true), (Extraneous::Delete, true), (Extraneous::Delete, false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
        fs::create_dir(&src).unwrap();
        for name in ["itself", "into", "file", "other"] {
            fs::create_dir_all(dst.join(name).join("in")).unwrap();
            fs::write(dst.join(name).join("in/f"), name).unwrap();
        }
        for name in ["alone", "extraneous"] {
            fs::write(dst.join(name), name).unwrap();
        }
        symlink(dst.join("alone"), src.join("alone")).unwrap();
        if also {
            symlink(dst.join("itself"), src.join("itself")).unwrap();
            symlink("../dst/./into/in", src.join("into")).unwrap();
            symlink(dst.join("file/in/f"), src.join("file")).unwrap();
            symlink("itself/in", src.join("other")).unwrap();
        }
        let policy = ReceivePolicy { extraneous, ..DELETE };
        let failed = |run| {
            let result = mirror(&src, &dst, ReceivePolicy { run, ..policy });
            let failures = result.ends.received.as_ref().unwrap().failures.named();
            let mut failed: Vec<_> = failures.iter().map(|(path, of)| (path.clone(), of.clone())).collect();
            failed.sort_by(|(a, _), (b, _)| a.cmp(b));
            (failed, result.lines())
        };
        let (would_fail, would_be) = failed(RunMode::ListChanges);
        let (has_failed, done) = failed(RunMode::Verbose);
        assert_eq!((&has_failed, &done), (&would_fail, &would_be));
        assert!(done.is_empty(), "{done:?}");
        let names: Vec<_> = has_failed.iter().map(|(path, _)| String::from_utf8_lossy(path)).collect();
        let all = ["alone", "file", "into", "itself", "other"];
        assert_eq!(names, if also { &all[..] } else { &all[..1] });
        for name in ["itself", "into", "file", "other"] {
            assert_eq!(fs::read_to_string(dst.join(name).join("in/f")).unwrap(), name);
        }
        assert!(dst.join("alone").is_file() && dst.join("extraneous").exists());
    }
}
