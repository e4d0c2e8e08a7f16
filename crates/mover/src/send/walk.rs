//! Walks sources into entries, one at a time: a directory, then what is in it that is no directory, then its
//! subdirectories. Names of a directory come in byte order.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use haul_wire::control::{Entry, EntryKind, Fault, FaultCode, MAX_PATH, Preserve, RelPath};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat, fstat, readlinkat, statat};
use rustix::io::Errno;

use crate::confine::{Links, open_beneath};
use crate::fault::{Side, Trouble, show};
use crate::root::Root;
use crate::send::extras::Preserver;
use crate::send::holes::holes;

/// Stands for a source whose name cannot travel.
const NAMELESS: &[u8] = b"source";

/// A directory that a source lies in, or is; entries are opened relative to it.
#[derive(Debug)]
pub(crate) struct Top {
    directory: OwnedFd,
    /// How many leading bytes of an entry's path are not part of the path below `directory`.
    strip: usize,
}

impl Top {
    /// Opens the entry with this path, following no link.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let below = path.get(self.strip..).unwrap_or_default();
        open_beneath(self.directory.as_fd(), below, flags | OFlags::NOFOLLOW, Links::Refuse)
    }
}

/// What tells a file from one that took its place or was changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    mtime_secs: i64,
    mtime_nanos: u32,
}

impl Identity {
    #[expect(clippy::useless_conversion, reason = "fields differ between architectures")]
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev.into(),
            inode: stat.st_ino.into(),
            size: stat.st_size as u64,
            mtime_secs: stat.st_mtime.into(),
            mtime_nanos: stat.st_mtime_nsec as u32,
        }
    }
}

/// An entry, and for a regular file how to open it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) file: Option<(Arc<Top>, Identity)>,
    /// How many names the file has; 0 for anything else.
    pub(crate) names: u64,
}

/// The directory whose names are being gone through.
struct Listing {
    top: Arc<Top>,
    path: Vec<u8>,
    directory: OwnedFd,
    names: std::vec::IntoIter<Vec<u8>>,
    subdirectories: Vec<Vec<u8>>,
    /// The names broke off here.
    broken: Option<Errno>,
}

/// Finds the entries of several sources.
pub(crate) struct Walker {
    root: Root,
    sources: std::vec::IntoIter<Vec<u8>>,
    /// Directories still to be entered, the next one last.
    pending: Vec<(Arc<Top>, Vec<u8>)>,
    listing: Option<Listing>,
    preserver: Option<Preserver>,
}

impl Walker {
    pub(crate) fn new(root: Root, sources: Vec<Vec<u8>>) -> Self {
        Self { root, sources: sources.into_iter(), pending: Vec::new(), listing: None, preserver: None }
    }

    /// The same with what else of the files is to travel.
    pub(crate) fn preserving(self, preserve: Preserve) -> Self {
        Self { preserver: Preserver::new(preserve), ..self }
    }

    fn next_in_listing(&mut self) -> Option<Found> {
        let listing = self.listing.as_mut()?;
        for name in listing.names.by_ref() {
            let path = join(&listing.path, &name);
            let stat = match statat(&listing.directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(errno) => return Some(failed(&path, "read", &path, errno)),
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                listing.subdirectories.push(path);
                continue;
            }
            let mut found = leaf(&listing.top, &listing.directory, &name, &path, &stat);
            if let Some(preserver) = &self.preserver {
                preserver.add(&mut found.entry, &listing.directory, &name, &stat);
            }
            return Some(found);
        }
        let done = self.listing.take()?;
        let top = done.top;
        self.pending.extend(done.subdirectories.into_iter().rev().map(|path| (top.clone(), path)));
        done.broken.map(|errno| failed(&done.path, "list", &done.path, errno))
    }

    /// Opens a directory and makes it the current one.
    fn enter(&mut self, top: Arc<Top>, path: Vec<u8>) -> Option<Found> {
        let opened = top.open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK);
        let listed = opened.and_then(|directory| Ok((fstat(&directory)?, names(&directory)?, directory)));
        let (stat, (names, broken), directory) = match listed {
            Ok(listed) => listed,
            Err(errno) => return Some(failed(&path, "read the directory", &path, errno)),
        };
        let mut found = if path.is_empty() { None } else { Some(entry(&path, EntryKind::Directory, &stat)) };
        if let (Some(preserver), Some(found)) = (&self.preserver, &mut found) {
            preserver.add(&mut found.entry, &directory, b".", &stat);
        }
        if let Some(Found { entry: Entry { kind: EntryKind::Failed(_), .. }, .. }) = found {
            return found;
        }
        let subdirectories = Vec::new();
        self.listing =
            Some(Listing { top, path, directory, names: names.into_iter(), subdirectories, broken });
        found
    }

    fn start(&mut self, source: &[u8]) -> Option<Found> {
        match self.open_source(source) {
            Ok(found) => found,
            Err(errno) => {
                let named = self.root.split(source);
                let path = if named.name.is_empty() { NAMELESS } else { &named.name };
                Some(failed(path, "read", source, errno))
            }
        }
    }

    fn open_source(&mut self, source: &[u8]) -> Result<Option<Found>, Errno> {
        let named = self.root.split(source);
        let as_directory = OFlags::PATH | OFlags::DIRECTORY;
        if named.name.is_empty() {
            let directory = self.root.open(source, as_directory)?;
            return Ok(self.enter(Arc::new(Top { directory, strip: 0 }), Vec::new()));
        }
        if named.slash {
            let directory = self.root.open(source, as_directory)?;
            let top = Top { directory, strip: named.name.len() + 1 };
            return Ok(self.enter(Arc::new(top), named.name));
        }
        let directory = self.root.open(&named.directory, as_directory)?;
        let stat = statat(&directory, &named.name, AtFlags::SYMLINK_NOFOLLOW)?;
        let top = Arc::new(Top { directory, strip: 0 });
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Ok(self.enter(top, named.name));
        }
        let mut found = leaf(&top, &top.directory, &named.name, &named.name, &stat);
        if let Some(preserver) = &self.preserver {
            preserver.add(&mut found.entry, &top.directory, &named.name, &stat);
        }
        Ok(Some(found))
    }
}

