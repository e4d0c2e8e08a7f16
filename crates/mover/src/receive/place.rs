//! Everything that is done to names below the destination. Directories are always reached from the base
//! without following a link, and names are used relative to them, so a set cannot lead out.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use haul_wire::control::FaultCode;
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::confine::{Links, open_beneath};
use crate::entries::Attributes;
use crate::fault::{Scope, Side, Trouble, show};
use crate::journal::{Claim, FileIdentity, Journal, is_journal};
use crate::receive::attributes::{FILE_BITS, set_on_link};
use crate::receive::base::{Base, Presence};
use crate::receive::open_files::OpenFiles;
use crate::receive::own::{FileId, Own, collision, names_in};
use crate::receive::rooms::Loosened;
use crate::storage::{
    self, fallocate, fstat, ftruncate, mkdirat, openat, rename_in, rename_new_in, statat, symlinkat, unlinkat,
};
use crate::stream::Shape;

/// Permissions of directories while they fill.
const PRIVATE_DIRECTORY: u32 = 0o700;
/// Permissions of files until they are complete.
pub(super) const PRIVATE_FILE: u32 = 0o600;
/// Files above this many bytes are allocated before they are written.
const ALLOCATE_ABOVE: u64 = 1 << 20;
/// Streams from this length on are journalled, so that they can be resumed; a smaller file is sent again.
const JOURNAL_ABOVE: u64 = 1 << 20;
/// Directories kept open.
const OPEN_DIRECTORIES: usize = 64;

/// A regular file that is at the destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Existing {
    pub(crate) size: u64,
    pub(crate) mtime_secs: i64,
    pub(crate) mtime_nanos: u32,
    pub(crate) id: FileId,
    mode: u32,
}

impl Existing {
    /// Whether it was modified after this time.
    pub(crate) fn is_later(&self, than: Attributes) -> bool {
        (self.mtime_secs, self.mtime_nanos) > (than.mtime_secs, than.mtime_nanos)
    }

    /// Whether it has these permissions.
    pub(crate) fn has_mode(&self, mode: u32) -> bool {
        (self.mode ^ mode) & FILE_BITS == 0
    }

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
    pub(super) at_top: bool,
}

/// The destination.
pub(crate) struct Place {
    base: Base,
    session: u32,
    /// Made when the first temporary file is. `None`: it cannot be made here, and nothing can be resumed.
    journal: OnceLock<Option<Journal>>,
    directories: Mutex<HashMap<Vec<u8>, Arc<OwnedFd>>>,
    files: Mutex<OpenFiles>,
    own: Own,
    /// Nothing was here when the job began.
    fresh: OnceLock<bool>,
    pub(super) loosened: Loosened,
}

