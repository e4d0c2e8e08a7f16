//! Options of a command, from its clap definition; their values in environment variables and TOML files
//! (docs/cli.md, Where values come from) and the origins of these; tips for unknown options.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};
use haul_base::suggestion;
use serde::Serialize;
use toml::{Table, Value};

use crate::args::{Cli, URL_VARIABLE};
use crate::fault::{self, Fault};
use crate::output::Lines;
use crate::text_file::{text_of, toml_problem};

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

impl Origin {
    pub(crate) fn is_typed(&self) -> bool {
        matches!(self, Self::Flag(_))
    }
}

/// Values by the option's long name, as on a command line, with their origin. Most options have one value.
pub(super) type Layer = BTreeMap<String, (Origin, Vec<String>)>;

pub(super) fn values<'a>(layer: &'a Layer, long: &str) -> impl Iterator<Item = (&'a Origin, &'a str)> {
    layer.get(long).into_iter().flat_map(|(origin, texts)| texts.iter().map(move |text| (origin, &**text)))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub origin: Origin,
    pub key: String,
    pub value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Switch,
    Count,
    Value,
    /// `--set`: assignments accumulate over all sources.
    Set,
    /// May be given several times; all values come from one source, except those of [`RULES`].
    List,
}

/// Options whose values accumulate over all sources.
pub(super) const RULES: [&str; 3] = ["exclude", "exclude-from", "include"];

#[derive(Debug, Clone)]
pub(super) struct OptionSpec {
    pub id: String,
    pub long: String,
    pub kind: Kind,
}

pub(crate) fn heading_in_cp(long: &str) -> String {
    let root = Cli::command();
    let option = arguments(&root, "cp").find(|option| option.get_long() == Some(long));
    option.and_then(Arg::get_help_heading).unwrap_or_default().to_owned()
}

/// Returns the matches that contain the options of the typed command.
fn scope(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, sub)| sub)
}

/// Returns the value of an option, if the command has the option and it has a value.
pub(super) fn value<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, id: &str) -> Option<T> {
    scope(matches).try_get_one(id).ok().flatten().cloned()
}

fn is_typed(matches: &ArgMatches, id: &str) -> bool {
    let scope = scope(matches);
    scope.try_contains_id(id).unwrap_or(false) && scope.value_source(id) == Some(ValueSource::CommandLine)
}

/// Iterates over the arguments of `command`, including the general options.
fn arguments<'a>(root: &'a Command, command: &str) -> impl Iterator<Item = &'a Arg> {
    let command_arguments = root.find_subcommand(command).into_iter().flat_map(Command::get_arguments);
    command_arguments.chain(root.get_arguments())
}

/// Returns the options, by long name, that conflict with typed ones.
pub(super) fn conflicts_of_typed(command: &str, typed: &ArgMatches) -> Vec<String> {
    let root = Cli::command();
    let Some(command) = root.find_subcommand(command) else { return Vec::new() };
    let excludes =
        |a: &Arg, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|c| c.get_id() == b.get_id());
    let typed: Vec<&Arg> =
        command.get_arguments().filter(|arg| is_typed(typed, arg.get_id().as_str())).collect();
    let conflicting =
        command.get_arguments().filter(|a| typed.iter().any(|b| excludes(a, b) || excludes(b, a)));
    conflicting.filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

/// Returns the key of an option in a configuration file.
pub(super) fn key(long: &str) -> String {
    long.replace('-', "_")
}

pub(super) fn variable(long: &str) -> String {
    format!("HAUL_{}", key(long).to_ascii_uppercase())
}

impl OptionSpec {
    /// Returns the options of `command`, including the general ones.
    pub(super) fn of_command(command: &str) -> Vec<Self> {
        arguments(&Cli::command(), command).filter_map(Self::new).collect()
    }

    pub(super) fn commands() -> Vec<String> {
        Cli::command().get_subcommands().map(|sub| sub.get_name().to_owned()).collect()
    }

