//! The journal of a running job.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use haul_base::RangeSet;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::journal::record::{
    Codec, FileIdentity, HEADER_LEN, Made, Record, Tail, header, is_local, journal_name, part_name,
};
use crate::storage::{
    create_in, dup, fallocate, fdatasync, flock, fstat, fsync, open_in, unlink_temporary, unlinkat, write_all,
};

/// Bytes of a file that may be written and not yet noted. So much of each file is sent again at most after
/// the process was killed.
const NOTE_EVERY: u64 = 8 << 20;

/// How long written bytes may wait to be noted, however few they are.
const NOTE_WITHIN: Duration = Duration::from_secs(1);

/// Room that a journal reserves, so that a full disk does not keep it from saying what is there.
const RESERVE: u64 = 64 << 10;

const ATTEMPTS: usize = 16;

/// The journal of a running job: what it has in temporary files. It may be used from several threads.
///
/// Nothing here fails a transfer: a journal that cannot be written any more is [broken](Self::broken) and
/// claims no more than it did.
pub(crate) struct Journal {
    id: u32,
    directory: OwnedFd,
    /// Locked as long as the job runs.
    file: OwnedFd,
    book: Mutex<Book>,
}

struct Book {
    tail: Tail,
    /// Files with a record, and no record that they are gone.
    files: HashMap<u32, Open>,
    directories: HashSet<Vec<u8>>,
    /// A directory was made in the place of the one source, and the set is not complete.
    made: bool,
    /// A temporary file could not be removed.
    untidy: bool,
    broken: Option<Errno>,
    name_synced: bool,
    flushed: Instant,
}

struct Open {
    size: u64,
    noted: u64,
    pending: RangeSet,
    pending_bytes: u64,
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
            tail: Tail::new(Codec::new(id), HEADER_LEN, false),
            files: HashMap::new(),
            directories: HashSet::new(),
            made: false,
            untidy: false,
            broken: None,
            name_synced: false,
            flushed: Instant::now(),
        };
        Self { id, directory, file, book: Mutex::new(book) }
    }

    /// What ties the journal and its temporary files together.
    #[cfg(test)]
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn part_name(&self, number: u32) -> String {
        part_name(self.id, number)
    }

    /// Notes a directory, relative to the journal's, before the first temporary file is made in it.
    pub(crate) fn note_directory(&self, path: &[u8]) {
        let mut book = self.book.lock();
        if book.directories.contains(path) || !(path.is_empty() || is_local(path)) {
            return;
        }
        if book.append(&self.file, &[Record::Directory(path.into())]) {
            book.directories.insert(path.to_vec());
        }
    }

    /// Notes that a directory takes the place of the one source: until the set is complete, it does so again.
    pub(crate) fn note_made(&self, name: &[u8], source: &[u8]) {
        let mut book = self.book.lock();
        let fits = is_local(name) && is_local(source);
        let made = Made { name: name.to_vec(), source: source.to_vec() };
        book.made = fits && book.append(&self.file, &[Record::Made(made)]);
    }

    pub(crate) fn complete(&self) {
        self.book.lock().made = false;
    }

    /// A temporary file could not be removed: the journal stays, so that a later job can try.
    pub(crate) fn untidy(&self) {
        self.book.lock().untidy = true;
    }

    /// Notes a file before the first byte goes to its temporary file. What had the number before is forgotten.
    pub(crate) fn begin(&self, number: u32, identity: &FileIdentity) {
        let mut book = self.book.lock();
        if !is_local(&identity.path)
            || !book.append(&self.file, &[Record::File { number, identity: Cow::Borrowed(identity) }])
        {
            return self.forget(&mut book, number);
        }
        let open = Open { size: identity.size, noted: 0, pending: RangeSet::new(), pending_bytes: 0 };
        book.files.insert(number, open);
    }

    /// Notes bytes, in the file's stream of data, that are in the temporary file. Neighbours are noted
    /// together, later.
    pub(crate) fn wrote(&self, number: u32, range: Range<u64>) {
        let mut book = self.book.lock();
        if book.broken.is_some() {
            return;
        }
        let Some(open) = book.files.get_mut(&number) else { return };
        let range = range.start..range.end.min(open.size);
        open.pending_bytes += range.end.saturating_sub(range.start);
        open.pending.insert(range);
        if open.pending_bytes >= NOTE_EVERY {
            book.note(&self.file, number);
        }
    }

    /// The temporary file has its final name, or was removed.
    pub(crate) fn gone(&self, number: u32) {
        let mut book = self.book.lock();
        self.forget(&mut book, number);
    }

    fn forget(&self, book: &mut Book, number: u32) {
        if book.files.remove(&number).is_none() {
            return;
        }
        // Also if it is broken: the number may be used again, and must not claim the bytes of another file.
        if let Err(errno) = book.tail.append(&self.file, &[Record::Gone { number }]) {
            book.broken.get_or_insert(errno);
            book.files.clear();
            if book.tail.forget(&self.file).is_err() {
                // The last resort; with an error here too, verification still finds what is wrong.
                let _ = self.unlink();
            }
        }
    }

    /// Whether a later job could resume this file.
    pub(crate) fn is_claimed(&self, number: u32) -> bool {
        self.book.lock().files.get(&number).is_some_and(|open| open.noted + open.pending_bytes > 0)
    }

    /// Why nothing is noted any more; `None` while all is well.
    pub(crate) fn broken(&self) -> Option<Errno> {
        self.book.lock().broken
    }

    /// Writes out what is pending: then it survives the end of the process.
    pub(crate) fn flush(&self) {
        self.book.lock().flush(&self.file);
    }

    /// Writes out what has been pending for long. To be called often.
    pub(crate) fn flush_in_time(&self) {
        let mut book = self.book.lock();
        if book.flushed.elapsed() >= NOTE_WITHIN {
            book.flush(&self.file);
        }
    }

    /// Writes out what is pending and syncs it: then it survives a power failure, as far as the temporary
    /// files have been synced before.
    pub(crate) fn sync(&self) {
        let mut book = self.book.lock();
        book.flush(&self.file);
        let first = !std::mem::replace(&mut book.name_synced, true);
        drop(book);
        let done = fdatasync(&self.file);
        if first {
            // A directory that may not be read cannot be synced; the kernel writes it some time.
            let _ = fsync(&self.directory);
        }
        if let Err(errno) = done {
            self.book.lock().broken.get_or_insert(errno);
        }
    }

    /// Ends the journal: it is removed if nothing can be resumed, and otherwise kept and synced.
    pub(crate) fn finish(&self) {
        let mut book = self.book.lock();
        book.flush(&self.file);
        if book.made || book.untidy || !book.files.is_empty() {
            drop(book);
            return self.sync();
        }
        if !matches!(self.unlink(), Ok(()) | Err(Errno::NOENT)) {
            // Empty, it means nothing to the next job, which removes it. That this fails too changes nothing.
            let _ = book.tail.forget(&self.file);
        }
    }

    /// The same journal in another file, to see what becomes of errors.
    #[cfg(test)]
    pub(crate) fn with_file(self, file: OwnedFd) -> Self {
        Self { file, ..self }
    }

    fn unlink(&self) -> Result<(), Errno> {
        unlink_temporary(&self.directory, journal_name(self.id))
    }
}

