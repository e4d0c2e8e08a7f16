//! The receiver's journal, with which the next job resumes an interrupted one.
//!
//! A [`Journal`] lies in the directory that a job writes below and is locked while the job runs. It says
//! which bytes of which files are in temporary files. [`Leftovers`] are the journals of jobs that were cut
//! off; the next job adopts them, takes the claims it has use for, and removes the rest. `docs/mover.md`
//! describes the format and what it promises.

use haul_wire::control::{Fault, FaultCode};

mod active;
pub mod check;
mod leftovers;
mod record;
mod survey;
#[cfg(test)]
mod tests;

pub(crate) use active::Journal;
pub(crate) use leftovers::{Claim, Hold, Leftovers, is_ours};
pub(crate) use record::FileIdentity;
#[cfg(test)]
pub(crate) use record::Why;
pub use survey::{JournalReport, JournalState, PartialFile, find_journals, remove_journal, subdirectories};

/// Whether a name is that of a journal or of a temporary file, of whichever job.
pub(crate) fn is_working_name(name: &[u8]) -> bool {
    record::parse_journal(name).is_some() || record::parse_part(name).is_some()
}

/// Whether no peer may give this name to anything: that of a journal, which a later job would believe, or of
/// a temporary file, which it would go on with. Also in other case, because there are file systems that do
/// not tell it apart.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    is_working_name(&name.to_ascii_lowercase())
}

/// What is said of such a name.
pub(crate) fn reserved(path: &str) -> Fault {
    let message =
        format!("`{path}` is a reserved name for journals and temporary files of unfinished copies");
    let hint = "rename it if it is not one; `haul clean` removes leftovers of unfinished copies";
    Fault::new(FaultCode::Usage, message, hint)
}
