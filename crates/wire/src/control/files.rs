use serde::{Deserialize, Serialize};

use super::fault::MAX_FAULT_TEXT;
use super::{Extras, Fault, InvalidSelection, Notes, RelPath, Stretch};
use crate::packet::MAX_OFFSET;

/// Highest value of [`Entry::mode`]: permissions with set-user-ID, set-group-ID and sticky bits.
pub const MAX_MODE: u32 = 0o7777;
/// Longest target of a symbolic link in bytes (`PATH_MAX` of Linux).
pub const MAX_SYMLINK_TARGET: usize = 4096;

/// Most holes that one file is described with; the sender takes smaller ones for data.
pub const MAX_HOLES: usize = 4096;

/// One thing of a file set. Entries are numbered from 0 in the order in which they are sent; a directory
/// comes before what is in it. The contents of the regular files, in that order, are the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it belongs, relative to the destination.
    pub path: RelPath,
    /// The kind, with what only that kind has.
    pub kind: EntryKind,
    /// Permission bits, at most [`MAX_MODE`].
    pub mode: u32,
    /// Time of last modification, whole seconds since 1970-01-01 00:00 UTC, rounded down.
    pub mtime_secs: i64,
    /// The rest of that time in nanoseconds, below 1,000,000,000.
    pub mtime_nanos: u32,
    /// What else was asked for; one byte if nothing was.
    pub extras: Option<Box<Extras>>,
}

/// What an [`Entry`] is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file of `size` bytes. Its stream, which is what travels and is hashed, is its bytes without
    /// those in holes.
    File {
        /// Length in bytes.
        size: u64,
        /// Where it has no bytes and reads as zeros, in order; at most [`MAX_HOLES`].
        holes: Vec<Stretch>,
    },
    /// A directory; its contents follow as entries of their own.
    Directory,
    /// A symbolic link.
    Symlink {
        /// What it points to, as it stands in the link: not empty, no NUL, at most
        /// [`MAX_SYMLINK_TARGET`] bytes. It may point anywhere.
        target: Vec<u8>,
    },
    /// The sender could not read it; reported, and nothing of it is sent.
    Failed(Fault),
    /// Another name of a regular file.
    HardLink {
        /// Number of the earlier entry that is the file.
        entry: u64,
    },
}

/// Why a message is not valid although it could be decoded.
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
    /// A selection is out of bounds.
    #[error(transparent)]
    Selection(#[from] InvalidSelection),
    /// A destination lies in too many directories.
    #[error("a destination lies in more directories than may be named")]
    Lineage,
    /// Extended attributes or names of accounts are too long or too many.
    #[error("an entry's extended attributes or owner are impossible")]
    Extras,
    /// A text for people is too long.
    #[error("a message for people has more than {MAX_FAULT_TEXT} bytes")]
    Text,
    /// A [`LawChange`](super::ControlMessage::LawChange) has too many parameters, or too long ones.
    #[error("a change of the control law has too many parameters, or too long ones")]
    LawChange,
}

/// Checks the bounds that the types do not hold: faults of entries are kept and counted.
pub(super) fn validate_fault(fault: &Fault) -> Result<(), InvalidEntry> {
    let len = fault.message.len() + fault.hint.len();
    if len > MAX_FAULT_TEXT { Err(InvalidEntry::Text) } else { Ok(()) }
}

impl EntryKind {
    /// Why the sender could not read it, if it could not.
    pub(super) fn fault(&mut self) -> Option<&mut Fault> {
        match self {
            Self::Failed(fault) => Some(fault),
            _ => None,
        }
    }
}

impl Entry {
    /// Checks the ranges that the types do not hold. Encoding and decoding check this too.
    ///
    /// # Errors
    /// The first bound that the entry breaks.
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
                if holes.len() > MAX_HOLES || !Stretch::in_order(holes, *size) =>
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

    /// Length of the file's stream in bytes; 0 for anything else.
    pub fn stream_bytes(&self) -> u64 {
        match &self.kind {
            EntryKind::File { size, holes } => {
                size.saturating_sub(holes.iter().fold(0, |sum: u64, hole| sum.saturating_add(hole.len)))
            }
            _ => 0,
        }
    }
}

/// What a regular file's bytes hash to, by the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Number of the entry.
    pub entry: u64,
    /// BLAKE3 of the contents as they were read and sent, or why they could not be read to the end (what was
    /// sent in their place is void).
    pub result: Result<[u8; 32], Fault>,
}

/// What became of one entry at the receiver. Final: committed, or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Number of the entry.
    pub entry: u64,
    /// Why it failed; `None` if it is where it belongs.
    pub fault: Option<Fault>,
}

/// The whole transfer as the receiver has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// How many entries were announced.
    pub entries: u64,
    /// How many of them failed.
    pub failed: u64,
    /// Bytes of the object that were received.
    pub bytes: u64,
    /// Digest of the whole set.
    pub digest: [u8; 32],
    /// What could not be preserved.
    pub notes: Notes,
}
