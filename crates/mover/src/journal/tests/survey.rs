//! `haul status` and `haul clean`: listing and removing leftover journals.

use super::*;
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

use crate::journal::{JournalState, find_journals, remove_journal, subdirectories};

#[test]
fn journals_are_found_with_their_state_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let cut = interrupted_job(dir.path(), "d/f", 100, 0..50);
    fs::write(dir.path().join(format!("d/.haul-{cut:08x}-9.part")), vec![1; 10_000]).unwrap();
    let running = Journal::create(open(dir.path()).as_fd()).unwrap();
    fs::write(dir.path().join(journal_name(7)), "something else").unwrap();
    let found = find_journals(dir.path()).unwrap();
    let of = |id| found.iter().find(|journal| journal.name == journal_name(id)).unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!((&of(cut).state, of(cut).parts), (&JournalState::LeftOver, 2));
    assert!(of(cut).occupied.0 >= 8192, "{:?}", of(cut));
    let file = &of(cut).files[0];
    assert_eq!((file.path.as_slice(), file.have.0, file.size.0), (&b"d/f"[..], 50, 100));
    assert_eq!(of(running.id()).state, JournalState::Running);
    assert!(matches!(of(7).state, JournalState::NotOurs(_)));
    // Listing changes nothing: the next job can still adopt the journal.
    assert!(adopt(dir.path()).take(b"d/f").is_some());
}

#[test]
fn only_leftover_journals_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cut = interrupted_job(dir.path(), "d/f", 100, 0..50);
    fs::write(dir.path().join(format!("d/.haul-{cut:08x}-9.part")), "").unwrap();
    let running = Journal::create(open(dir.path()).as_fd()).unwrap();
    fs::write(dir.path().join(journal_name(7)), "something else").unwrap();
    for journal in find_journals(dir.path()).unwrap() {
        assert_eq!(remove_journal(dir.path(), &journal).unwrap(), journal.state == JournalState::LeftOver);
    }
    let mut remaining = [journal_name(7), journal_name(running.id())];
    remaining.sort();
    assert_eq!(hidden(dir.path()), remaining);
    assert!(hidden(&dir.path().join("d")).is_empty());
}

#[test]
fn a_journal_stays_while_its_files_cannot_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let id = interrupted_job(dir.path(), "d/f", 100, 0..50);
    let obstacle = dir.path().join(format!("d/.haul-{id:08x}-9.part"));
    fs::create_dir(&obstacle).unwrap();
    let found = find_journals(dir.path()).unwrap();
    assert_eq!(remove_journal(dir.path(), &found[0]).unwrap_err().kind(), std::io::ErrorKind::IsADirectory);
    fs::remove_dir(&obstacle).unwrap();
    assert!(remove_journal(dir.path(), &found[0]).unwrap());
    assert!(hidden(dir.path()).is_empty());
}

#[test]
fn journals_are_found_and_removed_below_very_long_paths() {
    let dir = tempfile::tempdir().unwrap();
    let (name, mut path) = ("n".repeat(250), PathBuf::from(dir.path()));
    let mut at = openat(CWD, dir.path(), OFlags::PATH, Mode::empty()).unwrap();
    for level in 0..40 {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = openat(&at, &name, OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(subdirectories(&path).unwrap(), [&*name], "level {level}");
        path.push(&name);
    }
    assert!(subdirectories(&path).unwrap().is_empty());
    let id = Journal::create(at.as_fd()).unwrap().id();
    let found = find_journals(&path.join(".//./")).unwrap();
    assert_eq!((found.len(), &*found[0].name), (1, &*journal_name(id)));
    assert!(remove_journal(&path, &found[0]).unwrap());
    assert!(find_journals(&path).unwrap().is_empty());
    let too_long = PathBuf::from("n".repeat(5_000));
    assert_eq!(find_journals(&too_long).unwrap_err().kind(), std::io::ErrorKind::InvalidFilename);
}
