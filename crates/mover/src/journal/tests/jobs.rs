//! Consecutive and concurrent jobs.

use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::journal::find_journals;
use crate::journal::record::Record;

const MIB: u64 = 1 << 20;

#[test]
fn a_finished_job_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::create(open(dir.path()).as_fd()).unwrap();
    let mode = fs::metadata(dir.path().join(journal_name(journal.id()))).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    journal.begin(4, &identity("f", 100));
    journal.record_written(4, 0..100);
    journal.file_removed(4);
    journal.finish(false);
    assert!(hidden(dir.path()).is_empty());
}

#[test]
fn adjacent_ranges_are_recorded_as_one_after_8_mib() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::create(open(dir.path()).as_fd()).unwrap();
    journal.begin(1, &identity("f", 100 * MIB));
    let path = dir.path().join(journal_name(journal.id()));
    let initial = fs::metadata(&path).unwrap().len();
    for mib in 0..7 {
        journal.record_written(1, mib * MIB..(mib + 1) * MIB);
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), initial);
    journal.record_written(1, 7 * MIB..8 * MIB);
    let flushed = fs::metadata(&path).unwrap().len();
    assert!(flushed > initial && flushed < initial + 30, "one record: {initial} to {flushed}");
    journal.record_written(1, 10 * MIB..11 * MIB);
    assert_eq!(read_journal(dir.path(), journal.id()).state.files[&1].written, ranges(&[(0, 8 * MIB)]));
    journal.flush();
    let written = &read_journal(dir.path(), journal.id()).state.files[&1].written;
    assert_eq!(*written, ranges(&[(0, 8 * MIB), (10 * MIB, 11 * MIB)]));
}

#[test]
fn finding_leftovers_without_a_hold_does_not_block_resuming() {
    let dir = tempfile::tempdir().unwrap();
    interrupted_job(dir.path(), "d/f", 100, 10..60);
    let mut looking = Leftovers::find(open(dir.path()).as_fd(), LockMode::Release).unwrap();
    let mut resuming = adopt(dir.path());
    assert!(resuming.skipped().is_empty());
    assert_eq!(looking.take(b"d/f").unwrap().record.written, resuming.take(b"d/f").unwrap().record.written);
}

#[test]
fn the_next_job_takes_each_leftover_once() {
    let dir = tempfile::tempdir().unwrap();
    let id = interrupted_job(dir.path(), "d/f", 100, 10..60);
    let mut leftovers = adopt(dir.path());
    assert_eq!(leftovers.take(b"d/g"), None);
    let claim = leftovers.take(b"d/f").unwrap();
    assert_eq!(claim.record.identity, identity("d/f", 100));
    assert_eq!(claim.record.written, ranges(&[(10, 60)]));
    assert_eq!(claim.part, format!(".haul-{id:08x}-1.part").into_bytes());
    assert_eq!(leftovers.take(b"d/f"), None);

    // Not consumed, so the next job finds it again.
    leftovers.finish();
    let mut leftovers = adopt(dir.path());
    let claim = leftovers.take(b"d/f").unwrap();
    fs::rename(dir.path().join(format!("d/.haul-{id:08x}-1.part")), dir.path().join("d/mine")).unwrap();
    leftovers.consumed(&claim);
    leftovers.finish();
    assert_eq!(hidden(dir.path()), [""; 0]);
    assert!(dir.path().join("d/mine").exists());
}

