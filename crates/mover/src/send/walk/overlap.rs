//! Refuses jobs that would copy a directory into itself or remove a source, by whatever paths: directories
//! are identified by device and inode.

use std::os::fd::OwnedFd;

use haul_wire::control::{
    DestinationLineage, DirectoryId, Fault, FaultCode, FileSystems, IgnoreFiles, LinkChoice,
};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::fault::path_fault;
use crate::identity::{ancestors, directory_id};
use crate::root::{Root, join};
use crate::send::select::{Chooser, ignores};
use crate::send::walk::Walker;
use crate::storage::{fstat, kind_of, list, lstatat, open_in};

/// A source, opened without read access.
struct Source<'a> {
    given: &'a [u8],
    /// Its name in the set; empty if it stands for its contents.
    name: Vec<u8>,
    itself: OwnedFd,
    stat: Stat,
    /// Directory that contains its name; the source itself if it has none.
    parent_dir: OwnedFd,
}

/// How a directory is reached from one of its ancestors.
enum Descent {
    Names(Vec<Vec<u8>>),
    /// Through another file system, which is not entered.
    Elsewhere,
}

impl Walker {
    /// Determines the destination directory, which the walk must not enter. Fails if a source is or contains
    /// it, or would be removed from it, and is not left out by rules. Must be called before the walk starts.
    pub(crate) fn check_destination(&mut self, to: &DestinationLineage) -> Result<(), Fault> {
        let chooser = &self.chooser;
        // A list of paths is finite, and removes nothing.
        let (Some(&base), None) = (to.directories.first(), &chooser.listed) else { return Ok(()) };
        // Sources that cannot be opened are reported by the walk.
        let open = |source| Source::open(&self.root, source, chooser.links).ok();
        let sources: Vec<Source<'_>> =
            self.sources.as_slice().iter().filter_map(|source| open(source)).collect();
        for source in &sources {
            if source.would_contain_itself(chooser, to) {
                let hint =
                    "choose a destination outside it, or skip the destination's directory with --exclude";
                return Err(path_fault(FaultCode::Usage, source.given, "cannot be copied into itself", hint));
            }
            if to.removes && source.would_be_removed(&sources, chooser, to) {
                let what = "is inside the destination, from which --delete would remove it";
                let hint =
                    "do not use --delete, protect the source with --exclude, or choose another destination";
                return Err(path_fault(FaultCode::Usage, source.given, what, hint));
            }
        }
        // A directory that only receives a new name may itself be walked.
        let may_be_walked = to.name.is_some() && sources.iter().any(|source| source.depth(to).is_some());
        self.destination = (!may_be_walked).then_some(base);
        Ok(())
    }
}

