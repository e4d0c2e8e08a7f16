//! The journal of a running job.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use haul_base::RangeSet;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::journal::record::{FileIdentity, Log, Made, Record, header, is_local, journal_name, part_name};
use crate::storage::{
    create_in, dup, fallocate, fdatasync, flock, fstat, fsync, open_in, unlink_temporary, unlinkat, write_all,
};

/// Maximum bytes written but not yet journalled: these are sent again after the process was killed.
const MAX_UNRECORDED_BYTES: u64 = 8 << 20;

/// Maximum time for which written bytes stay unjournalled.
const MAX_UNRECORDED_TIME: Duration = Duration::from_secs(1);

/// Disk space in bytes that a journal preallocates, so that it can still be appended to on a full disk.
const RESERVE: u64 = 64 << 10;

const ATTEMPTS: usize = 16;

/// The journal of a running job. Its errors fail no transfer: a journal that cannot be written is
/// [broken](Self::broken) and claims no further bytes.
pub(crate) struct Journal {
    id: u32,
    directory: OwnedFd,
    file: OwnedFd,
    book: Mutex<Book>,
}

struct Book {
    log: Log,
    /// Written ranges of each file that are not yet journalled, and their total in bytes.
    pending: HashMap<u32, RangeSet>,
    pending_bytes: u64,
    cleanup_failed: bool,
    broken: Option<Errno>,
    flushed: Instant,
}

impl Journal {
    pub(crate) fn create(directory: BorrowedFd<'_>) -> Result<Self, Errno> {
        // Reading permits syncing the name; without it the journal still works.
        let directory =
            open_in(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY).or_else(|_| dup(directory))?;
        for _ in 0..ATTEMPTS {
            let id = RandomState::new().build_hasher().finish() as u32;
            if let Some(file) = create_locked(directory.as_fd(), id)? {
                return Ok(Self::new(id, directory, file));
            }
        }
        Err(Errno::EXIST)
    }

    pub(crate) fn new(id: u32, directory: OwnedFd, file: OwnedFd) -> Self {
        let book = Book {
            log: Log::new(id),
            pending: HashMap::new(),
            pending_bytes: 0,
            cleanup_failed: false,
            broken: None,
            flushed: Instant::now(),
        };
        Self { id, directory, file, book: Mutex::new(book) }
    }

    /// Returns the ID shared by the journal and its temporary files.
    #[cfg(test)]
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn part_name(&self, number: u32) -> String {
        part_name(self.id, number)
    }

    /// Must be called before the first temporary file is created in the directory.
    pub(crate) fn note_directory(&self, path: &[u8]) {
        let mut book = self.book.lock();
        if !book.log.state.directories.contains(path) && (path.is_empty() || is_local(path)) {
            book.append(&self.file, vec![Record::Directory(path.to_vec())]);
        }
    }

    /// Records a new directory `name` for the one source. Later jobs use it until the set is complete.
    pub(crate) fn note_made(&self, name: &[u8], source: &[u8]) {
        if is_local(name) && is_local(source) {
            let made = Made { name: name.to_vec(), source: source.to_vec() };
            self.book.lock().append(&self.file, vec![Record::Made(made)]);
        }
    }

    /// Records that a temporary file could not be removed, so that the journal is kept for a later job.
    pub(crate) fn cleanup_failed(&self) {
        self.book.lock().cleanup_failed = true;
    }

    /// Records a file before the first byte is written to its temporary file. Discards an earlier file of
    /// this number.
    pub(crate) fn begin(&self, number: u32, identity: &FileIdentity) {
        let mut book = self.book.lock();
        book.pending.remove(&number);
        let begun = || Record::File { number, identity: identity.clone() };
        if !is_local(&identity.path) || !book.append(&self.file, vec![begun()]) {
            self.forget(&mut book, number);
        }
    }

    /// Records written bytes of the file's stream, at the next flush.
    pub(crate) fn wrote(&self, number: u32, range: Range<u64>) {
        let mut book = self.book.lock();
        if book.broken.is_some() {
            return;
        }
        let Some(noted) = book.log.state.files.get(&number) else { return };
        let range = range.start..range.end.min(noted.identity.size);
        book.pending_bytes += range.end.saturating_sub(range.start);
        book.pending.entry(number).or_default().insert(range);
        if book.pending_bytes >= MAX_UNRECORDED_BYTES {
            book.flush(&self.file);
        }
    }

    /// Records that the temporary file was renamed or removed.
    pub(crate) fn gone(&self, number: u32) {
        let mut book = self.book.lock();
        self.forget(&mut book, number);
    }

