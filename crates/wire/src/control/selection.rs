use serde::{Deserialize, Serialize};

use super::{MAX_PATH, RelPath};

/// Maximum number of rules in a [`Selection`].
pub const MAX_RULES: usize = 10_000;
/// Maximum length of a rule's pattern in bytes: any path with all of its bytes escaped and a slash at each end.
pub const MAX_PATTERN: usize = 2 * MAX_PATH + 2;
/// Maximum length of all patterns and paths of a [`Selection`] in bytes.
pub const MAX_SELECTION_BYTES: usize = 1 << 20;

/// Which entries below the sources are sent; by default all.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Selection {
    /// The first matching rule decides; an entry without a match is sent.
    pub rules: Vec<Rule>,
    /// If set, only these paths, relative to the single source, and their parent directories are sent.
    pub paths: Option<Vec<RelPath>>,
    /// Whether ignore files in the tree apply.
    pub ignore_files: IgnoreFiles,
    /// How symbolic links are sent.
    pub links: LinkChoice,
    /// Whether directories of other file systems are entered.
    pub file_systems: FileSystems,
    /// Smaller regular files are excluded.
    pub min_bytes: Option<u64>,
    /// Larger regular files are excluded.
    pub max_bytes: Option<u64>,
    /// Whether the receiver is sent the names excluded by other means than rules.
    pub left_out: ExcludedNames,
}

/// A pattern, and whether matching entries are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Whether matching entries are sent.
    pub verdict: Verdict,
    /// Pattern as in rsync: not empty, no NUL, at most [`MAX_PATTERN`] bytes, not necessarily UTF-8.
    pub pattern: Vec<u8>,
}

/// Decision of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The entry is sent.
    Include,
    /// The entry and everything in it is excluded.
    Exclude,
}

/// Whether ignore files in the tree apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum IgnoreFiles {
    /// They are ordinary files.
    #[default]
    Disregard,
    /// `.gitignore` and `.ignore` exclude entries of their directory and those below.
    Obey,
}

/// How symbolic links are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum LinkChoice {
    /// As symbolic links.
    #[default]
    Keep,
    /// As what they point to.
    Follow,
}

/// Whether directories of other file systems are entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FileSystems {
    /// Yes.
    #[default]
    All,
    /// No: such a directory is sent empty.
    One,
}

/// Whether the receiver is sent the names excluded by ignore files, size limits and [`FileSystems::One`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ExcludedNames {
    /// No; the receiver then deletes nothing.
    #[default]
    NotSent,
    /// Yes, in [`Filtered`].
    Sent,
}

/// Names that exist at the source but were excluded from the set. The receiver does not delete them or
/// anything below them.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Filtered {
    /// Names, as they would be in the set.
    pub paths: Vec<RelPath>,
    /// Whether ignore files of the set also apply to names that only the receiver has.
    pub ignore_files: IgnoreFiles,
}

/// Why a [`Selection`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelection {
    /// It has more than [`MAX_RULES`] rules.
    #[error("a selection has more than {MAX_RULES} rules")]
    TooManyRules,
    /// Its patterns and paths are longer than [`MAX_SELECTION_BYTES`].
    #[error("a selection has more than {MAX_SELECTION_BYTES} bytes of patterns and paths")]
    TooLong,
    /// A pattern is empty, too long, or has a NUL byte.
    #[error("a selection has an impossible pattern")]
    Pattern,
}

impl Selection {
    /// Whether every entry is sent as it is.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the limits that the types do not enforce, as encoding and decoding do.
    ///
    /// # Errors
    /// The first limit that the selection violates.
    pub fn validate(&self) -> Result<(), InvalidSelection> {
        let patterns = validate_rules(&self.rules).map(|()| pattern_bytes(&self.rules))?;
        let paths: usize = self.paths.iter().flatten().map(|path| path.as_bytes().len()).sum();
        if patterns + paths > MAX_SELECTION_BYTES { Err(InvalidSelection::TooLong) } else { Ok(()) }
    }
}

/// Checks the limits of a list of rules.
pub(super) fn validate_rules(rules: &[Rule]) -> Result<(), InvalidSelection> {
    if rules.len() > MAX_RULES {
        return Err(InvalidSelection::TooManyRules);
    }
    let possible = |p: &[u8]| !p.is_empty() && p.len() <= MAX_PATTERN && !p.contains(&0);
    if !rules.iter().all(|rule| possible(&rule.pattern)) {
        return Err(InvalidSelection::Pattern);
    }
    if pattern_bytes(rules) > MAX_SELECTION_BYTES { Err(InvalidSelection::TooLong) } else { Ok(()) }
}

fn pattern_bytes(rules: &[Rule]) -> usize {
    rules.iter().map(|rule| rule.pattern.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_patterns(patterns: impl IntoIterator<Item = Vec<u8>>) -> Selection {
        let rule = |pattern| Rule { verdict: Verdict::Exclude, pattern };
        Selection { rules: patterns.into_iter().map(rule).collect(), ..Selection::default() }
    }

    #[test]
    fn an_empty_selection_includes_everything() {
        assert!(Selection::default().is_everything());
        assert!(!with_patterns([b"x".to_vec()]).is_everything());
        assert!(!Selection { paths: Some(Vec::new()), ..Selection::default() }.is_everything());
    }

    #[test]
    fn the_size_bounds_are_exact() {
        let rules = |count| with_patterns(std::iter::repeat_n(b"x".to_vec(), count)).validate();
        assert_eq!(rules(MAX_RULES), Ok(()));
        assert_eq!(rules(MAX_RULES + 1), Err(InvalidSelection::TooManyRules));
        let of_length = |len| with_patterns([vec![b'x'; len]]).validate();
        assert_eq!(of_length(MAX_PATTERN), Ok(()));
        assert_eq!(of_length(MAX_PATTERN + 1), Err(InvalidSelection::Pattern));
        assert_eq!(of_length(0), Err(InvalidSelection::Pattern));
        assert_eq!(with_patterns([b"a\0".to_vec()]).validate(), Err(InvalidSelection::Pattern));
        let mut full = with_patterns(std::iter::repeat_n(vec![b'x'; 1 << 13], MAX_SELECTION_BYTES >> 13));
        assert_eq!(full.validate(), Ok(()));
        full.paths = Some(vec![RelPath::new(*b"a").unwrap()]);
        assert_eq!(full.validate(), Err(InvalidSelection::TooLong));
    }
}
