//! Where a set goes, and what the destination itself gets.

use serde::{Deserialize, Serialize};

use super::files::{InvalidEntry, MAX_MODE};
use super::{Extras, RelPath};

/// Directories in a [`DestinationLineage`] at most; those further up are left out.
pub const MAX_LINEAGE: usize = 1024;

/// What tells a directory from all others of a machine, and says nothing to other machines: half of a hash of device,
/// inode and the kernel's number of this boot.
pub type DirectoryId = [u8; 16];

/// Where a set goes, so that a sender on the same machine notices that it would copy a directory into itself.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DestinationLineage {
    /// The directory that the set goes to and those that it lies in, the innermost first; at most [`MAX_LINEAGE`].
    pub directories: Vec<DirectoryId>,
    /// The name there that the one source takes; `None` if each keeps its own.
    pub name: Option<RelPath>,
    /// Whether names that the set does not have are removed.
    pub removes: bool,
}

impl DestinationLineage {
    /// Checks the bounds that the types do not hold.
    pub(super) fn validate(&self) -> Result<(), InvalidEntry> {
        if self.directories.len() > MAX_LINEAGE { Err(InvalidEntry::Lineage) } else { Ok(()) }
    }
}

/// What the destination itself gets if a source stands for what is in it (`SRC/.`): what that directory has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationAttributes {
    /// Permission bits, at most [`MAX_MODE`].
    pub mode: u32,
    /// As of an [`Entry`](super::Entry).
    pub mtime_secs: i64,
    /// As of an [`Entry`](super::Entry).
    pub mtime_nanos: u32,
    /// As of an [`Entry`](super::Entry).
    pub extras: Option<Box<Extras>>,
}

impl DestinationAttributes {
    /// Checks the ranges that the types do not hold.
    pub(super) fn validate(&self) -> Result<(), InvalidEntry> {
        match &self.extras {
            _ if self.mode > MAX_MODE => Err(InvalidEntry::Mode),
            _ if self.mtime_nanos >= 1_000_000_000 => Err(InvalidEntry::Nanoseconds),
            Some(extras) if !extras.is_valid() => Err(InvalidEntry::Extras),
            _ => Ok(()),
        }
    }
}