#[test]
fn the_newest_journal_is_taken_before_older_ones() {
    let dir = tempfile::tempdir().unwrap();
    let ids: Vec<u32> = (1..=3).map(|job| interrupted_job(dir.path(), "f", 100, 0..10 * job)).collect();
    for (age, id) in ids.iter().rev().enumerate() {
        let time = std::time::SystemTime::now() - Duration::from_secs(60 * age as u64);
        fs::File::open(dir.path().join(journal_name(*id))).unwrap().set_modified(time).unwrap();
    }
    let mut leftovers = adopt(dir.path());
    assert_eq!(leftovers.take(b"f").unwrap().record.written, ranges(&[(0, 30)]));
    let second = leftovers.take(b"f").unwrap();
    assert_eq!(second.record.written, ranges(&[(0, 20)]));
    fs::remove_file(dir.path().join(std::str::from_utf8(&second.part).unwrap())).unwrap();
    leftovers.consumed(&second);
    leftovers.finish();
    // The newest was not consumed and stays; the oldest is superseded and removed.
    let remaining = [format!(".haul-{:08x}-1.part", ids[2]), format!(".haul-{:08x}.journal", ids[2])];
    assert_eq!(hidden(dir.path()), remaining);
}

#[test]
fn the_newest_journal_comes_first_even_if_it_is_in_use_already() {
    let dir = tempfile::tempdir().unwrap();
    let older = interrupted_job(dir.path(), "file", 9_000, 0..1_000);
    let minute_ago = std::time::SystemTime::now() - Duration::from_secs(60);
    fs::File::open(dir.path().join(journal_name(older))).unwrap().set_modified(minute_ago).unwrap();
    let newer = Journal::create(open(dir.path()).as_fd()).unwrap();
    for (number, path) in [(1, "another"), (2, "file")] {
        newer.begin(number, &identity(path, 9_000));
        fs::write(dir.path().join(newer.part_name(number)), "x").unwrap();
        newer.record_written(number, 0..2_000);
    }
    newer.flush();
    drop(newer);
    let mut leftovers = adopt(dir.path());
    assert!(leftovers.take(b"another").is_some());
    for written in [2_000, 1_000] {
        assert_eq!(leftovers.take(b"file").unwrap().record.written, ranges(&[(0, written)]));
    }
}

#[test]
fn a_claim_needs_a_temporary_file_with_recorded_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let without_part = interrupted_job(dir.path(), "gone", 100, 0..50);
    fs::remove_file(dir.path().join(format!(".haul-{without_part:08x}-1.part"))).unwrap();
    interrupted_job(dir.path(), "empty", 100, 0..0);
    let mut leftovers = adopt(dir.path());
    assert_eq!(leftovers.take(b"gone"), None);
    assert_eq!(leftovers.take(b"empty"), None);
    leftovers.finish();
    assert!(hidden(dir.path()).is_empty());
}

#[test]
fn only_unclaimed_temporary_files_of_the_journal_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let id = interrupted_job(dir.path(), "d/f", 100, 0..50);
    let names = [
        format!("d/.haul-{id:08x}-77.part"),
        format!("d/.haul-{id:08x}-x.part"),
        format!("d/.haul-{:08x}-1.part", id ^ 1),
        format!("e/.haul-{id:08x}-1.part"),
        "d/f".to_owned(),
    ];
    fs::create_dir(dir.path().join("e")).unwrap();
    for name in &names {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let mut leftovers = adopt(dir.path());
    let claim = leftovers.take(b"d/f").unwrap();
    leftovers.discard(&claim);
    leftovers.finish();
    assert!(hidden(dir.path()).is_empty());
    let exists: Vec<bool> = names.iter().map(|name| dir.path().join(name).exists()).collect();
    assert_eq!(exists, [false, true, true, true, true]);
}

#[test]
fn a_running_job_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::create(open(dir.path()).as_fd()).unwrap();
    journal.begin(1, &identity("f", 100));
    journal.record_written(1, 0..10);
    journal.flush();
    let mut leftovers = adopt(dir.path());
    assert!(leftovers.skipped().is_empty() && leftovers.is_waiting_for(journal.id()));
    assert_eq!(leftovers.take(b"f"), None);
    leftovers.finish();
    journal.finish(false);
    assert_eq!(hidden(dir.path()).len(), 1);
}

