use serde::{Deserialize, Serialize};

use super::fault::MAX_FAULT_TEXT;
use super::{ByteRange, Extras, Fault, InvalidSelection, MAX_NOTES, Notes, RelPath};
use crate::packet::MAX_OFFSET;

/// Highest value of [`Entry::mode`]: permissions with set-user-ID, set-group-ID and sticky bits.
pub const MAX_MODE: u32 = 0o7777;
/// Maximum length of a symbolic link's target in bytes (`PATH_MAX` of Linux).
pub const MAX_SYMLINK_TARGET: usize = 4096;

/// Maximum number of holes described per file; the sender sends smaller ones as data.
pub const MAX_HOLES: usize = 4096;

/// An entry of a file set. Entries are numbered from 0 in the order in which they are sent; a directory
/// precedes its contents. The contents of the regular files, in that order, are the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path relative to the destination.
    pub path: RelPath,
    /// Kind of entry, with the data specific to it.
    pub kind: EntryKind,
    /// Permission bits, at most [`MAX_MODE`].
    pub mode: u32,
    /// Modification time in whole seconds since 1970-01-01 00:00 UTC, rounded down.
    pub mtime_secs: i64,
    /// Nanoseconds of the modification time, below 1,000,000,000.
    pub mtime_nanos: u32,
    /// Other requested attributes; encoded in one byte if there are none.
    pub extras: Option<Box<Extras>>,
}

/// Kind of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file of `size` bytes. Its stream, which is sent and hashed, is its contents without holes.
    File {
        /// Length in bytes.
        size: u64,
        /// Ranges without data, which read as zeros, in order; at most [`MAX_HOLES`].
        holes: Vec<ByteRange>,
    },
    /// A directory; its contents follow as separate entries.
    Directory,
    /// A symbolic link.
    Symlink {
        /// Verbatim target: not empty, no NUL, at most [`MAX_SYMLINK_TARGET`] bytes. It may point anywhere.
        target: Vec<u8>,
    },
    /// The sender could not read the entry; it is only reported.
    Failed(Fault),
    /// A further name of a regular file.
    HardLink {
        /// Number of the earlier entry for that file.
        entry: u64,
    },
}

/// Why a decoded message is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEntry {
    /// `mode` has bits outside [`MAX_MODE`].
    #[error("an entry's mode has bits outside 0o7777")]
    Mode,
    /// `mtime_nanos` is a second or more.
    #[error("an entry's modification time has a second or more of nanoseconds")]
    Nanoseconds,
    /// A file is larger than the largest object.
    #[error("an entry's size is more than {MAX_OFFSET} bytes")]
    Size,
    /// The holes of a file overlap, lie outside of it, or are too many.
    #[error("an entry's holes are impossible")]
    Holes,
    /// The target of a symbolic link is empty, too long, or has a NUL byte.
    #[error("an entry's symbolic link has an impossible target")]
    Target,
    /// A selection is invalid.
    #[error(transparent)]
    Selection(#[from] InvalidSelection),
    /// A destination is nested in too many directories.
    #[error("a destination lies in more directories than may be named")]
    Lineage,
    /// Extended attributes or account names are too long or too many.
    #[error("an entry's extended attributes or owner are impossible")]
    Extras,
    /// A text for users is too long.
    #[error("a message for people has more than {MAX_FAULT_TEXT} bytes")]
    Text,
    /// A [`LawChange`](super::ControlMessage::LawChange) has too many parameters, or too long ones.
    #[error("a change of the control law has too many parameters, or too long ones")]
    LawChange,
    /// A summary has more than [`MAX_NOTES`] notes.
    #[error("a summary has more than {MAX_NOTES} notes")]
    Notes,
}

/// Checks the length of a text for users.
pub(super) fn validate_text(bytes: usize) -> Result<(), InvalidEntry> {
    if bytes > MAX_FAULT_TEXT { Err(InvalidEntry::Text) } else { Ok(()) }
}

/// Checks the length of a fault, as the receiver keeps and counts those of entries.
pub(super) fn validate_fault(fault: &Fault) -> Result<(), InvalidEntry> {
    validate_text(fault.message.len() + fault.hint.len())
}

impl EntryKind {
    /// Returns why the sender could not read the entry, if it could not.
    pub(super) fn fault(&mut self) -> Option<&mut Fault> {
        match self {
            Self::Failed(fault) => Some(fault),
            _ => None,
        }
    }
}

impl Entry {
    /// Checks the ranges that the types do not enforce, as encoding and decoding do.
    ///
    /// # Errors
    /// The first limit that the entry violates.
    pub fn validate(&self) -> Result<(), InvalidEntry> {
        if self.mode > MAX_MODE {
            return Err(InvalidEntry::Mode);
        }
        if self.mtime_nanos >= 1_000_000_000 {
            return Err(InvalidEntry::Nanoseconds);
        }
        if self.extras.as_ref().is_some_and(|extras| !extras.is_valid()) {
            return Err(InvalidEntry::Extras);
        }
        match &self.kind {
            EntryKind::File { size, .. } if *size > MAX_OFFSET => Err(InvalidEntry::Size),
            EntryKind::File { size, holes }
                if holes.len() > MAX_HOLES || !ByteRange::in_order(holes, *size) =>
            {
                Err(InvalidEntry::Holes)
            }
            EntryKind::Symlink { target }
                if target.is_empty() || target.len() > MAX_SYMLINK_TARGET || target.contains(&0) =>
            {
                Err(InvalidEntry::Target)
            }
            EntryKind::Failed(fault) => validate_fault(fault),
            _ => Ok(()),
        }
    }

    /// Returns the length of the file's stream in bytes; 0 for other kinds.
    pub fn stream_bytes(&self) -> u64 {
        match &self.kind {
            EntryKind::File { size, holes } => {
                size.saturating_sub(holes.iter().fold(0, |sum: u64, hole| sum.saturating_add(hole.len)))
            }
            _ => 0,
        }
    }
}

/// Hash of a regular file by the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Number of the entry.
    pub entry: u64,
    /// BLAKE3 of the contents as read and sent, or why they could not be read to the end (bytes sent in their
    /// place are void).
    pub result: Result<[u8; 32], Fault>,
}

/// Final outcome of one entry at the receiver: committed or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Number of the entry.
    pub entry: u64,
    /// Why it failed; `None` if it was committed.
    pub fault: Option<Fault>,
}

/// Summary of the whole transfer by the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of announced entries.
    pub entries: u64,
    /// Number of failed entries.
    pub failed: u64,
    /// Bytes of the object received.
    pub bytes: u64,
    /// Digest of the whole set.
    pub digest: [u8; 32],
    /// What could not be preserved.
    pub notes: Notes,
}
