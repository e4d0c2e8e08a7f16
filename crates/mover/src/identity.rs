//! Identities of files and directories: to recognise hard links, detect changes, and compare directories with
//! a peer on the same machine.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use haul_wire::control::{DirectoryId, MAX_LINEAGE};
use rustix::fs::{OFlags, Stat};

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

/// Returns a directory and its ancestors with their metadata, innermost first, as far as they can be opened.
pub(crate) fn ancestors(directory: OwnedFd) -> impl Iterator<Item = (OwnedFd, Stat)> {
    let (mut next, mut last) = (Some(directory), None);
    std::iter::from_fn(move || {
        let directory = next.take()?;
        let stat = fstat(&directory).ok()?;
        // The root directory is its own parent.
        if last.replace(FileId::of(&stat)) == Some(FileId::of(&stat)) {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        next = open_in(&directory, "..", flags).ok();
        Some((directory, stat))
    })
}

/// Returns the IDs of a directory and its ancestors, innermost first, as far as they can be opened.
pub(crate) fn lineage(directory: BorrowedFd<'_>) -> Vec<DirectoryId> {
    let all = dup(directory).into_iter().flat_map(ancestors);
    all.map_while(|(_, stat)| directory_id(&stat)).take(MAX_LINEAGE).collect()
}
