//! Option values in environment variables and TOML files (docs/cli.md, Where values come from).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

use haul_base::suggestion;
use toml::{Table, Value};

use super::options::{self, Kind, Layer, OptionSpec, Origin};
use crate::endpoint::VARIABLE;
use crate::fault::{self, Fault};
use crate::text_file::{text_of, toml_problem};

const CORRECT: &str = "correct the file: it is TOML, and `haul --show-config` lists the keys";

pub(super) fn of_file(command: &str, options: &[OptionSpec], path: &Path) -> Result<Layer, Fault> {
    let text = text_of(path, File::open(path), CORRECT)?;
    let table: Table = text.parse().map_err(|error| {
        fault::usage(format!("{}: {}", path.display(), toml_problem(&text, &error)), CORRECT)
    })?;
    let (commands, all) = (OptionSpec::commands(), OptionSpec::of_all_commands());
    let is_section = |(name, value): &(&String, &Value)| value.is_table() && commands.contains(name);
    let (sections, general): (Vec<_>, Vec<_>) = table.iter().partition(is_section);
    let mut found = Vec::new();
    for entry in general {
        let option = read(path, entry, &all, &commands)?;
        found.extend(Some(option).filter(|(spec, _)| options.iter().any(|o| o.long == spec.long)));
    }
    for (name, section) in sections {
        let own = OptionSpec::of_command(name);
        for entry in section.as_table().into_iter().flatten() {
            let option = read(path, entry, &own, &[])?;
            found.extend(Some(option).filter(|_| name == command));
        }
    }
    let mut layer = Layer::default();
    for (spec, texts) in found {
        let (_, kept) = layer.entry(spec.long).or_insert((Origin::File(path.to_owned()), Vec::new()));
        // Recipe parameters for all commands and for one accumulate; other options are replaced.
        if spec.kind != Kind::Set {
            kept.clear();
        }
        kept.extend(texts);
    }
    Ok(layer)
}

/// Reads one key, which must be among `known`.
fn read(
    path: &Path,
    (key, value): (&String, &Value),
    known: &[OptionSpec],
    sections: &[String],
) -> Result<(OptionSpec, Vec<String>), Fault> {
    let long = key.replace('_', "-");
    let spec = known.iter().find(|o| o.long == long).ok_or_else(|| {
        let keys: Vec<String> = known.iter().map(|o| options::key(&o.long)).collect();
        let near = suggestion(key, keys.iter().chain(sections).map(String::as_str));
        fault::usage(
            format!("unknown key `{key}` in {}{near}", path.display()),
            "`haul --show-config` lists the keys; recipe parameters belong under [set]",
        )
    })?;
    let scalars: Option<Vec<String>> = match (spec.kind, value) {
        (Kind::Set, Value::Table(table)) => {
            table.iter().map(|(name, value)| Some(format!("{name}={}", scalar(value)?))).collect()
        }
        (Kind::Set | Kind::List, Value::Array(items)) => items.iter().map(scalar).collect(),
        _ => scalar(value).map(|text| vec![text]),
    };
    let texts = scalars.ok_or_else(|| {
        let message = format!("{}: {key}: a string, number or boolean is needed", path.display());
        fault::usage(message, "correct the file")
    })?;
    Ok((spec.clone(), texts))
}

/// Formats a TOML value as on the command line.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// Prefix of the variables that `haul-lab wan` sets for its command.
const OF_THE_LAB: &str = "HAUL_WAN_";
/// Variables that are not options.
const OTHERS: [&str; 6] =
    [VARIABLE, "HAUL_LOG", "HAUL_CONFIG", "HAUL_FAULTS", "HAUL_DISK_RATE", "HAUL_DISK_FOLDS"];

/// Reads `options` from the environment. Remarks on unknown names are added to `notes`.
pub(super) fn of_environment(
    options: &[OptionSpec],
    sources: &Sources,
    notes: &mut Vec<String>,
) -> Result<Layer, Fault> {
    let mut layer = Layer::default();
    for option in options {
        let name = options::variable(&option.long);
        let Some(value) = sources.variables.get(OsStr::new(&name)) else { continue };
        let not_text = || fault::usage(format!("environment variable {name} is not valid UTF-8"), "");
        let value = value.to_str().ok_or_else(not_text)?;
        let is_between = |c: char| match option.kind {
            Kind::Set => c == ',' || c.is_whitespace(),
            Kind::List => c == '\n',
            _ => false,
        };
        let mut texts: Vec<String> = value.split(is_between).map(str::to_owned).collect();
        if matches!(option.kind, Kind::Set | Kind::List) {
            texts.retain(|text| !text.is_empty());
        }
        layer.insert(option.long.clone(), (Origin::Environment(name), texts));
    }
    let known: Vec<String> =
        OptionSpec::of_all_commands().iter().map(|option| options::variable(&option.long)).collect();
    let is_other = |name: &str| OTHERS.contains(&name) || name.starts_with(OF_THE_LAB);
    let names = sources.variables.keys().filter_map(|name| name.to_str());
    for name in names.filter(|name| name.starts_with("HAUL_")) {
        if !known.iter().any(|known| known == name) && !is_other(name) {
            let near = suggestion(name, known.iter().map(String::as_str));
            notes.push(format!("unknown environment variable {name}{near}"));
        }
    }
    Ok(layer)
}

const SYSTEM_FILE: &str = "/etc/haul/config.toml";

/// Environment variables and the path of the system's file, replaceable in tests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    variables: BTreeMap<OsString, OsString>,
    system_file: Option<PathBuf>,
}

impl Sources {
    pub(crate) fn of_process() -> Self {
        Self { variables: std::env::vars_os().collect(), system_file: Some(PathBuf::from(SYSTEM_FILE)) }
    }

    #[cfg(test)]
    pub(crate) fn new<'a>(
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
        system: Option<PathBuf>,
    ) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { variables, system_file: system }
    }

    /// Returns the existing files in order of precedence: the user's, in `HAUL_CONFIG` (empty: none) or else
    /// in the XDG base directory, and the system's.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>, Fault> {
        let get = |name: &str| self.variables.get(OsStr::new(name)).map(PathBuf::from);
        // Relative paths are invalid (XDG base directory specification).
        let absolute = |name: &str| get(name).filter(|path| path.is_absolute());
        let user = match get("HAUL_CONFIG") {
            Some(path) if path.as_os_str().is_empty() => None,
            Some(path) if !path.exists() => {
                let message = format!("HAUL_CONFIG names {}, which does not exist", path.display());
                return Err(fault::usage(message, "correct the name, or unset HAUL_CONFIG"));
            }
            Some(path) => Some(path),
            None => {
                let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
                base.map(|base| base.join("haul/config.toml"))
            }
        };
        Ok([user, self.system_file.clone()].into_iter().flatten().filter(|path| path.exists()).collect())
    }
}
