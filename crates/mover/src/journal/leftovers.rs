//! Journals of interrupted jobs, and what can be resumed from them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::journal::record::{
    FileRecord, Log, Made, Record, SkipReason, journal_name, parse_journal, parse_part, part_name,
};
use crate::root::{Links, join, open_beneath, split};
use crate::storage::{Mtime, flock, fstat, kind_of, lstatat, names, open_in, unlink_temporary};

/// Maximum number of journals read per directory, the newest ones.
const MAX_JOURNALS: usize = 64;

/// Interval of attempts to take a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Maximum wait, from a job's beginning, for running jobs that write its files: the receiver of a killed copy
/// syncs its data before it ends, some ten milliseconds after its sender.
const ENDING_TIMEOUT: Duration = Duration::from_secs(1);

/// Journals of earlier jobs in a directory. One is only locked when this job needs something of it, so that
/// other jobs can resume theirs.
pub(crate) struct Leftovers {
    directory: OwnedFd,
    /// Those in use, newest last.
    journals: Vec<Leftover>,
    /// Claims by path, each the index of a journal and a number in it; the last one is handed out next.
    by_path: HashMap<Vec<u8>, Vec<(usize, u32)>>,
    skipped: Vec<(u32, SkipReason)>,
    /// Those of running jobs and those not in use, newest last.
    others: Vec<Leftover>,
    /// All paths in `others`, because there may be millions of entries to look up.
    paths_of_others: HashSet<Vec<u8>>,
    started: Instant,
    lock_mode: LockMode,
}

/// What happens to the lock of a journal that is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// This job keeps it.
    Keep,
    /// It is released, as this job changes nothing: others can take over the journal.
    Release,
}

pub(crate) struct Leftover {
    pub(crate) id: u32,
    file: OwnedFd,
    pub(crate) is_running: bool,
    pub(crate) log: Log,
    /// Place among the journals of the directory: newer ones have higher numbers.
    position: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) record: FileRecord,
    /// Name of the temporary file, in the path's directory.
    pub(crate) part: Vec<u8>,
    journal: usize,
    number: u32,
}

impl Leftovers {
    /// Reads the journals of earlier jobs in a directory. `None` if it cannot be read.
    pub(crate) fn find(directory: BorrowedFd<'_>, lock_mode: LockMode) -> Option<Self> {
        let mut found = Self {
            directory: open_in(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY).ok()?,
            journals: Vec::new(),
            by_path: HashMap::new(),
            skipped: Vec::new(),
            others: Vec::new(),
            paths_of_others: HashSet::new(),
            started: Instant::now(),
            lock_mode,
        };
        for (position, id) in newest(&found.directory, MAX_JOURNALS).into_iter().rev().enumerate() {
            match Leftover::open(found.directory.as_fd(), id, LockMode::Release) {
                Ok(leftover) => {
                    let records = leftover.log.state.files.values();
                    found.paths_of_others.extend(records.map(|record| record.identity.path.clone()));
                    found.others.push(Leftover { position, ..leftover });
                }
                Err(why) => found.skipped.push((id, why)),
            }
        }
        Some(found)
    }

    /// Adds a journal. Its claims on a path are handed out before those of older journals.
    fn add(&mut self, leftover: Leftover) {
        let journal = self.journals.len();
        for (&number, record) in leftover.log.state.files.iter().filter(|(_, file)| !file.written.is_empty())
        {
            let claims = self.by_path.entry(record.identity.path.clone()).or_default();
            let place = claims.partition_point(|&(other, _)| {
                self.journals.get(other).is_none_or(|other| other.position <= leftover.position)
            });
            claims.insert(place, (journal, number));
        }
        self.journals.push(leftover);
    }

    /// Takes over the journals that are of use to this job. Waits some time for running jobs.
    fn take_over(&mut self, is_ours: impl Fn(&Leftover) -> bool) {
        // Another job may just be reading a journal.
        let until = (self.started + ENDING_TIMEOUT).max(Instant::now() + 4 * LOCK_PAUSE);
        while let Some(at) = self.others.iter().position(&is_ours) {
            match Leftover::open(self.directory.as_fd(), self.others[at].id, self.lock_mode) {
                Ok(leftover) if leftover.is_running && Instant::now() < until => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                ended => {
                    let position = self.others.remove(at).position;
                    if let Some(leftover) = ended.ok().filter(|leftover| !leftover.is_running) {
                        self.add(Leftover { position, ..leftover });
                    }
                }
            }
        }
    }

