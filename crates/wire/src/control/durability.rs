//! Durability of received files.

use serde::{Deserialize, Serialize};

/// When a file counts as received. Later variants promise more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum Durability {
    /// When it is in the page cache: it survives the end of the program.
    Cached,
    /// As above; once the whole set is reported, all of it is on the disk and survives a power failure.
    AtEnd,
    /// When the file and its name are on the disk.
    #[default]
    Synced,
}

/// Whether files are read back from the disk before they get their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum Readback {
    /// No: data is only hashed while it is written.
    #[default]
    No,
    /// Yes: the data on the disk is hashed too.
    FromDisk,
}
