//! Location and attributes of a set's destination.

use serde::{Deserialize, Serialize};

use super::files::{InvalidEntry, MAX_MODE};
use super::{Extras, RelPath};

/// Maximum number of directories in a [`DestinationLineage`]; those further up are omitted.
pub const MAX_LINEAGE: usize = 1024;

/// Identifies a directory on one machine, and reveals nothing to others: half of a hash of device, inode and
/// the kernel's boot ID.
pub type DirectoryId = [u8; 16];

/// Location of the destination, so that a sender on the same machine notices that it would copy a directory
/// into itself.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DestinationLineage {
    /// The destination directory and its ancestors, innermost first; at most [`MAX_LINEAGE`].
    pub directories: Vec<DirectoryId>,
    /// Name that the single source gets there; `None` if each source keeps its name.
    pub name: Option<RelPath>,
    /// Whether names that the set does not have are deleted.
    pub removes: bool,
}

impl DestinationLineage {
    /// Checks the limits that the types do not enforce.
    pub(super) fn validate(&self) -> Result<(), InvalidEntry> {
        if self.directories.len() > MAX_LINEAGE { Err(InvalidEntry::Lineage) } else { Ok(()) }
    }
}

/// Attributes for the destination itself, if a source stands for its contents (`SRC/.`): those of that
/// directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationAttributes {
    /// Permission bits, at most [`MAX_MODE`].
    pub mode: u32,
    /// As in [`Entry`](super::Entry).
    pub mtime_secs: i64,
    /// As in [`Entry`](super::Entry).
    pub mtime_nanos: u32,
    /// As in [`Entry`](super::Entry).
    pub extras: Option<Box<Extras>>,
}

impl DestinationAttributes {
    /// Checks the ranges that the types do not enforce.
    pub(super) fn validate(&self) -> Result<(), InvalidEntry> {
        match &self.extras {
            _ if self.mode > MAX_MODE => Err(InvalidEntry::Mode),
            _ if self.mtime_nanos >= 1_000_000_000 => Err(InvalidEntry::Nanoseconds),
            Some(extras) if !extras.is_valid() => Err(InvalidEntry::Extras),
            _ => Ok(()),
        }
    }
}
