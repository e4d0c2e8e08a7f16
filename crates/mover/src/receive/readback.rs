//! Reads files back from the disk, not from memory, and compares.

use std::fs::File;

use haul_wire::control::FaultCode;
use rustix::fs::{Advice, fadvise};

use crate::fault::{Side, Trouble, show};
use crate::receive::compare::hash_group;
use crate::receive::shared::Shared;
use crate::storage::fdatasync;
use crate::tree::{Groups, Tree};

/// Hashes a whole and verified file once more, as the disk gives it.
pub(crate) fn read_back(shared: &Shared, entry: u32, file: &File, buffer: &mut [u8]) -> Result<(), Trouble> {
    let book = shared.book();
    let (shape, digest) = (book.table.shape(entry), book.table.digest(entry).copied());
    drop(book);
    let path = || shared.path(entry);
    let trouble = |errno| Trouble::new(Side::Destination, "read back", &path(), errno);
    // Only pages that are on the disk leave the memory (posix_fadvise(2)).
    fdatasync(file).map_err(trouble)?;
    // File systems in memory have nothing to drop.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    let groups = Groups::of(shape.len());
    let mut tree = Tree::new(groups);
    for group in 0..groups.count() {
        if shared.ending().is_some() {
            break;
        }
        shared.progress.worked();
        tree.set(group, hash_group(file, &shape, groups, group, buffer).map_err(trouble)?);
    }
    match tree.root() {
        Some(found) if Some(found) != digest => Err(Trouble::entry(
            FaultCode::VerifyFailed,
            format!("`{}` is not on the disk as it was written: its BLAKE3 differs", show(&path())),
            "look at the system log of the receiving machine and test its disk",
        )),
        // Without a root the job is over.
        _ => Ok(()),
    }
}
