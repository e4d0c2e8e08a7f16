//! Files of the destination: existing entries with the errors if one may not be replaced, and an LRU cache of
//! temporary files that stay open between writing, verification and installation.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use haul_wire::control::{Fault, FaultCode};
use parking_lot::Mutex;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::entries::Kind;
use crate::fault::{IoFault, Scope, path_fault};
use crate::identity::FileId;
use crate::root::split;
use crate::storage::{kind_of, lstatat, lstatat_if_any, open_in};

/// A name of the set, in an open directory of the destination.
pub(crate) struct DirEntry<'p> {
    /// The path in the set.
    pub(crate) path: &'p [u8],
    /// The path relative to the destination's directory.
    pub(crate) local: Vec<u8>,
    pub(crate) directory: Arc<OwnedFd>,
}

impl DirEntry<'_> {
    pub(crate) fn name(&self) -> &[u8] {
        split(&self.local).1
    }

    /// Returns the parent's path below the destination, empty for the destination itself.
    pub(crate) fn parent(&self) -> &[u8] {
        split(&self.local).0
    }

    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_in(&self.directory, self.name(), flags | OFlags::NOFOLLOW)
    }

    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        lstatat(&self.directory, self.name())
    }

    pub(crate) fn fail(&self, doing: &str) -> impl Fn(Errno) -> IoFault {
        move |errno| IoFault::destination(doing, self.path, errno)
    }

    pub(crate) fn stat_if_any(&self) -> Result<Option<Stat>, IoFault> {
        lstatat_if_any(&self.directory, self.name()).map_err(self.fail("look at"))
    }

    pub(crate) fn kind(&self) -> Result<Option<FileType>, IoFault> {
        Ok(self.stat_if_any()?.as_ref().map(kind_of))
    }

    /// Converts an error of creating the entry. Missing permissions on the destination itself end the job.
    pub(crate) fn cannot_create(&self, doing: &str, errno: Errno) -> IoFault {
        let mut io_fault = self.fail(doing)(errno);
        if self.parent().is_empty() && matches!(errno, Errno::ACCESS | Errno::PERM) {
            io_fault.scope = Scope::Job;
        }
        io_fault
    }
}

/// Fails unless an existing file of this type may be replaced: only regular files and symbolic links may.
pub(crate) fn replaceable(existing: Option<FileType>, path: &[u8]) -> Result<(), IoFault> {
    match existing {
        None | Some(FileType::RegularFile | FileType::Symlink) => Ok(()),
        Some(FileType::Directory) => Err(IoFault::entry(
            FaultCode::IsADirectory,
            path,
            "is a directory at the destination",
            "move the directory, let --delete remove it, or choose another destination",
        )),
        Some(_) => Err(IoFault::entry(
            FaultCode::Io,
            path,
            "is a device, pipe or socket at the destination",
            "only regular files and links are replaced; --delete removes it, or choose another destination",
        )),
    }
}

/// Fails unless an entry of this kind can be created in place of an existing file of type `existing`.
pub(crate) fn check_kind(kind: Kind, existing: Option<FileType>, path: &[u8]) -> Result<(), IoFault> {
    match (kind, existing) {
        (Kind::Directory, None | Some(FileType::Directory)) | (Kind::Unread, _) => Ok(()),
        (Kind::Directory, Some(FileType::Symlink)) => Err(obstacle_fault(path, Errno::LOOP)),
        (Kind::Directory, Some(_)) => Err(not_a_directory(path)),
        (Kind::File(_) | Kind::Symlink | Kind::HardLink(_), existing) => replaceable(existing, path),
    }
}

pub(crate) fn obstacle_fault(path: &[u8], errno: Errno) -> IoFault {
    match errno {
        Errno::LOOP | Errno::XDEV => IoFault::entry(
            FaultCode::PathEscape,
            path,
            "leads through a symbolic link at the destination",
            "haul does not write through links below the destination; name the real directory as the destination",
        ),
        Errno::NOTDIR => not_a_directory(path),
        errno => IoFault::destination("reach", path, errno),
    }
}

pub(crate) fn not_a_directory(path: &[u8]) -> IoFault {
    let what = "needs a directory where the destination has another kind of entry";
    let hint = "move that entry, let --delete remove it, or choose another destination";
    IoFault::entry(FaultCode::NotADirectory, path, what, hint)
}

pub(crate) fn digest_mismatch(path: &[u8]) -> Fault {
    let what = "does not match what was read: its BLAKE3 digest or size differs";
    let hint = "run the same command again; if it fails again, test memory and disks";
    path_fault(FaultCode::VerifyFailed, path, what, hint)
}

/// Whether a file has no further hard links. False for directories: sources or mounts may share one.
pub(crate) fn has_one_name(stat: &Stat) -> bool {
    kind_of(stat) != FileType::Directory && stat.st_nlink <= 1
}

