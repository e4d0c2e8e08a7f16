//! Identities of files and directories: to recognise hard links, detect changes, and compare directories with
//! a peer on the same machine.

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

/// Identity of a file's version; differs after the file was replaced or changed.
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

    /// Whether this can be the file `before` with data appended.
    pub(crate) fn has_grown_from(self, before: Self) -> bool {
        self.id == before.id && self.size >= before.size
    }
}

/// The kernel's boot ID, the same in all containers (random(4)). It keys the hash: a [`DirectoryId`] reveals
/// nothing to a peer without it, and directories of two machines never have the same ID.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Hashes device and inode of a directory under the boot ID. `None`: the kernel exposes no boot ID.
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

/// Opens the parent of a directory; the parent of `/` is `/`.
pub(crate) fn parent(directory: impl AsFd) -> Result<OwnedFd, Errno> {
    open_in(directory, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
}

/// Returns the IDs of a directory and its ancestors, innermost first, as far as they can be opened.
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
