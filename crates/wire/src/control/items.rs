use serde::{Deserialize, Serialize};

use super::{Fault, RelPath};

/// A change that the receiver makes, or would make, to one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Name relative to the destination.
    pub path: RelPath,
    /// The change.
    pub action: Action,
}

/// Change to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// A regular file that does not exist is sent.
    Send {
        /// Size of the file in bytes.
        size: u64,
    },
    /// A regular file replaces an existing entry.
    Replace {
        /// Size of the file in bytes.
        size: u64,
    },
    /// The missing part of a regular file is sent.
    Resume {
        /// Bytes that exist already.
        have: u64,
        /// Size of the file in bytes.
        size: u64,
    },
    /// Unchanged.
    Keep,
    /// A symbolic link is created.
    Link,
    /// A directory is created.
    MakeDirectory,
    /// It is deleted, as the set does not have it.
    Delete,
    /// The contents of a regular file are kept; permissions, time, owner or attributes are corrected.
    Adjust,
}

impl Action {
    /// Returns the word for users and scripts, for example `replace`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Send { .. } => "send",
            Self::Replace { .. } => "replace",
            Self::Resume { .. } => "resume",
            Self::Keep => "keep",
            Self::Link => "link",
            Self::MakeDirectory => "mkdir",
            Self::Delete => "delete",
            Self::Adjust => "adjust",
        }
    }
}

/// Which names the set covers completely, so that others may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum Extent {
    /// None: some may have been left out.
    #[default]
    Part,
    /// All names in the directories of the set.
    Directories,
    /// The same, and all names directly in the destination.
    Destination,
}

/// Result of deleting names that the set does not have.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Removal {
    /// Number of names that were deleted, or would be.
    pub removed: u64,
    /// Why others were not deleted.
    pub fault: Option<Fault>,
}
