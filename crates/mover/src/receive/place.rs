//! File operations below the destination. Directories are opened from the base without following symbolic
//! links, and names are resolved relative to an open directory, so that a file set cannot escape.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use haul_wire::control::{Extraneous, Fault, FaultCode};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::entries::Kind;
use crate::fault::{IoFault, Scope, show};
use crate::identity::FileId;
use crate::journal::{Claim, FileIdentity, Journal, is_ours};
use crate::receive::options::ReceiveOptions;
use crate::receive::place::base::{Base, PRIVATE_DIRECTORY, Presence};
use crate::receive::place::files::{Installed, OpenFiles, collision, folds, has_one_name};
use crate::receive::place::space::Space;
use crate::root::{Links, open_beneath, split};
use crate::storage::{
    self, Mtime, create_in, fallocate, fchmod, fstat, ftruncate, kind_of, lstatat, lstatat_if_any, mkdirat,
    open_in, rename_in, unlink_temporary, unlinkat,
};
use crate::stream::Shape;

pub(crate) mod base;
pub(crate) mod files;
pub(crate) mod links;
pub(crate) mod space;

pub(crate) use files::{DirEntry, check_kind, digest_mismatch, obstacle_fault, replaceable};

/// Minimum stream length in bytes for journalling and thus for resuming; smaller files are sent again.
const JOURNAL_ABOVE: u64 = 1 << 20;
const OPEN_DIRECTORIES: usize = 64;

pub(crate) struct Place {
    pub(crate) base: Base,
    session: u32,
    /// Created with the first temporary file. `Some(None)`: creation failed; nothing can be resumed.
    journal: OnceLock<Option<Journal>>,
    /// Open directories, by path below the destination.
    pub(crate) directories: Mutex<HashMap<Vec<u8>, Arc<OwnedFd>>>,
    pub(super) open_files: Mutex<OpenFiles>,
    installed: Installed,
    /// Unless `Keep`, directories, pipes and devices may be removed for a file once the file is complete.
    extraneous: Extraneous,
    /// Whether the destination was empty or missing when the job started.
    pub(crate) is_fresh: bool,
    /// Directories whose permissions are relaxed during the job, by path at the destination: identity, and
    /// the permissions to set at the end unless the set has some.
    pub(crate) relaxed_permissions: Mutex<HashMap<Vec<u8>, (FileId, u32)>>,
    pub(crate) is_included: AtomicBool,
    pub(crate) space: Space,
}

impl Place {
    pub(crate) fn new(base: Base, options: &ReceiveOptions) -> Self {
        let is_fresh = match &base.rename {
            Some(name) => matches!(lstatat_if_any(&base.directory, name), Ok(None)),
            None => storage::list(&base.directory).is_ok_and(|names| names.is_empty()),
        };
        Self {
            base,
            session: options.session,
            journal: OnceLock::new(),
            directories: Mutex::default(),
            open_files: Mutex::default(),
            installed: Installed::default(),
            extraneous: options.receive_policy.extraneous,
            is_fresh,
            relaxed_permissions: Mutex::default(),
            is_included: AtomicBool::new(false),
            space: Space::new(options.min_free),
        }
    }

    pub(crate) fn is_nowhere(&self) -> bool {
        self.base.presence == Presence::Nowhere
    }

    /// Returns an entry's path below the destination directory.
    pub(crate) fn local(&self, path: &[u8]) -> Vec<u8> {
        let top_end = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
        match &self.base.rename {
            Some(name) => [name.as_slice(), &path[top_end..]].concat(),
            None => path.to_vec(),
        }
    }

    /// Returns the metadata of the existing file at an entry's path, if it is a regular file.
    pub(crate) fn existing(&self, path: &[u8]) -> Option<Stat> {
        let stat = self.dir_entry(path).ok()?.stat().ok()?;
        (kind_of(&stat) == FileType::RegularFile).then_some(stat)
    }

    pub(crate) fn obstacle(&self, path: &[u8]) -> Option<FileType> {
        self.dir_entry(path).ok()?.kind().ok().flatten()
    }

    pub(crate) fn open_final(&self, path: &[u8]) -> Option<File> {
        self.dir_entry(path).ok()?.open(OFlags::RDONLY | OFlags::NONBLOCK).ok().map(File::from)
    }

