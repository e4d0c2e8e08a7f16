//! Foreign files with journal names.

use std::os::unix::fs::symlink;

use rustix::fs::{FileType, mknodat};

use super::*;
use crate::journal::record::header;
use crate::journal::{SkipReason, is_reserved};

#[test]
fn foreign_files_with_journal_names_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |id| dir.path().join(journal_name(id));
    fs::write(at(1), "not a journal").unwrap();
    fs::write(at(2), header(1)).unwrap();
    let mut later = header(3);
    later[8..10].copy_from_slice(&7u16.to_le_bytes());
    fs::write(at(3), later).unwrap();
    fs::write(dir.path().join("elsewhere"), header(4)).unwrap();
    symlink("elsewhere", at(4)).unwrap();
    fs::create_dir(at(5)).unwrap();
    mknodat(open(dir.path()), journal_name(6), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let leftovers = adopt(dir.path());
    let mut skipped = leftovers.skipped().to_vec();
    skipped.sort_by_key(|(id, _)| *id);
    let foreign = |id| (id, SkipReason::Foreign);
    assert_eq!(
        skipped,
        [foreign(1), foreign(2), (3, SkipReason::Version(7)), foreign(4), foreign(5), foreign(6)]
    );
    leftovers.finish();
    assert_eq!(hidden(dir.path()).len(), 6);
}

#[test]
fn a_journal_without_records_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(journal_name(1)), "").unwrap();
    fs::write(dir.path().join(journal_name(2)), &header(2)[..9]).unwrap();
    fs::write(dir.path().join(journal_name(3)), header(3)).unwrap();
    adopt(dir.path()).finish();
    assert!(hidden(dir.path()).is_empty());
}

#[test]
fn only_the_newest_64_journals_are_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    for id in 0..300 {
        let file = fs::File::create(dir.path().join(journal_name(id))).unwrap();
        file.set_modified(old + std::time::Duration::from_secs(u64::from(id * 7 % 300))).unwrap();
    }
    adopt(dir.path()).finish();
    let remaining = hidden(dir.path());
    assert_eq!(remaining.len(), 236);
    assert!((0..300).all(|id| remaining.contains(&journal_name(id)) == (id * 7 % 300 < 236)));
}

#[test]
fn temporary_files_are_not_searched_through_links() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let id = interrupted_job(dir.path(), "d/f", 100, 0..50);
    fs::remove_dir_all(dir.path().join("d")).unwrap();
    symlink(outside.path(), dir.path().join("d")).unwrap();
    let bait = outside.path().join(format!(".haul-{id:08x}-1.part"));
    fs::write(&bait, "").unwrap();
    let mut leftovers = adopt(dir.path());
    assert_eq!(leftovers.take(b"d/f"), None);
    leftovers.finish();
    assert!(bait.exists());
    assert!(hidden(dir.path()).is_empty());
}

#[test]
fn names_of_journals_and_temporary_files_are_reserved() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::create(open(dir.path()).as_fd()).unwrap();
    assert!(is_reserved(journal.part_name(3).as_bytes()));
    assert!(is_reserved(journal_name(journal.id() ^ 1).as_bytes()));
    // Another job's temporary files are reserved as well, also on case-insensitive file systems.
    assert!(is_reserved(format!(".haul-{:08x}-3.part", journal.id() ^ 1).as_bytes()));
    assert!(is_reserved(b".Haul-000000AB-3.PART"));
    assert!(!is_reserved(b".haul-readme"));
}
