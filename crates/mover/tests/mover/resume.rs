//! Data left by an earlier attempt, or already at the destination, is not sent again.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use haul_mover::{
    JournalState, MoveReport, ReceiveJob, ReceiveOptions, Root, SendLimits, find_journals, receive_files,
    send_files,
};
use haul_wire::control::{Equal, Fault, FaultCode, Layout, Leftovers, Newer, ReceivePolicy};

use crate::harness::{
    Ends, Link, Pump, Undigested, all, assert_no_parts, assert_resumable, await_part, bytes, copy, link_pair,
    names_below, options, start,
};
use crate::trees::{assert_same, contents, set_mode, set_mtime};

const MIB: u64 = 1 << 20;

/// Creates a source with `name` and a destination directory beside it.
fn places(dir: &Path, files: &[(&str, u64)]) -> (PathBuf, PathBuf) {
    let (src, dst) = (dir.join("src"), dir.join("dst"));
    fs::create_dir(&src).unwrap();
    fs::create_dir(&dst).unwrap();
    for (salt, &(name, len)) in files.iter().enumerate() {
        fs::write(src.join(name), contents(len as usize, salt as u64)).unwrap();
        set_mtime(&src.join(name), 1_000_000_000, 123_456_789);
    }
    (src, dst)
}

fn with(receive_policy: ReceivePolicy) -> ReceiveOptions {
    ReceiveOptions { receive_policy, ..options() }
}

/// Copies the contents of `src` to `dst`; also returns the bytes sent.
fn sync(src: &Path, dst: &Path, receive_policy: ReceivePolicy, pump: &Pump<'_>) -> (Ends, u64) {
    let sources = vec![[&bytes(src)[..], b"/."].concat()];
    let mut pair = start(sources, dst, Layout::Into, SendLimits::default(), with(receive_policy)).unwrap();
    let over = || pair.send.handle.is_finished() || pair.receive.handle.is_finished();
    let travelled = pump.run(&mut *pair.send.source, &mut *pair.receive.sink, &over);
    if pump.stop_after.is_some() {
        pair.send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    }
    (Ends { sent: pair.send.handle.join(), received: pair.receive.handle.join() }, travelled)
}

/// Copies until this many bytes were sent, and then stops.
fn interrupt(src: &Path, dst: &Path, after: u64) {
    let pump = Pump { stop_after: Some(after), loss: 0.0, ..Pump::default() };
    let (ends, travelled) = sync(src, dst, ReceivePolicy::default(), &pump);
    assert!(ends.sent.is_err() && ends.received.is_err());
    assert!(travelled >= after);
}

fn copy_again(src: &Path, dst: &Path) -> (MoveReport, u64) {
    let (ends, travelled) = sync(src, dst, ReceivePolicy::default(), &Pump::default());
    (ends.clean().clone(), travelled)
}

/// Asserts that both directories have the same entries; they themselves may differ in their time.
fn assert_same_contents(src: &Path, dst: &Path) {
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

fn part_below(dst: &Path) -> PathBuf {
    let is_part = |path: &PathBuf| path.extension().is_some_and(|e| e == "part");
    names_below(dst).into_iter().find(is_part).unwrap()
}

#[test]
fn the_second_attempt_sends_only_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("a", 1000), ("big", 20 * MIB + 5), ("z", 1000)]);
    interrupt(&src, &dst, 10 * MIB);
    assert_resumable(&dst);
    assert!(!dst.join("big").exists());
    let (report, travelled) = copy_again(&src, &dst);
    assert_same_contents(&src, &dst);
    assert_no_parts(&dst);
    assert_eq!(names_below(&dst).len(), 3, "no journal is left");
    // At the stop, at most 1 MB was received but not written, or written but not recorded.
    assert!(travelled < 12 * MIB, "{travelled}");
    assert_eq!(report.resumed_bytes, 20 * MIB + 5 + 1000 + 1000 * (1 - report.kept) - travelled);
}

