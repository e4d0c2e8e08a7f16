//! Everything that is done to names below the destination. Directories are always reached from the base
//! without following a link, and names are used relative to them, so a set cannot lead out.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use haul_wire::control::FaultCode;
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, Stat, fallocate, fchmod, ftruncate, mkdirat,
    openat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::confine::{Links, open_beneath};
use crate::entries::Attributes;
use crate::fault::{Scope, Side, Trouble, show};
use crate::journal::{Claim, FileIdentity, Journal, is_journal};
use crate::receive::attributes::{FILE_BITS, set_on_link, set_on_open};
use crate::receive::base::{Base, Presence};
use crate::stream::Shape;

/// Permissions of directories while they fill.
const PRIVATE_DIRECTORY: u32 = 0o700;
/// Permissions of files until they are complete.
const PRIVATE_FILE: u32 = 0o600;
/// Files above this many bytes are allocated before they are written.
const ALLOCATE_ABOVE: u64 = 1 << 20;
/// Streams from this length on are journalled, so that they can be resumed; a smaller file is sent again.
const JOURNAL_ABOVE: u64 = 1 << 20;
/// Directories kept open.
const OPEN_DIRECTORIES: usize = 64;
/// Temporary files kept open.
const OPEN_FILES: usize = 128;

/// A regular file that is at the destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Existing {
    pub(crate) size: u64,
    pub(crate) mtime_secs: i64,
    pub(crate) mtime_nanos: u32,
    mode: u32,
}

impl Existing {
    /// Whether it was modified at this time, as far as its file system can tell.
    pub(crate) fn same_time(&self, attributes: Attributes) -> bool {
        let whole_seconds = self.mtime_nanos == 0;
        self.mtime_secs == attributes.mtime_secs
            && (whole_seconds || self.mtime_nanos == attributes.mtime_nanos)
    }
}

/// A name in an open directory.
#[derive(Clone)]
pub(crate) struct Spot {
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) name: Vec<u8>,
    /// Directly in the destination.
    at_top: bool,
}

#[derive(Default)]
struct OpenFiles {
    files: HashMap<u32, (Arc<File>, u64)>,
    clock: u64,
}

/// The destination.
pub(crate) struct Place {
    base: Base,
    session: u32,
    /// Made when the first temporary file is. `None`: it cannot be made here, and nothing can be resumed.
    journal: OnceLock<Option<Journal>>,
    directories: Mutex<HashMap<Vec<u8>, Arc<OwnedFd>>>,
    files: Mutex<OpenFiles>,
}

impl Place {
    pub(crate) fn new(base: Base, session: u32) -> Self {
        Self {
            base,
            session,
            journal: OnceLock::new(),
            directories: Mutex::default(),
            files: Mutex::default(),
        }
    }

    /// Whether there is one top-level entry, which takes the destination's name.
    pub(crate) fn renames(&self) -> bool {
        self.base.rename.is_some()
    }

    /// Whether the destination's directory is there.
    pub(crate) fn is_there(&self) -> bool {
        self.base.presence == Presence::There
    }

