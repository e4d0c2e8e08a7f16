//! Result of a job: counters, faults and the digest of its set.

use std::collections::HashMap;

use haul_wire::control::{Fault, FaultCode, Notes, Removal};

use crate::entries::{EntryState, EntryTable, Kind};
use crate::fault::IoFault;

/// Maximum number of failures that a report names; further ones are only counted.
pub const MAX_NAMED_FAILURES: usize = 100;

/// Exit code of the program when some files failed and others did not (docs/cli.md).
pub const SOME_FAILED: u8 = 3;

/// Result of moving a file set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveReport {
    /// Number of entries of the set, failed ones included.
    pub entries: u64,
    /// Number of regular files that are verified and under their final names.
    pub files: u64,
    /// Bytes of those files, excluding holes.
    pub bytes: u64,
    /// Number of regular files that were already in place and were not sent.
    pub kept: u64,
    /// Verified bytes that an earlier attempt had left at the receiver and that were not sent.
    pub resumed_bytes: u64,
    /// Removal of names that the set does not have; in a dry run, names that would be removed.
    pub removal: Removal,
    /// Number of hard links: further names of files of the set, not sent as files.
    pub hard_links: u64,
    /// Metadata that could not be preserved. The files are in place all the same.
    pub notes: Notes,
    /// Entries that failed.
    pub failures: Failures,
    /// BLAKE3 over path, kind, size and contents of every entry that did not fail, in entry order. Equal on
    /// both sides.
    pub digest: [u8; 32],
}

impl MoveReport {
    pub(crate) fn of(table: &EntryTable, digest: [u8; 32]) -> Self {
        let (files, bytes) = table
            .select(|kind, state| matches!((kind, state), (Kind::File(_), EntryState::Done)))
            .fold((0, 0), |(files, bytes), index| (files + 1, bytes + table.stream_len(index)));
        let kept = table.select(|_, state| state == EntryState::Kept).count() as u64;
        let is_link = |kind, state| matches!((kind, state), (Kind::HardLink(_), EntryState::Done));
        let hard_links = table.select(is_link).count() as u64;
        Self { entries: table.len().into(), files, bytes, kept, hard_links, digest, ..Self::default() }
    }

    /// Returns the exit code of the program: 0, or 3 if names were not removed; the failures' code if all
    /// entries failed with it, or if all failures are changed sources (8) or failed verifications (4);
    /// otherwise 3.
    pub fn exit_code(&self) -> u8 {
        match self.failures.common {
            _ if self.failures.count == 0 => self.removal.fault.as_ref().map_or(0, |_| SOME_FAILED),
            Some(code @ (FaultCode::SourceChanged | FaultCode::VerifyFailed)) => code.exit_code(),
            Some(code) if self.failures.count() == self.entries => code.exit_code(),
            _ => SOME_FAILED,
        }
    }

    /// Returns one fault for all failures, else that of the removal, if any. Its code is that of the failures
    /// if they share one, else that of the first; the exit code is [`MoveReport::exit_code`].
    pub fn fault(&self) -> Option<Fault> {
        let Some((path, first)) = self.failures.named().first() else { return self.removal.fault.clone() };
        if self.failures.count() == 1 {
            return Some(first.clone());
        }
        let message = format!(
            "{} of {} entries failed; the first is `{}`: {}",
            self.failures.count(),
            self.entries,
            crate::fault::show(path),
            first.message
        );
        let code = self.failures.common.unwrap_or(first.code);
        Some(Fault { message, code, retryable: !self.failures.any_permanent, ..first.clone() })
    }
}

/// Failures of single entries: the first [`MAX_NAMED_FAILURES`] with their paths, the others as a number. A
/// failure that only follows from its directory's is displaced by one with its own cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    named: Vec<(Vec<u8>, Fault)>,
    /// Number of entries below a named directory that failed because of it, by its path.
    below: HashMap<Vec<u8>, u64>,
    count: u64,
    special: u64,
    /// The code that all failures share, if they do.
    common: Option<FaultCode>,
    /// Whether a failure would persist if the same command is repeated unchanged.
    any_permanent: bool,
}

impl Failures {
    /// Returns the number of entries that failed.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether all failures are special files, which are never moved, so repeating would not help.
    pub(crate) fn is_all_special(&self) -> bool {
        self.special == self.count
    }