    pub(super) fn of_all_commands() -> Vec<Self> {
        let mut all: Vec<Self> = Self::commands().iter().flat_map(|name| Self::of_command(name)).collect();
        all.sort_by(|a, b| a.long.cmp(&b.long));
        all.dedup_by(|a, b| a.long == b.long);
        all
    }

    fn new(arg: &Arg) -> Option<Self> {
        let long = arg.get_long()?.to_owned();
        let kind = match arg.get_action() {
            ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version => return None,
            _ if long == "show-config" || arg.is_hide_set() => return None,
            ArgAction::SetTrue => Kind::Switch,
            ArgAction::Count => Kind::Count,
            ArgAction::Append if long == "set" => Kind::Set,
            ArgAction::Append => Kind::List,
            _ => Kind::Value,
        };
        Some(Self { id: arg.get_id().to_string(), long, kind })
    }
}

impl Kind {
    /// Returns the arguments that set the option to `value`.
    pub(super) fn to_arguments(self, long: &str, value: &str) -> Result<Vec<String>, String> {
        match self {
            Self::Switch => {
                let on = parse_bool(value).ok_or("write true or false")?;
                Ok(on.then(|| format!("--{long}")).into_iter().collect())
            }
            Self::Count => {
                let times: u8 = value.parse().map_err(|_| "write a small number, for example 1")?;
                Ok(vec![format!("--{long}"); usize::from(times.min(9))])
            }
            Self::Value | Self::Set | Self::List => Ok(vec![format!("--{long}={value}")]),
        }
    }
}

pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "1" => Some(true),
        "false" | "off" | "no" | "0" | "" => Some(false),
        _ => None,
    }
}

/// One option or parameter, for users and as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ConfigRow {
    /// Key in a configuration file.
    pub key: String,
    /// Effective value; `None` if unset.
    pub value: Option<String>,
    pub origin: String,
}

pub(crate) fn table(rows: &[ConfigRow]) -> Lines {
    let shown = |row: &ConfigRow| row.value.clone().unwrap_or_else(|| "-".to_owned());
    let keys = rows.iter().map(|row| row.key.len()).max().unwrap_or(0);
    let values = rows.iter().map(|row| shown(row).chars().count()).max().unwrap_or(0);
    let mut lines = Lines::default();
    for row in rows {
        lines.push(format_args!("{:keys$}  {:values$}  {}", row.key, shown(row), row.origin));
    }
    lines
}

pub(super) fn typed_layer(options: &[OptionSpec], matches: &ArgMatches) -> Layer {
    let typed = options.iter().filter(|option| is_typed(matches, &option.id)).map(|option| {
        let value = (Origin::Flag(option.long.clone()), raw(matches, option).unwrap_or_default());
        (option.long.clone(), value)
    });
    typed.collect()
}

/// Returns a row per option except `--set`, for whose parameters `Settings::rows` has rows.
pub(super) fn rows(options: &[OptionSpec], matches: &ArgMatches, layers: &[Layer]) -> Vec<ConfigRow> {
    let row = |option: &OptionSpec| {
        let values = layers.iter().filter_map(|layer| layer.get(&option.long));
        let origins: Vec<String> = values.map(|(origin, _)| origin.to_string()).collect();
        let origin = if origins.is_empty() { Origin::Default.to_string() } else { origins.join(", ") };
        let value = raw(matches, option).map(|values| values.join(" "));
        ConfigRow { key: key(&option.long), value, origin }
    };
    options.iter().filter(|option| option.kind != Kind::Set).map(row).collect()
}

/// Returns the values of an option, if it has any, as on a command line.
fn raw(matches: &ArgMatches, option: &OptionSpec) -> Option<Vec<String>> {
    let values = scope(matches).try_get_raw(&option.id).ok()??;
    Some(values.map(|value| value.to_string_lossy().into_owned()).collect())
}

