//! The receiver's journal, with which the next job resumes an interrupted one.
//!
//! A [`Journal`] is a file in the destination directory, locked while its job runs. It records which bytes of
//! which files are in temporary files. [`Leftovers`] are the journals of interrupted jobs: the next job uses
//! what it can and removes the rest. `docs/mover.md` describes the format and its guarantees.

use haul_wire::control::{Fault, FaultCode};

mod active;
pub mod check;
mod leftovers;
mod record;
mod survey;
#[cfg(test)]
mod tests;

pub(crate) use active::Journal;
pub(crate) use leftovers::{Claim, Leftovers, LockMode, is_ours};
pub(crate) use record::FileIdentity;
#[cfg(test)]
pub(crate) use record::SkipReason;
pub use survey::{JournalReport, JournalState, PartialFile, find_journals, remove_journal, subdirectories};

/// Whether this is the name of a journal or temporary file of any job.
pub(crate) fn is_working_name(name: &[u8]) -> bool {
    record::parse_journal(name).is_some() || record::parse_part(name).is_some()
}

/// Whether no peer may use this name, because a later job would trust such a journal or temporary file. Case
/// is ignored, as some file systems do.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    is_working_name(&name.to_ascii_lowercase())
}

pub(crate) fn reserved(path: &str) -> Fault {
    let message =
        format!("`{path}` is a reserved name for journals and temporary files of unfinished copies");
    let hint = "rename it if it is not one; `haul clean` removes leftovers of unfinished copies";
    Fault::new(FaultCode::Usage, message, hint)
}
