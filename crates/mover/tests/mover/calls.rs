//! Fails a chosen file system call, or triggers an event just before it.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use haul_base::Piece;
use haul_mover::faults::{Call, Disk, Verdict};
use haul_mover::{
    ControlLink as _, ReceiveOptions, Root, SendLimits, Stage, receive_files, receive_stream, send_files,
    send_stream,
};
use haul_wire::control::{
    ControlMessage, Durability, Entry, EntryKind, Equal, Fault, FaultCode, FileDigest, HardLinks, Layout,
    Leftovers, Preserve, Proof, Readback, ReceivePolicy, RelPath, RunMode, Selection,
};
use rustix::io::Errno;

use crate::harness::{Ends, Pair, Pump, assert_resumable, bytes, link_pair, names_below, options, start};
use crate::trees::{assert_same, contents};

const MIB: usize = 1 << 20;

const BROKEN: Verdict = Verdict::Fail(Errno::IO.raw_os_error());

/// An empty source and an empty destination.
fn places(dir: &Path) -> (PathBuf, PathBuf) {
    let (src, dst) = (dir.join("src"), dir.join("dst"));
    fs::create_dir(&src).unwrap();
    fs::create_dir(&dst).unwrap();
    (src, dst)
}

/// Copies the contents of `src` to `dst`, where `rule` decides about each call by its thread's name.
fn pair(
    src: &Path,
    dst: &Path,
    options: ReceiveOptions,
    rule: impl Fn(&str, Call) -> Verdict + Send + Sync + 'static,
) -> Pair {
    let disk = Disk::new(move |_, call| rule(std::thread::current().name().unwrap_or_default(), call));
    let (a, b) = link_pair();
    let receive = disk.run(|| receive_files(&bytes(dst), &Root::Anywhere, Layout::Into, b, options)).unwrap();
    let sources = vec![[&bytes(src)[..], b"/."].concat()];
    let send = send_files(sources, Root::Anywhere, &Selection::default(), a, SendLimits::default()).unwrap();
    Pair { send, receive }
}

fn copy(
    src: &Path,
    dst: &Path,
    receive_policy: ReceivePolicy,
    rule: impl Fn(&str, Call) -> Verdict + Send + Sync + 'static,
) -> Ends {
    pair(
        src,
        dst,
        ReceiveOptions { durability: receive_policy.durability, receive_policy, ..options() },
        rule,
    )
    .run(&Pump::default())
}

fn cached() -> ReceivePolicy {
    ReceivePolicy { durability: Durability::Cached, ..ReceivePolicy::default() }
}

fn by_contents() -> ReceivePolicy {
    ReceivePolicy { equal: Equal::Contents, ..cached() }
}

/// Whether this is the first call.
fn first(seen: &AtomicBool) -> bool {
    !seen.swap(true, Ordering::Relaxed)
}

/// Two groups, both partly received.
fn begun(dir: &Path, seed: u64) -> (PathBuf, PathBuf) {
    let (src, dst) = places(dir);
    fs::write(src.join("big"), contents(MIB + 600_000, 1)).unwrap();
    let mut begun = pair(&src, &dst, options(), |_, _| Verdict::Pass);
    let pump = Pump { stop_after: Some(MIB as u64 + 300_000), loss: 0.0, seed, ..Pump::default() };
    pump.run(&mut *begun.send.source, &mut *begun.receive.sink, &|| false);
    begun.send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    assert!(begun.send.handle.join().is_err() && begun.receive.handle.join().is_err());
    (src, dst)
}

#[test]
fn unreadable_existing_data_is_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = begun(dir.path(), 1);
    let failed = Arc::new(AtomicBool::new(false));
    let fails = failed.clone();
    let ends = copy(&src, &dst, cached(), move |thread, call| {
        if thread == "haul-verify" && matches!(call, Call::Read(_)) && first(&fails) {
            BROKEN
        } else {
            Verdict::Pass
        }
    });
    assert!(failed.load(Ordering::Relaxed));
    ends.clean();
    assert_same(&src.join("big"), &dst.join("big"));
}

