//! How a job ended, in numbers and in faults.

use haul_wire::control::{Fault, FaultCode, Notes, Removal};

use crate::entries::{EntryTable, Kind, State};

/// How many failures a report names; the rest is only counted.
pub const MAX_NAMED_FAILURES: usize = 100;

/// Exit code of the program when some files failed and others did not (docs/mover.md).
const SOME_FILES_FAILED: u8 = 3;

/// What became of a file set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveReport {
    /// Entries of the set, whatever became of them.
    pub entries: u64,
    /// Regular files that are verified and under their final names.
    pub files: u64,
    /// Bytes of those files, without their holes.
    pub bytes: u64,
    /// Regular files that were there already, and of which nothing was sent.
    pub kept: u64,
    /// Bytes that were not sent because an earlier attempt had left them, and that have been verified.
    pub resumed_bytes: u64,
    /// Names that the set does not have and that were to be removed; counted also if it was only looked.
    pub removal: Removal,
    /// Names that became further names of files of the set, and were not sent as files.
    pub hard_links: u64,
    /// What was to be preserved and could not be. The files are in place all the same.
    pub notes: Notes,
    /// Entries that failed.
    pub failures: Failures,
    /// BLAKE3 over path, kind, size and contents of every entry that did not fail, in entry order. Equal on
    /// both sides.
    pub digest: [u8; 32],
}

impl MoveReport {
    /// The exit code of the program: 0, or 3 if names were not removed; the code of the failures' kind if all entries failed with it, or if
    /// all failures are changed sources (8) or failed verifications (4); otherwise 3.
    pub fn exit_code(&self) -> u8 {
        match self.failures.common_code() {
            _ if self.failures.count() == 0 => self.removal.fault.as_ref().map_or(0, |_| SOME_FILES_FAILED),
            Some(code @ (FaultCode::SourceChanged | FaultCode::VerifyFailed)) => code.exit_code(),
            Some(code) if self.failures.count() == self.entries => code.exit_code(),
            _ => SOME_FILES_FAILED,
        }
    }

    /// One fault for all failures; `None` if there were none. Its code is that of the failures if they share
    /// one, else that of the first; the exit code is [`MoveReport::exit_code`].
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
        let code = self.failures.common_code().unwrap_or(first.code);
        Some(Fault { message, code, retryable: self.failures.all_retryable(), hint: first.hint.clone() })
    }
}

/// Failures of single entries: the first [`MAX_NAMED_FAILURES`] by name, the others as a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    named: Vec<(Vec<u8>, Fault)>,
    count: u64,
    special: u64,
    common: Option<FaultCode>,
    all_retryable: bool,
}

impl Default for Failures {
    fn default() -> Self {
        Self { named: Vec::new(), count: 0, special: 0, common: None, all_retryable: true }
    }
}

impl Failures {
    /// How many entries failed.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether nothing failed that the same command could mend later: what is no file, directory or link never moves.
    pub fn is_all_special(&self) -> bool {
        self.special == self.count
    }

    /// Paths (as they travel) and faults of the first failures.
    pub fn named(&self) -> &[(Vec<u8>, Fault)] {
        &self.named
    }

    /// The code that all failures share.
    pub fn common_code(&self) -> Option<FaultCode> {
        self.common
    }

    /// Whether the same command may succeed when it is repeated unchanged.
    pub fn all_retryable(&self) -> bool {
        self.all_retryable
    }

    pub(crate) fn add(&mut self, path: &[u8], fault: Fault) {
        self.common = match self.common {
            _ if self.count == 0 => Some(fault.code),
            Some(code) if code == fault.code => Some(code),
            _ => None,
        };
        self.count += 1;
        self.special += u64::from(fault.code == FaultCode::SpecialFile);
        self.all_retryable &= fault.retryable;
        if self.named.len() < MAX_NAMED_FAILURES {
            self.named.push((path.to_vec(), fault));
        }
    }
}

/// The report of a set whose entries are all settled.
pub(crate) fn report(
    table: &EntryTable,
    failures: Failures,
    digest: [u8; 32],
    resumed_bytes: u64,
    removal: Removal,
    notes: Notes,
) -> MoveReport {
    let done = |&i: &u32| matches!(table.kind(i), Kind::File(_)) && table.state(i) == State::Done;
    let (files, bytes) = (0..table.len())
        .filter(done)
        .fold((0, 0), |(files, bytes), index| (files + 1, bytes + table.stream_len(index)));
    let kept = (0..table.len()).filter(|&i| table.state(i) == State::Kept).count() as u64;
    let is_link = |&i: &u32| matches!(table.kind(i), Kind::HardLink(_)) && table.state(i) == State::Done;
    let hard_links = (0..table.len()).filter(is_link).count() as u64;
    let entries = table.len().into();
    MoveReport { entries, files, bytes, kept, resumed_bytes, removal, hard_links, notes, failures, digest }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn failures_beyond_the_bound_are_counted_only() {
        let report = report(1000, &[FaultCode::Unreadable; 500]);
        assert_eq!(report.failures.count(), 500);
        assert_eq!(report.failures.named().len(), MAX_NAMED_FAILURES);
        assert!(report.fault().is_some_and(|f| f.message.contains("500 of 1000")));
    }
}