    fn take_over_at(&mut self, path: &[u8]) {
        if self.paths_of_others.contains(path) {
            self.take_over(|job| job.is_at(path));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let ended = self.others.iter().filter(|leftover| !leftover.is_running);
        self.by_path.is_empty() && !self.journals.iter().chain(ended).any(Leftover::has_records)
    }

    /// Whether there is nothing to resume, now or after a running job at `path` has ended.
    pub(crate) fn is_empty_at(&self, path: &[u8]) -> bool {
        self.is_empty() && !self.others.iter().any(|job| job.has_made(path) || job.is_at(path))
    }

    /// Returns the source for which an interrupted or running job created the directory `name`.
    pub(crate) fn made_for(&self, name: &[u8]) -> Option<Vec<u8>> {
        let made = self.others.iter().rev().filter_map(|job| job.log.state.made.as_ref());
        made.filter(|made| made.name == name).map(|made| made.source.clone()).next()
    }

    /// Takes over the directory `name` for this job.
    pub(crate) fn adopt_directory(&mut self, name: &[u8]) {
        self.take_over(|job| job.has_made(name));
        for leftover in self.journals.iter_mut().filter(|leftover| leftover.has_made(name)) {
            leftover.log.state.made = None;
            // Without this record, the directory stands for that source once more at most.
            let _ = leftover.log.append(&leftover.file, vec![Record::Made(Made::default())]);
        }
    }

    /// Changes the time from which running jobs are waited for.
    #[cfg(test)]
    pub(crate) fn set_beginning(&mut self, started: Instant) {
        self.started = started;
    }

    #[cfg(test)]
    pub(crate) fn is_waiting_for(&self, id: u32) -> bool {
        self.others.iter().any(|job| job.is_running && job.id == id)
    }

    #[cfg(test)]
    pub(crate) fn skipped(&self) -> &[(u32, SkipReason)] {
        &self.skipped
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let odd = |(_, why): &&(u32, SkipReason)| *why != SkipReason::Vanished;
        let note = |&(id, why): &(u32, SkipReason)| {
            format!("`{}` at the destination was left alone: {}", journal_name(id), reason(id, why))
        };
        self.skipped.iter().filter(odd).map(note).collect()
    }

    /// Returns a claim on a file, the newest first. Each is handed out once, if its temporary file exists.
    pub(crate) fn take(&mut self, path: &[u8]) -> Option<Claim> {
        self.take_over_at(path);
        while let Some((journal, number)) = self.by_path.get_mut(path)?.pop() {
            let leftover = &self.journals[journal];
            let Some(record) = leftover.log.state.files.get(&number) else { continue };
            let part = part_name(leftover.id, number);
            if has_part(self.directory.as_fd(), &part, record) {
                return Some(Claim { record: record.clone(), part: part.into_bytes(), journal, number });
            }
        }
        None
    }

    /// Records that a claim's temporary file was renamed, and discards older claims on its path.
    pub(crate) fn consumed(&mut self, claim: &Claim) {
        self.journals[claim.journal].file_removed(claim.number);
        self.discard_all(&claim.record.identity.path);
    }

    pub(crate) fn discard_all(&mut self, path: &[u8]) {
        self.take_over_at(path);
        for (journal, number) in self.by_path.remove(path).unwrap_or_default() {
            self.remove_part(path, journal, number);
        }
    }

    pub(crate) fn discard(&mut self, claim: &Claim) {
        self.remove_part(&claim.record.identity.path, claim.journal, claim.number);
    }

    fn remove_part(&mut self, path: &[u8], journal: usize, number: u32) {
        let leftover = &mut self.journals[journal];
        // Nothing can be done about a name that cannot be removed.
        let _ = open_directory(self.directory.as_fd(), split(path).0, OFlags::PATH)
            .and_then(|parent| unlink_temporary(&parent, part_name(leftover.id, number)));
        leftover.file_removed(number);
    }

    /// Removes useless journals with their temporary files. The others are unlocked and kept.
    pub(crate) fn finish(mut self) {
        let directory = self.directory.as_fd();
        for useless in self.others.iter().filter(|other| !other.is_running && !other.is_usable(directory)) {
            // It may have changed since.
            let locked = Leftover::open(directory, useless.id, LockMode::Keep);
            self.journals.extend(locked.ok().filter(|leftover| !leftover.is_running));
        }
        for leftover in self.journals {
            if !leftover.is_usable(directory) {
                // What cannot be removed now is left to the next job or `haul clean`.
                let _ = leftover.remove(directory);
            }
        }
    }
}

impl Leftover {
    /// Reads a journal, and determines by its lock whether its job is running.
    pub(crate) fn open(directory: BorrowedFd<'_>, id: u32, lock_mode: LockMode) -> Result<Self, SkipReason> {
        let (access, lock) = match lock_mode {
            LockMode::Keep => (OFlags::RDWR | OFlags::APPEND, FlockOperation::NonBlockingLockExclusive),
            LockMode::Release => (OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
        };
        let file = open_journal(directory, id, access)?;
        let is_running = match flock(&file, lock) {
            Err(Errno::WOULDBLOCK) => true,
            locked => locked.map(|()| false)?,
        };
        // The previous holder of the lock may have removed it.
        if fstat(&file)?.st_nlink == 0 {
            return Err(SkipReason::Vanished);
        }
        if lock_mode == LockMode::Release && !is_running {
            flock(&file, FlockOperation::Unlock)?;
        }
        let mut reader = BufReader::new(File::from(file));
        let log = Log::read(id, &mut reader)?;
        Ok(Self { id, file: reader.into_inner().into(), is_running, log, position: 0 })
    }

    fn has_made(&self, name: &[u8]) -> bool {
        self.log.state.made.as_ref().is_some_and(|made| made.name == name)
    }

    fn is_at(&self, path: &[u8]) -> bool {
        self.log.state.files.values().any(|record| record.identity.path == path)
    }

    fn has_records(&self) -> bool {
        let state = &self.log.state;
        state.made.is_some() || state.files.values().any(|record| !record.written.is_empty())
    }

    fn file_removed(&mut self, number: u32) {
        self.log.state.files.remove(&number);
        // Without this record the journal claims a missing temporary file, which has no effect.
        let _ = self.log.append(&self.file, vec![Record::Removed { number }]);
    }

    fn is_usable(&self, directory: BorrowedFd<'_>) -> bool {
        let is_there = |(&number, record): (&u32, &FileRecord)| {
            !record.written.is_empty() && has_part(directory, &part_name(self.id, number), record)
        };
        self.log.state.made.is_some() || self.log.state.files.iter().any(is_there)
    }

    /// Removes the temporary files and then the journal, which is kept if one of them cannot be removed.
    pub(crate) fn remove(self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        for path in self.parts(directory)? {
            let (parent, name) = split(&path);
            let parent = open_directory(directory, parent, OFlags::PATH)?;
            ignore_missing(unlink_temporary(&parent, name))?;
        }
        ignore_missing(unlink_temporary(directory, journal_name(self.id)))
    }

    /// Returns the paths of the existing temporary files, relative to the journal's directory.
    pub(crate) fn parts(&self, directory: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
        let mut parts = Vec::new();
        let mut directories = self.log.state.directories.clone();
        // The journal's own directory, even if that record is damaged.
        directories.insert(Vec::new());
        for parent in &directories {
            let opened = match open_directory(directory, parent, OFlags::RDONLY) {
                // It was removed or replaced.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                opened => opened?,
            };
            let found = names(&opened).unwrap_or_default();
            let parts_of_journal =
                found.into_iter().filter(|name| parse_part(name).is_some_and(|(of, _)| of == self.id));
            parts.extend(parts_of_journal.map(|name| join(parent, &name)));
        }
        Ok(parts)
    }
}

fn ignore_missing(done: Result<(), Errno>) -> Result<(), Errno> {
    if done == Err(Errno::NOENT) { Ok(()) } else { done }
}

pub(crate) fn has_part(directory: BorrowedFd<'_>, part: &str, record: &FileRecord) -> bool {
    let path = join(split(&record.identity.path).0, part.as_bytes());
    stat_beneath(directory, &path).is_ok_and(|stat| is_ours(&stat))
}

pub(crate) fn stat_beneath(directory: BorrowedFd<'_>, path: &[u8]) -> Result<Stat, Errno> {
    let (parent, name) = split(path);
    lstatat(open_directory(directory, parent, OFlags::PATH)?, name)
}

/// Opens the journal with this ID, if it is a regular file of this user.
fn open_journal(directory: BorrowedFd<'_>, id: u32, flags: OFlags) -> Result<OwnedFd, SkipReason> {
    // O_NONBLOCK: the name might be a named pipe.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open_in(directory, journal_name(id), flags).map_err(|errno| match errno {
        Errno::NOENT => SkipReason::Vanished,
        Errno::LOOP | Errno::ISDIR | Errno::NXIO => SkipReason::Foreign,
        errno => SkipReason::Unreadable(errno),
    })?;
    let stat = fstat(&file)?;
    match stat.st_nlink {
        0 => Err(SkipReason::Vanished),
        _ if is_ours(&stat) => Ok(file),
        _ => Err(SkipReason::Foreign),
    }
}