#[test]
fn data_missing_from_the_file_but_in_the_journal_is_sent_again() {
    for seed in 1..5 {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = begun(dir.path(), seed);
        // As after a power failure: the last writes are missing, and the rest is received.
        let is_part = |path: &PathBuf| path.extension().is_some_and(|end| end == "part");
        let part = names_below(&dst).into_iter().find(is_part).unwrap();
        let part = fs::OpenOptions::new().write(true).open(part).unwrap();
        part.set_len(part.metadata().unwrap().len() - 100).unwrap();
        drop(part);
        copy(&src, &dst, cached(), |_, _| Verdict::Pass).clean();
        assert_same(&src.join("big"), &dst.join("big"));
        assert_eq!(names_below(&dst).len(), 1);
    }
}

#[test]
fn an_unreadable_part_fails_only_its_file() {
    // Data received out of order is read back, depending on when the writer handles it.
    for attempt in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = places(dir.path());
        fs::write(src.join("a"), contents(3 * MIB, 1)).unwrap();
        fs::write(src.join("z"), "").unwrap();
        let refused = Arc::new(AtomicBool::new(false));
        let refuses = refused.clone();
        let ends = copy(&src, &dst, cached(), move |thread, call| match thread {
            "haul-verify" if matches!(call, Call::Read(_)) => {
                refuses.store(true, Ordering::Relaxed);
                Verdict::Fail(Errno::ACCESS.raw_os_error())
            }
            _ => Verdict::Pass,
        });
        assert_same(&src.join("z"), &dst.join("z"));
        if refused.load(Ordering::Relaxed) {
            let (path, fault) = ends.one_failure();
            assert_eq!((path, fault.code), (&b"a"[..], FaultCode::ReadOnly), "{fault}");
            assert_eq!(names_below(&dst).len(), 1, "{:?}", names_below(&dst));
            return;
        }
        ends.clean();
        assert!(attempt < 50, "it always comes in order");
    }
}

/// Length of the existing start of a file that grows.
const START: usize = 2 * MIB + 5;

/// Copies a file to where its start exists already; `rule` decides the outcome of each call.
fn assert_extended(what: &str, rule: impl Fn(Call) -> Verdict + Send + Sync + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::write(src.join("log"), contents(3 * MIB, 1)).unwrap();
    fs::write(dst.join("log"), &contents(3 * MIB, 1)[..START]).unwrap();
    let receive_policy = ReceivePolicy { leftovers: Leftovers::Extend, ..cached() };
    let ends = copy(&src, &dst, receive_policy, move |_, call| rule(call));
    assert_eq!(ends.clean().resumed_bytes, START as u64, "{what}");
    assert_same(&src.join("log"), &dst.join("log"));
    assert_eq!(names_below(&dst).len(), 1);
}

#[test]
fn the_start_of_a_file_is_copied_without_kernel_support() {
    let failures = [Errno::XDEV, Errno::NOSYS, Errno::PERM].map(|errno| Verdict::Fail(errno.raw_os_error()));
    for verdict in failures.into_iter().chain([Verdict::Short, Verdict::Pass]) {
        let seen = AtomicBool::new(false);
        assert_extended(&format!("{verdict:?}"), move |call| {
            if call == Call::Write(START) && first(&seen) { verdict } else { Verdict::Pass }
        });
    }
}

/// As on a network share whose server stops supporting it in the middle of a file.
#[test]
fn the_start_of_a_file_is_copied_if_kernel_support_ends_within_it() {
    let seen = AtomicBool::new(false);
    assert_extended("half by the kernel", move |call| match call {
        Call::Write(START) => Verdict::Short,
        Call::Write(len) if len == START / 2 && first(&seen) => {
            Verdict::Fail(Errno::OPNOTSUPP.raw_os_error())
        }
        _ => Verdict::Pass,
    });
}

#[test]
fn a_file_removed_during_comparison_is_not_reported_as_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    for name in ["gone", "stays"] {
        fs::write(src.join(name), contents(5000, 1)).unwrap();
        fs::write(dst.join(name), contents(5000, 1)).unwrap();
    }
    let (lost, seen) = (dst.join("gone"), AtomicBool::new(false));
    // The committer checks files that were equal.
    let ends = copy(&src, &dst, by_contents(), move |thread, call| {
        if thread == "haul-commit" && call == Call::Stat && first(&seen) {
            fs::remove_file(&lost).unwrap();
        }
        Verdict::Pass
    });
    let (path, fault) = ends.one_failure();
    assert_eq!((path, fault.code), (&b"gone"[..], FaultCode::Io), "{fault}");
    assert_eq!(ends.sent.as_ref().unwrap().kept, 1);
    copy(&src, &dst, by_contents(), |_, _| Verdict::Pass).clean();
    assert_eq!(names_below(&dst).len(), 2);
}

