//! Fails the n-th file system call, for every n: no data is lost or left incomplete, and the next attempt
//! succeeds.
//!
//! `HAUL_SWEEP=full` tests every call with every error. Otherwise a fixed sample is tested; `HAUL_SWEEP=1000`
//! enlarges it. `HAUL_SWEEP=1@4700` tests the second failure with every call from 4,700 on.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_base::Rng;
use haul_mover::faults::{Call, Disk, Verdict};
use haul_mover::{ReceiveJob, ReceiveOptions, Root, SendJob, SendLimits, receive_files, send_files};
use haul_wire::control::{Extraneous, Fault, FaultCode, Layout, ReceivePolicy, Selection};
use rustix::io::Errno;

use crate::harness::{Ends, Pair, Pump, bytes, copy, link_pair, names_below, options};
use crate::trees::{assert_same, contents, set_mode, set_mtime};

/// Number of cases of each scenario unless all are tested.
const SAMPLE: usize = 70;

/// Timeout of a case.
const HANG: Duration = Duration::from_secs(60);

/// The side whose disk fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Sender,
    Receiver,
}

/// Initial contents of the destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scene {
    /// Nothing: the source is installed under the destination's name.
    Fresh,
    /// Files to keep, to replace and to resume.
    Occupied,
    /// As `Occupied`; names that the set does not have are removed.
    Mirrored,
}

impl Scene {
    fn receive_policy(self) -> ReceivePolicy {
        let extraneous = if self == Self::Mirrored { Extraneous::Delete } else { Extraneous::Keep };
        ReceivePolicy { extraneous, ..ReceivePolicy::default() }
    }
}

/// How a disk fails, and the faults permitted.
#[derive(Clone, Debug)]
struct Failure {
    verdict: Verdict,
    /// Every call from the n-th on fails.
    for_good: bool,
    /// Permitted codes; empty if the failure is not visible.
    codes: Vec<FaultCode>,
}

impl Failure {
    fn disk(&self, n: u64) -> Disk {
        let &Self { verdict, for_good, .. } = self;
        Disk::new(
            move |number, _| {
                if number == n || for_good && number > n { verdict } else { Verdict::Pass }
            },
        )
    }
}

fn failures(side: Side) -> Vec<Failure> {
    use FaultCode as C;
    let once = |verdict, codes: &[C]| Failure { verdict, for_good: false, codes: codes.to_vec() };
    let fail = |errno: Errno, codes| once(Verdict::Fail(errno.raw_os_error()), codes);
    let dead = |codes| Failure { for_good: true, ..fail(Errno::IO, codes) };
    // If a directory or file cannot be created, its contents or its hard links fail too.
    match side {
        Side::Sender => vec![
            fail(Errno::IO, &[C::Io]),
            dead(&[C::Io]),
            fail(Errno::ACCESS, &[C::Unreadable, C::Io]),
            fail(Errno::INTR, &[]),
        ],
        Side::Receiver => vec![
            fail(Errno::IO, &[C::Io, C::NotADirectory]),
            dead(&[C::Io, C::NotADirectory]),
            fail(Errno::NOSPC, &[C::DiskFull]),
            fail(Errno::DQUOT, &[C::DiskFull]),
            fail(Errno::ACCESS, &[C::ReadOnly, C::NotADirectory, C::Io]),
            once(Verdict::Short, &[]),
            fail(Errno::INTR, &[]),
        ],
    }
}

/// Creates a source with entries of every kind.
fn source(src: &Path) {
    fs::create_dir_all(src.join("sub/deeper")).unwrap();
    fs::create_dir(src.join("closed")).unwrap();
    for (name, len) in [("big", 3 << 20), ("resumed", 3 << 20), ("empty", 0), ("same", 100), ("old", 2000)] {
        fs::write(src.join(name), contents(len, len as u64 + 1)).unwrap();
        set_mtime(&src.join(name), 1_000_000_000, 123_456_789);
    }
    let sparse = fs::File::create(src.join("sub/sparse")).unwrap();
    sparse.set_len(4 << 20).unwrap();
    sparse.write_all_at(&contents(70_000, 5), 2 << 20).unwrap();
    for name in ["closed/inside", "sub/one", "sub/deeper/two"] {
        fs::write(src.join(name), contents(3000, 7)).unwrap();
    }
    fs::create_dir(src.join("names")).unwrap();
    for name in ["names/of old", "sub/another"] {
        fs::hard_link(src.join("old"), src.join(name)).unwrap();
    }
    symlink("../old", src.join("sub/link")).unwrap();
    symlink("nowhere", src.join("dangling")).unwrap();
    set_mtime(&src.join("sub/link"), 77, 88);
    set_mtime(&src.join("sub/one"), -5, 5);
    set_mode(&src.join("closed"), 0o555);
    set_mtime(&src.join("closed"), 5, 5);
}

