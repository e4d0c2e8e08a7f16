use serde::{Deserialize, Serialize};

use super::RelPath;

/// Most rules of a [`Selection`].
pub const MAX_RULES: usize = 10_000;
/// Longest pattern of a rule in bytes: what a path may have, twice, since any byte may be escaped.
pub const MAX_PATTERN: usize = 8192;
/// Most bytes of all patterns and paths of a [`Selection`] together.
pub const MAX_SELECTION_BYTES: usize = 1 << 20;

/// Which entries below the sources are sent. The default is all of them.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Selection {
    /// The first rule that matches an entry decides; an entry that none matches is sent.
    pub rules: Vec<Rule>,
    /// If there is a list, only these paths, relative to the single source, and the directories above them.
    pub paths: Option<Vec<RelPath>>,
    /// Whether ignore files in the tree are obeyed.
    pub ignore_files: IgnoreFiles,
    /// What is sent for a symbolic link.
    pub links: LinkChoice,
    /// Whether directories of other file systems are entered.
    pub file_systems: FileSystems,
    /// Regular files of fewer bytes are left out.
    pub min_bytes: Option<u64>,
    /// Regular files of more bytes are left out.
    pub max_bytes: Option<u64>,
    /// Whether the receiver is told the names of what is left out by other means than rules.
    pub left_out: LeftOutNames,
}

/// A pattern and what becomes of the entries that it matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// What becomes of them.
    pub verdict: Verdict,
    /// As in rsync; not empty, no NUL, at most [`MAX_PATTERN`] bytes. Bytes need not be UTF-8.
    pub pattern: Vec<u8>,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It is sent.
    Include,
    /// It is left out, and so is all that is in it.
    Exclude,
}

/// Whether ignore files in the tree are obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum IgnoreFiles {
    /// They are files like any other.
    #[default]
    Disregard,
    /// `.gitignore` and `.ignore` say what of their directory and of those below is left out.
    Obey,
}

/// What is sent for a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum LinkChoice {
    /// The symbolic link itself.
    #[default]
    Keep,
    /// What it points to.
    Follow,
}

/// Whether directories of other file systems are entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FileSystems {
    /// They are.
    #[default]
    All,
    /// Only those of the source's own; of others the directory itself is sent, empty.
    One,
}

/// Whether the receiver is told the names of what ignore files, bounds of sizes and [`FileSystems::One`] leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum LeftOutNames {
    /// It is not, and removes nothing.
    #[default]
    Untold,
    /// It is, by [`Filtered`].
    Told,
}

/// Names that exist at the source but were left out of the set. The receiver does not delete them or anything below
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Filtered {
    /// The names, as they would be in the set.
    pub paths: Vec<RelPath>,
    /// Whether ignore files of the set also speak of names that only the receiver has.
    pub ignore_files: IgnoreFiles,
}

/// Why a [`Selection`] cannot travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelection {
    /// More than [`MAX_RULES`] rules.
    #[error("a selection has more than {MAX_RULES} rules")]
    TooManyRules,
    /// Patterns and paths of more than [`MAX_SELECTION_BYTES`].
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

    /// Checks the bounds that the types do not hold. Encoding and decoding check this too.
    ///
    /// # Errors
    /// The first bound that the selection breaks.
    pub fn validate(&self) -> Result<(), InvalidSelection> {
        let patterns = validate_rules(&self.rules).map(|()| pattern_bytes(&self.rules))?;
        let paths: usize = self.paths.iter().flatten().map(|path| path.as_bytes().len()).sum();
        if patterns + paths > MAX_SELECTION_BYTES { Err(InvalidSelection::TooLong) } else { Ok(()) }
    }
}

/// Checks the bounds of a list of rules.
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
    fn nothing_chosen_is_everything() {
        assert!(Selection::default().is_everything());
        assert!(!with_patterns([b"x".to_vec()]).is_everything());
        assert!(!Selection { paths: Some(Vec::new()), ..Selection::default() }.is_everything());
    }

    #[test]
    fn the_bounds_hold_to_the_last_byte() {
        let rules = |count| with_patterns(std::iter::repeat_n(b"x".to_vec(), count)).validate();
        assert_eq!(rules(MAX_RULES), Ok(()));
        assert_eq!(rules(MAX_RULES + 1), Err(InvalidSelection::TooManyRules));
        let of_length = |len| with_patterns([vec![b'x'; len]]).validate();
        assert_eq!(of_length(MAX_PATTERN), Ok(()));
        assert_eq!(of_length(MAX_PATTERN + 1), Err(InvalidSelection::Pattern));
        assert_eq!(of_length(0), Err(InvalidSelection::Pattern));
        assert_eq!(with_patterns([b"a\0".to_vec()]).validate(), Err(InvalidSelection::Pattern));
        let mut full =
            with_patterns(std::iter::repeat_n(vec![b'x'; MAX_PATTERN], MAX_SELECTION_BYTES / MAX_PATTERN));
        assert_eq!(full.validate(), Ok(()));
        full.paths = Some(vec![RelPath::new(*b"a").unwrap()]);
        assert_eq!(full.validate(), Err(InvalidSelection::TooLong));
    }
}
