//! Removes what the set does not have from the directories that it has.
//!
//! Every directory is opened from the destination without following a link, and every name is removed relative to an
//! open directory. Journals and temporary files stay, whichever job they belong to, and so does what is mounted.
//!
//! What is at an entry's name and of another kind gives way, if names may be removed: a file or link to a directory at
//! once, because other entries come into it; a directory, and what is in it, only when everything has arrived.

pub(super) mod exclude;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use exclude::DeleteExclude;
use haul_wire::control::{Action, Extent, Extraneous, Fault, FaultCode, Removal};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use crate::entries::Kind;
use crate::fault::{IoFault, Scope, of_path, show};
use crate::journal::is_working_name;
use crate::receive::place::fits;
use crate::receive::shared::Shared;
use crate::root::{join, split};
use crate::send::{IGNORE_FILES, Ignores, obey_ignore_files};
use crate::storage::{fstat, kind_of, lstatat, names, unlinkat};

/// A name in a directory that is being emptied.
enum Seen {
    Excluded,
    /// A directory, with these names in it.
    Directory(Vec<Vec<u8>>),
    Leaf,
}

struct Emptying {
    path: Vec<u8>,
    /// Its path if the set had it.
    in_set: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
    /// Something in it stays.
    keeps: bool,
}

struct Sweep<'a> {
    shared: &'a Shared,
    delete_exclude: &'a DeleteExclude,
    /// Names are only counted, up to one more than so many.
    counts: Option<u64>,
    removal: Removal,
    /// Of the directories that have any; these come before what is in them.
    ignores: HashMap<Vec<u8>, Arc<Ignores>>,
    /// Those that hold in the directory that is being emptied.
    current: Option<Arc<Ignores>>,
    /// An ignore file cannot be used, so that it is not known what else would have to stay.
    is_blind: bool,
}

/// Removes what the set does not have, if the policy says so (else `None`). Names that stay do not end the job.
pub(crate) fn sweep(shared: &Shared) -> Result<Option<Removal>, Fault> {
    if !shared.clears() {
        return Ok(None);
    }
    if let Some(fault) = incomplete(shared) {
        shared.book.lock().removal.fault.get_or_insert(fault);
    } else {
        remove(shared, |sweep| {
            sweep.everything()?;
            shared.tell_the_rest()
        })?;
    }
    Ok(Some(shared.book.lock().removal.clone()))
}

/// Removes what is in the way of these entries, if everything has arrived; of each, whether something still is.
pub(crate) fn clear(shared: &Shared, paths: &[&[u8]]) -> Result<Vec<bool>, Fault> {
    let stay = match incomplete(shared) {
        Some(_) => None,
        None => remove(shared, |sweep| {
            // Which names in it ignore files protect is found out from directory to directory of the set alone.
            let is_known = !sweep.delete_exclude.filtered.obeys_ignore_files;
            paths.iter().map(|path| if is_known { sweep.one(path) } else { Ok(true) }).collect()
        })?,
    };
    shared.place.forget_directories();
    Ok(stay.unwrap_or_else(|| vec![true; paths.len()]))
}