#[test]
fn a_job_can_be_interrupted_repeatedly() {
    let dir = tempfile::tempdir().unwrap();
    // No interruption falls exactly between the two files, where nothing could be resumed.
    let (src, dst) = places(dir.path(), &[("one", 5 * MIB), ("two", 7 * MIB)]);
    for seed in 0..5 {
        let pump = Pump { stop_after: Some(2 * MIB), seed, ..Pump::default() };
        sync(&src, &dst, ReceivePolicy::default(), &pump).0.sent.unwrap_err();
        assert_resumable(&dst);
    }
    let (_, travelled) = copy_again(&src, &dst);
    assert!(travelled < 9 * MIB, "{travelled} of 12 MiB, after five times two");
    assert_same_contents(&src, &dst);
    assert_eq!(names_below(&dst).len(), 2);
}

#[test]
fn a_complete_temporary_file_is_only_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 3 * MIB)]);
    let (a, b) = link_pair();
    let mut receive = receive_files(&bytes(&dst), &Root::Anywhere, Layout::Into, b, options()).unwrap();
    let (sources, a) = (vec![[&bytes(&src)[..], b"/."].concat()], Arc::new(Undigested(a)));
    let mut send = send_files(sources, Root::Anywhere, &all(), a, SendLimits::default()).unwrap();
    let pump = Pump { stop_after: Some(3 * MIB), loss: 0.0, ..Pump::default() };
    pump.run(&mut *send.source, &mut *receive.sink, &|| false);
    send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    assert!(send.handle.join().is_err() && receive.handle.join().is_err());
    // The sink keeps the journal locked.
    drop(receive.sink);
    let (report, travelled) = copy_again(&src, &dst);
    assert_eq!((travelled, report.resumed_bytes, report.kept), (0, 3 * MIB, 0));
    assert_same_contents(&src, &dst);
}

#[test]
fn corrupted_parts_are_found_and_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 12 * MIB)]);
    interrupt(&src, &dst, 8 * MIB);
    let part = fs::OpenOptions::new().write(true).open(part_below(&dst)).unwrap();
    part.write_all_at(b"spoiled", 2 * MIB + 77).unwrap();
    drop(part);
    let (report, travelled) = copy_again(&src, &dst);
    assert_same_contents(&src, &dst);
    assert!(report.resumed_bytes >= 4 * MIB);
    assert_eq!(report.resumed_bytes + travelled, 12 * MIB);
}

#[test]
fn a_truncated_part_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 12 * MIB)]);
    interrupt(&src, &dst, 8 * MIB);
    fs::OpenOptions::new().write(true).open(part_below(&dst)).unwrap().set_len(3 * MIB).unwrap();
    copy_again(&src, &dst);
    assert_same_contents(&src, &dst);
}

#[test]
fn a_changed_source_is_sent_again() {
    for change in [0, 1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = places(dir.path(), &[("big", 8 * MIB)]);
        interrupt(&src, &dst, 5 * MIB);
        let big = src.join("big");
        match change {
            // Another time: existing data does not count.
            0 => set_mtime(&big, 1_000_000_001, 0),
            // Another size.
            1 => {
                fs::write(&big, contents(7 << 20, 9)).unwrap();
                set_mtime(&big, 1_000_000_000, 123_456_789);
            }
            // Other contents with the same size and time: only the hashes differ.
            _ => {
                fs::write(&big, contents(8 << 20, 9)).unwrap();
                set_mtime(&big, 1_000_000_000, 123_456_789);
            }
        }
        let (report, travelled) = copy_again(&src, &dst);
        assert_same_contents(&src, &dst);
        assert_eq!(report.resumed_bytes, 0, "{change}");
        // The missing ranges are requested at once; the rest when the hashes show that it differs.
        assert!(travelled >= big.metadata().unwrap().len());
        assert_no_parts(&dst);
    }
}

