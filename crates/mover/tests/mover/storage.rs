//! Disks that corrupt data, fill up, are slow, or change during a job.

use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use haul_mover::faults::{Call, Disk, Verdict};
use haul_mover::{ReceiveOptions, Root, SendLimits, receive_files, send_files};
use haul_wire::control::{Durability, Equal, Fault, FaultCode, Layout, Readback, ReceivePolicy, Selection};
use rustix::io::Errno;

use crate::harness::{
    Ends, Pair, Pump, assert_no_parts, assert_resumable, bytes, link_pair, names_below, options,
};
use crate::trees::{assert_same, contents, set_mtime};

const MIB: usize = 1 << 20;

/// Creates two directories, the first with files of these sizes, some in a subdirectory `sub`.
fn places(dir: &Path, sizes: &[usize], salt: u64) -> (PathBuf, PathBuf) {
    let (src, dst) = (dir.join(format!("src{salt}")), dir.join("dst"));
    fs::create_dir_all(src.join("sub")).unwrap();
    fs::create_dir_all(&dst).unwrap();
    for (i, &size) in sizes.iter().enumerate() {
        let path = if i % 2 == 0 { src.join(format!("f{i}")) } else { src.join(format!("sub/f{i}")) };
        fs::write(&path, contents(size, salt * 1000 + i as u64)).unwrap();
        set_mtime(&path, 1_000_000_000, 5);
    }
    set_mtime(&src.join("sub"), 1_000_000_000, 5);
    (src, dst)
}

/// Copies the contents of `src` to `dst`, which is on `disk`.
fn pair(src: &Path, dst: &Path, options: ReceiveOptions, disk: &Disk) -> Pair {
    let (a, b) = link_pair();
    let receive = disk.run(|| receive_files(&bytes(dst), &Root::Anywhere, Layout::Into, b, options)).unwrap();
    let sources = vec![[&bytes(src)[..], b"/."].concat()];
    let send = send_files(sources, Root::Anywhere, &Selection::default(), a, SendLimits::default()).unwrap();
    Pair { send, receive }
}

fn copy_on(src: &Path, dst: &Path, options: ReceiveOptions, disk: &Disk) -> Ends {
    pair(src, dst, options, disk).run(&Pump::default())
}

fn healthy() -> Disk {
    Disk::new(|_, _| Verdict::Pass)
}

/// Asserts that the set is at `dst`, and that no working files are left.
fn assert_copied(src: &Path, dst: &Path) {
    for path in names_below(src) {
        assert_same(&path, &dst.join(path.strip_prefix(src).unwrap()));
    }
    assert_eq!(names_below(src).len(), names_below(dst).len(), "{:?}", names_below(dst));
}

/// A disk that changes a byte of a temporary file when it is told to sync.
fn lying(dst: PathBuf) -> Disk {
    let lies = AtomicU64::new(0);
    Disk::new(move |_, call| {
        if call == Call::Sync && lies.fetch_add(1, Ordering::Relaxed) == 0 {
            let parts = names_below(&dst).into_iter().filter(|p| p.extension().is_some_and(|e| e == "part"));
            for part in parts {
                let file = fs::OpenOptions::new().read(true).write(true).open(part).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, 2 * MIB as u64 + 5).unwrap();
                file.write_all_at(&[byte[0] ^ 1], 2 * MIB as u64 + 5).unwrap();
            }
        }
        Verdict::Pass
    })
}

#[test]
fn corruption_by_the_disk_is_found_on_reading_back() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[3 * MIB + 7], 1);
    let receive_policy = ReceivePolicy { readback: Readback::FromDisk, ..ReceivePolicy::default() };
    for (receive_policy, is_found) in [(receive_policy, true), (ReceivePolicy::default(), false)] {
        let ends = copy_on(&src, &dst, ReceiveOptions::with_policy(1, receive_policy), &lying(dst.clone()));
        if is_found {
            let (path, fault) = ends.one_failure();
            assert_eq!((path, fault.code), (&b"f0"[..], FaultCode::VerifyFailed), "{fault}");
            assert!(!dst.join("f0").exists());
            assert_eq!(ends.sent.unwrap().exit_code(), 4);
        } else {
            // Only reading back from the disk would have detected the change.
            ends.clean();
            assert!(fs::read(src.join("f0")).unwrap() != fs::read(dst.join("f0")).unwrap());
            fs::remove_file(dst.join("f0")).unwrap();
        }
        assert_no_parts(&dst);
    }
    for durability in [Durability::Cached, Durability::AtEnd, Durability::Synced] {
        let receive_policy = ReceivePolicy { durability, ..receive_policy };
        copy_on(&src, &dst, ReceiveOptions::with_policy(1, receive_policy), &healthy()).clean();
        assert_copied(&src, &dst);
        fs::remove_file(dst.join("f0")).unwrap();
    }
}

