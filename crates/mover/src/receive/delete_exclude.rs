//! What stays at the destination although the set does not have it, because the sender has or would have left it out.

use std::collections::HashSet;

use haul_wire::control::{Fault, IgnoreFiles, RelPath, Rule, Verdict, Withheld};

use crate::budget::{growth_of_table, of_table};
use crate::entries::MAX_ENTRIES;
use crate::fault::protocol;
use crate::receive::Asked;
use crate::send::{Ignores, Rules};

/// Names that the sender has and does not send, by their hash, and whether ignore files speak of others.
#[derive(Debug, Default)]
pub(crate) struct WithheldNames {
    hashes: HashSet<[u8; 16]>,
    obeys_ignore_files: bool,
}

impl WithheldNames {
    /// Bytes of memory that they take.
    pub(crate) fn held(&self) -> u64 {
        of_table::<[u8; 16]>(self.hashes.capacity())
    }

    /// Bytes that they take more with these.
    pub(crate) fn growth(&self, withheld: &Withheld) -> u64 {
        growth_of_table::<[u8; 16]>(self.hashes.len(), self.hashes.capacity(), withheld.paths.len())
    }

    /// # Errors
    /// There are more than any set may have.
    pub(crate) fn take_in(&mut self, withheld: &Withheld) -> Result<(), Fault> {
        self.obeys_ignore_files |= withheld.ignore_files == IgnoreFiles::Obey;
        self.hashes.extend(withheld.paths.iter().map(RelPath::as_bytes).map(hash));
        if self.hashes.len() > MAX_ENTRIES {
            return Err(protocol("more names are left out than any set may have"));
        }
        Ok(())
    }

    /// The sender has something of this name that is never moved.
    pub(crate) fn take_special(&mut self, path: &[u8]) {
        self.hashes.insert(hash(path));
    }

    fn has(&self, path: &[u8]) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&hash(path))
    }
}

/// Half of BLAKE3's output: that two names of a tree share it is out of the question.
fn hash(path: &[u8]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&blake3::hash(path).as_bytes()[..16]);
    half
}

/// See the module's text. Paths are those that names would have in the set.
pub(crate) struct Spared {
    rules: [Rules; 2],
    withheld: WithheldNames,
}

impl Spared {
    /// By what the sender has said, and by our own rules if we have asked for the set: a sender that hides some is not
    /// believed.
    pub(crate) fn new(
        asked: Option<&Asked>,
        left_out: &[Rule],
        mut withheld: WithheldNames,
    ) -> Result<Self, Fault> {
        let rules = [Rules::new(asked.map(Asked::rules).unwrap_or_default())?, Rules::new(left_out)?];
        withheld.obeys_ignore_files |= asked.is_some_and(Asked::obeys_ignore_files);
        Ok(Self { rules, withheld })
    }

    /// What the sender has said, for another who asks.
    pub(crate) fn into_withheld(self) -> WithheldNames {
        self.withheld
    }

    /// Whether ignore files of the set leave out more than was named.
    pub(crate) fn by_ignore_files(&self) -> bool {
        self.withheld.obeys_ignore_files
    }

    /// Whether the sender has something of this name, which it does not send or does not enter.
    pub(crate) fn is_withheld(&self, path: &[u8]) -> bool {
        self.withheld.has(path)
    }

    /// `ignores` are the ignore files that hold there.
    pub(crate) fn has(&self, path: &[u8], is_directory: bool, ignores: Option<&Ignores>) -> bool {
        self.rules.iter().any(|rules| rules.verdict(path, is_directory) == Verdict::Exclude)
            || self.is_withheld(path)
            || ignores.is_some_and(|ignores| ignores.ignores(path, is_directory))
    }
}