/// The receiver of a killed copy, which ends while the same copy is requested again.
#[test]
fn an_ending_job_on_the_same_file_is_waited_for() {
    for lock_mode in [LockMode::Keep, LockMode::Release] {
        let dir = tempfile::tempdir().unwrap();
        let directory = open(dir.path());
        let [ending, other] = [(); 2].map(|()| Journal::create(directory.as_fd()).unwrap());
        for (journal, file) in [(&ending, "f"), (&other, "g")] {
            journal.begin(1, &identity(file, 100));
            fs::write(dir.path().join(journal.part_name(1)), "x").unwrap();
        }
        let mut leftovers = Leftovers::find(directory.as_fd(), lock_mode).unwrap();
        assert_eq!((leftovers.is_empty_at(b"f"), leftovers.is_empty_at(b"h")), (false, true));
        leftovers.set_beginning(Instant::now() + Duration::from_secs(60));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                ending.record_written(1, 0..10);
                ending.finish(false);
            });
            assert_eq!(leftovers.take(b"f").unwrap().record.written, ranges(&[(0, 10)]));
        });
        leftovers.set_beginning(Instant::now());
        assert_eq!((leftovers.take(b"f"), leftovers.take(b"g")), (None, None));
    }
}

#[test]
fn each_claim_goes_to_exactly_one_of_many_jobs() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        for file in ["a", "b", "c"] {
            interrupted_job(dir.path(), file, 100, 0..50);
        }
        let barrier = Barrier::new(4);
        let taken: Vec<String> = std::thread::scope(|scope| {
            let adopter = || {
                barrier.wait();
                let mut leftovers = adopt(dir.path());
                let taken: Vec<_> =
                    ["a", "b", "c"].into_iter().filter(|f| leftovers.take(f.as_bytes()).is_some()).collect();
                // No thread releases its journals until every thread has looked for them.
                barrier.wait();
                leftovers.finish();
                taken
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(adopter)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).map(str::to_owned).collect()
        });
        let mut sorted = taken.clone();
        sorted.sort();
        assert_eq!(sorted, ["a", "b", "c"], "each exactly once");
    }
}

/// Sets its flag when dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_journal_survives_a_concurrent_cleanup_while_it_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    adopt(dir.path()).finish();
                    let _ = find_journals(dir.path());
                }
            });
        }
        // Stops the threads even if an assertion fails.
        let _stop = Stop(&done);
        for _ in 0..200 {
            let journal = Journal::create(open(dir.path()).as_fd()).unwrap();
            journal.begin(1, &identity("f", 100));
            let path = dir.path().join(journal_name(journal.id()));
            assert!(path.exists(), "it was removed");
            assert_eq!(read_journal(dir.path(), journal.id()).state.files.len(), 1);
            journal.file_removed(1);
            journal.finish(false);
            assert!(!path.exists(), "it stays");
        }
    });
    assert!(hidden(dir.path()).is_empty());
}

#[test]
fn several_threads_write_into_one_journal() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::create(open(dir.path()).as_fd()).unwrap();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let journal = &journal;
            scope.spawn(move || {
                journal.record_directory(format!("d{number}").as_bytes());
                journal.begin(number, &identity(&format!("d{number}/f"), 1000 * MIB));
                for mib in (0..200).map(|n| n * (1 + u64::from(number))) {
                    journal.record_written(number, mib * MIB..(mib + 1) * MIB);
                }
                journal.sync();
            });
        }
    });
    let state = read_journal(dir.path(), journal.id()).state;
    assert_eq!((state.directories.len(), state.files.len()), (4, 4));
    assert!(state.files.values().all(|record| record.written.total() == 200 * MIB));
    assert_eq!(state.files[&0].written, ranges(&[(0, 200 * MIB)]));
}

