//! Everything that is done to names below the destination. Directories are always reached from the base
//! without following a link, and names are used relative to them, so a set cannot lead out.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_wire::control::FaultCode;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, fallocate, mkdirat, openat, renameat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use crate::confine::{Links, open_beneath};
use crate::entries::Attributes;
use crate::fault::{Scope, Side, Trouble, show};
use crate::receive::attributes::{set_on_link, set_on_open};
use crate::receive::base::Base;

/// Permissions of directories while they fill.
const PRIVATE_DIRECTORY: u32 = 0o700;
/// Permissions of files until they are complete.
const PRIVATE_FILE: u32 = 0o600;
/// Files above this many bytes are allocated before they are written.
const ALLOCATE_ABOVE: u64 = 1 << 20;
/// Directories kept open.
const OPEN_DIRECTORIES: usize = 64;
/// Temporary files kept open.
const OPEN_FILES: usize = 128;

/// A name in an open directory.
#[derive(Clone)]
pub(crate) struct Spot {
    pub(crate) directory: Arc<OwnedFd>,
    name: Vec<u8>,
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
    directories: Mutex<HashMap<Vec<u8>, Arc<OwnedFd>>>,
    files: Mutex<OpenFiles>,
}

impl Place {
    pub(crate) fn new(base: Base, session: u32) -> Self {
        Self { base, session, directories: Mutex::default(), files: Mutex::default() }
    }

    /// Whether there is one top-level entry, which takes the destination's name.
    pub(crate) fn renames(&self) -> bool {
        self.base.rename.is_some()
    }

    /// Whether `name` looks like a temporary name of this session.
    pub(crate) fn is_reserved(&self, name: &[u8]) -> bool {
        name.starts_with(format!(".haul-{:08x}-", self.session).as_bytes()) && name.ends_with(b".part")
    }

    fn temporary(&self, entry: u32) -> String {
        format!(".haul-{:08x}-{entry}.part", self.session)
    }

    /// Where an entry goes.
    pub(crate) fn spot(&self, path: &[u8]) -> Result<Spot, Trouble> {
        let top_end = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
        let local = match &self.base.rename {
            Some(name) => [name.as_slice(), &path[top_end..]].concat(),
            None => path.to_vec(),
        };
        let slash = local.iter().rposition(|&b| b == b'/');
        let (directory, name) = slash.map_or((&[][..], &local[..]), |at| (&local[..at], &local[at + 1..]));
        let opened = self.directory(directory).map_err(|errno| in_the_way(path, errno))?;
        Ok(Spot { directory: opened, name: name.to_vec(), at_top: directory.is_empty() })
    }

    fn directory(&self, path: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
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
    pub(crate) fn create(&self, entry: u32, path: &[u8], size: u64) -> Result<Arc<File>, Trouble> {
        let spot = self.spot(path)?;
        spot.must_be_replaceable(path)?;
        let name = self.temporary(entry);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(&spot.directory, &name, flags, Mode::from_raw_mode(PRIVATE_FILE));
        let opened = match open() {
            // What an earlier session with the same number left behind.
            Err(Errno::EXIST) => unlinkat(&spot.directory, &name, AtFlags::empty()).and_then(|()| open()),
            opened => opened,
        };
        let file = Arc::new(File::from(opened.map_err(|errno| spot.cannot_create("create", path, errno))?));
        if size > ALLOCATE_ABOVE
            && let Err(errno) = reserve(&file, size)
        {
            let _ = unlinkat(&spot.directory, &name, AtFlags::empty());
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
    }

    /// Moves a complete temporary file under its final name.
    pub(crate) fn install(&self, entry: u32, path: &[u8]) -> Result<Spot, Trouble> {
        self.open_files().files.remove(&entry);
        let spot = self.spot(path)?;
        spot.must_be_replaceable(path)?;
        renameat(&spot.directory, self.temporary(entry), &spot.directory, &spot.name)
            .map_err(|errno| trouble("put in place", path, errno))?;
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
        match self.kind(path)? {
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

    /// Nothing can be made at this name. If that is because of the destination itself, the job is over.
    fn cannot_create(&self, doing: &str, path: &[u8], errno: Errno) -> Trouble {
        let mut trouble = trouble(doing, path, errno);
        if self.at_top && matches!(errno, Errno::ACCESS | Errno::PERM) {
            trouble.scope = Scope::Job;
        }
        trouble
    }
}

fn trouble(doing: &str, path: &[u8], errno: Errno) -> Trouble {
    Trouble::new(Side::Destination, doing, path, errno)
}

/// Reserves space; file systems that cannot do so find out while writing.
fn reserve(file: &File, size: u64) -> Result<(), Errno> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => Ok(()),
        done => done,
    }
}

fn in_the_way(path: &[u8], errno: Errno) -> Trouble {
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

fn not_a_directory(path: &[u8]) -> Trouble {
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
