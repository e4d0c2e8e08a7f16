//! Format of a journal, and the state read from it.
//!
//! ```text
//! header   "HAULJRNL" | version u16 LE | id u32 LE                                                14 bytes
//! record   length of the payload u32 LE | check, 8 bytes | payload: a postcard `Record`
//! ```
//!
//! The check is a prefix of the BLAKE3 hash, keyed by the header, of the record's offset in the file, its
//! length and its payload: a record is valid only where it was written. Reading stops at the first invalid
//! record.

use crate::storage::{Mtime, ftruncate, write_all};
use crate::stream::Shape;
use derive_more::From;
use haul_base::RangeSet;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::fd::OwnedFd;

const MAGIC: &[u8; 8] = b"HAULJRNL";
/// The only version that is written and read.
pub(crate) const VERSION: u16 = 1;
pub(crate) const HEADER_LEN: u64 = 14;
const MAX_PAYLOAD: usize = 16 << 10;
/// Maximum path length in bytes; paths of file sets below a destination's name have at most some 4,400.
const MAX_PATH: usize = MAX_PAYLOAD - 128;
const FRAME_LEN: usize = 12;
const CHECK_LEN: usize = 8;
/// Context of the key derivation (BLAKE3 paper, section 2.3).
const CONTEXT: &str = "haulage 2025 record of a receiver's journal v1";

/// Identity of one state of a file. The order of the fields is part of the format.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FileIdentity {
    /// Destination, relative to the journal's directory.
    pub(crate) path: Vec<u8>,
    pub(crate) size: u64,
    /// Time of last modification at the source.
    pub(crate) mtime: Mtime,
    /// Hash of the list of its data extents; zeros if it has no holes.
    pub(crate) shape: [u8; 32],
}

impl FileIdentity {
    pub(crate) fn new(path: Vec<u8>, shape: &Shape, mtime: Mtime) -> Self {
        Self { path, size: shape.size, mtime, shape: shape.fingerprint() }
    }
}

/// One record. The order of the variants is part of the format.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Record {
    /// Temporary files are created in this directory (empty: the base).
    Directory(Vec<u8>),
    /// A temporary file with this number begins. An earlier one of this number is discarded.
    File { number: u32, identity: FileIdentity },
    /// These bytes of the file's stream of data are in the temporary file.
    Wrote { number: u32, start: u64, len: u64 },
    /// The temporary file with this number no longer exists.
    Removed { number: u32 },
    /// The job created this directory, and the set is incomplete (empty: another job has taken it over).
    Made(Made),
}

pub(crate) fn header(id: u32) -> [u8; HEADER_LEN as usize] {
    let mut header = [0; HEADER_LEN as usize];
    header[..8].copy_from_slice(MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[10..].copy_from_slice(&id.to_le_bytes());
    header
}

/// Reads until `buffer` is full or the end is reached; returns the number of bytes.
fn fill(from: &mut impl Read, mut buffer: &mut [u8]) -> std::io::Result<usize> {
    let most = buffer.len() as u64;
    std::io::copy(&mut from.take(most), &mut buffer).map(|len| len as usize)
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileRecord {
    pub(crate) identity: FileIdentity,
    pub(crate) written: RangeSet,
}

/// State recorded in a journal. Its memory is bounded by the journal's length.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct JobState {
    pub(crate) directories: BTreeSet<Vec<u8>>,
    pub(crate) files: BTreeMap<u32, FileRecord>,
    pub(crate) made: Option<Made>,
}

/// A directory that a job created for its one source, under another name.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) name: Vec<u8>,
    pub(crate) source: Vec<u8>,
}