#[test]
fn leftovers_of_a_hard_link_are_found_by_the_next_job() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::create_dir(src.join("sub")).unwrap();
    fs::write(src.join("a"), "x").unwrap();
    fs::hard_link(src.join("a"), src.join("sub/b")).unwrap();
    let seen = dst.join("sub");
    // Every later call fails, as after `kill -9`.
    let dead = AtomicBool::new(false);
    let ends = copy(&src, &dst, cached(), move |_, call| {
        if call == Call::Rename && fs::read_dir(&seen).is_ok_and(|mut names| names.next().is_some()) {
            dead.store(true, Ordering::Relaxed);
        }
        if dead.load(Ordering::Relaxed) { BROKEN } else { Verdict::Pass }
    });
    assert!(ends.received.is_err());
    let remaining = names_below(&dst.join("sub"));
    assert!(
        remaining.len() == 1 && remaining[0].extension().is_some_and(|end| end == "part"),
        "{remaining:?}"
    );
    // A copy of another set cleans up, and reuses no name of the leftover journal.
    fs::write(dir.path().join("other"), "y").unwrap();
    crate::harness::copy(&[&dir.path().join("other")], &dst, Layout::Into).clean();
    assert_eq!(names_below(&dst.join("sub")), Vec::<PathBuf>::new());
}

/// A mount, unmounted on drop.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn files_on_mounted_file_systems_are_synced_there() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::create_dir(src.join("sub")).unwrap();
    symlink("nowhere", src.join("sub/link")).unwrap();
    let below = dst.join("sub");
    fs::create_dir(&below).unwrap();
    let syncs = |durability| {
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let receive_policy = ReceivePolicy { durability, ..ReceivePolicy::default() };
        copy(&src, &dst, receive_policy, move |_, call| {
            counted.fetch_add(u64::from(call == Call::Sync), Ordering::Relaxed);
            Verdict::Pass
        })
        .clean();
        count.load(Ordering::Relaxed)
    };
    assert_eq!((syncs(Durability::Synced), syncs(Durability::AtEnd)), (1, 1));
    let mount = std::process::Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&below).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: a file system cannot be mounted here");
        return;
    }
    let _mounted = Mounted(below);
    for durability in [Durability::Synced, Durability::AtEnd] {
        assert_eq!(syncs(durability), 2, "{durability:?}");
    }
    assert_eq!(syncs(Durability::Cached), 0);
}

#[test]
fn reading_stops_at_the_first_difference() {
    let dir = tempfile::tempdir().unwrap();
    let size = 8 * MIB as u64;
    fs::write(dir.path().join("f"), contents(8 * MIB, 1)).unwrap();
    let (go, wait) = crossbeam_channel::bounded::<()>(1);
    let reads = Arc::new(AtomicU64::new(0));
    let (count, wait) = (reads.clone(), Mutex::new(wait));
    let disk = Disk::new(move |_, call| {
        let compares = std::thread::current().name() == Some("haul-compare");
        // The second read starts when the file has been requested from the sender.
        if compares && matches!(call, Call::Read(_)) && count.fetch_add(1, Ordering::Relaxed) == 1 {
            wait.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        }
        Verdict::Pass
    });
    let (peer, link) = link_pair();
    let options = ReceiveOptions { receive_policy: by_contents(), ..options() };
    let mut job =
        disk.run(|| receive_files(&bytes(dir.path()), &Root::Anywhere, Layout::Into, link, options)).unwrap();
    let path = RelPath::new(b"f".to_vec()).unwrap();
    let kind = EntryKind::File { size, holes: vec![] };
    let entry = Entry { path, kind, mode: 0o644, mtime_secs: 0, mtime_nanos: 0, extras: None };
    peer.send(ControlMessage::Entries(vec![entry])).unwrap();
    peer.send(ControlMessage::EntriesEnd { entries: 1, bytes: size }).unwrap();
    peer.send(ControlMessage::Proofs(vec![Proof { entry: 0, first: 0, values: vec![[7; 32]] }])).unwrap();
    loop {
        match peer.recv(Duration::from_secs(60)).unwrap() {
            Some(ControlMessage::More(_)) => break,
            Some(_) => {}
            None => panic!("the receiver is silent"),
        }
    }
    go.send(()).unwrap();
    let new = contents(8 * MIB, 2);
    job.sink.deliver(&new, &[Piece { offset: 0, range: 0..new.len() }]);
    job.sink.complete(size);
    let digest = FileDigest { entry: 0, result: Ok(*blake3::hash(&new).as_bytes()) };
    peer.send(ControlMessage::Digests(vec![digest])).unwrap();
    while !matches!(peer.recv(Duration::from_secs(60)).unwrap(), Some(ControlMessage::Finish(_))) {}
    peer.send(ControlMessage::Close).unwrap();
    assert_eq!(job.handle.join().unwrap().files, 1);
    // The group that differed, and perhaps the next one, whose read had already begun.
    let reads = reads.load(Ordering::Relaxed);
    assert!((1..=2).contains(&reads), "{reads} of eight groups were read");
}