const FILE_HINT: &str = "correct the file: it is TOML, and `haul --show-config` lists the keys";

pub(super) fn of_file(command: &str, options: &[OptionSpec], path: &Path) -> Result<Layer, Fault> {
    let text = text_of(path, File::open(path), FILE_HINT)?;
    let table: Table = text.parse().map_err(|error| {
        fault::usage(format!("{}: {}", path.display(), toml_problem(&text, &error)), FILE_HINT)
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
        let section_options = OptionSpec::of_command(name);
        for entry in section.as_table().into_iter().flatten() {
            let option = read(path, entry, &section_options, &[])?;
            found.extend(Some(option).filter(|_| name == command));
        }
    }
    let mut layer = Layer::default();
    for (spec, texts) in found {
        let is_rule = RULES.contains(&&*spec.long);
        let (_, values) = layer.entry(spec.long).or_insert((Origin::File(path.to_owned()), Vec::new()));
        // Values for all commands and for one.
        if spec.kind != Kind::Set && !is_rule {
            values.clear();
        }
        values.extend(texts);
    }
    Ok(layer)
}

/// Reads one key, which must be among `known`.
fn read(
    path: &Path,
    (name, value): (&String, &Value),
    known: &[OptionSpec],
    sections: &[String],
) -> Result<(OptionSpec, Vec<String>), Fault> {
    let long = name.replace('_', "-");
    let spec = known.iter().find(|o| o.long == long).ok_or_else(|| {
        let keys: Vec<String> = known.iter().map(|o| key(&o.long)).collect();
        let near = suggestion(name, keys.iter().chain(sections).map(String::as_str));
        fault::usage(
            format!("unknown key `{name}` in {}{near}", path.display()),
            "`haul --show-config` lists the keys; recipe parameters belong under [set]",
        )
    })?;
    let scalars: Option<Vec<String>> = match (spec.kind, value) {
        (Kind::Set, Value::Table(table)) => {
            table.iter().map(|(key, value)| Some(format!("{key}={}", scalar(value)?))).collect()
        }
        (Kind::Set | Kind::List, Value::Array(items)) => items.iter().map(scalar).collect(),
        _ => scalar(value).map(|text| vec![text]),
    };
    let texts = scalars.ok_or_else(|| {
        let message = format!("{}: {name}: a string, number or boolean is needed", path.display());
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
        Value::Boolean(parse_bool) => Some(parse_bool.to_string()),
        _ => None,
    }
}

/// Prefix of the variables that `haul-lab wan` sets for its command.
const LAB_PREFIX: &str = "HAUL_WAN_";
/// Variables that are not options.
const NON_OPTIONS: [&str; 6] =
    [URL_VARIABLE, "HAUL_LOG", "HAUL_CONFIG", "HAUL_FAULTS", "HAUL_DISK_RATE", "HAUL_DISK_FOLDS"];

/// Reads `options` from the environment. Remarks on unknown names are added to `notes`.
pub(super) fn of_environment(
    options: &[OptionSpec],
    sources: &Sources,
    notes: &mut Vec<String>,
) -> Result<Layer, Fault> {
    let mut layer = Layer::default();
    for option in options {
        let name = variable(&option.long);
        let Some(value) = sources.variables.get(OsStr::new(&name)) else { continue };
        let not_text = || fault::usage(format!("environment variable {name} is not valid UTF-8"), "");
        let value = value.to_str().ok_or_else(not_text)?;
        let is_separator = |c: char| match option.kind {
            Kind::Set => c == ',' || c.is_whitespace(),
            Kind::List => c == '\n',
            _ => false,
        };
        let mut texts: Vec<String> = value.split(is_separator).map(str::to_owned).collect();
        if matches!(option.kind, Kind::Set | Kind::List) {
            texts.retain(|text| !text.is_empty());
        }
        layer.insert(option.long.clone(), (Origin::Environment(name), texts));
    }
    let known: Vec<String> =
        OptionSpec::of_all_commands().iter().map(|option| variable(&option.long)).collect();
    let is_other_variable = |name: &str| NON_OPTIONS.contains(&name) || name.starts_with(LAB_PREFIX);
    let names = sources.variables.keys().filter_map(|name| name.to_str());
    for name in names.filter(|name| name.starts_with("HAUL_")) {
        if !known.iter().any(|known| known == name) && !is_other_variable(name) {
            let near = suggestion(name, known.iter().map(String::as_str));
            notes.push(format!("unknown environment variable {name}{near}"));
        }
    }
    Ok(layer)
}

/// Environment variables and the path of the system's file, replaceable in tests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    variables: BTreeMap<OsString, OsString>,
    system_file: Option<PathBuf>,
}

impl Sources {
    pub(crate) fn of_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
            system_file: Some(PathBuf::from("/etc/haul/config.toml")),
        }
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

/// Replaces clap's tip where an option's value begins with `-`: clap suggests `--`, which would end the
/// options.
pub(super) fn with_tip(mut error: clap::Error, argv: &[OsString]) -> clap::Error {
    let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => word.clone(),
        _ => return error,
    };
    let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
    let is_meant = |pair: &&[Cow<'_, str>]| pair[1].starts_with(&unknown) && takes_value(&pair[0]);
    let value = words.windows(2).find(is_meant).map(|pair| (&pair[0], &pair[1]));
    let tip =
        value.map(|(option, value)| format!("write a value that begins with '-' as '{option}={value}'"));
    if let Some(tip) = tip.or_else(|| of_other_programs(&unknown).map(str::to_owned)) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Returns a tip for an option of cp, scp or rsync.
fn of_other_programs(option: &str) -> Option<&'static str> {
    Some(match option {
        "-r" | "-R" | "--recursive" => "leave it out: directories are always copied recursively",
        "-p" | "-t" | "--times" | "--perms" => "leave it out: permissions and times are always preserved",
        "-l" | "--bwlimit" => "--rate 8Mbit limits the rate",
        "-z" | "-C" | "--compress" => "leave it out: haul does not compress",
        "-u" => "write --update",
        _ => return None,
    })
}

/// Whether `word` is an option of any command that takes the next word as its value.
fn takes_value(word: &str) -> bool {
    let is_it = |arg: &Arg| {
        let is_long = arg.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        let is_short =
            arg.get_short().is_some_and(|short| word.strip_prefix('-') == Some(&*short.to_string()));
        (is_long || is_short) && arg.get_action().takes_values()
    };
    Cli::command().get_subcommands().any(|command| command.get_arguments().any(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_value_that_begins_with_a_dash_gets_a_tip() {
        let message = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            with_tip(Cli::command().try_get_matches_from(&words).unwrap_err(), &words).to_string()
        };
        for (line, written) in [
            ("haul cp --exclude -d a b", "--exclude=-d"),
            ("haul cp --exclude -dx a b", "--exclude=-dx"),
            ("haul cp -v --exclude --foo a b", "--exclude=--foo"),
            ("haul cp -o -5 a b", "-o=-5"),
        ] {
            let message = message(line);
            assert!(
                message.contains(&format!("value that begins with '-' as '{written}'"))
                    && !message.contains("'-- "),
                "{message}"
            );
            let accepted = line.replace(written.replace('=', " ").as_str(), written);
            assert!(Cli::command().try_get_matches_from(accepted.split(' ')).is_ok(), "{accepted}");
        }
        for (option, tip) in
            [("-r", "leave it out"), ("-av -z", "does not compress"), ("-l 100", "--rate 8Mbit")]
        {
            let message = message(&format!("haul cp {option} a b"));
            assert!(message.contains(tip) && !message.contains("'-- "), "{message}");
        }
        for line in ["haul cp -Z a b", "haul cp --update -d a b", "haul cp --exclude=x -d a b"] {
            assert!(message(line).contains("use '-- -"), "{line}");
        }
    }
}
