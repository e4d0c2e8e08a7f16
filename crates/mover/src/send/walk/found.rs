//! Creates entries from file metadata, with holes and the metadata preserved beyond permissions and time.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use haul_wire::control::{
    ByteRange, Entry, EntryKind, Extras, Fault, FaultCode, Keep, LinkChoice, MAX_EXTRAS, MAX_HOLES, MAX_PATH,
    Owner, Ownership, Preserve, RelPath, Xattr,
};
use rustix::fs::{FileType, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::accounts::{Accounts, euid, is_root};
use crate::fault::{path_fault, source_fault};
use crate::identity::Identity;
use crate::root::SourceRoot;
use crate::storage::{Mtime, fstat, kind_of, lstatat, readlinkat, seek};
use crate::xattrs::{Space, XattrTarget};

/// Path of an entry whose source has no name that can be sent.
pub(super) const UNNAMED_PATH: &[u8] = b"source";

/// An entry, and for a regular file how to open it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) file: Option<(Arc<SourceRoot>, Identity)>,
    /// Number of hard links of the file; 0 for other kinds.
    pub(crate) names: u64,
}

/// A name in a directory, as the walk reaches it.
pub(super) struct DirEntry<'a> {
    pub(super) source_root: &'a Arc<SourceRoot>,
    pub(super) directory: &'a OwnedFd,
    pub(super) name: &'a [u8],
    pub(super) path: &'a [u8],
}

impl DirEntry<'_> {
    /// Returns the metadata, and if the name is a link that the job follows, its target, opened without read access.
    pub(super) fn stat(&self, links: LinkChoice) -> Result<(Stat, Option<OwnedFd>), Errno> {
        let stat = lstatat(self.directory, self.name)?;
        if kind_of(&stat) == FileType::Symlink && links == LinkChoice::Follow {
            let target = self.source_root.open(self.path, OFlags::PATH)?;
            return Ok((fstat(&target)?, Some(target)));
        }
        Ok((stat, None))
    }

    /// Creates the entry of a name that is not a directory.
    #[expect(clippy::useless_conversion, reason = "the field differs between architectures")]
    pub(super) fn leaf(&self, stat: &Stat) -> Found {
        let Self { source_root, directory, name, path } = *self;
        match kind_of(stat) {
            FileType::RegularFile => {
                let identity = Identity::of(stat);
                let holes = match self.holes(stat) {
                    Ok(holes) => holes,
                    Err(errno) => return failed(path, "open", path, errno),
                };
                let mut found = entry(path, EntryKind::File { size: identity.size, holes }, stat);
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
            other => {
                let kind = special(other);
                let what = format!("is {kind}; only files, directories and symbolic links are copied");
                refused(FaultCode::SpecialFile, path, &what, "skip it with --exclude")
            }
        }
    }

    /// Finds the holes of a regular file that has fewer allocated bytes than its size, in order; none if the file
    /// system cannot report them. Fails if the file cannot be opened: the receiver may have it, so that it is not read,
    /// and of a large one zeros would be sent. Small files whose permissions let this user read them are not opened.
    fn holes(&self, stat: &Stat) -> Result<Vec<ByteRange>, Errno> {
        let size = stat.st_size as u64;
        let is_sparse = (stat.st_blocks as u64).saturating_mul(512) < size;
        if !is_sparse && size < MIN_OPENED_SIZE && permits_reading(stat) {
            return Ok(Vec::new());
        }
        let file = self.source_root.open(self.path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        // On an error the holes are sent as zeros.
        Ok(if is_sparse { largest(find(&file, size).unwrap_or_default()) } else { Vec::new() })
    }
}

/// Size in bytes from which all files are opened when they are found.
const MIN_OPENED_SIZE: u64 = 1 << 20;

/// Whether this user may read a file by its permissions, regardless of groups and access control lists.
fn permits_reading(stat: &Stat) -> bool {
    let bits = if stat.st_uid == euid() { 0o400 } else { 0o044 };
    is_root() || stat.st_mode & bits == bits
}

fn special(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "of an unknown kind",
    }
}

