//! Names that are not deleted at the destination although the set lacks them: the sender excludes them.

use std::collections::HashSet;

use haul_wire::control::{Fault, Filtered, IgnoreFiles, RelPath, Rule, Verdict};

use crate::budget::of_place;
use crate::entries::MAX_ENTRIES;
use crate::fault::protocol;
use crate::receive::Expectations;
use crate::send::{Ignores, Rules};

/// Hashes of names that the sender has but does not send, and whether ignore files exclude further ones.
#[derive(Debug, Default)]
pub(crate) struct FilteredNames {
    hashes: HashSet<[u8; 16]>,
    /// Whether ignore files of the set also apply to names that only the receiver has.
    pub(crate) obeys_ignore_files: bool,
}

impl FilteredNames {
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

    /// Adds the name of a file that is never moved, such as a device, pipe or socket.
    pub(crate) fn take_special(&mut self, path: &[u8]) {
        self.hashes.insert(hash(path));
    }

    /// Whether the sender has a file of this name that it does not send or a directory that it skips.
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&hash(path))
    }
}

/// Returns the first half of a name's BLAKE3 digest: 128 bits, for which collisions are negligible.
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
    /// Combines the names and rules that the sender sent with the receiver's own rules if it made the
    /// request, so that a sender that omits some has no effect.
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

    /// Whether a path is excluded. `ignores`: the ignore files that apply there.
    pub(crate) fn has(&self, path: &[u8], is_directory: bool, ignores: Option<&Ignores>) -> bool {
        self.rules.iter().any(|rules| rules.verdict(path, is_directory) == Verdict::Exclude)
            || self.filtered.has(path)
            || ignores.is_some_and(|ignores| ignores.ignores(path, is_directory))
    }
}