#[test]
fn uncomparable_files_are_sent_before_all_requests_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[300; 400], 1);
    copy_on(&src, &dst, options(), &healthy()).clean();
    // Failures are immediate, while the receiver still decides about the other files.
    let disk = Disk::new(|_, call| match std::thread::current().name() {
        Some("haul-compare") if matches!(call, Call::Read(_)) => Verdict::Fail(Errno::IO.raw_os_error()),
        Some("haul-receive") => {
            std::thread::sleep(Duration::from_micros(500));
            Verdict::Pass
        }
        _ => Verdict::Pass,
    });
    let receive_policy = ReceivePolicy { equal: Equal::Contents, ..ReceivePolicy::default() };
    copy_on(&src, &dst, ReceiveOptions::with_policy(1, receive_policy), &disk).clean();
    assert_copied(&src, &dst);
}

#[test]
fn existing_empty_files_are_not_recreated_before_the_decision() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[0; 1500], 1);
    let receive_policy = ReceivePolicy { durability: Durability::Cached, ..ReceivePolicy::default() };
    copy_on(&src, &dst, ReceiveOptions::with_policy(1, receive_policy), &healthy()).clean();
    // Slows down the decisions, so that the writer overtakes them.
    let disk = Disk::new(|_, _| {
        if std::thread::current().name() == Some("haul-receive") {
            std::thread::sleep(Duration::from_micros(500));
        }
        Verdict::Pass
    });
    copy_on(&src, &dst, ReceiveOptions::with_policy(1, receive_policy), &disk).clean();
    assert_copied(&src, &dst);
}

#[test]
fn a_panicking_thread_ends_the_job_at_both_ends() {
    for name in ["haul-walk", "haul-read", "haul-prove", "haul-write", "haul-commit", "haul-compare"] {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = places(dir.path(), &[3 * MIB, 5000], 1);
        let equal = ReceivePolicy { equal: Equal::Contents, ..ReceivePolicy::default() };
        if matches!(name, "haul-prove" | "haul-compare") {
            copy_on(&src, &dst, options(), &healthy()).clean();
        }
        let disk = Disk::new(move |_, _| {
            assert!(std::thread::current().name() != Some(name), "as asked for");
            Verdict::Pass
        });
        let options = ReceiveOptions::with_policy(1, ReceivePolicy { readback: Readback::FromDisk, ..equal });
        let ends = disk.run(|| copy_on(&src, &dst, options, &disk));
        let faults = [ends.sent.unwrap_err(), ends.received.unwrap_err()];
        assert_eq!(faults.map(|fault| fault.code), [FaultCode::Internal; 2], "{name}");
    }
}

/// Counts the calls that start writeback of a file during reception, and fails the first with `errno`.
fn failing_writeback(errno: Option<Errno>) -> (Disk, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let disk = Disk::new(move |_, call| {
        if call == Call::Sync && std::thread::current().name() == Some("haul-writeback") {
            let is_first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            return errno.filter(|_| is_first).map_or(Verdict::Pass, |e| Verdict::Fail(e.raw_os_error()));
        }
        Verdict::Pass
    });
    (disk, count)
}

#[test]
fn large_files_are_written_back_during_the_transfer() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[140 * MIB, 70 * MIB, 5000], 1);
    for (durability, is_behind) in
        [(Durability::Synced, true), (Durability::AtEnd, true), (Durability::Cached, false)]
    {
        let (disk, count) = failing_writeback(None);
        let receive_policy = ReceivePolicy { durability, equal: Equal::Nothing, ..ReceivePolicy::default() };
        copy_on(&src, &dst, ReceiveOptions::with_policy(1, receive_policy), &disk).clean();
        assert_copied(&src, &dst);
        assert_eq!(count.load(Ordering::Relaxed) > 0, is_behind, "{durability:?}");
    }
}

#[test]
fn a_writeback_error_during_a_transfer_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[100 * MIB, 5000], 1);
    let (disk, _) = failing_writeback(Some(Errno::IO));
    let ends = copy_on(&src, &dst, ReceiveOptions::with_policy(1, ReceivePolicy::default()), &disk);
    assert_eq!(ends.sent.unwrap_err().code, FaultCode::Io);
    assert_eq!(ends.received.unwrap_err().code, FaultCode::Io);
    assert!(!dst.join("f0").exists());
    copy_on(&src, &dst, options(), &healthy()).clean();
    assert_copied(&src, &dst);
}

