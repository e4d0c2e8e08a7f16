//! Walks the sources and yields entries one at a time: a directory, its entries that are not directories,
//! then its subdirectories. Names within a directory are in byte order.

pub(super) mod completeness;
mod found;
mod overlap;

use std::collections::VecDeque;
use std::iter::successors;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use haul_wire::control::{
    ControlMessage, DestinationAttributes, DirectoryId, Entry, EntryKind, Fault, FileSystems, IgnoreFiles,
    LinkChoice, Selection,
};
use rustix::fs::{FileType, OFlags, RawDirEntry, Stat};
use rustix::io::Errno;

use crate::accounts::Accounts;
use crate::identity::{FileId, Identity, directory_id};
use crate::journal::is_reserved;
use crate::progress::Progress;
use crate::root::{Root, SourceRoot, join};
use crate::send::select::ignores::{self, Ignores};
use crate::send::select::{Chooser, ListedPaths, Name};
use crate::send::shared::Shared;
use crate::storage::{LIST_BUFFER, fstat, kind_of, list_each};
use crate::xattrs::XattrTarget;
use completeness::Completeness;
use found::{
    DirEntry, Preserver, UNNAMED_PATH, destination, endless, entry, failed, no_directory, with_fault,
    working_file,
};

pub(crate) use found::Found;

/// State that a directory inherits from its ancestors.
#[derive(Clone)]
struct Inherited {
    source_root: Arc<SourceRoot>,
    ignores: Option<Arc<Ignores>>,
    /// Ancestors; only recorded if links are followed.
    lineage: Option<Arc<Lineage>>,
    device: Option<u64>,
}

/// A directory and its ancestors, which siblings share: copies of deep paths would fill the memory.
struct Lineage {
    id: FileId,
    above: Option<Arc<Lineage>>,
}

struct Pending {
    inherited: Inherited,
    path: Vec<u8>,
    /// Requested part of the directory; `None`: all of it.
    share: Option<ListedPaths>,
}

struct Listing {
    inherited: Inherited,
    path: Vec<u8>,
    directory: OwnedFd,
    names: std::vec::IntoIter<Name>,
    subdirectories: Vec<Pending>,
    /// Error that interrupted listing the names.
    broken: Option<Errno>,
}

impl Listing {
    fn keep_for_later(&mut self, path: Vec<u8>, share: Option<ListedPaths>) {
        self.subdirectories.push(Pending { inherited: self.inherited.clone(), path, share });
    }
}

pub(crate) struct Walker {
    root: Root,
    chooser: Chooser,
    sources: std::vec::IntoIter<Vec<u8>>,
    /// Stack of directories to enter; the next one is last.
    pending: Vec<Pending>,
    listing: Option<Listing>,
    /// Further entries to yield before the walk continues.
    ready: VecDeque<Found>,
    buffer: Vec<MaybeUninit<u8>>,
    preserver: Preserver,
    pub(crate) completeness: Completeness,
    /// Counts the steps of the walk.
    progress: Arc<Progress>,
    /// The destination directory, if the walk could enter it.
    destination: Option<DirectoryId>,
    /// Whether a source stood for its contents.
    had_contents: bool,
}

impl Walker {
    /// Creates a walker. Fails if the selection is invalid.
    pub(crate) fn new(
        root: Root,
        sources: Vec<Vec<u8>>,
        selection: &Selection,
        shared: &Shared,
    ) -> Result<Self, Fault> {
        Ok(Self {
            root,
            chooser: Chooser::new(selection, sources.len())?,
            completeness: Completeness::new(shared.link.clone(), &sources, selection),
            sources: sources.into_iter(),
            pending: Vec::new(),
            listing: None,
            ready: VecDeque::new(),
            buffer: vec![MaybeUninit::uninit(); LIST_BUFFER],
            preserver: Preserver { preserve: shared.limits.preserve, accounts: Accounts::default() },
            progress: shared.progress.clone(),
            destination: None,
            had_contents: false,
        })
    }

    /// Sends the attributes of the first source that stands for its contents, for the destination directory
    /// itself. Not for a list of paths, as in rsync.
    fn send_attributes(&mut self, entry: Entry) {
        if self.chooser.listed.is_none() && !std::mem::replace(&mut self.had_contents, true) {
            let Entry { mode, mtime_secs, mtime_nanos, extras, .. } = entry;
            let attributes = DestinationAttributes { mode, mtime_secs, mtime_nanos, extras };
            self.completeness.send(ControlMessage::DestinationAttributes(attributes));
        }
    }

    fn next_in_listing(&mut self, mut listing: Listing) -> Option<Found> {
        while let Some(name) = listing.names.next() {
            let found = self.look_at(&mut listing, name);
            if found.is_some() || !self.ready.is_empty() {
                self.listing = Some(listing);
                return found;
            }
        }
        self.pending.extend(listing.subdirectories.into_iter().rev());
        listing.broken.map(|errno| failed(&listing.path, "list", &listing.path, errno))
    }