    /// Whether nothing of any set can be here already.
    pub(crate) fn is_fresh(&self) -> bool {
        match &self.base.rename {
            Some(name) => {
                let there = statat(&self.base.directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
                there.is_err_and(|errno| errno == Errno::NOENT)
            }
            None => is_empty(&self.base.directory),
        }
    }

    fn journal(&self) -> Option<&Journal> {
        self.journal.get_or_init(|| Journal::create(self.base.directory.as_fd()).ok()).as_ref()
    }

    /// The journal, if there is one already.
    fn opened_journal(&self) -> Option<&Journal> {
        self.journal.get().and_then(Option::as_ref)
    }

    /// Whether an entry must not have this name: that of a journal, because a later job would believe it, or
    /// of a temporary file of this job.
    pub(crate) fn is_reserved(&self, name: &[u8]) -> bool {
        is_journal(name) || self.opened_journal().is_some_and(|journal| journal.is_reserved(name))
    }

    fn temporary(&self, entry: u32) -> String {
        match self.journal() {
            Some(journal) => journal.part_name(entry),
            None => format!(".haul-{:08x}-{entry}.part", self.session),
        }
    }

    /// Notes bytes of a stream that are in the temporary file.
    pub(crate) fn note_written(&self, entry: u32, range: Range<u64>) {
        if let Some(journal) = self.opened_journal() {
            journal.wrote(entry, range);
        }
    }

    /// Whether a later job could resume the temporary file of an entry.
    pub(crate) fn is_resumable(&self, entry: u32) -> bool {
        self.opened_journal().is_some_and(|journal| journal.is_claimed(entry))
    }

    /// The name that the single top-level entry takes.
    pub(crate) fn rename(&self) -> Option<&[u8]> {
        self.base.rename.as_deref()
    }

    /// The journal ends with the job: what is in it stays for a later one.
    pub(crate) fn finish(&self, complete: bool) {
        if let Some(journal) = self.opened_journal() {
            if complete {
                journal.complete();
            }
            // It is at worst a leftover that claims nothing.
            let _ = journal.finish();
        }
    }

    /// The path of an entry relative to the destination's directory.
    pub(crate) fn local(&self, path: &[u8]) -> Vec<u8> {
        let top_end = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
        match &self.base.rename {
            Some(name) => [name.as_slice(), &path[top_end..]].concat(),
            None => path.to_vec(),
        }
    }

    /// The regular file that is there under an entry's name.
    pub(crate) fn existing(&self, path: &[u8]) -> Option<Existing> {
        let spot = self.spot(path).ok()?;
        let stat = statat(&spot.directory, &spot.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then(|| existing(&stat))
    }

    /// Opens the regular file that is there under an entry's name.
    pub(crate) fn open_final(&self, path: &[u8]) -> Option<File> {
        let spot = self.spot(path).ok()?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(&spot.directory, &spot.name, flags, Mode::empty()).ok().map(File::from)
    }

    /// Gives a file that stays the permissions of the set's, if they differ and we may.
    pub(crate) fn correct_mode(&self, path: &[u8], attributes: Attributes, there: &Existing) {
        let bits = attributes.mode & FILE_BITS;
        if there.mode & FILE_BITS != bits
            && let Some(file) = self.open_final(path)
        {
            // Not our file: its contents are right all the same.
            let _ = fchmod(&file, Mode::from_raw_mode(bits));
        }
    }

    /// Takes over the temporary file that an earlier job has left of an entry. False: it is of no use.
    pub(crate) fn adopt(&self, entry: u32, path: &[u8], claim: &Claim, identity: &FileIdentity) -> bool {
        let (Some(journal), Ok(spot)) = (self.journal(), self.spot(path)) else {
            return false;
        };
        let old = claim.part.as_slice();
        let stat = statat(&spot.directory, old, AtFlags::SYMLINK_NOFOLLOW);
        if !stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile) {
            return false;
        }
        // Noted first: whichever of both names it has when we are killed, one journal knows it.
        journal.note_directory(parent_of(&identity.path));
        journal.begin(entry, identity);
        claim.written.iter().for_each(|range| journal.wrote(entry, range));
        journal.flush();
        let renamed = renameat(&spot.directory, old, &spot.directory, self.temporary(entry));
        if renamed.is_err() {
            journal.gone(entry);
        }
        renamed.is_ok()
    }

    /// Where an entry goes.
    pub(crate) fn spot(&self, path: &[u8]) -> Result<Spot, Trouble> {
        let local = self.local(path);
        let slash = local.iter().rposition(|&b| b == b'/');
        let (directory, name) = slash.map_or((&[][..], &local[..]), |at| (&local[..at], &local[at + 1..]));
        let opened = self.directory(directory).map_err(|errno| in_the_way(path, errno))?;
        Ok(Spot { directory: opened, name: name.to_vec(), at_top: directory.is_empty() })
    }

    /// A directory, by its path relative to the destination.
    pub(crate) fn directory(&self, path: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        if self.base.presence == Presence::Missing {
            return Err(Errno::NOENT);
        }
        let mut open = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(directory) = open.get(path) {
            return Ok(directory.clone());
        }
        let flags = OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let base = self.base.directory.as_fd();
        let opened = match open_beneath(base, path, OFlags::RDONLY | flags, Links::Refuse) {
            Err(Errno::ACCESS) => open_beneath(base, path, OFlags::PATH | flags, Links::Refuse),
            opened => opened,
        };
        let directory = Arc::new(opened?);
        if open.len() >= OPEN_DIRECTORIES {
            open.clear();
        }
        open.insert(path.to_vec(), directory.clone());
        Ok(directory)
    }

    /// Makes a directory (true), or takes the one that is there (false).
    pub(crate) fn make_directory(&self, path: &[u8]) -> Result<bool, Trouble> {
        let spot = self.spot(path)?;
        if let Some(name) = self.base.rename.as_ref().filter(|_| !path.contains(&b'/'))
            && let Some(journal) = self.journal()
        {
            journal.note_made(name);
        }
        match mkdirat(&spot.directory, &spot.name, Mode::from_raw_mode(PRIVATE_DIRECTORY)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => match spot.kind(path)? {
                Some(FileType::Directory) => Ok(false),
                Some(FileType::Symlink) => Err(in_the_way(path, Errno::LOOP)),
                _ => Err(not_a_directory(path)),
            },
            Err(errno) => Err(spot.cannot_create("create the directory", path, errno)),
        }
    }

    /// Makes the temporary file of an entry and reserves its space.
    pub(crate) fn create(
        &self,
        entry: u32,
        path: &[u8],
        shape: &Shape,
        identity: &FileIdentity,
    ) -> Result<Arc<File>, Trouble> {
        let spot = self.spot(path)?;
        spot.must_be_replaceable(path)?;
        if let Some(journal) = self.journal() {
            journal.note_directory(parent_of(&identity.path));
            if shape.len() >= JOURNAL_ABOVE {
                journal.begin(entry, identity);
            }
        }
        let name = self.temporary(entry);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(&spot.directory, &name, flags, Mode::from_raw_mode(PRIVATE_FILE));
        let opened = match open() {
            // What an earlier session with the same number left behind.
            Err(Errno::EXIST) => unlinkat(&spot.directory, &name, AtFlags::empty()).and_then(|()| open()),
            opened => opened,
        };
        let file = Arc::new(File::from(opened.map_err(|errno| spot.cannot_create("create", path, errno))?));
        let sized = if shape.is_sparse() {
            ftruncate(&file, shape.size())
        } else if shape.size() > ALLOCATE_ABOVE {
            reserve(&file, shape.size())
        } else {
            Ok(())
        };
        if let Err(errno) = sized {
            let _ = unlinkat(&spot.directory, &name, AtFlags::empty());
            // Else the journal claims what is not there, and stays.
            self.gone(entry);
            return Err(trouble("reserve the space of", path, errno));
        }
        self.open_files().keep(entry, &file);
        Ok(file)
    }

    /// The temporary file of an entry, opened again if it had to be closed.
    pub(crate) fn file(&self, entry: u32, path: impl FnOnce() -> Vec<u8>) -> Result<Arc<File>, Trouble> {
        if let Some(file) = self.open_files().get(entry) {
            return Ok(file);
        }
        let path = &path();
        let spot = self.spot(path)?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(&spot.directory, self.temporary(entry), flags, Mode::empty());
        let file = Arc::new(File::from(opened.map_err(|errno| trouble("open", path, errno))?));
        self.open_files().keep(entry, &file);
        Ok(file)
    }

    fn open_files(&self) -> MutexGuard<'_, OpenFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the temporary name of an entry, if it is there.
    pub(crate) fn discard(&self, entry: u32, path: &[u8]) {
        self.open_files().files.remove(&entry);
        if let Ok(spot) = self.spot(path) {
            // Nothing more can be done about a name that cannot be removed.
            let _ = unlinkat(&spot.directory, self.temporary(entry), AtFlags::empty());
        }
        self.gone(entry);
    }

    fn gone(&self, entry: u32) {
        if let Some(journal) = self.opened_journal() {
            journal.gone(entry);
        }
    }

    /// Moves a complete temporary file under its final name.
    pub(crate) fn install(&self, entry: u32, path: &[u8]) -> Result<Spot, Trouble> {
        self.open_files().files.remove(&entry);
        let spot = self.spot(path)?;
        spot.must_be_replaceable(path)?;
        renameat(&spot.directory, self.temporary(entry), &spot.directory, &spot.name)
            .map_err(|errno| trouble("put in place", path, errno))?;
        self.gone(entry);
        Ok(spot)
    }

    /// Makes a symbolic link under its final name.
    pub(crate) fn make_link(
        &self,
        entry: u32,
        path: &[u8],
        target: &[u8],
        attributes: Attributes,
    ) -> Result<(), Trouble> {
        let spot = self.spot(path)?;
        spot.must_be_replaceable(path)?;
        let name = self.temporary(entry);
        let made = symlinkat(target, &spot.directory, &name)
            .and_then(|()| set_on_link(&spot.directory, &name, attributes))
            .and_then(|()| renameat(&spot.directory, &name, &spot.directory, &spot.name));
        made.map_err(|errno| {
            let _ = unlinkat(&spot.directory, &name, AtFlags::empty());
            trouble("create the link", path, errno)
        })
    }

    /// Gives a directory its final permissions and time. One that was there before (not `made` here) may
    /// belong to somebody else and then keeps its own.
    pub(crate) fn finish_directory(
        &self,
        path: &[u8],
        attributes: Attributes,
        made: bool,
    ) -> Result<(), Trouble> {
        let spot = self.spot(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let done = openat(&spot.directory, &spot.name, flags, Mode::empty())
            .and_then(|directory| set_on_open(&directory, attributes, FileType::Directory));
        match done {
            Err(Errno::PERM | Errno::ACCESS) if !made => Ok(()),
            done => done.map_err(|errno| trouble("set the permissions of", path, errno)),
        }
    }

    /// The destination itself.
    pub(crate) fn base(&self) -> &OwnedFd {
        &self.base.directory
    }
}

impl Spot {
    /// What is there now.
    fn kind(&self, path: &[u8]) -> Result<Option<FileType>, Trouble> {
        match statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(trouble("look at", path, errno)),
        }
    }

    /// Only regular files and links give way to what is received.
    fn must_be_replaceable(&self, path: &[u8]) -> Result<(), Trouble> {
        replaceable(self.kind(path)?, path)
    }

    /// Nothing can be made at this name. If that is because of the destination itself, the job is over.
    fn cannot_create(&self, doing: &str, path: &[u8], errno: Errno) -> Trouble {
        let mut trouble = trouble(doing, path, errno);
        if self.at_top && matches!(errno, Errno::ACCESS | Errno::PERM) {
            trouble.scope = Scope::Job;
        }
        trouble
    }
}

/// Only regular files and links give way to what is received.
pub(crate) fn replaceable(there: Option<FileType>, path: &[u8]) -> Result<(), Trouble> {
    match there {
        None | Some(FileType::RegularFile | FileType::Symlink) => Ok(()),
        Some(FileType::Directory) => Err(Trouble::entry(
            FaultCode::IsADirectory,
            format!("`{}` is a directory at the destination", show(path)),
            "move the directory out of the way, or choose another destination",
        )),
        Some(_) => Err(Trouble::entry(
            FaultCode::Io,
            format!("`{}` is a device, pipe or socket at the destination", show(path)),
            "only regular files and links are replaced; choose another destination",
        )),
    }
}

fn is_empty(directory: &OwnedFd) -> bool {
    let own = |name: &[u8]| matches!(name, b"." | b"..");
    Dir::read_from(directory)
        .is_ok_and(|mut names| names.all(|item| item.is_ok_and(|item| own(item.file_name().to_bytes()))))
}

#[expect(
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    reason = "fields differ between architectures"
)]
fn existing(stat: &Stat) -> Existing {
    Existing {
        size: stat.st_size as u64,
        mtime_secs: stat.st_mtime.into(),
        mtime_nanos: stat.st_mtime_nsec as u32,
        mode: stat.st_mode as u32,
    }
}