#[test]
fn the_number_of_syncs_follows_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let syncs = |durability| {
        let (src, dst) = places(&tempfile::tempdir_in(dir.path()).unwrap().keep(), &[5000; 40], 1);
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let disk = Disk::new(move |_, call| {
            counted.fetch_add(u64::from(call == Call::Sync), Ordering::Relaxed);
            Verdict::Pass
        });
        let receive_policy = ReceivePolicy { durability, ..ReceivePolicy::default() };
        copy_on(&src, &dst, ReceiveOptions::with_policy(1, receive_policy), &disk).clean();
        assert_copied(&src, &dst);
        count.load(Ordering::Relaxed)
    };
    assert_eq!(syncs(Durability::Cached), 0);
    assert_eq!(syncs(Durability::AtEnd), 1);
    assert!(syncs(Durability::Synced) >= 3, "contents, names, and the rest");
}

#[test]
fn an_exhausted_quota_ends_the_job_and_more_space_lets_it_resume() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[500_000, 6 * MIB, 500_000], 1);
    let used = AtomicU64::new(0);
    let disk = Disk::new(move |_, call| match call {
        // Contents are received in pieces of 1,400 bytes; the journal has reserved its space.
        Call::Write(len)
            if len % 1400 == 0 && used.fetch_add(len as u64, Ordering::Relaxed) > 4 * MIB as u64 =>
        {
            Verdict::Fail(Errno::DQUOT.raw_os_error())
        }
        _ => Verdict::Pass,
    });
    let ends = copy_on(&src, &dst, options(), &disk);
    for end in [ends.sent, ends.received] {
        let fault = end.unwrap_err();
        assert_eq!(fault.code, FaultCode::DiskFull, "{fault}");
        assert!(fault.hint.contains("quota"), "{fault}");
    }
    assert_resumable(&dst);
    assert!(!dst.join("sub/f1").exists());
    let ends = copy_on(&src, &dst, options(), &healthy());
    assert!(ends.clean().resumed_bytes > 0);
    assert_copied(&src, &dst);
}

#[test]
fn permissions_lost_during_a_transfer_fail_only_affected_entries() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[10_000; 30], 1);
    let renames = AtomicU64::new(0);
    let disk = Disk::new(move |_, call| match call {
        Call::Rename if renames.fetch_add(1, Ordering::Relaxed) >= 10 => {
            Verdict::Fail(Errno::ACCESS.raw_os_error())
        }
        _ => Verdict::Pass,
    });
    let ends = copy_on(&src, &dst, options(), &disk);
    let (sent, received) = (ends.sent.unwrap(), ends.received.unwrap());
    assert_eq!(sent, received);
    assert_eq!((sent.files, sent.failures.count()), (10, 20));
    assert!(sent.failures.named().iter().all(|(_, fault)| fault.code == FaultCode::ReadOnly));
    assert_eq!(sent.exit_code(), 3);
    assert_no_parts(&dst);
    let ends = copy_on(&src, &dst, options(), &healthy());
    assert_eq!((ends.clean().kept, ends.clean().files), (10, 20));
    assert_copied(&src, &dst);
}

#[test]
fn a_directory_replaced_by_a_link_is_not_followed() {
    for (when, after) in
        [(Call::Make, 0), (Call::Write(0), 0), (Call::Write(0), 40), (Call::Rename, 0), (Call::Rename, 3)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = places(dir.path(), &[30_000; 20], 1);
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::create_dir(dst.join("sub")).unwrap();
        let (seen, place, lure) = (AtomicU64::new(0), dst.clone(), elsewhere.clone());
        let disk = Disk::new(move |_, call| {
            let same = std::mem::discriminant(&call) == std::mem::discriminant(&when);
            if same && seen.fetch_add(1, Ordering::Relaxed) == after {
                fs::rename(place.join("sub"), place.join("moved")).unwrap();
                symlink(&lure, place.join("sub")).unwrap();
            }
            Verdict::Pass
        });
        let ends = copy_on(&src, &dst, options(), &disk);
        assert_eq!(names_below(&elsewhere), Vec::<PathBuf>::new(), "{when:?} {after}");
        assert!(dst.join("sub").is_symlink() || !dst.join("moved").exists());
        for (_, fault) in ends.received.unwrap().failures.named() {
            // Entries below an unreachable directory say so.
            assert!(matches!(fault.code, FaultCode::PathEscape | FaultCode::NotADirectory), "{fault}");
        }
        for i in (0..20).step_by(2) {
            assert_same(&src.join(format!("f{i}")), &dst.join(format!("f{i}")));
        }
    }
}

