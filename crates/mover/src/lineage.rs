//! What tells a directory from all others of this machine, also to another process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use haul_wire::control::{DirectoryId, MAX_LINEAGE};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::storage::{dup, fstat, openat};

/// The kernel's number of this boot, the same in all containers (random(4)). Whoever does not know it learns nothing
/// from a [`DirectoryId`], and directories of two machines never have the same.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// `None`: the kernel does not say which boot this is.
pub(crate) fn directory_id(stat: &Stat) -> Option<DirectoryId> {
    static BOOT: OnceLock<Option<[u8; 32]>> = OnceLock::new();
    let derive = |boot: Vec<u8>| blake3::derive_key("haulage 1 identity of a directory", &boot);
    let key = (*BOOT.get_or_init(|| std::fs::read(BOOT_ID).ok().map(derive)))?;
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(&wide(stat.st_dev).to_be_bytes());
    hasher.update(&wide(stat.st_ino).to_be_bytes());
    let mut id = DirectoryId::default();
    hasher.finalize_xof().fill(&mut id);
    Some(id)
}

fn wide(number: impl Into<u64>) -> u64 {
    number.into()
}

/// The directory that a directory lies in; that of `/` is itself.
pub(crate) fn parent(directory: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, "..", flags, Mode::empty())
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
