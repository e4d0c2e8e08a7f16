//! Where values outside of the command line come from: option values in environment variables `HAUL_<OPTION>`, and the
//! places of the configuration files, as a value that tests can make up.

use super::options::{self, Kind, OptionSpec};
use super::{Layer, Origin, Setting};
use crate::endpoint::VARIABLE;
use crate::fault::{self, Fault};
use haul_base::suggestion;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// What `haul-lab wan` tells its command begins so.
const OF_THE_LAB: &str = "HAUL_WAN_";
/// Variables that are no options.
const OTHERS: [&str; 6] =
    [VARIABLE, "HAUL_LOG", "HAUL_CONFIG", "HAUL_FAULTS", "HAUL_DISK_RATE", "HAUL_DISK_FOLDS"];

/// What the environment says about `options`. Remarks on names that nothing knows go to `notes`.
pub(super) fn layer(
    options: &[OptionSpec],
    sources: &Sources,
    notes: &mut Vec<String>,
) -> Result<Layer, Fault> {
    let mut layer = Layer::default();
    for option in options {
        let name = options::variable(&option.long);
        let Some(value) = sources.variable(&name)? else { continue };
        let origin = Origin::Environment(name);
        if option.kind == Kind::Set {
            layer.set = assignments(&origin, &value)?;
        } else {
            layer.values.insert(option.long.clone(), (origin, value));
        }
    }
    note_strangers(sources, notes);
    Ok(layer)
}

fn assignments(origin: &Origin, text: &str) -> Result<Vec<Setting>, Fault> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    words
        .map(|word| match word.parse() {
            Ok(assignment) => Ok(Setting { origin: origin.clone(), assignment }),
            Err(problem) => Err(fault::usage(
                format!("{origin}: `{word}`: {problem}"),
                "separate several by spaces: HAUL_SET=\"chunk=64MB offload=off\"",
            )),
        })
        .collect()
}

fn note_strangers(sources: &Sources, notes: &mut Vec<String>) {
    let known: Vec<String> =
        OptionSpec::of_all_commands().iter().map(|option| options::variable(&option.long)).collect();
    let is_other = |name: &String| OTHERS.contains(&name.as_str()) || name.starts_with(OF_THE_LAB);
    for name in sources.names_with_prefix("HAUL_") {
        if !known.contains(&name) && !is_other(&name) {
            let near = suggestion(&name, known.iter().map(String::as_str));
            notes.push(format!("nothing reads the environment variable {name}{near}"));
        }
    }
}

const SYSTEM_FILE: &str = "/etc/haul/config.toml";

/// Environment variables and the place of the system's file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    variables: BTreeMap<OsString, OsString>,
    system_file: Option<PathBuf>,
}

impl Sources {
    /// What this process has.
    pub(crate) fn of_process() -> Self {
        Self { variables: std::env::vars_os().collect(), system_file: Some(PathBuf::from(SYSTEM_FILE)) }
    }

    /// Made-up sources.
    #[cfg(test)]
    pub(crate) fn new<'a>(
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
        system: Option<PathBuf>,
    ) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { variables, system_file: system }
    }

    pub(super) fn variable(&self, name: &str) -> Result<Option<String>, Fault> {
        let Some(value) = self.variables.get(OsString::from(name).as_os_str()) else { return Ok(None) };
        match value.to_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(fault::usage(format!("environment variable {name} is not valid UTF-8"), "")),
        }
    }

    pub(super) fn names_with_prefix(&self, prefix: &str) -> Vec<String> {
        let names = self.variables.keys().filter_map(|name| name.to_str());
        names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
    }

    pub(super) fn system_file(&self) -> Option<PathBuf> {
        self.system_file.clone().filter(|path| path.exists())
    }

    /// The user's file, if there is one: `HAUL_CONFIG` (empty: none), else `$XDG_CONFIG_HOME/haul/config.toml`,
    /// else `~/.config/haul/config.toml`.
    pub(super) fn user_file(&self) -> Result<Option<PathBuf>, Fault> {
        let get = |name: &str| self.variables.get(OsString::from(name).as_os_str()).map(PathBuf::from);
        if let Some(path) = get("HAUL_CONFIG") {
            if path.as_os_str().is_empty() {
                return Ok(None);
            }
            if !path.exists() {
                let message = format!("HAUL_CONFIG names {}, which does not exist", path.display());
                return Err(fault::usage(message, "correct the name, or unset HAUL_CONFIG"));
            }
            return Ok(Some(path));
        }
        let base = get("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        let base = base.or_else(|| get("HOME").map(|home| home.join(".config")));
        Ok(base.map(|base| base.join("haul/config.toml")).filter(|path| path.exists()))
    }
}