/// Does what `go_through` finds to do, unless that is more than the policy permits (`None`); notes what was removed.
fn remove<T>(
    shared: &Shared,
    go_through: impl Fn(&mut Sweep<'_>) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    let mut book = shared.book.lock();
    let filtered = std::mem::take(&mut book.filtered);
    let delete_exclude = DeleteExclude::new(shared.expectations.as_ref(), &book.left_out, filtered)?;
    drop(book);
    let run = |counts| {
        let mut sweep = Sweep::new(shared, &delete_exclude, counts);
        go_through(&mut sweep).map(|done| (Some(done), sweep.removal))
    };
    let (done, removal) = match limit(shared) {
        Some((most, left)) if run(Some(left))?.1.removed > left => {
            (None, Removal { removed: 0, fault: Some(too_many(most)) })
        }
        _ => run(None)?,
    };
    let mut book = shared.book.lock();
    book.filtered = delete_exclude.filtered;
    book.removal.removed += removal.removed;
    book.removal.fault = book.removal.fault.take().or(removal.fault);
    Ok(done)
}

/// The most names that may be removed, and how many that still are; `None`: any number.
pub(crate) fn limit(shared: &Shared) -> Option<(u64, u64)> {
    let Extraneous::DeleteAtMost(most) = shared.receive_policy.extraneous else { return None };
    Some((most, most.saturating_sub(shared.book.lock().removal.removed)))
}

/// Why it is not known what the sources do not have.
fn incomplete(shared: &Shared) -> Option<Fault> {
    let (is_all_special, extent) = {
        let book = shared.book.lock();
        (book.failures.is_all_special(), book.extent)
    };
    let why = match (is_all_special, extent) {
        (false, _) => "not everything arrived",
        (true, Extent::Part) => "only a part of the sources was sent",
        (true, _) => return None,
    };
    let message = format!("nothing was deleted at the destination, because {why}");
    let hint = "run the same command again when that is fixed";
    Some(Fault::new(FaultCode::NotPermitted, message, hint))
}

pub(crate) fn too_many(most: u64) -> Fault {
    let message =
        format!("nothing was deleted at the destination, because it would be more than the {most} permitted");
    Fault::new(FaultCode::NotPermitted, message, "list them with --dry-run; --max-delete permits more")
}

impl<'a> Sweep<'a> {
    fn new(shared: &'a Shared, delete_exclude: &'a DeleteExclude, counts: Option<u64>) -> Self {
        let (removal, ignores) = (Removal::default(), HashMap::new());
        Self { shared, delete_exclude, counts, removal, ignores, current: None, is_blind: false }
    }

    /// Removes what is at an entry's name. True: it stays.
    fn one(&mut self, in_set: &[u8]) -> Result<bool, Fault> {
        let local = self.shared.place.local(in_set);
        let (parent, name) = split(&local);
        let names = vec![name.to_vec()].into_iter();
        let in_set = split(in_set).0.to_vec();
        self.empty(Emptying { path: parent.to_vec(), in_set, names, keeps: false })
    }

    fn everything(&mut self) -> Result<(), Fault> {
        let extent = self.shared.book.lock().extent;
        if extent == Extent::Destination && self.shared.place.rename().is_none() {
            self.directory(None, Vec::new(), Vec::new())?;
        }
        let directories: Vec<u32> =
            self.shared.table(|table| table.those(|kind, _| kind == Kind::Directory).collect());
        for entry in directories {
            if self.is_over() {
                break;
            }
            if self.shared.table(|table| table.is_first(entry)) {
                let path = self.shared.path(entry);
                self.directory(Some(entry), self.shared.place.local(&path), path)?;
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let enough = self.counts.is_some_and(|most| self.removal.removed > most);
        enough || self.is_blind || self.shared.has_ended()
    }

    /// Removes what `entry` does not have from its directory.
    fn directory(&mut self, entry: Option<u32>, local: Vec<u8>, in_set: Vec<u8>) -> Result<(), Fault> {
        // It was not entered at the sender.
        if self.delete_exclude.filtered.has(&in_set) {
            return Ok(());
        }
        let names = match self.names(&local) {
            Ok(names) => names,
            // In a dry run it may still have to be made, in place of something else perhaps.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if self.shared.only_looks() => return Ok(()),
            Err(errno) => {
                self.stays("list", &local, errno);
                return Ok(());
            }
        };
        if self.delete_exclude.filtered.obeys_ignore_files {
            self.obey(entry, &local, &in_set, &names);
        }
        let extraneous: Vec<_> = self.shared.table(|table| {
            let foreign = |name: &Vec<u8>| table.find(entry, name).is_none() && !is_working_name(name);
            names.into_iter().filter(foreign).collect()
        });
        self.empty(Emptying { path: local, in_set, names: extraneous.into_iter(), keeps: false }).map(drop)
    }

    /// Finds the ignore files that hold in a directory of the set: those of the set and those that stay. Others, which
    /// are removed, say nothing, so that a second run finds nothing to do.
    fn obey(&mut self, entry: Option<u32>, local: &[u8], in_set: &[u8], names: &[Vec<u8>]) {
        let is_there = |name: &&[u8]| names.iter().any(|there| there == name);
        let stays = |name: &&[u8]| {
            self.shared.table(|table| table.find(entry, name).is_some())
                || self.delete_exclude.has(&join(in_set, name), false, None)
        };
        let there: Vec<&[u8]> = IGNORE_FILES.into_iter().filter(is_there).filter(stays).collect();
        let above = self.ignores_above(in_set);
        let directory = match self.shared.place.directory(local) {
            Ok(directory) => directory,
            Err(errno) => {
                self.is_blind = true;
                return self.stays("list", local, errno);
            }
        };
        match obey_ignore_files(above, &*directory, in_set, &there) {
            Ok(found) => {
                if let Some(found) = found.as_ref().filter(|_| !there.is_empty()) {
                    self.ignores.insert(in_set.to_vec(), found.clone());
                }
                self.current = found;
            }
            Err((path, _)) => {
                self.is_blind = true;
                self.removal.fault.get_or_insert_with(|| unusable(&path));
            }
        }
    }

    fn ignores_above(&self, in_set: &[u8]) -> Option<Arc<Ignores>> {
        let mut at = in_set;
        while !at.is_empty() {
            at = split(at).0;
            if let Some(ignores) = self.ignores.get(at) {
                return Some(ignores.clone());
            }
        }
        None
    }

    /// Removes these names, and whatever is in them before. True: something stays.
    fn empty(&mut self, first: Emptying) -> Result<bool, Fault> {
        let mut open = vec![first];
        while let Some(innermost) = open.last_mut() {
            if self.is_over() {
                return Ok(true);
            }
            if let Some(name) = innermost.names.next() {
                let path = join(&innermost.path, &name);
                let in_set = join(&innermost.in_set, &name);
                match self.look(&innermost.path, &name, &in_set) {
                    _ if is_working_name(&name) => innermost.keeps = true,
                    Ok(Seen::Excluded) => innermost.keeps = true,
                    Ok(Seen::Directory(names)) => {
                        open.push(Emptying { path, in_set, names: names.into_iter(), keeps: false });
                    }
                    Ok(Seen::Leaf) => innermost.keeps |= !self.remove(path, AtFlags::empty())?,
                    Err(errno) => {
                        innermost.keeps = true;
                        self.stays("remove", &path, errno);
                    }
                }
                continue;
            }
            let Some(done) = open.pop() else { break };
            match open.last_mut() {
                Some(above) => above.keeps |= done.keeps || !self.remove(done.path, AtFlags::REMOVEDIR)?,
                None => return Ok(done.keeps),
            }
        }
        Ok(false)
    }

    fn look(&self, parent: &[u8], name: &[u8], in_set: &[u8]) -> Result<Seen, Errno> {
        self.shared.progress.worked();
        let directory = self.shared.place.directory(parent)?;
        let stat = self.within(parent, |directory| lstatat(directory, name))?;
        let is_directory = kind_of(&stat) == FileType::Directory;
        if self.delete_exclude.has(in_set, is_directory, self.current.as_deref()) {
            return Ok(Seen::Excluded);
        }
        if !is_directory {
            return Ok(Seen::Leaf);
        }
        // What is mounted there is not the destination's.
        if stat.st_dev != fstat(&directory)?.st_dev {
            return Err(Errno::BUSY);
        }
        self.names(&join(parent, name)).map(Seen::Directory)
    }

    /// Does something in a directory; if it is ours and forbids that, it is permitted for the time of the job.
    fn within<T>(&self, local: &[u8], act: impl Fn(&OwnedFd) -> Result<T, Errno>) -> Result<T, Errno> {
        let directory = self.shared.place.directory(local)?;
        match act(&directory) {
            Err(Errno::ACCESS) if !self.shared.only_looks() => {
                self.shared.place.open_up(local, &directory)?;
                act(&directory)
            }
            done => done,
        }
    }

    fn names(&self, local: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        match self.within(local, |directory| names(directory)) {
            // What is in it goes uncounted: to look, it would have to be changed.
            Err(Errno::ACCESS) if self.shared.only_looks() && self.shared.place.could_open_up(local) => {
                Ok(Vec::new())
            }
            names => names.map(|mut names| {
                names.sort_unstable();
                names
            }),
        }
    }

    /// False: it stays.
    fn remove(&mut self, path: Vec<u8>, flags: AtFlags) -> Result<bool, Fault> {
        if self.counts.is_none() && !self.shared.only_looks() {
            let (parent, name) = split(&path);
            let removed = self.within(parent, |directory| unlinkat(directory, name, flags));
            match removed {
                Ok(()) => {}
                Err(Errno::NOENT) => return Ok(true),
                Err(errno) => {
                    self.stays("remove", &path, errno);
                    return Ok(false);
                }
            }
        }
        self.removal.removed += 1;
        if self.counts.is_none() {
            self.shared.tell_local(path, Action::Delete)?;
        }
        Ok(true)
    }

    /// The first that stays is named.
    fn stays(&mut self, doing: &str, path: &[u8], errno: Errno) {
        let shown = if path.is_empty() { &b"."[..] } else { path };
        let fault = || match errno {
            Errno::BUSY => Fault::new(
                FaultCode::Io,
                format!("cannot remove `{}`: something is mounted there", show(shown)),
                "unmount it, or leave it out of the destination",
            ),
            errno => IoFault::destination(doing, shown, errno).fault,
        };
        self.removal.fault.get_or_insert_with(fault);
    }
}

fn unusable(path: &[u8]) -> Fault {
    let what = "cannot be used at the destination, so it is unknown what it would exclude there";
    let hint = "correct the file there, or leave --gitignore or --delete out";
    of_path(FaultCode::Unreadable, path, what, hint)
}

/// Whether it has to be removed before an entry of this kind can be made.
pub(crate) fn is_in_the_way(kind: Kind, there: FileType) -> bool {
    fits(kind, Some(there), b"").is_err()
}

impl Shared {
    /// Whether what is in the way is removed.
    pub(crate) fn clears(&self) -> bool {
        self.receive_policy.extraneous != Extraneous::Keep
    }

    /// Makes a directory (true), or takes the one that is there (false).
    pub(crate) fn make_directory(&self, path: &[u8]) -> Result<bool, IoFault> {
        let made = self.place.make_directory(path);
        let blocked = || self.place.obstacle(path).is_some_and(|there| is_in_the_way(Kind::Directory, there));
        if made.is_ok() || !self.clears() || !blocked() {
            return made;
        }
        self.count_one()?;
        self.unlink(path)?;
        self.tell(path, Action::Delete)?;
        self.place.make_directory(path)
    }

    /// Counts a name that is in the way of a directory and goes.
    pub(crate) fn count_one(&self) -> Result<(), IoFault> {
        if let Some((most, 0)) = limit(self) {
            return Err(IoFault { fault: too_many(most), scope: Scope::Entry });
        }
        self.book.lock().removal.removed += 1;
        Ok(())
    }

    fn unlink(&self, path: &[u8]) -> Result<(), IoFault> {
        let dirent = self.place.dir_entry(path)?;
        let unlink = || unlinkat(&dirent.directory, dirent.name(), AtFlags::empty());
        self.place.with_room(&dirent, unlink).map_err(dirent.fail("remove"))
    }
}