impl Book {
    /// Appends records, unless the journal is broken; now it may be.
    fn append(&mut self, file: &OwnedFd, records: &[Record<'_>]) -> bool {
        if self.broken.is_none()
            && let Err(errno) = self.tail.append(file, records)
        {
            self.broken = Some(errno);
            // What could not be noted will not be.
            for open in self.files.values_mut() {
                open.pending = RangeSet::new();
                open.pending_bytes = 0;
            }
        }
        self.broken.is_none()
    }

    fn note(&mut self, file: &OwnedFd, number: u32) {
        let Some(open) = self.files.get_mut(&number) else { return };
        let pending = std::mem::take(&mut open.pending);
        open.pending_bytes = 0;
        let wrote = |Range { start, end }| Record::Wrote { number, start, len: end - start };
        let records: Vec<_> = pending.iter().map(wrote).collect();
        if !records.is_empty()
            && self.append(file, &records)
            && let Some(open) = self.files.get_mut(&number)
        {
            open.noted += pending.total();
        }
    }

    fn flush(&mut self, file: &OwnedFd) {
        self.flushed = Instant::now();
        let pending = self.files.iter().filter(|(_, open)| !open.pending.is_empty());
        let numbers: Vec<u32> = pending.map(|(&number, _)| number).collect();
        for number in numbers {
            self.note(file, number);
        }
    }
}

/// Makes a journal with its header. `None`: try another id.
fn create_locked(directory: BorrowedFd<'_>, id: u32) -> Result<Option<OwnedFd>, Errno> {
    let name = journal_name(id);
    let file = match create_in(directory, &name, OFlags::RDWR | OFlags::APPEND) {
        Err(Errno::EXIST) => return Ok(None),
        opened => opened?,
    };
    let locked = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // Somebody who looks for journals was faster, and may have removed this one, which was still empty.
        Err(Errno::WOULDBLOCK) => Ok(false),
        Ok(()) => fstat(&file).map(|stat| stat.st_nlink > 0),
        Err(errno) => Err(errno),
    };
    let ready =
        locked.and_then(|mine| if mine { write_all(&file, &header(id)).map(|()| true) } else { Ok(false) });
    if ready != Ok(true) {
        let _ = unlinkat(directory, &name, AtFlags::empty());
    }
    let file = ready?.then_some(file);
    if let Some(file) = &file {
        // Without the room it works as long as there is some.
        let _ = fallocate(file, FallocateFlags::KEEP_SIZE, 0, RESERVE);
    }
    Ok(file)
}