#[test]
fn without_resuming_everything_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 8 * MIB)]);
    interrupt(&src, &dst, 5 * MIB);
    let receive_policy = ReceivePolicy { leftovers: Leftovers::Ignore, ..ReceivePolicy::default() };
    let (ends, travelled) = sync(&src, &dst, receive_policy, &Pump::default());
    assert_eq!((ends.clean().resumed_bytes, travelled), (0, 8 * MIB));
    assert_same_contents(&src, &dst);
    assert_eq!(names_below(&dst).len(), 1);
}

#[test]
fn leftovers_of_other_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 8 * MIB)]);
    interrupt(&src, &dst, 5 * MIB);
    let (other, _) = places(&tempfile::tempdir_in(dir.path()).unwrap().keep(), &[("other", 3 * MIB)]);
    copy_again(&other, &dst);
    assert_resumable(&dst);
    let (report, _) = copy_again(&src, &dst);
    assert!(report.resumed_bytes > 0);
    assert_eq!(names_below(&dst).len(), 2);
}

/// Starts a receiver that does not know its entries yet. It ends when the link is dropped.
fn waiting(dst: &Path) -> (Arc<Link>, ReceiveJob) {
    let (link, peer) = link_pair();
    (link, receive_files(&bytes(dst), &Root::Anywhere, Layout::Into, peer, options()).unwrap())
}

#[test]
fn a_running_job_with_other_files_takes_no_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 8 * MIB)]);
    interrupt(&src, &dst, 5 * MIB);
    let (link, other) = waiting(&dst);
    let state = || find_journals(&dst).unwrap().into_iter().map(|journal| journal.state).collect::<Vec<_>>();
    assert_eq!(state(), [JournalState::LeftOver]);
    assert!(copy_again(&src, &dst).0.resumed_bytes > 0);
    assert_eq!(names_below(&dst), [dst.join("big")]);
    drop(link);
    assert!(other.handle.join().is_err());
    assert_eq!(names_below(&dst), [dst.join("big")]);
}

/// Otherwise a killed job would leave other ones.
#[test]
fn a_new_destination_has_its_permissions_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("a", 3 * MIB), ("b", 10)]);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    fs::create_dir(dir.path().join("usual")).unwrap();
    let usual = mode(&dir.path().join("usual"));
    fs::remove_dir(&dst).unwrap();
    let (link, first) = waiting(&dst);
    copy(&[&src.join("a"), &src.join("b")], &dst, Layout::Into).clean();
    assert_eq!(mode(&dst), usual);
    drop(link);
    assert!(first.handle.join().is_err());
    assert_eq!(mode(&dst), usual);
    // The source's permissions may be stricter, and are set at the end. New entries inherit the group.
    fs::remove_dir_all(&dst).unwrap();
    set_mode(&src, 0o750);
    set_mode(dst.parent().unwrap(), 0o2755);
    let during = Cell::new(0);
    let tamper = |_, _: &mut [u8]| during.set(mode(&dst));
    sync(&src, &dst, ReceivePolicy::default(), &Pump { tamper: &tamper, ..Pump::default() }).0.clean();
    assert_eq!((during.get(), mode(&dst)), (0o2700, 0o750));
}

/// Copies the directory `src` under the name `dst`; aborts the job if the pump stops early.
fn under_another_name(src: &Path, dst: &Path, pump: &Pump<'_>) -> Ends {
    let mut pair = start(vec![bytes(src)], dst, Layout::As, SendLimits::default(), options()).unwrap();
    let over = || pair.send.handle.is_finished() || pair.receive.handle.is_finished();
    pump.run(&mut *pair.send.source, &mut *pair.receive.sink, &over);
    if pump.stop_after.is_some() {
        pair.send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    }
    Ends { sent: pair.send.handle.join(), received: pair.receive.handle.join() }
}

#[test]
fn a_renamed_directory_is_resumed_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 8 * MIB), ("small", 10)]);
    fs::remove_dir(&dst).unwrap();
    let run = |pump: &Pump<'_>| under_another_name(&src, &dst, pump);
    run(&Pump { stop_after: Some(5 * MIB), ..Pump::default() });
    assert!(dst.is_dir());
    assert!(run(&Pump::default()).clean().resumed_bytes > 0);
    assert_same_contents(&src, &dst);
    // Once complete, it is an ordinary directory.
    run(&Pump::default());
    assert_same(&src, &dst.join("src"));
}