/// Creates the failed entry of a file named like a journal or temporary file, which no receiver accepts. As
/// with special files, the rest of the job completes.
pub(super) fn working_file(path: &[u8]) -> Found {
    let what = "has a name reserved for unfinished copies and is never copied";
    let hint =
        "`haul clean` removes leftovers of unfinished copies; skip it with --exclude '.haul-*', or rename it";
    refused(FaultCode::SpecialFile, path, what, hint)
}

#[expect(clippy::unnecessary_cast, reason = "the field differs between architectures")]
pub(super) fn entry(path: &[u8], kind: EntryKind, stat: &Stat) -> Found {
    let mtime = Mtime::of(stat);
    let entry = RelPath::new(path.to_vec()).map(|path| Entry {
        path,
        kind,
        mode: (stat.st_mode as u32) & 0o7777,
        mtime_secs: mtime.secs,
        mtime_nanos: mtime.nanos,
        extras: None,
    });
    let checked = entry.map_err(|e| (e.to_string(), "start the copy further down the tree"));
    let valid = |entry: &Entry| entry.validate().map_err(|e| (e.to_string(), "skip it with --exclude"));
    match checked.and_then(|entry| valid(&entry).map(|()| entry)) {
        Ok(entry) => Found { entry, file: None, names: 0 },
        Err((why, hint)) => refused(FaultCode::Unreadable, path, &format!("cannot be sent: {why}"), hint),
    }
}

pub(super) fn failed(path: &[u8], doing: &str, shown: &[u8], errno: Errno) -> Found {
    with_fault(path, source_fault(doing, shown, errno))
}

pub(super) fn endless(path: &[u8]) -> Found {
    let hint = "skip it with --exclude, or copy without --copy-links";
    refused(FaultCode::Unreadable, path, "leads back to a directory that contains it", hint)
}

pub(super) fn destination(path: &[u8]) -> Found {
    let hint = "skip it with --exclude, or choose a destination outside the sources";
    refused(FaultCode::Usage, path, "is the destination itself", hint)
}

pub(super) fn no_directory(path: &[u8]) -> Found {
    let what = "is not a directory, but a list of paths below it was given";
    let hint = "name the directory that the paths of --files-from are relative to";
    refused(FaultCode::NotADirectory, path, what, hint)
}

fn refused(code: FaultCode, path: &[u8], what: &str, hint: &str) -> Found {
    with_fault(path, path_fault(code, path, what, hint))
}

/// Creates a failed entry. If the path is too long to send, the nearest ancestor that is not replaces it; the
/// fault's message names the full path.
pub(super) fn with_fault(path: &[u8], fault: Fault) -> Found {
    let mut shown = path;
    while shown.len() > MAX_PATH {
        let cut = shown.iter().rposition(|&b| b == b'/').unwrap_or(0);
        shown = &shown[..cut];
    }
    let path = RelPath::new(shown.to_vec()).or_else(|_| RelPath::new(UNNAMED_PATH.to_vec()));
    let (path, kind) = (path.expect("the stand-in is a valid path"), EntryKind::Failed(fault));
    let entry = Entry { path, kind, mode: 0, mtime_secs: 0, mtime_nanos: 0, extras: None };
    Found { entry, file: None, names: 0 }
}

/// Minimum size of a hole in bytes; smaller ones are sent as data, which saves a system call at the receiver.
const MIN_HOLE: u64 = 4096;

fn find(file: &impl AsFd, size: u64) -> Result<Vec<ByteRange>, Errno> {
    let mut holes = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            // No data after this offset.
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(errno),
        };
        if data - at >= MIN_HOLE.min(size) && data > at {
            holes.push(ByteRange { start: at, len: data - at });
        }
        if data >= size {
            break;
        }
        at = seek(file, SeekFrom::Hole(data))?.max(data + 1);
    }
    Ok(holes)
}

/// Keeps the largest holes, at most [`MAX_HOLES`], in order.
fn largest(mut holes: Vec<ByteRange>) -> Vec<ByteRange> {
    if holes.len() > MAX_HOLES {
        holes.sort_unstable_by_key(|hole| std::cmp::Reverse(hole.len));
        holes.truncate(MAX_HOLES);
        holes.sort_unstable_by_key(|hole| hole.start);
    }
    holes
}

