//! What tells files apart: from others of this machine, from what they were before, and directories also to another
//! process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use haul_wire::control::{DirectoryId, MAX_LINEAGE};
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

use crate::storage::{Mtime, dup, fstat, open_in};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    inode: u64,
}

impl FileId {
    #[expect(clippy::useless_conversion, reason = "fields differ between architectures")]
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev.into(), inode: stat.st_ino.into() }
    }
}

/// What tells a file from one that took its place or was changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Identity {
    pub(crate) id: FileId,
    pub(crate) size: u64,
    mtime: Mtime,
}

impl Identity {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { id: FileId::of(stat), size: stat.st_size as u64, mtime: Mtime::of(stat) }
    }

    /// Whether this can be the same file as `before`, with something appended.
    pub(crate) fn has_grown_from(self, before: Self) -> bool {
        self.id == before.id && self.size >= before.size
    }
}

/// The kernel's number of this boot, the same in all containers (random(4)). Whoever does not know it learns nothing
/// from a [`DirectoryId`], and directories of two machines never have the same.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// `None`: the kernel does not say which boot this is.
pub(crate) fn directory_id(stat: &Stat) -> Option<DirectoryId> {
    static BOOT: OnceLock<Option<[u8; 32]>> = OnceLock::new();
    let derive = |boot: Vec<u8>| blake3::derive_key("haulage 1 identity of a directory", &boot);
    let key = (*BOOT.get_or_init(|| std::fs::read(BOOT_ID).ok().map(derive)))?;
    let mut hasher = blake3::Hasher::new_keyed(&key);
    let FileId { device, inode } = FileId::of(stat);
    hasher.update(&device.to_be_bytes()).update(&inode.to_be_bytes());
    let mut id = DirectoryId::default();
    hasher.finalize_xof().fill(&mut id);
    Some(id)
}

/// The directory that a directory lies in; that of `/` is itself.
pub(crate) fn parent(directory: impl AsFd) -> Result<OwnedFd, Errno> {
    open_in(directory, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
}

/// A directory and those that it lies in, the innermost first, as far as can be found out.
pub(crate) fn lineage(directory: BorrowedFd<'_>) -> Vec<DirectoryId> {
    let mut found = Vec::new();
    let mut at = dup(directory);
    while let Ok(directory) = at {
        let Some(id) = fstat(&directory).ok().and_then(|stat| directory_id(&stat)) else { break };
        if found.last() == Some(&id) || found.len() == MAX_LINEAGE {
            break;
        }
        found.push(id);
        at = parent(&directory);
    }
    found
}