/// A killed copy is repeated at once, while its receiver still runs.
#[test]
fn a_directory_created_by_a_running_job_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 8 * MIB), ("small", 10)]);
    fs::remove_dir(&dst).unwrap();
    under_another_name(&src, &dst, &Pump { stop_after: Some(5 * MIB), ..Pump::default() });
    let running = RefCell::new(Some(locked_journal(dir.path())));
    let tamper = |_, _: &mut [u8]| drop(running.take());
    under_another_name(&src, &dst, &Pump { tamper: &tamper, ..Pump::default() }).clean();
    assert_same(&src, &dst);
    assert_eq!(names_below(dir.path()).len(), 6, "nothing else is left: {:?}", names_below(dir.path()));
}

#[test]
fn another_source_does_not_replace_an_unfinished_one() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, dst) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("w/backup"));
    for (src, text) in [(&a, "first"), (&b, "second")] {
        fs::create_dir(src).unwrap();
        fs::write(src.join("readme"), text).unwrap();
    }
    fs::create_dir(dir.path().join("w")).unwrap();
    fs::write(a.join("big"), contents(8 * MIB as usize, 1)).unwrap();
    under_another_name(&a, &dst, &Pump { stop_after: Some(5 * MIB), ..Pump::default() });

    let ends = copy(&[&b], &dst, Layout::As);
    let fault = ends.received.unwrap_err();
    assert_eq!(fault.code, FaultCode::Usage, "{fault}");
    assert!(fault.message.contains("`backup`") && fault.message.contains("`a`"), "{fault}");
    assert_ne!(fs::read_to_string(dst.join("readme")).ok(), Some("second".to_owned()));
    assert!(!dst.join("b").exists());

    copy(&[&a], &dst, Layout::As).clean();
    assert_eq!(names_below(dst.parent().unwrap()).len(), 3, "the same command completes it");
    copy(&[&b], &dst, Layout::As).clean();
    assert_eq!(fs::read_to_string(dst.join("b/readme")).unwrap(), "second");
}

#[test]
fn equal_files_are_kept_with_corrected_permissions() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("same", 100), ("size", 100), ("time", 100), ("new", 5)]);
    copy_again(&src, &dst);
    fs::remove_file(dst.join("new")).unwrap();
    fs::write(dst.join("size"), "short").unwrap();
    set_mtime(&dst.join("size"), 1_000_000_000, 123_456_789);
    set_mtime(&dst.join("time"), 1_000_000_000, 5);
    set_mode(&dst.join("same"), 0o600);
    let (report, travelled) = copy_again(&src, &dst);
    assert_eq!((report.files, report.kept, travelled), (3, 1, 205));
    assert_same_contents(&src, &dst);
    let (report, travelled) = copy_again(&src, &dst);
    assert_eq!((report.files, report.kept, travelled), (0, 4, 0));
}

#[test]
fn the_definition_of_equal_can_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("same", 3 * MIB), ("other", 3 * MIB), ("empty", 0)]);
    copy_again(&src, &dst);
    // Same size and time, but different contents.
    let other = fs::OpenOptions::new().write(true).open(dst.join("other")).unwrap();
    other.write_all_at(b"x", 2 * MIB).unwrap();
    drop(other);
    set_mtime(&dst.join("other"), 1_000_000_000, 123_456_789);
    let (report, _) = copy_again(&src, &dst);
    assert_eq!(report.kept, 3, "it is believed");
    let contents = ReceivePolicy { equal: Equal::Contents, ..ReceivePolicy::default() };
    set_mtime(&dst.join("same"), 5, 5);
    let (ends, travelled) = sync(&src, &dst, contents, &Pump::default());
    let report = ends.clean();
    assert_eq!((report.kept, report.files, report.resumed_bytes, travelled), (2, 1, 0, 3 * MIB));
    assert_eq!(fs::read(src.join("other")).unwrap(), fs::read(dst.join("other")).unwrap());
    let nothing = ReceivePolicy { equal: Equal::Nothing, ..ReceivePolicy::default() };
    let (ends, travelled) = sync(&src, &dst, nothing, &Pump::default());
    assert_eq!((ends.clean().kept, travelled), (0, 6 * MIB));
    assert_same_contents(&src, &dst);
}