/// Creates a destination with files that are equal, older, and incomplete.
fn occupied(src: &Path, dst: &Path) {
    fs::create_dir_all(dst.join("sub")).unwrap();
    fs::write(dst.join("old"), "what was there before").unwrap();
    fs::write(dst.join("sub/one"), "also there before").unwrap();
    fs::write(dst.join("mine"), "not in the set").unwrap();
    fs::write(dst.join("sub/another"), "a file of its own").unwrap();
    symlink("elsewhere", dst.join("dangling")).unwrap();
    copy_tree(&src.join("same"), &dst.join("same"));
    let (a, b) = link_pair();
    let receive = receive_files(&bytes(dst), &Root::Anywhere, Layout::Into, b, options()).unwrap();
    let resumed = vec![bytes(&src.join("resumed"))];
    let send = send_files(resumed, Root::Anywhere, &Selection::default(), a, SendLimits::default()).unwrap();
    let (mut send, mut receive) = (send, receive);
    let pump = Pump { stop_after: Some(2 << 20), ..Pump::default() };
    pump.run(&mut *send.source, &mut *receive.sink, &|| false);
    send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    assert!(send.handle.join().is_err() && receive.handle.join().is_err());
}

/// Copies a tree as `cp -a` does. Starting a process would briefly duplicate our locks (fork(2)).
fn copy_tree(from: &Path, to: &Path) {
    let meta = from.symlink_metadata().unwrap();
    if meta.is_symlink() {
        symlink(fs::read_link(from).unwrap(), to).unwrap();
    } else if meta.is_dir() {
        fs::create_dir(to).unwrap();
        for name in fs::read_dir(from).unwrap().map(|item| item.unwrap().file_name()) {
            copy_tree(&from.join(&name), &to.join(&name));
        }
        set_mode(to, meta.mode() & 0o7777);
    } else {
        fs::copy(from, to).unwrap();
    }
    set_mtime(to, meta.mtime(), meta.mtime_nsec());
}

/// A source, and the initial state of the destination.
struct World {
    dir: tempfile::TempDir,
    scene: Scene,
}

impl World {
    fn new(scene: Scene) -> Self {
        // In memory if possible: everything is synced here.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        source(&dir.path().join("src"));
        fs::create_dir(dir.path().join("before")).unwrap();
        if scene != Scene::Fresh {
            occupied(&dir.path().join("src"), &dir.path().join("before/dst"));
        }
        if scene == Scene::Mirrored {
            fs::create_dir_all(dir.path().join("before/dst/sub/mine/deeper")).unwrap();
            fs::write(dir.path().join("before/dst/sub/mine/deeper/file"), "neither").unwrap();
        }
        Self { dir, scene }
    }

    fn src(&self) -> PathBuf {
        self.dir.path().join("src")
    }

    fn before(&self) -> PathBuf {
        self.dir.path().join("before")
    }

    /// Copies the initial state of the destination.
    fn begin(&self, case: &str) -> PathBuf {
        let place = self.dir.path().join(case);
        copy_tree(&self.before(), &place);
        place
    }

    fn start(&self, place: &Path, side: Side, disk: &Disk) -> Result<Pair, Fault> {
        let (a, b) = link_pair();
        let (sources, layout) = match self.scene {
            Scene::Fresh => (bytes(&self.src()), Layout::As),
            Scene::Occupied | Scene::Mirrored => ([&bytes(&self.src())[..], b"/."].concat(), Layout::Into),
        };
        let destination = bytes(&place.join("dst"));
        let synced = ReceiveOptions::with_policy(0xabcd, self.scene.receive_policy());
        let receiving = || receive_files(&destination, &Root::Anywhere, layout, b, synced);
        let receive: ReceiveJob = if side == Side::Receiver { disk.run(receiving) } else { receiving() }?;
        let limits = SendLimits::default();
        let sending = || send_files(vec![sources], Root::Anywhere, &Selection::default(), a, limits);
        let send: SendJob = if side == Side::Sender { disk.run(sending) } else { sending() }?;
        Ok(Pair { send, receive })
    }