impl Iterator for Walker {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            let found = if self.listing.is_some() {
                self.next_in_listing()
            } else if let Some((top, path)) = self.pending.pop() {
                self.enter(top, path)
            } else {
                let source = self.sources.next()?;
                self.start(&source)
            };
            if found.is_some() {
                return found;
            }
        }
    }
}

/// The names of a directory in byte order, and what broke off the reading, if anything did.
fn names(directory: &OwnedFd) -> Result<(Vec<Vec<u8>>, Option<Errno>), Errno> {
    let mut names = Vec::new();
    let mut broken = None;
    for item in Dir::read_from(directory)? {
        match item {
            Ok(item) if matches!(item.file_name().to_bytes(), b"." | b"..") => {}
            Ok(item) => names.push(item.file_name().to_bytes().to_vec()),
            Err(errno) => {
                broken = Some(errno);
                break;
            }
        }
    }
    names.sort_unstable();
    Ok((names, broken))
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, name].join(&b'/') }
}

/// The entry for something that is no directory.
fn leaf(top: &Arc<Top>, directory: &OwnedFd, name: &[u8], path: &[u8], stat: &Stat) -> Found {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let identity = Identity::of(stat);
            let holes = holes(directory, name, stat);
            let mut found = entry(path, EntryKind::File { size: identity.size, holes }, stat);
            if matches!(found.entry.kind, EntryKind::File { .. }) {
                found.file = Some((top.clone(), identity));
                found.names = names_of(stat);
            }
            found
        }
        FileType::Symlink => match readlinkat(directory, name, Vec::new()) {
            Ok(target) => entry(path, EntryKind::Symlink { target: target.into_bytes() }, stat),
            Err(errno) => failed(path, "read the link", path, errno),
        },
        other => refused(path, special(other)),
    }
}

#[expect(clippy::useless_conversion, reason = "the field differs between architectures")]
fn names_of(stat: &Stat) -> u64 {
    stat.st_nlink.into()
}

fn special(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "of an unknown kind",
    }
}

fn refused(path: &[u8], what: &str) -> Found {
    let fault = Fault::new(
        FaultCode::Unreadable,
        format!("`{}` is {what}; only files, directories and symbolic links are moved", show(path)),
        "leave it out",
    );
    Found { entry: failed_entry(path, fault), file: None, names: 0 }
}

#[expect(
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    reason = "fields differ between architectures"
)]
fn entry(path: &[u8], kind: EntryKind, stat: &Stat) -> Found {
    let entry = RelPath::new(path.to_vec()).map(|path| Entry {
        path,
        kind,
        mode: (stat.st_mode as u32) & 0o7777,
        mtime_secs: stat.st_mtime.into(),
        mtime_nanos: stat.st_mtime_nsec as u32,
        extras: None,
    });
    let checked = entry.map_err(|e| e.to_string()).and_then(|entry| match entry.validate() {
        Ok(()) => Ok(entry),
        Err(e) => Err(e.to_string()),
    });
    let entry = checked.unwrap_or_else(|why| {
        let message = format!("`{}` cannot travel: {why}", show(path));
        failed_entry(path, Fault::new(FaultCode::Unreadable, message, "start the copy further down the tree"))
    });
    Found { entry, file: None, names: 0 }
}

fn failed(path: &[u8], doing: &str, shown: &[u8], errno: Errno) -> Found {
    let fault = Trouble::new(Side::Source, doing, shown, errno).fault;
    Found { entry: failed_entry(path, fault), file: None, names: 0 }
}

/// A failed entry. Where the path is too long to travel, the next directory above it that is not stands for
/// it; the fault's message names the path.
fn failed_entry(path: &[u8], fault: Fault) -> Entry {
    let mut shown = path;
    while shown.len() > MAX_PATH {
        let cut = shown.iter().rposition(|&b| b == b'/').unwrap_or(0);
        shown = &shown[..cut];
    }
    let path = RelPath::new(shown.to_vec()).or_else(|_| RelPath::new(NAMELESS.to_vec()));
    let path = path.expect("the stand-in is a valid path");
    Entry { path, kind: EntryKind::Failed(fault), mode: 0, mtime_secs: 0, mtime_nanos: 0, extras: None }
}