    /// Opens the existing file at an entry's path if it is still the file that `existing` describes, with
    /// `O_PATH` if it cannot be read.
    pub(crate) fn open_found(&self, path: &[u8], existing: &Stat) -> Option<(File, Stat)> {
        let dirent = self.dir_entry(path).ok()?;
        let opened = match dirent.open(OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(Errno::ACCESS) => dirent.open(OFlags::PATH),
            opened => opened,
        };
        let file = File::from(opened.ok()?);
        let stat = fstat(&file).ok()?;
        (FileId::of(&stat) == FileId::of(existing)).then_some((file, stat))
    }

    /// Whether a file or link may have hard links outside the peer's root; it must not be modified then.
    pub(crate) fn may_be_shared(&self, stat: &Stat) -> bool {
        self.base.is_confined && stat.st_nlink > 1
    }

    /// Like [`Place::claims`] for an existing file that is kept.
    pub(crate) fn claim_kept(&self, path: &[u8], existing: &Stat) -> bool {
        self.dir_entry(path).map_or(true, |dirent| self.claims(existing, &dirent))
    }

    /// Records the file at a name as this job's. Returns false if it already is, under another name.
    pub(super) fn claims(&self, existing: &Stat, dirent: &DirEntry<'_>) -> bool {
        self.installed.add(FileId::of(existing)) || !self.is_installed(existing, dirent)
    }

    /// Fails if the file at a name may not be replaced. Returns whether a file exists.
    pub(super) fn must_be_replaceable(&self, dirent: &DirEntry<'_>) -> Result<bool, IoFault> {
        let existing = dirent.stat_if_any()?;
        replaceable(existing.as_ref().map(kind_of), dirent.path)?;
        match existing {
            Some(existing) if self.is_installed(&existing, dirent) => Err(collision(dirent.path)),
            existing => Ok(existing.is_some()),
        }
    }

    /// Whether the file at a name was installed or kept by this job under another name. A file with several
    /// hard links is listed under each, which is no collision. A file with a single name may be listed under
    /// this one too, if it had this name before the job replaced it under the other name and the directory
    /// folds names; otherwise the job's file is gone and its inode number was reused.
    fn is_installed(&self, existing: &Stat, dirent: &DirEntry<'_>) -> bool {
        let (id, directory, name) = (FileId::of(existing), &dirent.directory, dirent.name());
        let (has_one_name, may_fold) = (has_one_name(existing), || folds(directory, name, id));
        let is_listed = |names: Vec<Vec<u8>>| names.iter().any(|listed| listed == name);
        // Lists no directory for each of a file's hard links.
        self.installed.has(id)
            && (has_one_name || may_fold())
            && storage::names(directory).is_ok_and(|names| !is_listed(names) || has_one_name && may_fold())
    }