#[test]
fn a_dry_run_creates_nothing_if_a_source_fails() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), contents(5000, 1)).unwrap();
    let modified = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(dir.path()).unwrap().set_modified(modified).unwrap();
    let (peer, link) = link_pair();
    let receive_policy = ReceivePolicy { run: RunMode::ListChanges, ..by_contents() };
    let options = ReceiveOptions { receive_policy, ..options() };
    let job = receive_files(&bytes(dir.path()), &Root::Anywhere, Layout::Into, link, options).unwrap();
    let kind = EntryKind::File { size: 5000, holes: vec![] };
    let path = RelPath::new(b"f".to_vec()).unwrap();
    let entry = Entry { path, kind, mode: 0o644, mtime_secs: 0, mtime_nanos: 0, extras: None };
    peer.send(ControlMessage::Entries(vec![entry])).unwrap();
    peer.send(ControlMessage::EntriesEnd { entries: 1, bytes: 5000 }).unwrap();
    peer.send(ControlMessage::Proofs(vec![Proof { entry: 0, first: 0, values: vec![[7; 32]] }])).unwrap();
    let changed = Err(Fault::new(FaultCode::SourceChanged, "it changed", ""));
    peer.send(ControlMessage::Digests(vec![FileDigest { entry: 0, result: changed }])).unwrap();
    while !matches!(peer.recv(Duration::from_secs(60)).unwrap(), Some(ControlMessage::Finish(_))) {}
    peer.send(ControlMessage::Close).unwrap();
    assert_eq!(job.handle.join().unwrap().failures.count(), 1);
    assert_eq!(fs::metadata(dir.path()).unwrap().modified().unwrap(), modified);
}

#[test]
fn attributes_are_read_without_opening_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    (0..20).for_each(|n| fs::write(src.join(n.to_string()), "x").unwrap());
    let opened = |preserve| {
        let opens = Arc::new(AtomicU64::new(0));
        let counter = opens.clone();
        let disk = Disk::new(move |_, call| {
            let is_walk = std::thread::current().name() == Some("haul-walk");
            counter.fetch_add(u64::from(is_walk && call == Call::Open), Ordering::Relaxed);
            Verdict::Pass
        });
        let (sources, limits) = (vec![bytes(&src)], SendLimits { preserve, ..SendLimits::default() });
        let ends = disk.run(|| start(sources, &dst, Layout::Into, limits, options())).unwrap();
        ends.run(&Pump::default()).clean();
        opens.load(Ordering::Relaxed)
    };
    assert_eq!(opened(Preserve::ALL), opened(Preserve::default()));
}

