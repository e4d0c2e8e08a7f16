//! When a received file counts as safe.

use serde::{Deserialize, Serialize};

/// When a file counts as received; what is later in this list promises more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum Durability {
    /// When the kernel has it: it survives the end of the program.
    Cached,
    /// As above; when the whole set is reported, all of it is on the disk and survives a power failure.
    AtEnd,
    /// When it and its name are on the disk.
    #[default]
    Synced,
}

/// Whether files are read back from the disk before they get their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum Readback {
    /// What was written was hashed on its way.
    #[default]
    No,
    /// What is on the disk is hashed too.
    FromDisk,
}
