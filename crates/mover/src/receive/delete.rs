//! Deletes names that the set lacks from the set's directories at the destination.
//!
//! Directories are opened from the destination without following symbolic links, and names are removed
//! relative to an open directory. Journals and temporary files of all jobs are kept, and so are mount points.
//!
//! If deletion is permitted, an existing file of another kind is removed for an entry: a file or link in the
//! way of a directory immediately, because other entries go into the directory; a directory with its contents
//! only when everything has arrived.

use std::collections::HashMap;
use std::iter::successors;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use haul_wire::control::{Action, Extent, Extraneous, Fault, FaultCode, IgnoreFiles, Removal, Verdict};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use crate::entries::Kind;
use crate::fault::{IoFault, Scope, path_fault, show};
use crate::journal::is_working_name;
use crate::receive::ledger::FilteredNames;
use crate::receive::place::check_kind;
use crate::receive::shared::Shared;
use crate::root::{join, split};
use crate::send::{IGNORE_FILES, Ignores, Rules, obey_ignore_files};
use crate::storage::{fstat, kind_of, lstatat, names, unlinkat};

enum Found {
    Excluded,
    /// With the names in it.
    Directory(Vec<Vec<u8>>),
    Leaf,
}

struct PendingDirectory {
    /// The path as it would be in the set.
    path: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
    /// Whether something in the directory stays.
    kept: bool,
}

struct Sweep<'a> {
    shared: &'a Shared,
    delete_exclude: &'a DeleteExclude,
    /// If set, names are only counted, until the count exceeds this.
    count_limit: Option<u64>,
    removal: Removal,
    /// Ignore files by directory, for directories that have any. Parents are added before their contents.
    ignores: HashMap<Vec<u8>, Arc<Ignores>>,
    /// Whether an ignore file is unusable, so that it is unknown which other names have to stay.
    has_unusable_ignores: bool,
}

/// Names that are not deleted although the set lacks them: the sender excludes them.
struct DeleteExclude {
    rules: [Rules; 2],
    filtered: FilteredNames,
}

impl DeleteExclude {
    /// Moves the filtered names out of the book, and adds the receiver's own rules to the sender's if the
    /// receiver made the request, so that a sender that omits some has no effect.
    fn new(shared: &Shared) -> Result<Self, Fault> {
        let expectations = shared.expectations.as_ref();
        let requested = expectations.map(|expected| &*expected.rules).unwrap_or_default();
        let mut ledger = shared.ledger.lock();
        let mut filtered = std::mem::take(&mut ledger.filtered);
        filtered.obeys_ignore_files |=
            expectations.is_some_and(|expected| expected.ignore_files == IgnoreFiles::Obey);
        Ok(Self { rules: [Rules::new(requested)?, Rules::new(&ledger.left_out.rules)?], filtered })
    }

    /// Whether a path is excluded. `ignores`: the ignore files that apply there.
    fn has(&self, path: &[u8], is_directory: bool, ignores: Option<&Ignores>) -> bool {
        self.rules.iter().any(|rules| rules.verdict(path, is_directory) == Verdict::Exclude)
            || self.filtered.has(path)
            || ignores.is_some_and(|ignores| ignores.ignores(path, is_directory))
    }
}

/// Deletes names that the set lacks; `None` if not permitted. Failed deletions do not end the job.
pub(crate) fn sweep(shared: &Shared) -> Result<Option<Removal>, Fault> {
    if !shared.permits_deletion() {
        return Ok(None);
    }
    if let Some(fault) = incomplete(shared) {
        shared.ledger.lock().removal.fault.get_or_insert(fault);
    } else {
        remove(shared, |sweep| {
            sweep.sweep_all()?;
            shared.report_remaining()
        })?;
    }
    Ok(Some(shared.ledger.lock().removal.clone()))
}

/// Removes obstacles at these entries' paths if everything has arrived. Returns for each whether one remains.
pub(crate) fn clear(shared: &Shared, entries: &[u32]) -> Result<Vec<bool>, Fault> {
    let remaining_flags = match incomplete(shared) {
        Some(_) => None,
        None => remove(shared, |sweep| {
            // Ignore files are only evaluated in directories of the set, not inside an obstacle.
            let is_known = !sweep.delete_exclude.filtered.obeys_ignore_files;
            let remains =
                |&entry: &u32| if is_known { sweep.sweep_one(&shared.path(entry)) } else { Ok(true) };
            entries.iter().map(remains).collect()
        })?,
    };
    shared.place.directories.lock().clear();
    Ok(remaining_flags.unwrap_or_else(|| vec![true; entries.len()]))
}

