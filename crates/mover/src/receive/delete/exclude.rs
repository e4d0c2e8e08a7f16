//! What stays at the destination although the set does not have it, because the sender has or would have left it out.

use std::collections::HashSet;

use haul_wire::control::{Fault, Filtered, IgnoreFiles, RelPath, Rule, Verdict};

use crate::budget::of_place;
use crate::entries::MAX_ENTRIES;
use crate::fault::protocol;
use crate::receive::Expectations;
use crate::send::{Ignores, Rules};

/// Names that the sender has and does not send, by their hash, and whether ignore files speak of others.
#[derive(Debug, Default)]
pub(crate) struct FilteredNames {
    hashes: HashSet<[u8; 16]>,
    /// Ignore files of the set leave out more than was named.
    pub(crate) obeys_ignore_files: bool,
}

impl FilteredNames {
    /// Bytes of memory that so many names take.
    pub(crate) fn cost(filtered: &Filtered) -> u64 {
        filtered.paths.len() as u64 * of_place::<[u8; 16]>()
    }

    pub(crate) fn take_in(&mut self, filtered: &Filtered) -> Result<(), Fault> {
        self.obeys_ignore_files |= filtered.ignore_files == IgnoreFiles::Obey;
        self.hashes.extend(filtered.paths.iter().map(RelPath::as_bytes).map(hash));
        if self.hashes.len() > MAX_ENTRIES {
            return Err(protocol("more names are left out than any set may have"));
        }
        Ok(())
    }

    /// The sender has something of this name that is never moved.
    pub(crate) fn take_special(&mut self, path: &[u8]) {
        self.hashes.insert(hash(path));
    }

    /// Whether the sender has something of this name, which it does not send or does not enter.
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&hash(path))
    }
}

/// Half of BLAKE3's output: that two names of a tree share it is out of the question.
fn hash(path: &[u8]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&blake3::hash(path).as_bytes()[..16]);
    half
}

pub(crate) struct DeleteExclude {
    rules: [Rules; 2],
    pub(crate) filtered: FilteredNames,
}

impl DeleteExclude {
    /// By what the sender has said, and by our own rules if we asked: a sender that hides some is not believed.
    pub(crate) fn new(
        expectations: Option<&Expectations>,
        left_out: &[Rule],
        mut filtered: FilteredNames,
    ) -> Result<Self, Fault> {
        let rules =
            [Rules::new(expectations.map(|asked| &*asked.rules).unwrap_or_default())?, Rules::new(left_out)?];
        filtered.obeys_ignore_files |=
            expectations.is_some_and(|asked| asked.ignore_files == IgnoreFiles::Obey);
        Ok(Self { rules, filtered })
    }

    /// `ignores` are the ignore files that hold there.
    pub(crate) fn has(&self, path: &[u8], is_directory: bool, ignores: Option<&Ignores>) -> bool {
        self.rules.iter().any(|rules| rules.verdict(path, is_directory) == Verdict::Exclude)
            || self.filtered.has(path)
            || ignores.is_some_and(|ignores| ignores.ignores(path, is_directory))
    }
}