pub(super) struct Preserver {
    pub(super) preserve: Preserve,
    pub(super) accounts: Accounts,
}

impl Preserver {
    /// Adds the extra metadata to an entry.
    pub(super) fn add_extras(&self, entry: &mut Entry, target: impl FnOnce() -> XattrTarget, stat: &Stat) {
        if self.preserve.has_extras() && !matches!(entry.kind, EntryKind::Failed(_)) {
            entry.extras = Some(Box::new(self.extras(&target(), stat)));
        }
    }

    fn extras(&self, xattr_target: &XattrTarget, stat: &Stat) -> Extras {
        let named = self.preserve.owner == Ownership::Names;
        let owner = (self.preserve.owner != Ownership::Receiver).then(|| Owner {
            user: stat.st_uid,
            group: stat.st_gid,
            user_name: named.then(|| self.accounts.user_name(stat.st_uid)).flatten(),
            group_name: named.then(|| self.accounts.group_name(stat.st_gid)).flatten(),
        });
        let list = |keep| (keep == Keep::Preserve).then(Vec::new);
        let (xattrs, acls) = (list(self.preserve.xattrs), list(self.preserve.acls));
        let mut extras = Extras { owner, xattrs, acls, left_out: 0 };
        if extras.xattrs.is_some() || extras.acls.is_some() {
            add_attributes(&mut extras, xattr_target);
        }
        extras
    }
}

/// Adds the attributes to the lists that are requested, and counts those that cannot be read or exceed
/// [`MAX_EXTRAS`] bytes.
fn add_attributes(extras: &mut Extras, xattr_target: &XattrTarget) {
    let Ok(mut names) = xattr_target.list() else {
        extras.left_out = 1;
        return;
    };
    names.sort_unstable();
    let mut room = MAX_EXTRAS;
    for name in names {
        let list = match Space::of(&name) {
            Space::User => &mut extras.xattrs,
            Space::Trusted | Space::Security if is_root() => &mut extras.xattrs,
            Space::Acl => &mut extras.acls,
            _ => continue,
        };
        let Some(list) = list else { continue };
        let read = xattr_target.get(&name).ok().map(|value| Xattr { name, value });
        match read.filter(|xattr| xattr.bytes() <= room) {
            Some(xattr) => {
                room -= xattr.bytes();
                list.push(xattr);
            }
            None => extras.left_out += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn reported_holes_contain_no_data() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let file = File::create(&path).unwrap();
        file.set_len(10 << 20).unwrap();
        file.write_all_at(&[1; 8192], 4 << 20).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let holes = largest(find(&file, 10 << 20).unwrap());
        assert!(ByteRange::in_order(&holes, 10 << 20));
        let in_data = |hole: &ByteRange| hole.start < (4 << 20) + 8192 && hole.start + hole.len > 4 << 20;
        assert!(!holes.iter().any(in_data), "{holes:?}");
        if (stat.st_blocks as u64) * 512 < 10 << 20 {
            assert!(!holes.is_empty());
        }
    }

    #[test]
    fn entries_that_cannot_be_sent_fail_with_a_hint() {
        let stat = rustix::fs::stat(".").unwrap();
        let huge = EntryKind::File { size: 1 << 60, holes: Vec::new() };
        let long = vec![b'x'; 20_000];
        for (path, kind, helps) in
            [(&b"huge"[..], huge, "--exclude"), (&long, EntryKind::Directory, "further down")]
        {
            let EntryKind::Failed(fault) = entry(path, kind, &stat).entry.kind else { panic!("it travels") };
            assert!(fault.hint.contains(helps), "{fault}");
        }
    }

    #[test]
    fn only_the_largest_holes_are_kept() {
        let all = (0..MAX_HOLES as u64 + 10)
            .map(|i| ByteRange { start: i * 1000, len: if i < 10 { 1 } else { 2 } });
        let kept = largest(all.collect());
        assert_eq!(kept.len(), MAX_HOLES);
        assert_eq!(kept[0].start, 10_000);
    }
}