    /// Returns paths (as sent) and faults of the first failures.
    pub fn named(&self) -> &[(Vec<u8>, Fault)] {
        &self.named
    }

    /// Returns the number of entries that failed because the named directory at `path` above them did.
    pub fn below(&self, path: &[u8]) -> u64 {
        self.below.get(path).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, path: &[u8], fault: Fault) {
        self.common = Some(fault.code).filter(|_| self.count == 0 || self.common == Some(fault.code));
        self.count += 1;
        self.special += u64::from(fault.code == FaultCode::SpecialFile);
        self.any_permanent |= !fault.retryable;
        if follows_from_directory(&fault) {
            self.count_below(path);
        } else if self.named.len() == MAX_NAMED_FAILURES
            && let Some(last) = self.named.iter().rposition(|(_, fault)| follows_from_directory(fault))
        {
            self.named.remove(last);
        }
        if self.named.len() < MAX_NAMED_FAILURES {
            self.named.push((path.to_vec(), fault));
        }
    }

    /// Counts an entry at the named directory that it failed with, if there is one.
    fn count_below(&mut self, path: &[u8]) {
        let is_cause =
            |(above, fault): &&(Vec<u8>, Fault)| lies_below(path, above) && !follows_from_directory(fault);
        if let Some((above, _)) = self.named.iter().filter(is_cause).max_by_key(|(above, _)| above.len()) {
            *self.below.entry(above.clone()).or_default() += 1;
        }
    }
}

/// Hint of an entry whose directory failed. The peer recognises such failures by it, too.
const SEE_DIRECTORY: &str = "see the error of its directory";

/// The fault of an entry whose directory failed.
pub(crate) fn missing_directory(path: &[u8]) -> IoFault {
    IoFault::entry(FaultCode::NotADirectory, path, "has no parent directory, which failed", SEE_DIRECTORY)
}

/// Whether an entry failed only because a directory above it did.
pub fn follows_from_directory(fault: &Fault) -> bool {
    fault.code == FaultCode::NotADirectory && fault.hint == SEE_DIRECTORY
}

fn lies_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Domain separation from other uses of BLAKE3 (BLAKE3 paper, section 2.3, key derivation mode).
const CONTEXT: &str = "haulage 2025 digest of a file set v1";