    pub(crate) fn dir_entry<'p>(&self, path: &'p [u8]) -> Result<DirEntry<'p>, IoFault> {
        let local = self.local(path);
        let directory = self.directory(split(&local).0).map_err(|errno| obstacle_fault(path, errno))?;
        Ok(DirEntry { path, local, directory })
    }

    pub(crate) fn directory(&self, path: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        if self.base.presence != Presence::There {
            return Err(Errno::NOENT);
        }
        let mut open = self.directories.lock();
        if let Some(directory) = open.get(path) {
            return Ok(directory.clone());
        }
        let flags = OFlags::DIRECTORY | OFlags::NONBLOCK;
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

    /// Returns false if the directory exists already.
    pub(crate) fn make_directory(&self, path: &[u8]) -> Result<bool, IoFault> {
        let dirent = self.dir_entry(path)?;
        if let Some(name) = self.base.rename.as_ref().filter(|_| !path.contains(&b'/'))
            && let Some(journal) = self.journal()
        {
            journal.record_created(name, path);
        }
        let mode = Mode::from_raw_mode(PRIVATE_DIRECTORY);
        let is_new = match self.with_access(&dirent, || mkdirat(&dirent.directory, dirent.name(), mode)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(dirent.cannot_create("create the directory", errno)),
        };
        let existing = dirent.stat_if_any()?;
        check_kind(Kind::Directory, existing.as_ref().map(kind_of), path)?;
        let Some(existing) = existing else { return Ok(is_new) };
        // It may belong to the set under another name.
        if !self.claims(&existing, &dirent) && !is_new {
            return Err(collision(path));
        }
        // Otherwise the files in it could not be found.
        let is_searchable = Mode::from_raw_mode(existing.st_mode).contains(Mode::XUSR);
        if !is_searchable && let Ok(directory) = self.directory(&dirent.local) {
            let _ = self.relax_permissions(&dirent.local, &directory);
        }
        Ok(is_new)
    }

    pub(crate) fn create(
        &self,
        entry: u32,
        path: &[u8],
        shape: &Shape,
        mtime: Mtime,
    ) -> Result<Arc<File>, IoFault> {
        let dirent = self.dir_entry(path)?;
        if !self.is_fresh && self.extraneous == Extraneous::Keep {
            // Fails before the contents are transferred.
            self.must_be_replaceable(&dirent)?;
        }
        if let Some(journal) = self.journal() {
            journal.record_directory(dirent.parent());
            if shape.len >= JOURNAL_ABOVE {
                journal.begin(entry, &FileIdentity::new(dirent.local.clone(), shape, mtime));
            }
        }
        let name = self.temporary(entry);
        let open = || create_in(&dirent.directory, &name, OFlags::RDWR);
        let opened = match self.with_access(&dirent, open) {
            // Left behind by an earlier session with the same number.
            Err(Errno::EXIST) => unlinkat(&dirent.directory, &name, AtFlags::empty()).and_then(|()| open()),
            opened => opened,
        };
        // Otherwise the journal would list a file that does not exist, and would not be removed.
        let opened = opened.inspect_err(|_| self.temporary_removed(entry));
        let file = Arc::new(File::from(opened.map_err(|errno| dirent.cannot_create("create", errno))?));
        let begun = self.space.begin(entry, &file, shape).and_then(|()| Ok(fstat(&file)?));
        let stat = begun.map_err(|no_space| {
            self.discard(entry, path);
            no_space.io_fault("reserve the space of", path)
        })?;
        let mut open_files = self.open_files.lock();
        open_files.expect(entry, FileId::of(&stat));
        open_files.keep(entry, &file);
        drop(open_files);
        Ok(file)
    }

    /// Returns an entry's temporary file. Reopens it if it was evicted; fails if it was replaced.
    pub(crate) fn file(&self, entry: u32, path: impl FnOnce() -> Vec<u8>) -> Result<Arc<File>, IoFault> {
        if let Some(file) = self.open_files.lock().get(entry) {
            return Ok(file);
        }
        let path = &path();
        let dirent = self.dir_entry(path)?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = open_in(&dirent.directory, self.temporary(entry), flags);
        let file = Arc::new(File::from(opened.map_err(dirent.fail("open"))?));
        let stat = fstat(&file).map_err(dirent.fail("look at"))?;
        self.must_be_expected(entry, path, &stat)?;
        self.open_files.lock().keep(entry, &file);
        Ok(file)
    }

    fn must_be_expected(&self, entry: u32, path: &[u8], stat: &Stat) -> Result<(), IoFault> {
        if self.open_files.lock().is_expected(entry, FileId::of(stat)) {
            return Ok(());
        }
        let message = format!("the temporary file of `{}` was replaced by another process", show(path));
        let hint = "find out who writes to the destination, then run the same command again";
        Err(IoFault { fault: Fault::new(FaultCode::Io, message, hint), scope: Scope::Entry })
    }

    pub(crate) fn discard(&self, entry: u32, path: &[u8]) {
        match (self.dir_entry(path), self.opened_journal()) {
            (Ok(dirent), _) => self.remove(&dirent, &self.temporary(entry)),
            (Err(_), Some(journal)) => journal.cleanup_failed(),
            (Err(_), None) => {}
        }
        self.temporary_removed(entry);
    }

    /// Removes a temporary file; if that fails, leaves it to the next job.
    pub(super) fn remove(&self, dirent: &DirEntry<'_>, name: &str) {
        let removed = unlink_temporary(&dirent.directory, name);
        if let (Err(errno), Some(journal)) = (removed, self.opened_journal())
            && errno != Errno::NOENT
        {
            journal.cleanup_failed();
        }
    }

    /// Returns the directory of the installed file, and whether it replaced a file.
    pub(crate) fn install(
        &self,
        entry: u32,
        path: &[u8],
        size: u64,
    ) -> Result<(Arc<OwnedFd>, bool), IoFault> {
        let dirent = self.dir_entry(path)?;
        // By name, since that is what is renamed: another process may have replaced the file.
        let stat = lstatat(&dirent.directory, self.temporary(entry)).map_err(dirent.fail("look at"))?;
        self.must_be_expected(entry, path, &stat)?;
        if stat.st_size as u64 != size {
            return Err(IoFault { fault: digest_mismatch(path), scope: Scope::Entry });
        }
        let id = FileId::of(&stat);
        let replaced = self.rename_over(&dirent, &self.temporary(entry))?;
        self.installed.add(id);
        self.temporary_removed(entry);
        Ok((dirent.directory, replaced))
    }

    /// Returns whether a file was replaced. A fresh destination needs one system call.
    fn rename_over(&self, dirent: &DirEntry<'_>, name: &str) -> Result<bool, IoFault> {
        let rename = |how| rename_in(&dirent.directory, name, dirent.name(), how);
        if self.is_fresh && rename(RenameFlags::NOREPLACE).is_ok() {
            return Ok(false);
        }
        let replaces = self.must_be_replaceable(dirent)?;
        rename(RenameFlags::empty()).map_err(dirent.fail("put in place"))?;
        Ok(replaces)
    }

    /// Runs `apply` on a directory. Permission errors are ignored unless it `is_new`: an older one may
    /// belong to another user and keeps its metadata.
    pub(crate) fn finish_directory(
        &self,
        path: &[u8],
        is_new: bool,
        apply: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<Option<OwnedFd>, IoFault> {
        let dirent = self.dir_entry(path)?;
        let directory = dirent.open(OFlags::RDONLY | OFlags::DIRECTORY);
        let applied = match &directory {
            Ok(directory) => apply(directory.as_fd()),
            Err(Errno::ACCESS) => {
                dirent.open(OFlags::PATH | OFlags::DIRECTORY).and_then(|fd| apply(fd.as_fd()))
            }
            Err(errno) => Err(*errno),
        };
        match applied {
            Ok(()) => drop(self.relaxed_permissions.lock().remove(&dirent.local)),
            Err(Errno::PERM | Errno::ACCESS) if !is_new => {}
            Err(errno) => return Err(dirent.fail("set the permissions of")(errno)),
        }
        Ok(directory.ok())
    }

    pub(crate) fn journal(&self) -> Option<&Journal> {
        let create = || Journal::create(self.base.directory.as_fd());
        let created = || match create() {
            Err(Errno::ACCESS) if self.is_included.load(Ordering::Acquire) => {
                self.relax_permissions(&[], &self.base.directory).and_then(|()| create())
            }
            created => created,
        };
        self.journal.get_or_init(|| created().ok()).as_ref()
    }

    pub(crate) fn opened_journal(&self) -> Option<&Journal> {
        self.journal.get().and_then(Option::as_ref)
    }

    pub(crate) fn temporary(&self, entry: u32) -> String {
        match self.journal() {
            Some(journal) => journal.part_name(entry),
            None => format!(".haul-{:08x}-{entry}.part", self.session),
        }
    }

    pub(crate) fn record_written(&self, entry: u32, range: Range<u64>) {
        if let Some(journal) = self.opened_journal() {
            journal.record_written(entry, range);
        }
    }

    /// Leaves an entry's temporary file to a later job if the journal claims data in it; otherwise removes it.
    pub(crate) fn abandon(&self, entry: u32, path: &[u8]) {
        if !self.opened_journal().is_some_and(|journal| journal.is_claimed(entry)) {
            self.discard(entry, path);
        } else if let Ok(file) = self.file(entry, || path.to_vec()) {
            self.space.release(entry, &file);
        }
    }

    /// Finishes the journal, which stays if a later job can use it, and restores directory permissions. Must be
    /// called before the sender is told of success, as it may then end the process.
    pub(crate) fn finish(&self, complete: bool) {
        if let Some(journal) = self.opened_journal() {
            journal.finish(complete);
        }
        self.restore_permissions();
    }

    /// Takes over an entry's temporary file from an earlier job. Returns false if it is unusable.
    pub(crate) fn adopt(
        &self,
        (entry, path): (u32, &[u8]),
        claim: &Claim,
        identity: &FileIdentity,
        shape: &Shape,
    ) -> bool {
        let (Some(journal), Ok(dirent)) = (self.journal(), self.dir_entry(path)) else {
            return false;
        };
        let old = claim.part.as_slice();
        let opened = open_in(&dirent.directory, old, OFlags::PATH | OFlags::NOFOLLOW);
        let found = opened.and_then(|part| Ok((fstat(&part)?, part)));
        let Some((stat, part)) = found.ok().filter(|(stat, _)| is_ours(stat)) else { return false };
        // Recorded before the rename: if the process is killed, one of the two journals has its current name.
        journal.record_directory(dirent.parent());
        journal.begin(entry, identity);
        claim.record.written.iter().for_each(|range| journal.record_written(entry, range));
        journal.flush();
        if rename_in(&dirent.directory, old, self.temporary(entry), RenameFlags::empty()).is_err() {
            journal.file_removed(entry);
            return false;
        }
        self.open_files.lock().expect(entry, FileId::of(&stat));
        // Its final permissions, if set already, can forbid this user to open it.
        let _ = fchmod(part, Mode::RUSR | Mode::WUSR);
        // Holes and bytes beyond the end are not part of the stream, so they are not verified. Checks
        // `is_ours` again: the file may have got a further hard link meanwhile.
        let is_shaped = self.file(entry, || path.to_vec()).is_ok_and(|file| {
            fstat(&file).is_ok_and(|stat| is_ours(&stat))
                && ftruncate(&file, identity.size).is_ok()
                && empty_holes(&file, shape)
        });
        if !is_shaped {
            self.discard(entry, path);
        }
        is_shaped
    }

    /// Creates a file under an entry's temporary name and renames it to the final one. Removes it on failure.
    pub(crate) fn rename_into_place<T>(
        &self,
        entry: u32,
        dirent: &DirEntry<'_>,
        make: impl FnOnce(&str) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let name = self.temporary(entry);
        if let Some(journal) = self.journal() {
            journal.record_directory(dirent.parent());
        } else {
            // Left behind by an earlier session with the same number.
            let _ = unlinkat(&dirent.directory, &name, AtFlags::empty());
        }
        let made = make(&name).and_then(|made| {
            rename_in(&dirent.directory, &name, dirent.name(), RenameFlags::empty())?;
            Ok(made)
        });
        made.inspect_err(|_| self.remove(dirent, &name))
    }

    pub(crate) fn temporary_removed(&self, entry: u32) {
        let file = self.open_files.lock().forget(entry);
        // Without the lock: freeing the blocks of a removed file takes time.
        drop(file);
        self.space.forget(entry);
        if let Some(journal) = self.opened_journal() {
            journal.file_removed(entry);
        }
    }

    /// Creates an entry's temporary file from the first `have` bytes of the existing file. Returns false if
    /// that fails and the file has to be received completely.
    pub(crate) fn copy_existing(&self, entry: u32, path: &[u8], have: u64, identity: &FileIdentity) -> bool {
        let Some(existing) = self.open_final(path) else { return false };
        let Ok(part) = self.create(entry, path, &Shape::new(identity.size, &[]), identity.mtime) else {
            return false;
        };
        if storage::copy(&existing, &part, have).is_ok_and(|copied| copied == have) {
            self.record_written(entry, 0..have);
            return true;
        }
        self.discard(entry, path);
        false
    }
}

/// Deallocates the holes of a file. Returns false if the file system cannot.
fn empty_holes(file: &File, shape: &Shape) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    shape.holes().into_iter().all(|(start, len)| fallocate(file, flags, start, len).is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use haul_wire::control::{Layout, ReceivePolicy, RunMode};

    use super::*;
    use crate::receive::place::base::open_base;
    use crate::root::Root;

    #[test]
    fn an_unlisted_second_name_of_an_installed_file_is_a_collision() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["readme", "other", "linked", "\u{e9}"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        let path = dir.path().as_os_str().as_encoded_bytes();
        let base = open_base(&Root::Anywhere, path, Layout::Into, RunMode::Move).unwrap();
        let place = Place::new(base, &ReceiveOptions::with_policy(1, ReceivePolicy::default()));
        let stat = |name: &str| place.dir_entry(name.as_bytes()).unwrap().stat().unwrap();
        // As if the file system found the file at `name` too.
        let collides =
            |file, name: &str| place.is_installed(&stat(file), &place.dir_entry(name.as_bytes()).unwrap());
        for name in ["readme", "linked", "\u{e9}"] {
            assert!(!collides(name, "README"), "not yet of this job");
            assert!(place.installed.add(FileId::of(&stat(name))));
            assert!(!place.installed.add(FileId::of(&stat(name))));
        }
        // A case-insensitive file system finds `readme` as `README`, but lists only `readme`.
        assert!(collides("readme", "README"));
        fs::hard_link(dir.path().join("linked"), dir.path().join("LINKED")).unwrap();
        assert!(!collides("linked", "LINKED"), "both are listed");
        assert!(!collides("other", "OTHER"), "not of this job");
        // Another spelling came first and replaced this name, which stays.
        assert!(collides("\u{e9}", "\u{e9}"));
        assert!(!collides("other", "other"), "not of this job");
        // The file is gone, and its inode number was reused: this file system has case.
        assert!(!collides("readme", "readme"));
    }
}