#[test]
fn two_copies_to_the_same_place_both_succeed() {
    for round in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let sizes = [0, 1000, 70_000, 2 * MIB, 3 * MIB, 100];
        let (one, dst) = places(dir.path(), &sizes, 1);
        let (two, _) = places(dir.path(), &sizes, 2);
        for path in names_below(&two) {
            if path.is_file() {
                set_mtime(&path, 1_100_000_000, 5);
            }
        }
        let run = |src: &Path, seed: u64| {
            let pump = Pump { seed, ..Pump::default() };
            pair(src, &dst, ReceiveOptions { session: seed as u32, ..options() }, &healthy()).run(&pump)
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| run(&two, 100 + round));
            run(&one, round).clean();
            other.join().unwrap().clean();
        });
        for path in names_below(&one).into_iter().filter(|path| path.is_file()) {
            let name = path.strip_prefix(&one).unwrap();
            let found = fs::read(dst.join(name)).unwrap();
            let is = |src: &Path| fs::read(src.join(name)).unwrap() == found;
            assert!(is(&one) || is(&two), "{} is a mixture", name.display());
        }
        assert_eq!(names_below(&one).len(), names_below(&dst).len(), "{:?}", names_below(&dst));
    }
}

fn interrupt(src: &Path, dst: &Path) -> PathBuf {
    let mut pair = pair(src, dst, options(), &healthy());
    let pump = Pump { stop_after: Some(4 << 20), loss: 0.0, ..Pump::default() };
    pump.run(&mut *pair.send.source, &mut *pair.receive.sink, &|| false);
    pair.send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    assert!(pair.send.handle.join().is_err() && pair.receive.handle.join().is_err());
    let is_journal = |path: &PathBuf| path.extension().is_some_and(|e| e == "journal");
    names_below(dst).into_iter().find(is_journal).unwrap()
}

#[test]
fn a_journal_of_another_version_is_kept_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[6 * MIB], 1);
    let journal = interrupt(&src, &dst);
    let file = fs::OpenOptions::new().write(true).open(&journal).unwrap();
    file.write_all_at(&77u16.to_le_bytes(), 8).unwrap();
    let before = names_below(&dst).len();
    let pair = pair(&src, &dst, options(), &healthy());
    let notes = pair.receive.handle.notes().join("\n");
    assert!(notes.contains("format 77") && notes.contains(".journal"), "{notes}");
    assert_eq!(pair.run(&Pump::default()).clean().resumed_bytes, 0);
    assert_same(&src.join("f0"), &dst.join("f0"));
    assert_eq!(names_below(&dst).len(), before + 1, "the other version's files stay, and ours is added");
}

#[test]
fn corrupt_journals_lose_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[6 * MIB], 1);
    let kept = dir.path().join("kept");
    for seed in 0..12 {
        let journal = interrupt(&src, &dst);
        let mut rng = haul_base::Rng::from_seed(seed);
        let mut text = fs::read(&journal).unwrap();
        let at = rng.below(text.len() as u64) as usize;
        text[at] ^= 1 << rng.below(8);
        fs::write(&journal, text).unwrap();
        copy_on(&src, &dst, options(), &healthy()).clean();
        assert_same(&src.join("f0"), &dst.join("f0"));
        // A journal with a damaged header keeps its files; after any other damage nothing is left.
        assert!(
            at < 14 || names_below(&dst).len() == names_below(&src).len(),
            "{at}: {:?}",
            names_below(&dst)
        );
        fs::rename(&dst, kept.with_extension(seed.to_string())).unwrap();
        fs::create_dir(&dst).unwrap();
    }
}

#[test]
fn future_times_are_preserved() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[6 * MIB, 100], 1);
    // The year 2096, as from a wrong clock.
    for path in [src.join("f0"), src.join("sub/f1"), src.join("sub")] {
        set_mtime(&path, 4_000_000_000, 7);
    }
    interrupt(&src, &dst);
    assert!(copy_on(&src, &dst, options(), &healthy()).clean().resumed_bytes > 0);
    assert_copied(&src, &dst);
    assert_eq!(copy_on(&src, &dst, options(), &healthy()).clean().kept, 2);
}

#[test]
fn a_slow_disk_blocks_the_sender_and_never_the_receiver() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path(), &[8 * MIB], 1);
    // Far slower than the network: without a limit, data would accumulate in memory.
    let options = ReceiveOptions { memory: 1 << 20, ..options() };
    let mut pair = pair(&src, &dst, options, &Disk::slow(40 << 20, false));
    let over = || pair.send.handle.is_finished() || pair.receive.handle.is_finished();
    let moved =
        Pump { loss: 0.0, ..Pump::default() }.run(&mut *pair.send.source, &mut *pair.receive.sink, &over);
    assert_eq!(moved, 8 * MIB as u64, "bytes were sent twice");
    // Exceeding the limit would have ended the job.
    let ends = Ends { sent: pair.send.handle.join(), received: pair.receive.handle.join() };
    ends.clean();
    assert_copied(&src, &dst);
}