#[test]
fn newer_files_are_kept_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("newer", 100), ("older", 100)]);
    for (name, time) in [("newer", 2_000_000_000), ("older", 5)] {
        fs::write(dst.join(name), name).unwrap();
        set_mtime(&dst.join(name), time, 0);
    }
    let receive_policy = ReceivePolicy { newer: Newer::Keep, ..ReceivePolicy::default() };
    let (ends, _) = sync(&src, &dst, receive_policy, &Pump::default());
    assert_eq!((ends.clean().kept, ends.clean().files), (1, 1));
    assert_eq!(fs::read(dst.join("newer")).unwrap(), b"newer");
    assert_same(&src.join("older"), &dst.join("older"));
}

#[test]
fn a_growing_hole_at_the_end_is_not_an_append() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 6 * MIB)]);
    let file = fs::OpenOptions::new().write(true).open(src.join("big")).unwrap();
    file.set_len(10 * MIB).unwrap();
    interrupt(&src, &dst, 4 * MIB);
    file.set_len(15 * MIB).unwrap();
    let receive_policy = ReceivePolicy { leftovers: Leftovers::Extend, ..ReceivePolicy::default() };
    sync(&src, &dst, receive_policy, &Pump::default()).0.clean();
    assert_eq!(dst.join("big").metadata().unwrap().len(), 15 * MIB);
    assert_same_contents(&src, &dst);
}

#[test]
fn bytes_after_the_end_of_a_part_are_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 6 * MIB)]);
    interrupt(&src, &dst, 4 * MIB);
    let part = fs::OpenOptions::new().write(true).open(part_below(&dst)).unwrap();
    part.write_all_at(b"more", 7 * MIB).unwrap();
    copy_again(&src, &dst);
    assert_same_contents(&src, &dst);
}

#[test]
fn data_written_into_a_hole_of_a_part_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[]);
    let file = fs::File::create(src.join("sparse")).unwrap();
    for (at, salt) in [(0, 1), (6 * MIB, 2)] {
        file.write_all_at(&contents(3 << 20, salt), at).unwrap();
    }
    drop(file);
    interrupt(&src, &dst, 4 * MIB);
    let part = fs::OpenOptions::new().write(true).open(part_below(&dst)).unwrap();
    part.write_all_at(b"spoiled", 4 * MIB + 77).unwrap();
    drop(part);
    let (report, _) = copy_again(&src, &dst);
    assert!(report.resumed_bytes > 0);
    assert_same_contents(&src, &dst);
}

#[test]
fn holes_are_preserved_when_resuming() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[]);
    let file = fs::File::create(src.join("sparse")).unwrap();
    // Not every file system supports files of 100 TB.
    let size = [100 << 40, 10 << 40, 1 << 40].into_iter().find(|&size| file.set_len(size).is_ok()).unwrap();
    for (at, salt) in [(0, 1), (size / 2, 2), (size - 3 * MIB, 3)] {
        file.write_all_at(&contents(3 << 20, salt), at).unwrap();
    }
    drop(file);
    interrupt(&src, &dst, 5 * MIB);
    let (report, travelled) = copy_again(&src, &dst);
    assert_eq!(report.resumed_bytes + travelled, 9 * MIB);
    let (a, b) = (fs::File::open(src.join("sparse")).unwrap(), fs::File::open(dst.join("sparse")).unwrap());
    assert_eq!(a.metadata().unwrap().len(), b.metadata().unwrap().len());
    assert!(b.metadata().unwrap().blocks() * 512 < 20 * MIB);
    for at in [0, size / 2, size - 3 * MIB] {
        let (mut x, mut y) = (vec![0; 3 << 20], vec![0; 3 << 20]);
        a.read_exact_at(&mut x, at).unwrap();
        b.read_exact_at(&mut y, at).unwrap();
        assert!(x == y);
    }
    assert_eq!(copy_again(&src, &dst).0.kept, 1);
}