impl JobState {
    /// Returns false for a record that haul does not write.
    pub(crate) fn apply(&mut self, record: Record) -> bool {
        match record {
            Record::Directory(path) if path.is_empty() || is_local(&path) => {
                self.directories.insert(path);
            }
            Record::File { number, identity } if is_local(&identity.path) => {
                self.files.insert(number, FileRecord { identity, written: RangeSet::new() });
            }
            Record::Wrote { number, start, len } => {
                match (self.files.get_mut(&number), start.checked_add(len)) {
                    (Some(file), Some(end)) if end <= file.identity.size => file.written.insert(start..end),
                    _ => return false,
                }
            }
            Record::Removed { number } => drop(self.files.remove(&number)),
            Record::Made(made) if made.name.is_empty() => self.made = None,
            Record::Made(made) if is_local(&made.name) && !made.name.contains(&b'/') => {
                self.made = Some(made);
            }
            Record::Directory(_) | Record::File { .. } | Record::Made(_) => return false,
        }
        true
    }
}

/// Whether a path stays below its directory and fits into a record.
pub(crate) fn is_local(path: &[u8]) -> bool {
    path.len() <= MAX_PATH
        && !path.contains(&0)
        && path.split(|&b| b == b'/').all(|component| !matches!(component, b"" | b"." | b".."))
}

/// Why a journal is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, From)]
pub(crate) enum SkipReason {
    Version(u16),
    /// It does not start like a journal, or is not a regular file of this user without further hard links.
    Foreign,
    #[from]
    Unreadable(Errno),
    Vanished,
}

impl From<std::io::Error> for SkipReason {
    fn from(error: std::io::Error) -> Self {
        Self::Unreadable(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// Returns false if the header is incomplete.
fn read_header(id: u32, from: &mut impl Read) -> Result<bool, SkipReason> {
    let mut found = [0; HEADER_LEN as usize];
    let len = fill(from, &mut found)?;
    let expected = header(id);
    if found[..len] == expected[..len] {
        return Ok(len == expected.len());
    }
    let version = u16::from_le_bytes([found[8], found[9]]);
    if len >= 10 && found.starts_with(MAGIC) && version != VERSION {
        return Err(SkipReason::Version(version));
    }
    Err(SkipReason::Foreign)
}

/// The valid records of a journal: their state, and where the next one is appended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Log {
    key: [u8; 32],
    pub(crate) state: JobState,
    /// End of the last valid record in bytes; 0 if the header is incomplete.
    pub(crate) end: u64,
    /// Whether data after `end` may have to be cut off.
    torn: bool,
}

impl Log {
    /// Creates the log of a journal that consists of its header.
    pub(crate) fn new(id: u32) -> Self {
        let key = blake3::derive_key(CONTEXT, &header(id));
        Self { key, state: JobState::default(), end: HEADER_LEN, torn: false }
    }

    pub(crate) fn read(id: u32, mut from: impl Read) -> Result<Self, SkipReason> {
        let mut log = Self { torn: true, ..Self::new(id) };
        if !read_header(id, &mut from)? {
            return Ok(Self { end: 0, ..log });
        }
        let mut payload = Vec::new();
        while log.next(&mut from, &mut payload)? {
            let Ok((record, [])) = postcard::take_from_bytes(&payload) else { break };
            if !log.state.apply(record) {
                break;
            }
            log.end += (FRAME_LEN + payload.len()) as u64;
        }
        Ok(log)
    }

    /// Reads the next payload. Returns false at the end of the valid part.
    fn next(&self, from: &mut impl Read, payload: &mut Vec<u8>) -> std::io::Result<bool> {
        let mut frame = [0; FRAME_LEN];
        if fill(from, &mut frame)? < FRAME_LEN {
            return Ok(false);
        }
        let (len, check) = frame.split_at(FRAME_LEN - CHECK_LEN);
        let len = len.iter().rev().fold(0, |len, &b| len << 8 | usize::from(b));
        if len == 0 || len > MAX_PAYLOAD {
            return Ok(false);
        }
        payload.resize(len, 0);
        Ok(fill(from, payload)? == len && self.check(self.end, payload) == check)
    }

    fn check(&self, position: u64, payload: &[u8]) -> [u8; CHECK_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&position.to_le_bytes());
        hasher.update(&(payload.len() as u32).to_le_bytes());
        hasher.update(payload);
        let mut check = [0; CHECK_LEN];
        check.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK_LEN]);
        check
    }

    /// Appends a payload with its frame to `out`, which begins at offset `start` of the file.
    pub(crate) fn seal(&self, start: u64, payload: &[u8], out: &mut Vec<u8>) {
        let check = self.check(start + out.len() as u64, payload);
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&check);
        out.extend_from_slice(payload);
    }

    /// Like [`Log::seal`] for a record, whose path [`is_local`].
    pub(crate) fn encode(&self, start: u64, record: &Record, out: &mut Vec<u8>) {
        let payload = postcard::to_allocvec(record).expect("numbers and bytes always have a postcard form");
        debug_assert!(payload.len() <= MAX_PAYLOAD, "a record of {} bytes", payload.len());
        self.seal(start, &payload, out);
    }

    pub(crate) fn append(&mut self, file: &OwnedFd, records: Vec<Record>) -> Result<(), Errno> {
        self.cut(file)?;
        let mut bytes = Vec::new();
        for record in &records {
            self.encode(self.end, record, &mut bytes);
        }
        self.torn = true;
        let done = write_all(file, &bytes);
        if done.is_ok() {
            self.end += bytes.len() as u64;
            self.torn = false;
            for record in records {
                self.state.apply(record);
            }
        } else {
            // If this fails, it is retried before the next record; readers stop before it anyway.
            let _ = self.cut(file);
        }
        done
    }

    pub(crate) fn clear(&mut self, file: &OwnedFd) -> Result<(), Errno> {
        (self.state, self.end, self.torn) = (JobState::default(), HEADER_LEN, true);
        self.cut(file)
    }

    fn cut(&mut self, file: &OwnedFd) -> Result<(), Errno> {
        if self.torn {
            ftruncate(file, self.end)?;
            self.torn = false;
        }
        Ok(())
    }
}

