//! Sources of option values, in order of precedence: command line, environment, user's file, system's file.

mod options;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::Resettable::Reset;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::args::{Assignment, Cli, Command, Global};
use crate::fault::{self, Fault};

pub(crate) use options::{ConfigRow, Origin, Setting, Sources, heading_in_cp, parse_bool, scalar, table};
use options::{Kind, Layer, OptionSpec, RULES, with_tip};

/// Command whose values `haul --show-config` shows if none is given.
const COMMAND_SHOWN: &str = "cp";

/// Command line completed from all sources.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub global: Global,
    pub command: Command,
    pub preset: Option<String>,
    pub diagnosis_model: Option<PathBuf>,
    /// File for the trace of the run.
    pub events: Option<PathBuf>,
    /// Recipe parameters in order; later ones override earlier ones.
    pub settings: Vec<Setting>,
    /// Every option of the command with its value and origin.
    pub rows: Vec<ConfigRow>,
    /// Options given on the command line itself, by long name.
    pub typed: Vec<String>,
    /// Remarks about unknown environment variables.
    pub notes: Vec<String>,
}

#[derive(Debug, derive_more::From)]
pub(crate) enum StartError {
    /// clap's output: help, version, or a usage error of the command line itself.
    Clap(clap::Error),
    /// An error in a configuration file or the environment.
    Fault(Fault),
}

/// Completes the command line `argv` (with the program's name in front) from `sources`.
pub(crate) fn resolve(argv: &[OsString], sources: &Sources) -> Result<Resolved, StartError> {
    // An option that another one needs, or the command, may be configured.
    let lenient =
        Cli::command().mut_subcommands(|sub| sub.mut_args(|arg| arg.required(false).requires(Reset)));
    let typed = lenient.try_get_matches_from(argv).map_err(|error| with_tip(error, argv))?;
    if typed.subcommand_name().is_none() && !typed.get_flag("show_config") {
        let words = "a command is needed, for example `haul cp`";
        return Err(Cli::command().error(ErrorKind::MissingSubcommand, words).into());
    }
    let command = typed.subcommand_name().unwrap_or(COMMAND_SHOWN).to_owned();
    let options = OptionSpec::of_command(&command);
    let mut notes = Vec::new();
    // In order of precedence.
    let mut layers =
        vec![options::typed_layer(&options, &typed), options::of_environment(&options, sources, &mut notes)?];
    for path in sources.files()? {
        layers.push(options::of_file(&command, &options, &path)?);
    }
    let settings = settings(&layers)?;
    let layers = choose(&options, layers, &options::conflicts_of_typed(&command, &typed));

    let completed = complete(argv, &typed, &options, &layers)?;
    let matches =
        Cli::command().try_get_matches_from(&completed).map_err(|error| name_origin(error, &layers))?;
    let Cli { global, command } = Cli::from_arg_matches(&matches)?;
    let command = command.expect("a subcommand was typed, or was put in by `complete`");
    Ok(Resolved {
        global,
        command,
        preset: options::value(&matches, "preset"),
        diagnosis_model: options::value(&matches, "diagnosis_model"),
        events: options::value(&matches, "events"),
        settings,
        rows: options::rows(&options, &matches, &layers),
        typed: layers[0].keys().cloned().collect(),
        notes,
    })
}

/// Whether the report is requested as JSON, and whether stdout is for data, so that it goes to stderr.
pub(crate) struct RequestedOutput {
    pub json: bool,
    pub is_stdout_for_data: bool,
}

/// Returns what a faulty command line and `sources` request.
pub(crate) fn requested_output(argv: &[OsString], sources: &Sources) -> RequestedOutput {
    let words = || argv.iter().skip(1).take_while(|word| *word != "--").filter_map(|word| word.to_str());
    let command = words().find(|word| !word.starts_with('-')).unwrap_or(COMMAND_SHOWN);
    let options = OptionSpec::of_command(command);
    let of_environment = options::of_environment(&options, sources, &mut Vec::new());
    let files = sources.files().into_iter().flatten();
    let of_files = files.map(|path| options::of_file(command, &options, &path));
    let layers: Vec<Layer> = [of_environment].into_iter().chain(of_files).flatten().collect();
    let is_typed = |long: &str| words().any(|word| word.starts_with(&format!("--{long}")));
    let is_on = |long: &str| {
        let configured = || layers.iter().find_map(|layer| options::values(layer, long).last());
        is_typed(long) || configured().is_some_and(|(_, text)| parse_bool(text) != Some(false))
    };
    // A typed URL hides a configured `listen`.
    let has_url = words().any(|word| word.starts_with('@') || word.starts_with("haul://"));
    let listens = if has_url { is_typed("listen") } else { is_on("listen") };
    let is_stdout_for_data = command == "pipe" && listens != is_on("reverse");
    RequestedOutput { json: is_on("json"), is_stdout_for_data }
}

/// Mutually exclusive options; a source of higher precedence hides the other option in lower ones.
const EXCLUSIVE: [[&str; 2]; 3] = [["time", "bytes"], ["checksum", "ignore-times"], ["delete", "files-from"]];

/// Options whose configured values are ignored without another one, in commands that have both.
const DEPENDENT: [(&str, &str); 2] = [("max-delete", "delete"), ("time", "busy-receiver")];

