//! The rules of the journal's format as a function, for the fuzz target and tests, as in `haul_wire::check`.

use crate::journal::check as rules;

/// Checks the reader of journals. Of arbitrary bytes the first says how the others are used: as a whole journal,
/// or as the payloads of records that have right checks.
///
/// Reading never panics; it keeps a beginning of the file, which reads back to the same, as does every part of
/// it; and no file claims bytes behind its end or lies outside of the directory. True if a record was read.
///
/// # Panics
/// If a rule is broken.
pub fn journal(bytes: &[u8]) -> bool {
    rules(bytes)
}