pub(crate) fn journal_name(id: u32) -> String {
    format!(".haul-{id:08x}.journal")
}

pub(crate) fn part_name(id: u32, number: u32) -> String {
    format!(".haul-{id:08x}-{number}.part")
}

pub(crate) fn parse_journal(name: &[u8]) -> Option<u32> {
    let id = std::str::from_utf8(name).ok()?.strip_prefix(".haul-")?.strip_suffix(".journal")?;
    let id = u32::from_str_radix(id, 16).ok()?;
    (journal_name(id).as_bytes() == name).then_some(id)
}

/// Parses ID and number in a temporary file's name, as written by [`part_name`]; `None` for other names.
pub(crate) fn parse_part(name: &[u8]) -> Option<(u32, u32)> {
    let between = std::str::from_utf8(name).ok()?.strip_prefix(".haul-")?.strip_suffix(".part")?;
    let (id, number) = between.split_once('-')?;
    let (id, number) = (u32::from_str_radix(id, 16).ok()?, number.parse().ok()?);
    (part_name(id, number).as_bytes() == name).then_some((id, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_names_are_parsed() {
        assert_eq!(parse_journal(journal_name(0x00ab_cdef).as_bytes()), Some(0x00ab_cdef));
        assert_eq!(parse_part(part_name(7, u32::MAX).as_bytes()), Some((7, u32::MAX)));
        for name in [
            ".haul-00000001.journa",
            ".haul-0000001.journal",
            ".haul-0000000A.journal",
            ".haul-+0000001.journal",
        ] {
            assert_eq!(parse_journal(name.as_bytes()), None, "{name}");
        }
        for name in [
            ".haul-00000001-.part",
            ".haul-00000001-01.part",
            ".haul-00000001-+1.part",
            ".haul-00000001-1.part~",
            ".haul-00000001-4294967296.part",
            ".haul-00000001-1",
            ".haul-0000000é-1.part",
            ".haul-.part",
        ] {
            assert_eq!(parse_part(name.as_bytes()), None, "{name}");
        }
    }
}