/// Creates a source whose subdirectory has a file of this many bytes, and an empty destination.
fn with_subdirectory(dir: &Path, len: u64) -> (PathBuf, PathBuf) {
    let (src, dst) = places(dir, &[]);
    fs::create_dir(src.join("sub")).unwrap();
    fs::write(src.join("sub/file"), contents(len as usize, 1)).unwrap();
    for name in ["sub", ""] {
        set_mtime(&src.join(name), 1_000_000_000, 123_456_789);
    }
    (src, dst)
}

/// Asserts that both trees are equal, including the times of both directories.
fn assert_same_with_times(src: &Path, dst: &Path) {
    assert_same_contents(src, dst);
    assert_eq!(src.metadata().unwrap().modified().unwrap(), dst.metadata().unwrap().modified().unwrap());
}

/// Opens the journal left below a directory and locks it, as its running job does.
fn locked_journal(dst: &Path) -> fs::File {
    let is_journal = |path: &PathBuf| path.extension().is_some_and(|e| e == "journal");
    let journal = names_below(dst).into_iter().find(is_journal).unwrap();
    let running = fs::File::open(journal).unwrap();
    running.lock().unwrap();
    running
}

/// A killed copy is repeated at once, and the receiver of the first one ends while the second one runs.
#[test]
fn leftovers_of_another_job_are_removed_and_directories_keep_their_times() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = with_subdirectory(dir.path(), 6 * MIB);
    interrupt(&src, &dst, 4 * MIB);
    let running = RefCell::new(Some(locked_journal(&dst)));
    let tamper = |_, _: &mut [u8]| drop(running.take());
    let (ends, travelled) =
        sync(&src, &dst, ReceivePolicy::default(), &Pump { tamper: &tamper, ..Pump::default() });
    ends.clean();
    assert_eq!(travelled, 6 * MIB, "the other job was still running");
    assert_same_with_times(&src, &dst);
}

/// A killed copy is repeated at once, and the receiver of the first one ends last.
#[test]
fn a_job_that_ends_late_changes_no_time_of_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = with_subdirectory(dir.path(), MIB / 2);
    let sources = || vec![[&bytes(&src)[..], b"/."].concat()];
    let mut late = start(sources(), &dst, Layout::Into, SendLimits::default(), options()).unwrap();
    let pump = Pump { stop_after: Some(MIB / 4), loss: 0.0, ..Pump::default() };
    pump.run(&mut *late.send.source, &mut *late.receive.sink, &|| false);
    await_part(&dst);
    sync(&src, &dst, ReceivePolicy::default(), &Pump::default()).0.clean();
    late.send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    assert!(late.receive.handle.join().is_err());
    assert_same_with_times(&src, &dst);
}

#[test]
fn a_file_whose_contents_are_compared_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[("big", 8 * MIB)]);
    fs::write(dst.join("big"), contents(8 << 20, 9)).unwrap();
    let receive_policy = ReceivePolicy { equal: Equal::Contents, ..ReceivePolicy::default() };
    for _ in 0..2 {
        let pump = Pump { stop_after: Some(3 * MIB), ..Pump::default() };
        sync(&src, &dst, receive_policy, &pump).0.sent.unwrap_err();
        let is_part = |path: &&PathBuf| path.extension().is_some_and(|e| e == "part");
        assert_eq!(names_below(&dst).iter().filter(is_part).count(), 1);
    }
    let (ends, _) = sync(&src, &dst, receive_policy, &Pump::default());
    assert!(ends.clean().resumed_bytes > 0);
    assert_same_contents(&src, &dst);
    assert_eq!(names_below(&dst).len(), 1);
}