/// Ends a job, started by `start` on a disk, at the sender or the receiver while `thread` reads its file back.
fn stop_read_back(thread: &'static str, at_sender: bool, start: impl FnOnce(Disk) -> Pair) {
    let (begun, has_begun) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let channels = Mutex::new(Some((begun, stopped)));
    let disk = Disk::new(move |_, call| {
        if std::thread::current().name() == Some(thread)
            && matches!(call, Call::Read(_))
            && let Some((begun, stopped)) = channels.lock().unwrap().take()
        {
            begun.send(()).unwrap();
            stopped.recv().unwrap_err();
        }
        Verdict::Pass
    });
    let Pair { mut send, mut receive } = start(disk);
    Pump::default().run(&mut *send.source, &mut *receive.sink, &|| false);
    has_begun.recv().unwrap();
    assert_eq!(receive.handle.stage(), Stage::Completion);
    let (wake, woken) = mpsc::channel();
    receive.handle.on_wake(Arc::new(move || _ = wake.send(())));
    woken.recv().unwrap();
    let stopped_job = if at_sender { &send.handle } else { &receive.handle };
    stopped_job.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    let ended = woken.recv_timeout(Duration::from_secs(20));
    drop(stop);
    ended.expect("the receiver's job ends");
    assert_eq!(receive.handle.join().unwrap_err().message, "stopped by hand");
    assert_eq!(send.handle.join().unwrap_err().message, "stopped by hand");
}

fn read_back() -> ReceiveOptions {
    let receive_policy = ReceivePolicy { readback: Readback::FromDisk, ..cached() };
    ReceiveOptions { receive_policy, ..options() }
}

#[test]
fn a_file_that_was_not_completely_read_back_is_not_installed() {
    for at_sender in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = places(dir.path());
        fs::write(src.join("f"), contents(3 * MIB, 1)).unwrap();
        let sources = vec![[&bytes(&src)[..], b"/."].concat()];
        stop_read_back("haul-commit", at_sender, |disk| {
            disk.run(|| start(sources, &dst, Layout::Into, SendLimits::default(), read_back())).unwrap()
        });
        assert!(!dst.join("f").exists());
        assert_resumable(&dst);
    }
}

#[test]
fn a_stream_that_was_not_completely_read_back_is_not_installed() {
    for at_sender in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = link_pair();
        let destination = bytes(&dir.path().join("f"));
        stop_read_back("haul-write", at_sender, |disk| {
            let input = Box::new(Cursor::new(contents(3 * MIB, 1)));
            Pair {
                receive: disk.run(|| receive_stream(&destination, &Root::Anywhere, b, read_back())).unwrap(),
                send: send_stream(input, a, SendLimits::default()).unwrap(),
            }
        });
        assert_eq!(names_below(dir.path()).len(), 0);
    }
}

#[test]
fn permissions_that_cannot_be_set_are_noted() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::create_dir(src.join("d")).unwrap();
    for name in ["f", "d/g"] {
        fs::write(src.join(name), contents(5000, 1)).unwrap();
    }
    symlink("f", src.join("link")).unwrap();
    let rule = |_: &str, call| match call {
        Call::Attributes => Verdict::Fail(Errno::PERM.raw_os_error()),
        _ => Verdict::Pass,
    };
    let ends = copy(&src, &dst, cached(), rule);
    assert_eq!(ends.clean().notes.count, 3, "{:?}", ends.clean().notes);
    for name in ["f", "d/g"] {
        assert_eq!(fs::read(dst.join(name)).unwrap(), contents(5000, 1));
    }
    assert!(dst.join("link").is_symlink());
}

#[test]
fn a_directory_is_not_listed_for_each_hard_link() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = places(dir.path());
    fs::write(src.join("first"), "contents").unwrap();
    (0..200).for_each(|n| fs::hard_link(src.join("first"), src.join(format!("link{n}"))).unwrap());
    let sources = || vec![[&bytes(&src)[..], b"/."].concat()];
    start(sources(), &dst, Layout::Into, SendLimits::default(), options())
        .unwrap()
        .run(&Pump::default())
        .clean();
    let lists = Arc::new(AtomicU64::new(0));
    let counter = lists.clone();
    let disk = Disk::new(move |_, call| {
        counter.fetch_add(u64::from(call == Call::List), Ordering::Relaxed);
        Verdict::Pass
    });
    let preserve = Preserve { hard_links: HardLinks::Copy, ..Preserve::default() };
    let limits = SendLimits { preserve, ..SendLimits::default() };
    let pair = disk.run(|| start(sources(), &dst, Layout::Into, limits, options())).unwrap();
    assert_eq!(pair.run(&Pump::default()).clean().kept, 201);
    let lists = lists.load(Ordering::Relaxed);
    assert!(lists < 40, "{lists}");
}