impl Place {
    pub(crate) fn new(base: Base, session: u32) -> Self {
        Self {
            base,
            session,
            journal: OnceLock::new(),
            directories: Mutex::default(),
            files: Mutex::default(),
            own: Own::default(),
            fresh: OnceLock::new(),
            loosened: Loosened::default(),
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
        *self.fresh.get_or_init(|| self.look_whether_fresh())
    }

    fn look_whether_fresh(&self) -> bool {
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

    pub(super) fn temporary(&self, entry: u32) -> String {
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

    /// Why what is written cannot be resumed, if that is so.
    pub(crate) fn broken_journal(&self) -> Option<Errno> {
        match self.journal.get()? {
            Some(journal) => journal.broken(),
            None => None,
        }
    }

    /// What was noted reaches the journal's file soon, also if little is written. To be called often.
    pub(crate) fn note_in_time(&self) {
        if let Some(journal) = self.opened_journal() {
            journal.flush_in_time();
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
        self.tighten();
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

    /// Notes that the job keeps a file. False: it has installed or kept it under another name.
    pub(crate) fn keeps(&self, path: &[u8], there: &Existing) -> bool {
        if self.own.add(there.id) {
            return true;
        }
        let Ok(spot) = self.spot(path) else { return true };
        !self.own.collides(there.id, &spot.name, || names_in(&spot.directory))
    }

    /// What is at a name must give way to what is received.
    pub(super) fn must_be_replaceable(&self, spot: &Spot, path: &[u8]) -> Result<(), Trouble> {
        match spot.look(path)? {
            Some(id) if self.own.collides(id, &spot.name, || names_in(&spot.directory)) => {
                Err(collision(path))
            }
            _ => Ok(()),
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
        let renamed = rename_in(&spot.directory, old, self.temporary(entry));
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
        let mode = Mode::from_raw_mode(PRIVATE_DIRECTORY);
        match self.with_room(&spot, path, || mkdirat(&spot.directory, &spot.name, mode)) {
            Ok(()) => {
                let _ = self.is_other_directory(&spot);
                Ok(true)
            }
            Err(Errno::EXIST) => match spot.kind(path)? {
                Some(FileType::Directory) if self.is_other_directory(&spot) => Err(collision(path)),
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
        let created = self.try_create(entry, path, shape, identity);
        if created.is_err() {
            self.gone(entry);
        }
        created
    }

    fn try_create(
        &self,
        entry: u32,
        path: &[u8],
        shape: &Shape,
        identity: &FileIdentity,
    ) -> Result<Arc<File>, Trouble> {
        let spot = self.spot(path)?;
        if !self.is_fresh() {
            // Sooner than after all of its bytes.
            self.must_be_replaceable(&spot, path)?;
        }
        if let Some(journal) = self.journal() {
            journal.note_directory(parent_of(&identity.path));
            if shape.len() >= JOURNAL_ABOVE {
                journal.begin(entry, identity);
            }
        }
        let name = self.temporary(entry);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(&spot.directory, &name, flags, Mode::from_raw_mode(PRIVATE_FILE));
        let opened = match self.with_room(&spot, path, open) {
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
            self.remove(&spot, &name);
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
        self.open_files().remove(entry);
        match (self.spot(path), self.opened_journal()) {
            (Ok(spot), _) => self.remove(&spot, &self.temporary(entry)),
            (Err(_), Some(journal)) => journal.untidy(),
            (Err(_), None) => {}
        }
        self.gone(entry);
    }

    /// Removes a temporary name; if that fails, it is left to the next job.
    fn remove(&self, spot: &Spot, name: &str) {
        let removed = unlinkat(&spot.directory, name, AtFlags::empty());
        if let (Err(errno), Some(journal)) = (removed, self.opened_journal())
            && errno != Errno::NOENT
        {
            journal.untidy();
        }
    }

    fn gone(&self, entry: u32) {
        if let Some(journal) = self.opened_journal() {
            journal.gone(entry);
        }
    }

    /// Whether a directory that is there is one of the set's under another name.
    fn is_other_directory(&self, spot: &Spot) -> bool {
        let stat = statat(&spot.directory, &spot.name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| {
            let id = FileId::of(&stat);
            !self.own.add(id) && self.own.collides(id, &spot.name, || names_in(&spot.directory))
        })
    }

    /// Moves a complete temporary file under its final name.
    pub(crate) fn install(&self, entry: u32, path: &[u8]) -> Result<Spot, Trouble> {
        let open = self.open_files().remove(entry);
        let spot = self.spot(path)?;
        let stat = match &open {
            Some(file) => fstat(file),
            None => statat(&spot.directory, self.temporary(entry), AtFlags::SYMLINK_NOFOLLOW),
        };
        let id = FileId::of(&stat.map_err(|errno| trouble("look at", path, errno))?);
        self.rename_over(&spot, path, &self.temporary(entry))?;
        self.own.add(id);
        self.gone(entry);
        Ok(spot)
    }

    /// Moves a temporary name over a final one that may give way. Where nothing was when the job began, one call
    /// does both as a rule.
    fn rename_over(&self, spot: &Spot, path: &[u8], name: &str) -> Result<(), Trouble> {
        let directory = &spot.directory;
        if self.is_fresh() && rename_new_in(directory, name, &spot.name).is_ok() {
            return Ok(());
        }
        self.must_be_replaceable(spot, path)?;
        rename_in(directory, name, &spot.name).map_err(|errno| trouble("put in place", path, errno))
    }

    /// Makes a symbolic link under its final name; `dress` is called before it has its time.
    pub(crate) fn make_link(
        &self,
        entry: u32,
        path: &[u8],
        target: &[u8],
        attributes: Attributes,
        dress: impl FnOnce(&OwnedFd, &str),
    ) -> Result<(), Trouble> {
        let spot = self.spot(path)?;
        self.must_be_replaceable(&spot, path)?;
        let name = self.temporary(entry);
        if let Some(journal) = self.journal() {
            journal.note_directory(parent_of(&self.local(path)));
        }
        let made = self
            .with_room(&spot, path, || symlinkat(target, &spot.directory, &name))
            .and_then(|()| statat(&spot.directory, &name, AtFlags::SYMLINK_NOFOLLOW))
            .map(|stat| {
                self.own.add(FileId::of(&stat));
                dress(&spot.directory, &name);
            })
            .and_then(|()| set_on_link(&spot.directory, &name, attributes))
            .and_then(|()| rename_in(&spot.directory, &name, &spot.name));
        made.map_err(|errno| {
            self.remove(&spot, &name);
            trouble("create the link", path, errno)
        })
    }

    /// Gives a directory its final permissions and time. One that was there before (not `made` here) may
    /// belong to somebody else and then keeps its own.
    pub(crate) fn finish_directory(
        &self,
        path: &[u8],
        made: bool,
        dress: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), Trouble> {
        let spot = self.spot(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let done = openat(&spot.directory, &spot.name, flags, Mode::empty())
            .and_then(|directory| dress(directory.as_fd()));
        if done.is_ok() {
            self.loosened.settled(path);
        }
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

    /// What is there now; only regular files and links give way to what is received.
    fn look(&self, path: &[u8]) -> Result<Option<FileId>, Trouble> {
        let stat = match statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(trouble("look at", path, errno)),
        };
        replaceable(Some(FileType::from_raw_mode(stat.st_mode)), path)?;
        Ok(Some(FileId::of(&stat)))
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
    storage::list(directory)
        .is_ok_and(|mut names| names.all(|item| item.is_ok_and(|item| own(item.file_name().to_bytes()))))
}

#[expect(
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    reason = "fields differ between architectures"
)]
pub(super) fn existing(stat: &Stat) -> Existing {
    Existing {
        size: stat.st_size as u64,
        mtime_secs: stat.st_mtime.into(),
        mtime_nanos: stat.st_mtime_nsec as u32,
        id: FileId::of(stat),
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
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
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