impl<'a> Source<'a> {
    fn open(root: &Root, given: &'a [u8], links: LinkChoice) -> Result<Self, Errno> {
        let named = root.split(given);
        let follows = named.trailing_slash || links == LinkChoice::Follow;
        let flags = if follows { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
        let itself = root.open(given, flags)?;
        let stat = fstat(&itself)?;
        let parent_dir = root.open(&named.directory, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Self { given, name: named.name, itself, stat, parent_dir })
    }

    fn is_directory(&self) -> bool {
        kind_of(&self.stat) == FileType::Directory
    }

    /// Returns how many levels above the destination directory this source is.
    fn depth(&self, to: &DestinationLineage) -> Option<usize> {
        let source_id = directory_id(&self.stat).filter(|_| self.is_directory())?;
        to.directories.iter().position(|&id| id == source_id)
    }

    /// Whether the walk of this source would find what the job creates at the destination.
    fn would_contain_itself(&self, chooser: &Chooser, to: &DestinationLineage) -> bool {
        let Some(depth) = self.depth(to) else { return to.name.is_none() && self.is_destination_entry(to) };
        let mut names = match descend(&self.itself, &to.directories[..depth], chooser.file_systems) {
            Some(Descent::Elsewhere) => return false,
            Some(Descent::Names(names)) => names,
            None => return true,
        };
        match &to.name {
            Some(name) => names.push(name.as_bytes().to_vec()),
            None if !self.name.is_empty() => names.push(self.name.clone()),
            None => {}
        }
        includes_all(chooser, self.name.clone(), &names)
            && (chooser.ignore_files == IgnoreFiles::Disregard || !self.ignores_one(&names))
    }

    /// Whether ignore files leave out a directory along `names`, or are unusable, so that it is not entered.
    fn ignores_one(&self, names: &[Vec<u8>]) -> bool {
        let (mut directory, mut path) = (self.itself.try_clone().ok(), self.name.clone());
        let mut ignores = None;
        names.iter().any(|name| {
            // Below a new directory there are no ignore files.
            let Some(opened) = &directory else { return false };
            let Ok(found) = ignores::enter(ignores.take(), opened, &path, &ignores::NAMES) else {
                return true;
            };
            path = join(&path, name);
            let is_ignored = found.as_ref().is_some_and(|found| found.ignores(&path, true));
            ignores = found;
            directory = open_in(opened, &name[..], OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW).ok();
            is_ignored
        })
    }

    /// Whether it is a directory that would be copied onto itself.
    fn is_destination_entry(&self, to: &DestinationLineage) -> bool {
        let parent_dir = fstat(&self.parent_dir).ok().and_then(|stat| directory_id(&stat));
        let entry = lstatat(&self.parent_dir, &self.name[..]);
        let is_candidate =
            self.is_directory() && parent_dir.is_some() && parent_dir.as_ref() == to.directories.first();
        is_candidate && entry.is_ok_and(|entry| directory_id(&entry) == directory_id(&self.stat))
    }

    /// Whether it is in a directory of the destination from which names are removed, and is not kept.
    fn would_be_removed(&self, sources: &[Self], chooser: &Chooser, to: &DestinationLineage) -> bool {
        let Some(names) = self.below(to.directories[0], chooser.file_systems) else { return false };
        let Some(first) = names.first() else { return false };
        // The set has an entry with this name.
        if names.len() == 1 && *first == self.name {
            return false;
        }
        let is_in_deleted_part = |source: &Self| match &to.name {
            Some(name) => name.as_bytes() == first,
            None => source.name.is_empty() || source.name == *first,
        };
        sources.iter().any(is_in_deleted_part) && includes_all(chooser, Vec::new(), &names)
    }

    /// Returns the path components from `base` to this source, if it is below `base`.
    fn below(&self, base: DirectoryId, file_systems: FileSystems) -> Option<Vec<Vec<u8>>> {
        let mut between = Vec::new();
        let is_directory = self.is_directory();
        let innermost = if is_directory { &self.itself } else { &self.parent_dir }.try_clone().ok()?;
        for (directory, stat) in ancestors(innermost) {
            let id = directory_id(&stat)?;
            if id == base {
                let Descent::Names(mut names) = descend(&directory, &between, file_systems)? else { break };
                names.extend((!is_directory).then(|| self.name.clone()));
                return Some(names);
            }
            between.push(id);
        }
        None
    }
}

/// Whether the rules permit `path` and every directory below it along `names`.
fn includes_all(chooser: &Chooser, mut path: Vec<u8>, names: &[Vec<u8>]) -> bool {
    let is_included = |path: &Vec<u8>| path.is_empty() || chooser.includes(path, true);
    is_included(&path)
        && names.iter().all(|name| {
            path = join(&path, name);
            is_included(&path)
        })
}

/// Finds the names of the directories `ids` (innermost first) below `from`. `None`: listing does not find
/// one, because it is a mount point or a directory is unreadable.
fn descend(from: &OwnedFd, ids: &[DirectoryId], file_systems: FileSystems) -> Option<Descent> {
    let device = fstat(from).ok()?.st_dev;
    let (mut at, mut names) = (from.try_clone().ok()?, Vec::new());
    for &id in ids.iter().rev() {
        let (name, stat) = child(&at, id)?;
        if file_systems == FileSystems::One && stat.st_dev != device {
            return Some(Descent::Elsewhere);
        }
        at = open_in(&at, &name[..], OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW).ok()?;
        names.push(name);
    }
    Some(Descent::Names(names))
}

fn child(directory: &OwnedFd, id: DirectoryId) -> Option<(Vec<u8>, Stat)> {
    list(directory).ok()?.into_iter().find_map(|(name, kind)| {
        if !matches!(kind, FileType::Directory | FileType::Unknown) {
            return None;
        }
        let stat = lstatat(directory, &name).ok()?;
        (directory_id(&stat) == Some(id)).then_some((name, stat))
    })
}