/// Whether it is a regular file of this user without further hard links.
pub(crate) fn is_ours(stat: &Stat) -> bool {
    kind_of(stat) == FileType::RegularFile && stat.st_uid == geteuid().as_raw() && stat.st_nlink == 1
}

fn open_directory(directory: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    open_beneath(directory, path, flags | OFlags::DIRECTORY, Links::Refuse)
}

/// Returns the IDs of up to `most` journals in a directory, the last modified first.
pub(crate) fn newest(directory: &OwnedFd, most: usize) -> Vec<u32> {
    let names = names(directory).unwrap_or_default();
    let dated = |id| Some((Mtime::of(&lstatat(directory, journal_name(id)).ok()?), id));
    let ids = names.iter().filter_map(|name| parse_journal(name));
    let mut newest: Vec<(Mtime, u32)> = ids.filter_map(dated).collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    newest.truncate(most);
    newest.into_iter().map(|(_, id)| id).collect()
}

pub(super) fn reason(id: u32, why: SkipReason) -> String {
    match why {
        SkipReason::Version(version) => format!(
            "it was written by another version of haul (format {version}); to give up resuming, delete it together with the files `.haul-{id:08x}-*.part` beside and below it"
        ),
        SkipReason::Foreign => "it is not a journal of this user, or has several hard links".to_owned(),
        SkipReason::Unreadable(errno) => format!("it cannot be read: {}", io::Error::from(errno)),
        SkipReason::Vanished => "it no longer exists".to_owned(),
    }
}
