mod broken;
mod jobs;
mod records;
mod seeded;
mod strangers;
mod survey;

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use haul_base::RangeSet;
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::journal::record::{Log, journal_name};
use crate::journal::{FileIdentity, Journal, Leftovers, LockMode};
use crate::storage::Mtime;

fn open(path: &Path) -> OwnedFd {
    openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn identity(path: &str, size: u64) -> FileIdentity {
    FileIdentity { path: path.into(), size, mtime: Mtime { secs: -7, nanos: 5 }, shape: [3; 32] }
}

fn ranges(of: &[(u64, u64)]) -> RangeSet {
    let mut set = RangeSet::new();
    for &(start, end) in of {
        set.insert(start..end);
    }
    set
}

fn read_journal(dir: &Path, id: u32) -> Log {
    Log::read(id, &fs::read(dir.join(journal_name(id))).unwrap()[..]).unwrap()
}

/// A job that is interrupted after it has written the range `written` of `path`.
fn interrupted_job(dir: &Path, path: &str, size: u64, written: std::ops::Range<u64>) -> u32 {
    let journal = Journal::create(open(dir).as_fd()).unwrap();
    let parent = path.rfind('/').map_or("", |slash| &path[..slash]);
    fs::create_dir_all(dir.join(parent)).unwrap();
    journal.record_directory(parent.as_bytes());
    journal.begin(1, &identity(path, size));
    fs::write(dir.join(parent).join(journal.part_name(1)), "x").unwrap();
    journal.record_written(1, written);
    journal.flush();
    journal.id()
}

fn adopt(dir: &Path) -> Leftovers {
    Leftovers::find(open(dir).as_fd(), LockMode::Keep).unwrap()
}

/// The names in a directory that begin with a dot.
fn hidden(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with('.'));
    names.sort();
    names
}