    /// Asserts that every name has either its old or its new contents, complete.
    fn assert_old_or_new(&self, place: &Path) {
        let (dst, old) = (place.join("dst"), self.before().join("dst"));
        for path in if dst.exists() { names_below(&dst) } else { Vec::new() } {
            let name = path.strip_prefix(&dst).unwrap();
            let is_part = name.file_name().unwrap().to_string_lossy().starts_with(".haul-");
            let there = |root: &Path| root.join(name).symlink_metadata().is_ok();
            let is = |root: &Path| there(root) && same_contents(&root.join(name), &path);
            assert!(is_part || is(&old) || is(&self.src()), "{} is neither old nor new", name.display());
        }
        for path in if old.exists() { names_below(&old) } else { Vec::new() } {
            let name = path.strip_prefix(&old).unwrap();
            let is_part = name.file_name().unwrap().to_string_lossy().starts_with(".haul-");
            let may_go = self.scene == Scene::Mirrored && is_mine(name);
            let is_there = dst.join(name).symlink_metadata().is_ok();
            assert!(is_part || may_go || is_there, "{} has gone", name.display());
        }
    }

    /// Asserts that the destination is complete and has nothing else.
    fn assert_complete(&self, place: &Path) {
        let (src, dst) = (self.src(), place.join("dst"));
        for path in names_below(&src) {
            // One by one, because the destination directory may have more names than the source.
            let name = path.strip_prefix(&src).unwrap();
            assert_same(&path, &dst.join(name));
        }
        for path in names_below(&dst) {
            let name = path.strip_prefix(&dst).unwrap();
            let is_extra = self.scene == Scene::Occupied && is_mine(name);
            assert!(is_extra || src.join(name).symlink_metadata().is_ok(), "{} is left", name.display());
        }
        let id = |name: &str| dst.join(name).symlink_metadata().unwrap().ino();
        assert_eq!((id("names/of old"), id("sub/another")), (id("old"), id("old")));
        let remaining: Vec<_> = fs::read_dir(place).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(remaining, ["dst"]);
    }

    /// Runs one case. True: the call was reached.
    fn case(&self, side: Side, n: u64, failure: &Failure) -> bool {
        let place = self.begin("case");
        let disk = failure.disk(n);
        let ends = self.start(&place, side, &disk).map(|pair| pair.run(&Pump::default()));
        self.assert_old_or_new(&place);
        let failed = judge(&ends, &failure.codes);
        if !failed && self.scene == Scene::Fresh {
            assert_same(&self.src(), &place.join("dst"));
        }
        if !failed && self.scene == Scene::Fresh && !has_journal(&place) {
            // The same command would copy into the directory, as `cp` does; so another one cleans up.
            copy(&[&self.src().join("dangling")], &place, Layout::Into).clean();
            fs::remove_file(place.join("dangling")).unwrap();
        } else {
            // Also if only the removal of the journal failed: then the same command resumes that job.
            let none = Disk::new(|_, _| Verdict::Pass);
            self.start(&place, side, &none).unwrap().run(&Pump::default()).clean();
        }
        self.assert_complete(&place);
        set_mode(&place.join("dst/closed"), 0o755);
        fs::remove_dir_all(&place).unwrap();
        disk.calls() > n
    }
}

/// Whether anything failed; asserts that it failed with one of `codes` and that both sides know.
fn judge(ends: &Result<Ends, Fault>, codes: &[FaultCode]) -> bool {
    let ends = match ends {
        Ok(ends) => ends,
        Err(fault) => {
            assert!(codes.contains(&fault.code), "{fault:?}");
            return true;
        }
    };
    match (&ends.sent, &ends.received) {
        (Ok(sent), Ok(received)) => {
            assert_eq!(sent, received);
            for (_, fault) in sent.failures.named() {
                assert!(codes.contains(&fault.code), "{fault:?}");
            }
            if let Some(fault) = &sent.removal.fault {
                let kept = sent.failures.count() > 0 && fault.code == FaultCode::NotPermitted;
                assert!(kept || codes.contains(&fault.code), "{fault:?}");
            }
            sent.failures.count() > 0
        }
        (Err(sent), Err(received)) => {
            assert_eq!(sent.code, received.code, "{ends:?}");
            assert!(codes.contains(&sent.code), "{ends:?}");
            true
        }
        _ => panic!("only one side reports the failure: {ends:?}"),
    }
}