#[test]
fn a_torn_tail_is_cut_before_anything_is_appended() {
    let dir = tempfile::tempdir().unwrap();
    let id = interrupted_job(dir.path(), "f", 100, 0..50);
    let path = dir.path().join(journal_name(id));
    let mut bytes = fs::read(&path).unwrap();
    let good = bytes.len();
    Log::new(id).encode(0, &Record::File { number: 2, identity: identity("g", 100) }, &mut bytes);
    Log::new(id).encode(0, &Record::Wrote { number: 2, start: 0, len: 9 }, &mut bytes);
    bytes[good + 20] ^= 1;
    fs::write(&path, &bytes).unwrap();
    fs::write(dir.path().join(format!(".haul-{id:08x}-2.part")), "").unwrap();
    let mut leftovers = adopt(dir.path());
    assert_eq!(leftovers.take(b"g"), None);
    let claim = leftovers.take(b"f").unwrap();
    leftovers.consumed(&claim);
    drop(leftovers);
    let read = read_journal(dir.path(), id);
    assert!(read.state.files.is_empty());
    assert_eq!(read.end, fs::metadata(&path).unwrap().len(), "data follows the last valid record");
}

#[derive(Clone, Debug)]
enum Step {
    Directory(u8),
    Begin(u32),
    Wrote(u32, u64, u64),
    Gone(u32),
    Flush,
}

fn any_step() -> impl Strategy<Value = Step> {
    let number = 0u32..3;
    prop_oneof![
        1 => (0u8..3).prop_map(Step::Directory),
        3 => number.clone().prop_map(Step::Begin),
        8 => (number.clone(), 0u64..40, 0u64..9).prop_map(|(n, s, l)| Step::Wrote(n, s * MIB, l * MIB)),
        2 => number.prop_map(Step::Gone),
        1 => Just(Step::Flush),
    ]
}

/// The expected state of a job: the ranges written to each file, by path. Each file is begun once.
#[derive(Default)]
struct Model {
    written: HashMap<Vec<u8>, RangeSet>,
    live: HashMap<u32, Vec<u8>>,
}

const SIZE: u64 = 44 * MIB;

impl Model {
    fn step(&mut self, journal: &Journal, step: &Step) {
        match *step {
            Step::Directory(n) => journal.record_directory(format!("d{n}").as_bytes()),
            Step::Begin(number) => {
                let path = format!("f{}", self.written.len());
                journal.begin(number, &identity(&path, SIZE));
                self.written.insert(path.clone().into(), RangeSet::new());
                self.live.insert(number, path.into());
            }
            Step::Wrote(number, start, len) => {
                journal.record_written(number, start..start + len);
                if let Some(path) = self.live.get(&number) {
                    self.written.get_mut(path).unwrap().insert(start..(start + len).min(SIZE));
                }
            }
            Step::Gone(number) => {
                journal.file_removed(number);
                self.live.remove(&number);
            }
            Step::Flush => journal.flush(),
        }
    }

    /// Whether no file has more recorded than was written to it.
    fn bounds(&self, read: &Log) -> bool {
        read.state.files.values().all(|record| {
            let written = &self.written[&record.identity.path];
            record.written.iter().all(|range: Range<u64>| written.covers(range))
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_journal_never_claims_unwritten_bytes(
        steps in prop::collection::vec(any_step(), 0..40),
        flips in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 8),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::create(open(dir.path()).as_fd()).unwrap();
        let mut model = Model::default();
        for step in &steps {
            model.step(&journal, step);
            prop_assert!(model.bounds(&read_journal(dir.path(), journal.id())));
        }
        journal.flush();
        let read = read_journal(dir.path(), journal.id());
        prop_assert!(journal.broken().is_none());
        let claimed: HashMap<u32, Vec<u8>> =
            read.state.files.iter().map(|(&n, record)| (n, record.identity.path.clone())).collect();
        prop_assert_eq!(&claimed, &model.live);
        for record in read.state.files.values() {
            prop_assert_eq!(&record.written, &model.written[&record.identity.path]);
        }
        let bytes = fs::read(dir.path().join(journal_name(journal.id()))).unwrap();
        for cut in 0..bytes.len() {
            prop_assert!(model.bounds(&Log::read(journal.id(), &bytes[..cut]).unwrap()));
        }
        for (at, bit) in flips {
            let mut bytes = bytes.clone();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << (bit % 8);
            prop_assert!(Log::read(journal.id(), &bytes[..]).map_or(true, |read| model.bounds(&read)));
        }
    }
}
