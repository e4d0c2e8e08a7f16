//! The receiver's journal: what an interrupted job leaves behind so that the next one can go on.
//!
//! A [`Journal`] lies in the directory that a job writes below and is locked while the job runs. It says which
//! bytes of which files are in temporary files. [`Leftovers`] are the journals of jobs that were cut off; the
//! next job adopts them, takes the claims it has use for, and removes the rest. `docs/mover.md` describes the
//! format and what it promises.

mod check;
mod leftovers;
mod names;
mod own;
mod record;
mod survey;
mod tail;
#[cfg(test)]
mod tests;

pub(crate) use check::check;
#[cfg(test)]
pub(crate) use leftovers::Why;
pub(crate) use leftovers::{Claim, Leftovers};
#[cfg(test)]
pub(crate) use own::Ended;
pub(crate) use own::Journal;
pub(crate) use record::FileIdentity;
pub use survey::{JournalReport, JournalState, PartialFile, find_journals, remove_journal};

/// Whether a name is that of a journal or of a temporary file, of whichever job.
pub(crate) fn is_working_name(name: &[u8]) -> bool {
    is_journal(name) || names::parse_part(name).is_some()
}

/// Whether a name is that of a journal.
pub(crate) fn is_journal(name: &[u8]) -> bool {
    names::parse_journal(name).is_some()
}