/// Length of a journal's header in bytes.
const JOURNAL_HEADER: u64 = 14;

/// Whether a journal with records exists. The journal of a finished job is emptied where it cannot be
/// removed.
fn has_journal(place: &Path) -> bool {
    fs::read_dir(place).unwrap().map(Result::unwrap).any(|entry| {
        let is_journal = entry.path().extension().is_some_and(|extension| extension == "journal");
        is_journal && entry.metadata().unwrap().len() > JOURNAL_HEADER
    })
}

/// Whether a name at the destination is not in the set.
fn is_mine(name: &Path) -> bool {
    name.starts_with("mine") || name.starts_with("sub/mine")
}

fn same_contents(a: &Path, b: &Path) -> bool {
    let (meta_a, meta_b) = (a.symlink_metadata().unwrap(), b.symlink_metadata().unwrap());
    meta_a.file_type() == meta_b.file_type()
        && match () {
            () if meta_a.is_dir() => true,
            () if meta_a.is_symlink() => fs::read_link(a).unwrap() == fs::read_link(b).unwrap(),
            () => meta_a.size() == meta_b.size() && fs::read(a).unwrap() == fs::read(b).unwrap(),
        }
}

/// Runs `work` with a timeout.
fn watched<T: Send>(what: &str, work: impl FnOnce() -> T + Send) -> T {
    let (done, watch) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if watch.recv_timeout(HANG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what} hangs");
                std::process::abort();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        drop(done);
        result.unwrap_or_else(|panic| {
            eprintln!("this was {what}");
            std::panic::resume_unwind(panic)
        })
    })
}

fn sweep(scene: Scene, side: Side) {
    let world = World::new(scene);
    let failures = failures(side);
    let try_one = |n: u64, failure: &Failure| {
        let what = format!("call {n} of the {side:?}, {scene:?}, {failure:?}");
        watched(&what, || world.case(side, n, failure))
    };
    let how = std::env::var("HAUL_SWEEP").unwrap_or_default();
    if let Some((failure, first)) = how.split_once('@') {
        let mut n = first.parse().unwrap();
        while try_one(n, &failures[failure.parse::<usize>().unwrap()]) {
            n += 1;
        }
        return;
    }
    if how == "full" {
        for failure in &failures {
            let mut n = 0;
            while try_one(n, failure) {
                n += 1;
            }
        }
        return;
    }
    let place = world.begin("count");
    let mut rng = Rng::from_seed(7);
    let log = Arc::new(Mutex::new(Vec::new()));
    let calls = log.clone();
    let disk = Disk::new(move |_, call| {
        calls.lock().unwrap().push(call);
        Verdict::Pass
    });
    world.start(&place, side, &disk).unwrap().run(&Pump::default()).clean();
    // Most calls move bytes, and those are alike.
    let mut is_chosen = |call: &Call| !matches!(call, Call::Read(_) | Call::Write(_)) || rng.chance(0.05);
    let calls = log.lock().unwrap();
    let chosen: Vec<u64> = (0..).zip(&*calls).filter_map(|(n, call)| is_chosen(call).then_some(n)).collect();
    assert!(chosen.len() > 50, "{} calls", chosen.len());
    drop(calls);
    for i in 0..how.parse().unwrap_or(SAMPLE) {
        let n = chosen[rng.below(chosen.len() as u64) as usize];
        try_one(n, &failures[i % failures.len()]);
    }
}

#[test]
fn sender_disk_failures_with_an_empty_destination() {
    sweep(Scene::Fresh, Side::Sender);
}

#[test]
fn sender_disk_failures_with_an_occupied_destination() {
    sweep(Scene::Occupied, Side::Sender);
}

#[test]
fn receiver_disk_failures_with_an_empty_destination() {
    sweep(Scene::Fresh, Side::Receiver);
}

#[test]
fn sender_disk_failures_with_deletion() {
    sweep(Scene::Mirrored, Side::Sender);
}

#[test]
fn receiver_disk_failures_with_deletion() {
    sweep(Scene::Mirrored, Side::Receiver);
}

#[test]
fn receiver_disk_failures_with_an_occupied_destination() {
    sweep(Scene::Occupied, Side::Receiver);
}