/// Removes from each layer the values that layers of higher precedence hide, except those of `set` and [`RULES`],
/// which accumulate, and the values of `conflicting`, which conflict with typed options.
fn choose(options: &[OptionSpec], layers: Vec<Layer>, conflicting: &[String]) -> Vec<Layer> {
    let option = |long: &str| options.iter().find(|option| option.long == long);
    let is_set = |chosen: &[Layer], long: &str| {
        let is_switch = option(long).is_some_and(|option| option.kind == Kind::Switch);
        let mut values = chosen.iter().flat_map(|layer| options::values(layer, long));
        values.any(|(_, text)| !is_switch || parse_bool(text) != Some(false))
    };
    let mut chosen: Vec<Layer> = Vec::new();
    for mut layer in layers {
        layer.retain(|long, _| {
            let accumulates = long == "set" || RULES.contains(&&**long);
            let mut others = EXCLUSIVE.into_iter().filter(|pair| pair.contains(&&**long)).flatten();
            (accumulates || !chosen.iter().any(|upper| upper.contains_key(long)))
                && !others.any(|other| is_set(&chosen, other))
                && (chosen.is_empty() || !conflicting.contains(long))
        });
        chosen.push(layer);
    }
    for (dependent, on) in DEPENDENT {
        if option(on).is_some() && !is_set(&chosen, on) {
            for layer in &mut chosen {
                layer.remove(dependent);
            }
        }
    }
    chosen
}

/// Adds the values of all layers to the command line, before any `--`, in order of precedence; of each layer
/// `--include` before `--exclude`.
fn complete(
    argv: &[OsString],
    typed: &ArgMatches,
    options: &[OptionSpec],
    layers: &[Layer],
) -> Result<Vec<OsString>, Fault> {
    let mut added = Vec::new();
    for layer in &layers[1..] {
        let values = layer.iter().filter(|(long, _)| *long != "set");
        let (includes, others): (Vec<_>, Vec<_>) = values.partition(|(long, _)| *long == "include");
        for (long, (origin, texts)) in includes.into_iter().chain(others) {
            let kind = options.iter().find(|o| o.long == *long).map_or(Kind::Value, |o| o.kind);
            let words = texts.iter().map(|text| kind.to_arguments(long, text)).collect::<Result<Vec<_>, _>>();
            added.extend(words.map_err(|problem| bad_value(origin, long, texts, &problem))?.concat());
        }
    }
    let mut completed = argv.to_vec();
    if typed.subcommand_name().is_none() {
        completed.push(OsString::from(COMMAND_SHOWN));
    }
    let end = completed.iter().position(|word| word == "--").unwrap_or(completed.len());
    completed.splice(end..end, added.into_iter().map(OsString::from));
    Ok(completed)
}

fn bad_value(origin: &Origin, long: &str, texts: &[String], problem: &str) -> Fault {
    let (name, value) = (options::key(long), texts.join("\n"));
    fault::usage(format!("{origin}: {name} = {value:?}: {problem}"), "`haul --help` explains the options")
}

/// Adds the origin of a value that clap rejected.
fn name_origin(error: clap::Error, layers: &[Layer]) -> StartError {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return error.into();
    };
    let long = argument.trim_start_matches("--").split([' ', '=', '[']).next().unwrap_or_default();
    let invalid = error.get(ContextKind::InvalidValue).map_or_else(String::new, ToString::to_string);
    let added = layers[1..].iter().filter_map(|layer| layer.get(long));
    match added.max_by_key(|(_, texts)| texts.contains(&invalid)) {
        Some((origin, texts)) => bad_value(origin, long, texts, &problem(&error)).into(),
        None => error.into(),
    }
}

fn problem(error: &clap::Error) -> String {
    use std::error::Error as _;
    if let Some(source) = error.source() {
        return source.to_string();
    }
    match (error.get(ContextKind::ValidValue), error.get(ContextKind::PriorArg)) {
        (Some(ContextValue::Strings(valid)), _) if !valid.is_empty() => {
            format!("possible values are {}", valid.join(", "))
        }
        (_, Some(other)) => format!("it conflicts with {other}"),
        _ => "this value is not accepted".to_owned(),
    }
}

/// Options that are also recipe parameters, with their names in recipes.
const PARAMETER_OPTIONS: [(&str, &str); 3] =
    [("rate", "rate"), ("controller", "controller"), ("diagnosis", "rate_control.diagnosis")];

fn settings(layers: &[Layer]) -> Result<Vec<Setting>, Fault> {
    let mut settings = Vec::new();
    for layer in layers.iter().rev() {
        let given = options::values(layer, "set").map(|(origin, text)| (origin, text.to_owned()));
        let of_options = PARAMETER_OPTIONS.into_iter().flat_map(|(name, key)| {
            options::values(layer, name).map(move |(origin, value)| (origin, format!("{key}={value}")))
        });
        for (origin, text) in given.chain(of_options) {
            let Assignment { key, value } = text.parse().map_err(|problem: String| {
                let hint = "separate several with spaces: HAUL_SET=\"chunk=64MB offload=off\"";
                fault::usage(format!("{origin}: `{text}`: {problem}"), hint)
            })?;
            settings.push(Setting { origin: origin.clone(), key, value });
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests;