    /// Returns the entry of a name; directories are queued.
    fn look_at(&mut self, listing: &mut Listing, name: Name) -> Option<Found> {
        let path = join(&listing.path, &name.bytes);
        // Names left out by rules need no `stat`.
        let known = !matches!(name.kind, FileType::Unknown | FileType::Symlink);
        if known && !self.includes(&listing.inherited, &path, name.kind == FileType::Directory) {
            return None;
        }
        if name.kind == FileType::Directory {
            listing.keep_for_later(path, name.below);
            return None;
        }
        if is_reserved(&name.bytes) && self.includes(&listing.inherited, &path, false) {
            return Some(working_file(&path));
        }
        let (source_root, directory) = (&listing.inherited.source_root, &listing.directory);
        let dir_entry = DirEntry { source_root, directory, name: &name.bytes, path: &path };
        let (stat, target) = match dir_entry.stat(self.chooser.links) {
            Ok(found) => found,
            Err(errno) if self.includes(&listing.inherited, &path, false) => {
                self.fail_listed_below(name.below.as_ref(), &path, errno);
                return name.listed.then(|| failed(&path, "read", &path, errno));
            }
            Err(_) => return None,
        };
        let kind = kind_of(&stat);
        if !self.includes(&listing.inherited, &path, kind == FileType::Directory) {
            return None;
        }
        if kind == FileType::Directory {
            listing.keep_for_later(path, name.below);
            return None;
        }
        let errno = if kind == FileType::Symlink { Errno::LOOP } else { Errno::NOTDIR };
        self.fail_listed_below(name.below.as_ref(), &path, errno);
        if !name.listed {
            return None;
        }
        self.leaf(&dir_entry, &stat, target.as_ref())
    }

    /// Returns the entry of a name that is not a directory, unless its size leaves it out.
    fn leaf(&mut self, dir_entry: &DirEntry<'_>, stat: &Stat, target: Option<&OwnedFd>) -> Option<Found> {
        let is_file = kind_of(stat) == FileType::RegularFile;
        if is_file && !self.chooser.sizes.contains(&Identity::of(stat).size) {
            self.completeness.leave_out(dir_entry.path);
            return None;
        }
        let mut found = dir_entry.leaf(stat);
        let by_name = || XattrTarget::named(dir_entry.directory.as_fd(), dir_entry.name);
        let xattr_target = || target.map_or_else(by_name, |target| XattrTarget::new(target.as_fd()));
        self.preserver.add_extras(&mut found.entry, xattr_target, stat);
        Some(found)
    }

    /// Whether the rules and the ignore files permit the path.
    fn includes(&mut self, inherited: &Inherited, path: &[u8], is_directory: bool) -> bool {
        if !self.chooser.includes(path, is_directory) {
            return false;
        }
        let is_ignored = |ignores: &Arc<Ignores>| ignores.ignores(path, is_directory);
        if inherited.ignores.as_ref().is_some_and(is_ignored) {
            self.completeness.leave_out(path);
            return false;
        }
        true
    }

    /// Reports all listed paths below a path that cannot be entered.
    fn fail_listed_below(&mut self, share: Option<&ListedPaths>, path: &[u8], errno: Errno) {
        let paths = share.into_iter().flat_map(ListedPaths::tails).map(|tail| join(path, tail));
        self.ready.extend(paths.map(|path| failed(&path, "read", &path, errno)));
    }

    fn enter(&mut self, pending: Pending) -> Option<Found> {
        let Pending { mut inherited, path, share } = pending;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let opened = inherited.source_root.open(&path, flags);
        let (directory, stat) = match opened.and_then(|directory| fstat(&directory).map(|s| (directory, s))) {
            Ok(opened) => opened,
            Err(errno) => {
                self.fail_listed_below(share.as_ref(), &path, errno);
                return Some(failed(&path, "read the directory", &path, errno));
            }
        };
        let elsewhere = self.chooser.file_systems == FileSystems::One
            && inherited.device.is_some_and(|device| device != FileId::of(&stat).device);
        if !self.descend(&mut inherited, &stat) {
            return Some(endless(&path));
        }
        if self.destination.is_some() && self.destination == directory_id(&stat) {
            return Some(destination(&path));
        }
        if elsewhere {
            self.completeness.leave_out(&path);
        }
        let mut found =
            entry(if path.is_empty() { UNNAMED_PATH } else { &path }, EntryKind::Directory, &stat);
        self.preserver.add_extras(&mut found.entry, || XattrTarget::new(directory.as_fd()), &stat);
        if matches!(found.entry.kind, EntryKind::Failed(_)) {
            return Some(found);
        }
        let found = if path.is_empty() {
            self.send_attributes(found.entry);
            None
        } else {
            Some(found)
        };
        let (names, broken) = match &share {
            _ if elsewhere => (Vec::new(), None),
            Some(share) => (share.children(), None),
            None => list(&directory, &mut self.buffer),
        };
        if self.chooser.ignore_files == IgnoreFiles::Obey && share.is_none() {
            let there = |name: &&[u8]| names.binary_search_by(|n| n.bytes[..].cmp(name)).is_ok();
            let there: Vec<&[u8]> = ignores::NAMES.into_iter().filter(there).collect();
            match ignores::enter(inherited.ignores.take(), &directory, &path, &there) {
                Ok(ignores) => inherited.ignores = ignores,
                Err((path, fault)) => {
                    self.ready.push_back(with_fault(&path, fault));
                    return found;
                }
            }
        }
        let (names, subdirectories) = (names.into_iter(), Vec::new());
        self.listing = Some(Listing { inherited, path, directory, names, subdirectories, broken });
        found
    }