    fn forget(&self, book: &mut Book, number: u32) {
        book.pending.remove(&number);
        // Even if broken: the number may be reused, and must not claim the bytes of another file.
        if book.log.state.files.contains_key(&number)
            && let Err(errno) = book.log.append(&self.file, vec![Record::Gone { number }])
        {
            book.broken.get_or_insert(errno);
            book.pending.clear();
            if book.log.clear(&self.file).is_err() {
                // Last resort: if this fails too, verification still detects wrong data.
                let _ = self.unlink();
            }
        }
    }

    pub(crate) fn is_claimed(&self, number: u32) -> bool {
        let book = self.book.lock();
        let noted = book.log.state.files.get(&number).map(|noted| &noted.written);
        [noted, book.pending.get(&number)].into_iter().flatten().any(|written| !written.is_empty())
    }

    pub(crate) fn broken(&self) -> Option<Errno> {
        self.book.lock().broken
    }

    pub(crate) fn flush(&self) {
        self.book.lock().flush(&self.file);
    }

    /// Writes pending records if the last flush was at least [`MAX_UNRECORDED_TIME`] ago. Must be called often.
    pub(crate) fn flush_in_time(&self) {
        let mut book = self.book.lock();
        if book.flushed.elapsed() >= MAX_UNRECORDED_TIME {
            book.flush(&self.file);
        }
    }

    /// Flushes and syncs: records survive a power failure if the temporary files were synced before.
    pub(crate) fn sync(&self) {
        self.flush();
        let done = fdatasync(&self.file);
        // A directory without read permission cannot be synced.
        let _ = fsync(&self.directory);
        if let Err(errno) = done {
            self.book.lock().broken.get_or_insert(errno);
        }
    }

    /// Removes the journal if a later job has no use for it; otherwise keeps and syncs it. A directory made for
    /// the source is of use until the set `is_complete`.
    pub(crate) fn finish(&self, is_complete: bool) {
        let mut book = self.book.lock();
        book.flush(&self.file);
        let made = book.log.state.made.as_ref().filter(|_| !is_complete);
        if made.is_some() || book.cleanup_failed || !book.log.state.files.is_empty() {
            drop(book);
            return self.sync();
        }
        if !matches!(self.unlink(), Ok(()) | Err(Errno::NOENT)) {
            // The next job removes an empty journal. Nothing can be done if this fails too.
            let _ = book.log.clear(&self.file);
        }
    }

    /// Replaces the file, to test errors.
    #[cfg(test)]
    pub(crate) fn with_file(self, file: OwnedFd) -> Self {
        Self { file, ..self }
    }

    fn unlink(&self) -> Result<(), Errno> {
        unlink_temporary(&self.directory, journal_name(self.id))
    }
}

impl Book {
    /// Appends records, unless the journal is broken; an error breaks it.
    fn append(&mut self, file: &OwnedFd, records: Vec<Record>) -> bool {
        if self.broken.is_none()
            && let Err(errno) = self.log.append(file, records)
        {
            self.broken = Some(errno);
            self.pending.clear();
        }
        self.broken.is_none()
    }

    fn flush(&mut self, file: &OwnedFd) {
        (self.flushed, self.pending_bytes) = (Instant::now(), 0);
        let pending = std::mem::take(&mut self.pending);
        let wrote = |number| move |Range { start, end }| Record::Wrote { number, start, len: end - start };
        let records = pending.iter().flat_map(|(&number, written)| written.iter().map(wrote(number)));
        self.append(file, records.collect());
    }
}

/// Returns `None` if another ID must be tried.
fn create_locked(directory: BorrowedFd<'_>, id: u32) -> Result<Option<OwnedFd>, Errno> {
    let name = journal_name(id);
    let file = match create_in(directory, &name, OFlags::RDWR | OFlags::APPEND) {
        Err(Errno::EXIST) => return Ok(None),
        opened => opened?,
    };
    // Another job searching for journals may have removed this one while it was still empty.
    let begin = || {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(false),
            locked => locked?,
        }
        if fstat(&file)?.st_nlink == 0 {
            return Ok(false);
        }
        write_all(&file, &header(id)).map(|()| true)
    };
    let begun = begin();
    if begun == Ok(true) {
        // Without preallocated space it works while the disk has some.
        let _ = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVE);
    } else {
        let _ = unlinkat(directory, &name, AtFlags::empty());
    }
    Ok(begun?.then_some(file))
}
