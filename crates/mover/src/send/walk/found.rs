//! Makes the entries of a walk from what the file system says.

use std::os::fd::AsFd;
use std::sync::Arc;

use haul_wire::control::{Entry, EntryKind, Fault, FaultCode, MAX_PATH, RelPath};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::holes::holes;
use super::source_root::Identity;
use super::source_root::SourceRoot;
use crate::fault::{IoFault, show};
use crate::storage::readlinkat;

/// Stands for a source whose name cannot travel.
pub(super) const NAMELESS: &[u8] = b"source";

/// An entry, and for a regular file how to open it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) file: Option<(Arc<SourceRoot>, Identity)>,
    /// How many names the file has; 0 for anything else.
    pub(crate) names: u64,
}

/// The entry for something that is no directory.
#[expect(clippy::useless_conversion, reason = "the field differs between architectures")]
pub(super) fn leaf(
    source_root: &Arc<SourceRoot>,
    directory: impl AsFd,
    name: &[u8],
    path: &[u8],
    stat: &Stat,
) -> Found {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let identity = Identity::of(stat);
            let holes = holes(&directory, name, stat);
            let mut found = entry(path, EntryKind::File { size: identity.size(), holes }, stat);
            if matches!(found.entry.kind, EntryKind::File { .. }) {
                found.file = Some((source_root.clone(), identity));
                found.names = stat.st_nlink.into();
            }
            found
        }
        FileType::Symlink => match readlinkat(directory, name) {
            Ok(target) => entry(path, EntryKind::Symlink { target }, stat),
            Err(errno) => failed(path, "read the link", path, errno),
        },
        other => refused(path, special(other)),
    }
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
        FaultCode::SpecialFile,
        format!("`{}` is {what}; only files, directories and symbolic links are moved", show(path)),
        "leave it out with --exclude",
    );
    with_fault(path, fault)
}

/// A file whose name is that of a journal or a temporary file: no receiver takes it. As with other things that are never
/// moved, the rest is finished.
pub(super) fn working_file(path: &[u8]) -> Found {
    let fault = Fault::new(
        FaultCode::SpecialFile,
        format!("`{}` has a name of what unfinished copies leave, and is never copied", show(path)),
        "`haul clean` removes what an unfinished copy has left; leave it out with --exclude '.haul-*', or rename it",
    );
    with_fault(path, fault)
}

#[expect(
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    reason = "fields differ between architectures"
)]
pub(super) fn entry(path: &[u8], kind: EntryKind, stat: &Stat) -> Found {
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

pub(super) fn failed(path: &[u8], doing: &str, shown: &[u8], errno: Errno) -> Found {
    with_fault(path, IoFault::source(doing, shown, errno).fault)
}

/// A link that would be followed for ever.
pub(super) fn endless(path: &[u8]) -> Found {
    let fault = Fault::new(
        FaultCode::Unreadable,
        format!("`{}` leads back to a directory that it lies in", show(path)),
        "leave it out with --exclude, or copy without --copy-links",
    );
    with_fault(path, fault)
}

/// The directory that the set goes to, found among the sources.
pub(super) fn destination(path: &[u8]) -> Found {
    let fault = Fault::new(
        FaultCode::Usage,
        format!("`{}` is the destination itself", show(path)),
        "leave it out with --exclude, or choose a destination outside of the sources",
    );
    with_fault(path, fault)
}

/// A source that paths were listed of, and that is no directory.
pub(super) fn no_directory(path: &[u8]) -> Found {
    let fault = Fault::new(
        FaultCode::NotADirectory,
        format!("`{}` is no directory, and a list of paths below it was given", show(path)),
        "name the directory that the paths of --files-from are relative to",
    );
    with_fault(path, fault)
}

/// A failed entry.
pub(super) fn with_fault(path: &[u8], fault: Fault) -> Found {
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