    /// Updates the inherited state for a directory. False: the directory is its own ancestor.
    fn descend(&self, inherited: &mut Inherited, stat: &Stat) -> bool {
        let id = FileId::of(stat);
        inherited.device.get_or_insert(id.device);
        // A list of paths is finite even if links form a cycle.
        if self.chooser.links == LinkChoice::Follow && self.chooser.listed.is_none() {
            let mut lineage = successors(inherited.lineage.as_deref(), |it| it.above.as_deref());
            if lineage.any(|it| it.id == id) {
                return false;
            }
            inherited.lineage = Some(Arc::new(Lineage { id, above: inherited.lineage.take() }));
        }
        true
    }

    fn start(&mut self, source: &[u8]) -> Option<Found> {
        self.open_source(source).unwrap_or_else(|errno| {
            let named = self.root.split(source);
            let path = if named.name.is_empty() { UNNAMED_PATH } else { &named.name };
            Some(failed(path, "read", source, errno))
        })
    }

    fn open_source(&mut self, source: &[u8]) -> Result<Option<Found>, Errno> {
        let named = self.root.split(source);
        let links = self.chooser.links;
        if named.name.is_empty() || named.trailing_slash {
            let strip = if named.name.is_empty() { 0 } else { named.name.len() + 1 };
            let source_root = Arc::new(SourceRoot::new(&self.root, source, strip, links)?);
            return Ok(self.enter_source(source_root, named.name));
        }
        let directory = self.root.open(&named.directory, OFlags::PATH | OFlags::DIRECTORY)?;
        let source_root = Arc::new(SourceRoot::new(&self.root, &named.directory, 0, links)?);
        let (source_root, directory, name) = (&source_root, &directory, &named.name[..]);
        let dir_entry = DirEntry { source_root, directory, name, path: name };
        let (stat, target) = dir_entry.stat(links)?;
        match kind_of(&stat) {
            FileType::Directory => Ok(self.enter_source(source_root.clone(), named.name)),
            _ if self.chooser.listed.is_some() => Ok(Some(no_directory(&named.name))),
            _ if !self.chooser.includes(&named.name, false) => Ok(None),
            _ => Ok(self.leaf(&dir_entry, &stat, target.as_ref())),
        }
    }

    fn enter_source(&mut self, source_root: Arc<SourceRoot>, path: Vec<u8>) -> Option<Found> {
        if !path.is_empty() && !self.chooser.includes(&path, true) {
            return None;
        }
        let share = self.chooser.listed.clone();
        let inherited = Inherited { source_root, ignores: None, lineage: None, device: None };
        self.enter(Pending { inherited, path, share })
    }
}

impl Iterator for Walker {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            let found = if let Some(found) = self.ready.pop_front() {
                Some(found)
            } else if let Some(listing) = self.listing.take() {
                self.next_in_listing(listing)
            } else if let Some(pending) = self.pending.pop() {
                self.enter(pending)
            } else {
                let source = self.sources.next()?;
                self.start(&source)
            };
            self.progress.other_steps.add(1);
            if found.is_some() {
                return found;
            }
        }
    }
}

/// Lists a directory: its names in byte order, and the error that interrupted the listing, if any.
fn list(directory: &OwnedFd, buffer: &mut [MaybeUninit<u8>]) -> (Vec<Name>, Option<Errno>) {
    let mut names = Vec::new();
    let take = |item: &RawDirEntry<'_>| {
        let (bytes, kind) = (item.file_name().to_bytes().to_vec(), item.file_type());
        names.push(Name { bytes, kind, listed: true, below: None });
    };
    let broken = list_each(directory, buffer, take).err();
    names.sort_unstable_by(|a, b| a.bytes.cmp(&b.bytes));
    (names, broken)
}