/// Files that this job has installed or kept. At a destination that ignores case or normalises Unicode, two
/// names of the set can refer to the same file; this keeps the second from overwriting the first. Stores
/// 8-byte hashes of file identities; a false positive costs listing a directory.
#[derive(Default)]
pub(crate) struct Installed {
    files: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

impl Installed {
    /// Records that the job has installed or kept this file. Returns false if it is recorded already.
    pub(crate) fn add(&self, id: FileId) -> bool {
        let key = self.hasher.hash_one(id);
        self.files.lock().insert(key)
    }

    pub(crate) fn remove(&self, id: FileId) {
        self.files.lock().remove(&self.hasher.hash_one(id));
    }

    pub(crate) fn has(&self, id: FileId) -> bool {
        self.files.lock().contains(&self.hasher.hash_one(id))
    }
}

/// Whether a directory finds the file at `name` with its case swapped, too. For names beyond ASCII returns
/// true, since folding and normalisation cannot be tested there.
pub(crate) fn folds(directory: &OwnedFd, name: &[u8], id: FileId) -> bool {
    let swap = |byte: &u8| {
        if byte.is_ascii_lowercase() { byte.to_ascii_uppercase() } else { byte.to_ascii_lowercase() }
    };
    let other: Vec<u8> = name.iter().map(swap).collect();
    let found = || lstatat(directory, &other).is_ok_and(|stat| FileId::of(&stat) == id);
    !name.is_ascii() || (other != name && found())
}

/// Error for an entry whose name the destination does not distinguish from another one of the set.
pub(crate) fn collision(path: &[u8]) -> IoFault {
    let what = "is the same name at the destination as another entry of the file set";
    let hint = "its file system ignores case or Unicode normalisation; rename one of the two";
    IoFault::entry(FaultCode::Io, path, what, hint)
}

/// Minimum capacity, unless it exceeds a quarter of the limit on open files.
const MIN_CAPACITY: u64 = 128;

/// Maximum capacity: a group of files that is committed, and as many that are being written.
const MAX_CAPACITY: u64 = 2048;

/// Divisor of the limit on open files: the share of one job.
const LIMIT_DIVISOR: u64 = 8;

pub(crate) struct OpenFiles {
    /// Identities of the temporary files by entry, open or not.
    ids: HashMap<u32, FileId>,
    /// Open files by entry, most recently used last.
    files: VecDeque<(u32, Arc<File>)>,
    most: usize,
}

impl Default for OpenFiles {
    /// Uses a small share of the limit on open files, because many jobs may run in the process.
    fn default() -> Self {
        Self::of(getrlimit(Resource::Nofile).current.map_or(MAX_CAPACITY, most) as usize)
    }
}

fn most(limit: u64) -> u64 {
    (limit / LIMIT_DIVISOR).clamp(MIN_CAPACITY, MAX_CAPACITY).min(limit / 4).max(1)
}

impl OpenFiles {
    fn of(most: usize) -> Self {
        Self { ids: HashMap::new(), files: VecDeque::new(), most }
    }

    pub(crate) fn expect(&mut self, entry: u32, id: FileId) {
        self.ids.insert(entry, id);
    }

    pub(crate) fn is_expected(&self, entry: u32, id: FileId) -> bool {
        self.ids.get(&entry) == Some(&id)
    }

    pub(crate) fn forget(&mut self, entry: u32) -> Option<Arc<File>> {
        self.ids.remove(&entry);
        self.remove(entry)
    }

    pub(crate) fn get(&mut self, entry: u32) -> Option<Arc<File>> {
        let file = self.remove(entry)?;
        self.files.push_back((entry, file.clone()));
        Some(file)
    }

    pub(crate) fn keep(&mut self, entry: u32, file: &Arc<File>) {
        self.remove(entry);
        if self.files.len() >= self.most {
            self.files.pop_front();
        }
        self.files.push_back((entry, file.clone()));
    }

    fn remove(&mut self, entry: u32) -> Option<Arc<File>> {
        let at = self.files.iter().position(|&(open, _)| open == entry)?;
        self.files.remove(at).map(|(_, file)| file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_takes_only_a_share_of_the_descriptor_limit() {
        assert_eq!([8, 64, 256, 512, 1024, 4096, 1 << 20].map(most), [2, 16, 64, 128, 128, 512, 2048]);
    }

    #[test]
    fn the_least_recently_used_file_is_evicted() {
        let file = Arc::new(File::open(".").unwrap());
        let mut open = OpenFiles::of(2);
        open.keep(1, &file);
        open.keep(2, &file);
        assert!(open.get(1).is_some());
        open.keep(3, &file);
        assert!(open.get(2).is_none());
        assert!(open.get(1).is_some() && open.get(3).is_some());
        assert!(open.forget(1).is_some() && open.forget(1).is_none());
        open.keep(3, &file);
        assert_eq!(open.files.len(), 1);
    }
}