/// The directory that a path lies in; empty for the base.
pub(crate) fn parent_of(local: &[u8]) -> &[u8] {
    local.iter().rposition(|&b| b == b'/').map_or(&[], |slash| &local[..slash])
}

pub(crate) fn trouble(doing: &str, path: &[u8], errno: Errno) -> Trouble {
    Trouble::new(Side::Destination, doing, path, errno)
}

/// Reserves space; file systems that cannot do so find out while writing.
fn reserve(file: &File, size: u64) -> Result<(), Errno> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => Ok(()),
        done => done,
    }
}

pub(crate) fn in_the_way(path: &[u8], errno: Errno) -> Trouble {
    match errno {
        Errno::LOOP | Errno::XDEV => Trouble::entry(
            FaultCode::PathEscape,
            format!("`{}` leads through a symbolic link at the destination", show(path)),
            "nothing is written through links below the destination; name the real directory as destination",
        ),
        Errno::NOTDIR => not_a_directory(path),
        errno => trouble("reach", path, errno),
    }
}

pub(crate) fn not_a_directory(path: &[u8]) -> Trouble {
    Trouble::entry(
        FaultCode::NotADirectory,
        format!("`{}` needs a directory where the destination has something else", show(path)),
        "move what is in the way, or choose another destination",
    )
}

impl OpenFiles {
    fn get(&mut self, entry: u32) -> Option<Arc<File>> {
        self.clock += 1;
        let (file, used) = self.files.get_mut(&entry)?;
        *used = self.clock;
        Some(file.clone())
    }

    /// Keeps a file open; the one that was not used for longest makes room.
    fn keep(&mut self, entry: u32, file: &Arc<File>) {
        if self.files.len() >= OPEN_FILES {
            let oldest = self.files.iter().min_by_key(|(_, (_, used))| *used).map(|(&entry, _)| entry);
            oldest.and_then(|entry| self.files.remove(&entry));
        }
        self.clock += 1;
        self.files.insert(entry, (file.clone(), self.clock));
    }
}