/// Runs `visit` and records what was removed. With a limit, counts first; returns `None` if exceeded.
fn remove<T>(
    shared: &Shared,
    visit: impl Fn(&mut Sweep<'_>) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    let delete_exclude = DeleteExclude::new(shared)?;
    let run = |count_limit| {
        let (removal, ignores) = (Removal::default(), HashMap::new());
        let (delete_exclude, has_unusable_ignores) = (&delete_exclude, false);
        let mut sweep = Sweep { shared, delete_exclude, count_limit, removal, ignores, has_unusable_ignores };
        visit(&mut sweep).map(|done| (Some(done), sweep.removal))
    };
    let (done, removal) = match limit(shared) {
        Some((max, remaining)) if run(Some(remaining))?.1.removed > remaining => {
            (None, Removal { removed: 0, fault: Some(too_many(max)) })
        }
        _ => run(None)?,
    };
    let mut ledger = shared.ledger.lock();
    ledger.filtered = delete_exclude.filtered;
    ledger.removal.removed += removal.removed;
    ledger.removal.fault = ledger.removal.fault.take().or(removal.fault);
    Ok(done)
}

/// Returns the maximum number of names to remove, and how many of them remain; `None` if unlimited.
pub(crate) fn limit(shared: &Shared) -> Option<(u64, u64)> {
    let Extraneous::DeleteAtMost(max) = shared.receive_policy.extraneous else { return None };
    Some((max, max.saturating_sub(shared.ledger.lock().removal.removed)))
}

/// Returns an error if the sources' contents are not completely known, so that nothing may be deleted.
fn incomplete(shared: &Shared) -> Option<Fault> {
    let ledger = shared.ledger.lock();
    let why = match ledger.extent {
        _ if !ledger.failures.is_all_special() => "not everything arrived",
        Extent::Part => "only a part of the sources was sent",
        Extent::Directories | Extent::Destination => return None,
    };
    drop(ledger);
    let message = format!("nothing was deleted at the destination, because {why}");
    let hint = "run the same command again when that is fixed";
    Some(Fault::new(FaultCode::NotPermitted, message, hint))
}

pub(crate) fn too_many(max: u64) -> Fault {
    let message =
        format!("nothing was deleted at the destination, because it would be more than the {max} permitted");
    Fault::new(FaultCode::NotPermitted, message, "list them with --dry-run; --max-delete permits more")
}

impl Sweep<'_> {
    /// Removes what is at an entry's path. Returns true if something stays.
    fn sweep_one(&mut self, path: &[u8]) -> Result<bool, Fault> {
        let (parent, name) = split(path);
        let names = vec![name.to_vec()].into_iter();
        self.empty(PendingDirectory { path: parent.to_vec(), names, kept: false })
    }

    fn sweep_all(&mut self) -> Result<(), Fault> {
        let extent = self.shared.ledger.lock().extent;
        if extent == Extent::Destination && self.shared.place.base.rename.is_none() {
            self.directory(None, Vec::new())?;
        }
        let directories: Vec<u32> =
            self.shared.table(|table| table.select(|kind, _| kind == Kind::Directory).collect());
        for entry in directories {
            if self.is_over() {
                break;
            }
            if self.shared.table(|table| table.is_first(entry)) {
                self.directory(Some(entry), self.shared.path(entry))?;
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let enough = self.count_limit.is_some_and(|max| self.removal.removed > max);
        enough || self.has_unusable_ignores || self.shared.has_ended()
    }

    /// Deletes the names in an entry's directory that the set lacks.
    fn directory(&mut self, entry: Option<u32>, path: Vec<u8>) -> Result<(), Fault> {
        // The sender did not enter this directory.
        if self.delete_exclude.filtered.has(&path) {
            return Ok(());
        }
        let names = match self.names(&path) {
            Ok(names) => names,
            // In a dry run the directory may not exist yet, or another kind of file may be in its place.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if self.shared.is_dry_run() => return Ok(()),
            Err(errno) => {
                self.record_failure("list", &path, errno);
                return Ok(());
            }
        };
        if self.delete_exclude.filtered.obeys_ignore_files {
            self.load_ignores(entry, &path, &names);
        }
        let extraneous: Vec<_> = self.shared.table(|table| {
            let is_extraneous = |name: &Vec<u8>| table.find(entry, name).is_none() && !is_working_name(name);
            names.into_iter().filter(is_extraneous).collect()
        });
        self.empty(PendingDirectory { path, names: extraneous.into_iter(), kept: false }).map(drop)
    }

    /// Loads the ignore files that apply in a directory of the set: those in the set and those that stay.
    /// Ignore files that are deleted do not apply, so that a second run has nothing left to delete.
    fn load_ignores(&mut self, entry: Option<u32>, path: &[u8], names: &[Vec<u8>]) {
        let is_present = |name: &&[u8]| names.iter().any(|present| present == name);
        let is_kept = |name: &&[u8]| {
            self.shared.table(|table| table.find(entry, name).is_some())
                || self.delete_exclude.has(&join(path, name), false, None)
        };
        let present: Vec<&[u8]> = IGNORE_FILES.into_iter().filter(is_present).filter(is_kept).collect();
        if present.is_empty() {
            return;
        }
        let above = self.ignores_above(path);
        let directory = match self.shared.place.directory(&self.shared.place.local(path)) {
            Ok(directory) => directory,
            Err(errno) => {
                self.has_unusable_ignores = true;
                return self.record_failure("list", path, errno);
            }
        };
        match obey_ignore_files(above, &*directory, path, &present) {
            Ok(found) => self.ignores.extend(found.map(|found| (path.to_vec(), found))),
            Err((path, _)) => {
                self.has_unusable_ignores = true;
                self.removal.fault.get_or_insert_with(|| unusable(&path));
            }
        }
    }

    fn ignores_above(&self, path: &[u8]) -> Option<Arc<Ignores>> {
        let mut above = successors(Some(path), |at| (!at.is_empty()).then(|| split(at).0)).skip(1);
        above.find_map(|at| self.ignores.get(at)).cloned()
    }

    /// Removes these names with their contents, contents first. Returns true if something stays.
    fn empty(&mut self, first: PendingDirectory) -> Result<bool, Fault> {
        let mut open = vec![first];
        while let Some(innermost) = open.last_mut() {
            if self.is_over() {
                return Ok(true);
            }
            if let Some(name) = innermost.names.next() {
                let path = join(&innermost.path, &name);
                match self.classify(&path) {
                    _ if is_working_name(&name) => innermost.kept = true,
                    Ok(Found::Excluded) => innermost.kept = true,
                    Ok(Found::Directory(names)) => {
                        open.push(PendingDirectory { path, names: names.into_iter(), kept: false });
                    }
                    Ok(Found::Leaf) => innermost.kept |= !self.remove(&path, AtFlags::empty())?,
                    Err(errno) => {
                        innermost.kept = true;
                        self.record_failure("remove", &path, errno);
                    }
                }
                continue;
            }
            let Some(done) = open.pop() else { break };
            match open.last_mut() {
                Some(above) => above.kept |= done.kept || !self.remove(&done.path, AtFlags::REMOVEDIR)?,
                None => return Ok(done.kept),
            }
        }
        Ok(false)
    }

    fn classify(&self, path: &[u8]) -> Result<Found, Errno> {
        self.shared.progress.other_steps.add(1);
        let local = self.shared.place.local(path);
        let (parent, name) = split(&local);
        let directory = self.shared.place.directory(parent)?;
        let stat = self.within(parent, |directory| lstatat(directory, name))?;
        let is_directory = kind_of(&stat) == FileType::Directory;
        if self.delete_exclude.has(path, is_directory, self.ignores_above(path).as_deref()) {
            return Ok(Found::Excluded);
        }
        if !is_directory {
            return Ok(Found::Leaf);
        }
        // A mounted file system is not part of the destination.
        if stat.st_dev != fstat(&directory)?.st_dev {
            return Err(Errno::BUSY);
        }
        self.names(path).map(Found::Directory)
    }

    /// Runs `act` in a directory. If permissions are missing, relaxes them for the job where the user owns
    /// the directory, and tries again.
    fn within<T>(&self, local: &[u8], act: impl Fn(&OwnedFd) -> Result<T, Errno>) -> Result<T, Errno> {
        let directory = self.shared.place.directory(local)?;
        let relax = || self.shared.place.relax_permissions(local, &directory).is_ok();
        match act(&directory) {
            Err(Errno::ACCESS) if !self.shared.is_dry_run() && relax() => act(&directory),
            done => done,
        }
    }

    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        let local = self.shared.place.local(path);
        match self.within(&local, |directory| names(directory)) {
            // Its contents are not counted: listing them would require changing its permissions.
            Err(Errno::ACCESS)
                if self.shared.is_dry_run() && self.shared.place.could_relax_permissions(&local) =>
            {
                Ok(Vec::new())
            }
            names => names.map(|mut names| {
                names.sort_unstable();
                names
            }),
        }
    }

    /// Removes a name, counts and lists it. A dry run removes nothing. Returns false if the name stays.
    fn remove(&mut self, path: &[u8], flags: AtFlags) -> Result<bool, Fault> {
        if self.count_limit.is_none() && !self.shared.is_dry_run() {
            let local = self.shared.place.local(path);
            let (parent, name) = split(&local);
            match self.within(parent, |directory| unlinkat(directory, name, flags)) {
                Ok(()) => {}
                Err(Errno::NOENT) => return Ok(true),
                Err(errno) => {
                    self.record_failure("remove", path, errno);
                    return Ok(false);
                }
            }
        }
        self.removal.removed += 1;
        if self.count_limit.is_none() {
            self.shared.report_item(path, Action::Delete)?;
        }
        Ok(true)
    }

    /// Records why a name stays, for the first one only.
    fn record_failure(&mut self, doing: &str, path: &[u8], errno: Errno) {
        let local = self.shared.place.local(path);
        let fault = || match errno {
            Errno::BUSY => Fault::new(
                FaultCode::Io,
                format!("cannot remove `{}`: something is mounted there", show(&local)),
                "unmount it, or leave it out of the destination",
            ),
            errno => IoFault::destination(doing, &local, errno).fault,
        };
        self.removal.fault.get_or_insert_with(fault);
    }
}

fn unusable(path: &[u8]) -> Fault {
    let what = "cannot be used at the destination, so it is unknown what it would exclude there";
    let hint = "correct the file there, or leave --gitignore or --delete out";
    path_fault(FaultCode::Unreadable, path, what, hint)
}

/// Whether an existing file of type `existing` has to be removed before an entry of this kind can be created.
pub(crate) fn is_obstacle(kind: Kind, existing: FileType) -> bool {
    check_kind(kind, Some(existing), b"").is_err()
}

impl Shared {
    /// Whether the policy permits deletion, and thus removal of obstacles.
    pub(crate) fn permits_deletion(&self) -> bool {
        self.receive_policy.extraneous != Extraneous::Keep
    }

    /// Creates a directory; removes a file or link in its way if permitted. Returns false if it exists.
    pub(crate) fn make_directory(&self, path: &[u8]) -> Result<bool, IoFault> {
        let made = self.place.make_directory(path);
        let blocked =
            || self.place.obstacle(path).is_some_and(|existing| is_obstacle(Kind::Directory, existing));
        if made.is_ok() || !self.permits_deletion() || !blocked() {
            return made;
        }
        self.count_one()?;
        let dirent = self.place.dir_entry(path)?;
        let unlink = || unlinkat(&dirent.directory, dirent.name(), AtFlags::empty());
        self.place.with_access(&dirent, unlink).map_err(dirent.fail("remove"))?;
        self.report_item(path, Action::Delete)?;
        self.place.make_directory(path)
    }

    /// Counts the removal of a name in the way of a directory. Fails if the limit is reached.
    pub(crate) fn count_one(&self) -> Result<(), IoFault> {
        if let Some((max, 0)) = limit(self) {
            return Err(IoFault { fault: too_many(max), scope: Scope::Entry });
        }
        self.ledger.lock().removal.removed += 1;
        Ok(())
    }
}
