//! Journals that become unwritable.

use rustix::fs::{
    FlockOperation, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl, flock, fstat,
    memfd_create,
};
use rustix::io::{Errno, dup, pread, write};

use super::*;
use crate::journal::record::{HEADER_LEN, JobState, Record, header};

const ID: u32 = 5;

/// A journal in memory with a file that has 50 bytes recorded and 10 unrecorded, and the memory file.
fn journal_in_memory(dir: &Path) -> (Journal, OwnedFd) {
    let file = memfd_create("journal", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    fcntl_setfl(&file, fcntl_getfl(&file).unwrap() | OFlags::APPEND).unwrap();
    write(&file, &header(ID)).unwrap();
    fs::write(dir.join(journal_name(ID)), "").unwrap();
    let journal = Journal::new(ID, open(dir), dup(&file).unwrap());
    journal.begin(1, &identity("f", 100));
    journal.record_written(1, 0..50);
    journal.flush();
    journal.record_written(1, 50..60);
    (journal, file)
}

/// Makes the file unable to grow, as on a full disk.
fn seal_growth(file: &OwnedFd) {
    fcntl_add_seals(file, SealFlags::GROW).unwrap();
}

fn read(file: &OwnedFd) -> Log {
    let mut bytes = vec![0; fstat(file).unwrap().st_size as usize];
    assert_eq!(pread(file, &mut bytes, 0), Ok(bytes.len()));
    Log::read(ID, &bytes[..]).unwrap()
}

#[test]
fn a_broken_journal_keeps_its_records_and_adds_none() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, file) = journal_in_memory(dir.path());
    seal_growth(&file);
    assert_eq!(journal.broken(), None);
    journal.flush();
    assert_eq!(journal.broken(), Some(Errno::PERM));
    journal.record_directory(b"d");
    journal.begin(2, &identity("g", 100));
    journal.record_written(2, 0..20);
    journal.record_written(1, 60..100);
    assert_eq!((journal.is_claimed(1), journal.is_claimed(2)), (true, false));
    journal.finish(false);
    let state = read(&file).state;
    assert_eq!(state.files.len(), 1);
    assert_eq!(state.files[&1].written, ranges(&[(0, 50)]));
    assert!(dir.path().join(journal_name(ID)).exists());
}

#[test]
fn a_broken_journal_is_removed_once_all_files_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, file) = journal_in_memory(dir.path());
    seal_growth(&file);
    journal.begin(2, &identity("g", 100));
    assert_eq!(journal.broken(), Some(Errno::PERM));
    journal.file_removed(2);
    journal.file_removed(1);
    journal.finish(false);
    assert!(hidden(dir.path()).is_empty());
}

#[test]
fn a_reused_number_does_not_claim_the_bytes_of_another_file() {
    for is_reused in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (journal, file) = journal_in_memory(dir.path());
        seal_growth(&file);
        if is_reused {
            journal.begin(1, &identity("g", 100));
        } else {
            journal.file_removed(1);
        }
        let read = read(&file);
        assert_eq!((read.state, read.end), (JobState::default(), HEADER_LEN));
        assert!(!journal.is_claimed(1));
    }
}

#[test]
fn a_journal_that_cannot_be_truncated_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::create(open(dir.path()).as_fd()).unwrap();
    let (id, path) = (journal.id(), dir.path().join(journal_name(journal.id())));
    drop(journal);
    let journal = Journal::new(id, open(dir.path()), fs::File::open(&path).unwrap().into());
    journal.begin(1, &identity("f", 100));
    assert_eq!(journal.broken(), Some(Errno::BADF));
    drop(journal);
    assert!(path.exists());

    // Writable until a file is recorded, read-only afterwards.
    let (written, only_read) =
        (fs::OpenOptions::new().append(true).open(&path).unwrap(), fs::File::open(&path).unwrap());
    let journal = Journal::new(id, open(dir.path()), written.into());
    journal.begin(1, &identity("f", 100));
    let journal = journal.with_file(only_read.into());
    journal.file_removed(1);
    assert!(!path.exists());
}

#[test]
fn a_partial_record_is_truncated_before_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::create(open(dir.path()).as_fd()).unwrap();
    let (id, path) = (journal.id(), dir.path().join(journal_name(journal.id())));
    let written: OwnedFd = fs::OpenOptions::new().append(true).open(&path).unwrap().into();
    let only_read: OwnedFd = fs::File::open(&path).unwrap().into();
    let mut log = Log::new(id);
    assert_eq!(log.append(&only_read, vec![Record::Removed { number: 1 }]), Err(Errno::BADF));
    write(&written, b"half a record").unwrap();
    log.append(&written, vec![Record::Directory(b"d".into())]).unwrap();
    let read = read_journal(dir.path(), id);
    assert!(read.state.directories.contains(&b"d"[..]));
    assert_eq!(read.end, fs::metadata(&path).unwrap().len());
    // The journal stayed locked.
    assert_eq!(flock(&written, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK));
}
