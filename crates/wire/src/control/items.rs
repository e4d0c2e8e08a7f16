use serde::{Deserialize, Serialize};

use super::{Fault, RelPath};

/// Something that the receiver does, or would do, to one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The name, relative to the destination.
    pub path: RelPath,
    /// What is done to it.
    pub action: Action,
}

/// What is done to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// A regular file that is not there is sent: its size in bytes.
    Send {
        /// Size of the file in bytes.
        size: u64,
    },
    /// A regular file takes the place of what is there.
    Replace {
        /// Size of the file in bytes.
        size: u64,
    },
    /// What is missing of a regular file is sent.
    Resume {
        /// Bytes that are there.
        have: u64,
        /// Size of the file in bytes.
        size: u64,
    },
    /// It stays as it is.
    Keep,
    /// A symbolic link is made.
    Link,
    /// A directory is made.
    MakeDirectory,
    /// It is removed, because the set does not have it.
    Delete,
    /// The contents of a regular file stay; permissions, time, owner or attributes are corrected.
    Adjust,
}

impl Action {
    /// The word for people and scripts, for example `replace`.
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

/// How much a set says about names that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum Extent {
    /// Nothing: something may have been left out.
    #[default]
    Part,
    /// The directories of the set have nothing else.
    Directories,
    /// Likewise, and the set is all that belongs directly into the destination.
    Destination,
}

/// What became of the names that the set does not have.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Removal {
    /// How many were removed, or would be.
    pub removed: u64,
    /// Why others were not.
    pub fault: Option<Fault>,
}
