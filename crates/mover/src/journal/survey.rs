//! Journals for users: lists and removes the journals in a directory.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul_base::Bytes;
use rustix::fs::{CWD, FileType, OFlags};
use rustix::io::Errno;

use crate::journal::leftovers::{self, Leftover, LockMode, reason};
use crate::journal::record::{SkipReason, journal_name, part_name};
use crate::root::open_long;
use crate::storage::{Mtime, kind_of, list, lstatat};

/// Summary of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalReport {
    id: u32,
    /// Name of the journal file.
    pub name: String,
    /// Whether the job can be resumed.
    pub state: JournalState,
    /// Time of the last write.
    pub modified: SystemTime,
    /// Files that the next job could resume.
    pub files: Vec<PartialFile>,
    /// Number of temporary files.
    pub parts: u64,
    /// Disk space that the temporary files occupy.
    pub occupied: Bytes,
}

/// Whether the job of a journal can be resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalState {
    /// Its job is running.
    Running,
    /// Its job was interrupted.
    LeftOver,
    /// The journal is ignored, for this reason.
    NotOurs(String),
}

/// A partially received file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialFile {
    /// Relative to the directory of the journal.
    pub path: Vec<u8>,
    /// Bytes in the temporary file.
    pub have: Bytes,
    /// Length of the file. If it has holes, it is complete with fewer bytes.
    pub size: Bytes,
}

/// Returns the journals of running and interrupted jobs in one directory, newest first, without
/// subdirectories.
///
/// # Errors
/// The directory cannot be read.
pub fn find_journals(directory: &Path) -> io::Result<Vec<JournalReport>> {
    let directory = open(directory)?;
    let ids = leftovers::newest(&directory, usize::MAX);
    Ok(ids.into_iter().filter_map(|id| report(&directory, id)).collect())
}

/// Removes the temporary files of an interrupted job and its journal. Returns false, and removes nothing, if
/// the job is running, or the journal is not one of ours or no longer exists.
///
/// # Errors
/// Something could not be removed. The journal is then kept, so that the caller can retry.
pub fn remove_journal(directory: &Path, journal: &JournalReport) -> io::Result<bool> {
    let directory = open(directory)?;
    match Leftover::open(directory.as_fd(), journal.id, LockMode::Keep) {
        Ok(leftover) if leftover.is_running => Ok(false),
        Ok(leftover) => leftover.remove(directory.as_fd()).map(|()| true).map_err(Into::into),
        Err(SkipReason::Unreadable(errno)) => Err(errno.into()),
        Err(_) => Ok(false),
    }
}

/// Returns the names of the subdirectories, in no particular order. Does not follow links.
///
/// # Errors
/// The directory cannot be read.
pub fn subdirectories(directory: &Path) -> io::Result<Vec<OsString>> {
    let directory = open(directory)?;
    let is_directory = |(name, kind): &(Vec<u8>, FileType)| match kind {
        // Not every file system reports types here. A missing name is not a directory.
        FileType::Unknown => {
            lstatat(&directory, name).is_ok_and(|stat| kind_of(&stat) == FileType::Directory)
        }
        kind => *kind == FileType::Directory,
    };
    Ok(list(&directory)?.into_iter().filter(is_directory).map(|(name, _)| OsString::from_vec(name)).collect())
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    open_long(CWD, path.as_os_str().as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)
}

fn report(directory: &OwnedFd, id: u32) -> Option<JournalReport> {
    let name = journal_name(id);
    let stat = lstatat(directory, &name).ok()?;
    // For an age, times before 1970 count as 1970.
    let Mtime { secs, nanos } = Mtime::of(&stat);
    let modified = UNIX_EPOCH + Duration::new(secs.try_into().unwrap_or(0), nanos);
    let (state, files, parts, occupied) = (JournalState::LeftOver, Vec::new(), 0, Bytes(0));
    let mut report = JournalReport { id, name, state, modified, files, parts, occupied };
    let leftover = match Leftover::open(directory.as_fd(), id, LockMode::Release) {
        Ok(leftover) => leftover,
        Err(SkipReason::Vanished) => return None,
        Err(why) => return Some(JournalReport { state: JournalState::NotOurs(reason(id, why)), ..report }),
    };
    if leftover.is_running {
        report.state = JournalState::Running;
    }
    // Unreadable files are not counted.
    for path in leftover.parts(directory.as_fd()).unwrap_or_default() {
        if let Ok(stat) = leftovers::stat_beneath(directory.as_fd(), &path) {
            report.parts += 1;
            // st_blocks counts 512 bytes each (stat(2)).
            report.occupied.0 += stat.st_blocks as u64 * 512;
        }
    }
    for (&number, record) in &leftover.log.state.files {
        let have = Bytes(record.written.total());
        if have.0 > 0 && leftovers::has_part(directory.as_fd(), &part_name(id, number), record) {
            let identity = &record.identity;
            report.files.push(PartialFile { path: identity.path.clone(), have, size: Bytes(identity.size) });
        }
    }
    Some(report)
}