/// Hashes every entry that did not fail, in entry order: length of the path (u32), path, kind, size (u64) and
/// contents; integers are little-endian. The contents of a file (`f`) are the BLAKE3 of its stream, and if it
/// is sparse (`s`) the offsets of each data range in the stream and in the file (u64). A file that was kept
/// (`k`) and a directory (`d`, size 0) have none. A link (`l`) has its target, a hard link (`h`) the path of
/// the file, both with their lengths as size. Modes and times are not included.
pub(crate) fn set_digest(table: &EntryTable) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    for index in table.select(|_, state| state != EntryState::Failed) {
        let path = table.path(index);
        let shape = table.shape(index);
        let linked;
        let (kind, size, contents): (u8, u64, &[u8]) = match table.kind(index) {
            Kind::File(_) if table.state(index) == EntryState::Kept => (b'k', table.size(index), &[]),
            Kind::File(_) => {
                let kind = if shape.is_sparse() { b's' } else { b'f' };
                (kind, table.size(index), table.digest(index).map_or(&[], |d| &d[..]))
            }
            Kind::Directory => (b'd', 0, &[]),
            Kind::Symlink => (b'l', table.target(index).len() as u64, table.target(index)),
            Kind::HardLink(file) => {
                linked = table.path(file);
                (b'h', linked.len() as u64, &linked)
            }
            Kind::Unread => continue,
        };
        hasher.update(&(path.len() as u32).to_le_bytes());
        hasher.update(&path);
        hasher.update(&[kind]);
        hasher.update(&size.to_le_bytes());
        hasher.update(contents);
        if kind == b's' {
            for (stream, file) in &shape.parts {
                hasher.update(&stream.to_le_bytes()).update(&file.to_le_bytes());
            }
        }
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use haul_wire::control::{Entry, EntryKind, RelPath};

    use super::*;

    fn report(entries: u64, codes: &[FaultCode]) -> MoveReport {
        let mut failures = Failures::default();
        for &code in codes {
            failures.add(b"p", Fault::new(code, "m", ""));
        }
        let (files, bytes, kept, resumed_bytes, hard_links) = (0, 0, 0, 0, 0);
        let (notes, digest) = (Notes::default(), [0; 32]);
        MoveReport {
            entries,
            files,
            bytes,
            kept,
            resumed_bytes,
            hard_links,
            removal: Removal::default(),
            notes,
            failures,
            digest,
        }
    }

    #[test]
    fn exit_codes_follow_the_kinds_of_the_failures() {
        use FaultCode as C;
        assert_eq!(report(5, &[]).exit_code(), 0);
        assert_eq!(report(5, &[C::SourceChanged, C::SourceChanged]).exit_code(), 8);
        assert_eq!(report(5, &[C::VerifyFailed]).exit_code(), 4);
        assert_eq!(report(5, &[C::VerifyFailed, C::SourceChanged]).exit_code(), 3);
        assert_eq!(report(5, &[C::VerifyFailed, C::SourceChanged, C::SourceChanged]).exit_code(), 3);
        assert_eq!(report(5, &[C::Unreadable]).exit_code(), 3);
        assert_eq!(report(1, &[C::Unreadable]).exit_code(), 7);
    }

    fn add_below(failures: &mut Failures, directory: &str, entries: u64) {
        failures.add(directory.as_bytes(), Fault::new(FaultCode::Unreadable, directory, ""));
        for entry in 0..entries {
            let path = format!("{directory}/sub/{entry}");
            failures.add(path.as_bytes(), missing_directory(path.as_bytes()).fault);
        }
    }

    #[test]
    fn failures_below_a_failed_directory_are_counted_with_it() {
        let mut failures = Failures::default();
        add_below(&mut failures, "x", 300);
        add_below(&mut failures, "x2", 5);
        assert_eq!((failures.below(b"x"), failures.below(b"x2"), failures.below(b"x/sub")), (300, 5, 0));
        assert_eq!((failures.count(), failures.common), (307, None));
        // Both causes are named, and as many of the first one's consequences as fit.
        let named: Vec<&[u8]> = failures.named().iter().map(|(path, _)| &path[..]).collect();
        assert_eq!((named.len(), named[0], named[1]), (MAX_NAMED_FAILURES, &b"x"[..], &b"x/sub/0"[..]));
        assert_eq!(named[MAX_NAMED_FAILURES - 1], b"x2");
    }

    #[test]
    fn failures_below_an_unnamed_directory_are_only_counted() {
        let mut failures = Failures::default();
        for cause in 0..MAX_NAMED_FAILURES {
            failures.add(format!("{cause}").as_bytes(), Fault::new(FaultCode::Unreadable, "m", ""));
        }
        add_below(&mut failures, "x", 7);
        assert_eq!((failures.count(), failures.below(b"x")), (MAX_NAMED_FAILURES as u64 + 8, 0));
        assert!(failures.named().iter().all(|(_, fault)| fault.message == "m"));
    }

    #[test]
    fn failures_beyond_the_limit_are_only_counted() {
        let report = report(1000, &[FaultCode::Unreadable; 500]);
        assert_eq!(report.failures.count(), 500);
        assert_eq!(report.failures.named().len(), MAX_NAMED_FAILURES);
        assert!(report.fault().is_some_and(|f| f.message.contains("500 of 1000")));
    }

    fn table(name: &str, size: u64, digest: u8) -> EntryTable {
        let path = RelPath::new(name.as_bytes().to_vec()).unwrap();
        let kind = EntryKind::File { size, holes: vec![] };
        let mut table = EntryTable::default();
        table.push(&Entry { path, kind, mode: 0, mtime_secs: 0, mtime_nanos: 0, extras: None }).unwrap();
        table.set_digest(0, [digest; 32]);
        table
    }

    #[test]
    fn the_set_digest_covers_name_size_and_contents_but_not_failures() {
        let base = set_digest(&table("a", 1, 1));
        assert_eq!(base, set_digest(&table("a", 1, 1)));
        assert_ne!(base, set_digest(&table("b", 1, 1)));
        assert_ne!(base, set_digest(&table("a", 2, 1)));
        assert_ne!(base, set_digest(&table("a", 1, 2)));
        let mut failed = table("a", 1, 1);
        failed.set_state(0, EntryState::Failed);
        assert_eq!(set_digest(&failed), set_digest(&EntryTable::default()));
    }
}
