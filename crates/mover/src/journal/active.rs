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
    inner: Mutex<Inner>,
}

struct Inner {
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
            match create_locked(directory.as_fd(), id) {
                Err(Errno::EXIST | Errno::WOULDBLOCK) => {}
                created => return created.map(|file| Self::new(id, directory, file)),
            }
        }
        Err(Errno::EXIST)
    }

    pub(crate) fn new(id: u32, directory: OwnedFd, file: OwnedFd) -> Self {
        let inner = Inner {
            log: Log::new(id),
            pending: HashMap::new(),
            pending_bytes: 0,
            cleanup_failed: false,
            broken: None,
            flushed: Instant::now(),
        };
        Self { id, directory, file, inner: Mutex::new(inner) }
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
    pub(crate) fn record_directory(&self, path: &[u8]) {
        let mut inner = self.inner.lock();
        if !inner.log.state.directories.contains(path) && (path.is_empty() || is_local(path)) {
            inner.append(&self.file, vec![Record::Directory(path.to_vec())]);
        }
    }

    /// Records a new directory `name` for the one source. Later jobs use it until the set is complete.
    pub(crate) fn record_created(&self, name: &[u8], source: &[u8]) {
        if is_local(name) && is_local(source) {
            let made = Made { name: name.to_vec(), source: source.to_vec() };
            self.inner.lock().append(&self.file, vec![Record::Made(made)]);
        }
    }

    /// Records that a temporary file could not be removed, so that the journal is kept for a later job.
    pub(crate) fn cleanup_failed(&self) {
        self.inner.lock().cleanup_failed = true;
    }

    /// Records a file before the first byte is written to its temporary file. Discards an earlier file of
    /// this number.
    pub(crate) fn begin(&self, number: u32, identity: &FileIdentity) {
        let mut inner = self.inner.lock();
        inner.pending.remove(&number);
        let file_record = || Record::File { number, identity: identity.clone() };
        if !is_local(&identity.path) || !inner.append(&self.file, vec![file_record()]) {
            self.forget(&mut inner, number);
        }
    }

    /// Records written bytes of the file's stream, at the next flush.
    pub(crate) fn record_written(&self, number: u32, range: Range<u64>) {
        let mut inner = self.inner.lock();
        if inner.broken.is_some() {
            return;
        }
        let Some(record) = inner.log.state.files.get(&number) else { return };
        let range = range.start..range.end.min(record.identity.size);
        inner.pending_bytes += range.end.saturating_sub(range.start);
        inner.pending.entry(number).or_default().insert(range);
        if inner.pending_bytes >= MAX_UNRECORDED_BYTES {
            inner.flush(&self.file);
        }
    }

    /// Records that the temporary file was renamed or removed.
    pub(crate) fn file_removed(&self, number: u32) {
        let mut inner = self.inner.lock();
        self.forget(&mut inner, number);
    }

    fn forget(&self, inner: &mut Inner, number: u32) {
        inner.pending.remove(&number);
        // Even if broken: the number may be reused, and must not claim the bytes of another file.
        if inner.log.state.files.contains_key(&number)
            && let Err(errno) = inner.log.append(&self.file, vec![Record::Removed { number }])
        {
            inner.broken.get_or_insert(errno);
            inner.pending.clear();
            if inner.log.clear(&self.file).is_err() {
                // Last resort: if this fails too, verification still detects wrong data.
                let _ = self.unlink();
            }
        }
    }

    pub(crate) fn is_claimed(&self, number: u32) -> bool {
        let inner = self.inner.lock();
        let record = inner.log.state.files.get(&number).map(|record| &record.written);
        [record, inner.pending.get(&number)].into_iter().flatten().any(|written| !written.is_empty())
    }

    pub(crate) fn broken(&self) -> Option<Errno> {
        self.inner.lock().broken
    }

    pub(crate) fn flush(&self) {
        self.inner.lock().flush(&self.file);
    }

    /// Writes pending records if the last flush was at least [`MAX_UNRECORDED_TIME`] ago. Must be called often.
    pub(crate) fn flush_in_time(&self) {
        let mut inner = self.inner.lock();
        if inner.flushed.elapsed() >= MAX_UNRECORDED_TIME {
            inner.flush(&self.file);
        }
    }

    /// Flushes and syncs: records survive a power failure if the temporary files were synced before.
    pub(crate) fn sync(&self) {
        self.flush();
        let done = fdatasync(&self.file);
        // A directory without read permission cannot be synced.
        let _ = fsync(&self.directory);
        if let Err(errno) = done {
            self.inner.lock().broken.get_or_insert(errno);
        }
    }

    /// Removes the journal if a later job has no use for it; otherwise keeps and syncs it. A directory made for
    /// the source is of use until the set `is_complete`.
    pub(crate) fn finish(&self, is_complete: bool) {
        let mut inner = self.inner.lock();
        inner.flush(&self.file);
        let made = inner.log.state.made.as_ref().filter(|_| !is_complete);
        if made.is_some() || inner.cleanup_failed || !inner.log.state.files.is_empty() {
            drop(inner);
            return self.sync();
        }
        if !matches!(self.unlink(), Ok(()) | Err(Errno::NOENT)) {
            // The next job removes an empty journal. Nothing can be done if this fails too.
            let _ = inner.log.clear(&self.file);
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

impl Inner {
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
        let record = |number| move |Range { start, end }| Record::Wrote { number, start, len: end - start };
        let records = pending.iter().flat_map(|(&number, written)| written.iter().map(record(number)));
        self.append(file, records.collect());
    }
}

/// Fails with `EXIST` or `WOULDBLOCK` if another ID must be tried.
fn create_locked(directory: BorrowedFd<'_>, id: u32) -> Result<OwnedFd, Errno> {
    let name = journal_name(id);
    let file = create_in(directory, &name, OFlags::RDWR | OFlags::APPEND)?;
    // Another job searching for journals may have locked or removed this one while it was still empty.
    let initialise = || {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if fstat(&file)?.st_nlink == 0 {
            return Err(Errno::EXIST);
        }
        write_all(&file, &header(id))
    };
    let initialised = initialise();
    if initialised.is_ok() {
        // Without preallocated space it works while the disk has some.
        let _ = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVE);
    } else {
        let _ = unlinkat(directory, &name, AtFlags::empty());
    }
    initialised.map(|()| file)
}
