//! Where a value came from, and what one place says.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::args::Assignment;

#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub(crate) enum Origin {
    #[display("default")]
    Default,
    /// A preset, by name or file.
    #[display("preset {_0}")]
    Preset(String),
    #[display("{}", _0.display())]
    File(PathBuf),
    #[display("environment {_0}")]
    Environment(String),
    #[display("flag --{_0}")]
    Flag(String),
}

/// What one place says for the command that was asked for: by the option's long name, each value as a command line has
/// it. Of most options there is one.
pub(super) type Layer = BTreeMap<String, (Origin, Vec<String>)>;

/// A recipe parameter with the place that set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub origin: Origin,
    pub assignment: Assignment,
}
