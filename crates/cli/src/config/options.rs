//! The options that a command has, read from its clap definition.

use clap::{Arg, ArgAction, CommandFactory};

use crate::args::Cli;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Present or absent.
    Switch,
    /// Counts how often it is given.
    Count,
    Value,
    /// `--set`: takes assignments, from all places together.
    Set,
    /// May be given several times; from one place.
    List,
}

/// What stands between the values of a list in one text, as in an environment variable.
pub(super) const LIST_SEPARATOR: char = '\n';

/// One option of a command.
#[derive(Debug, Clone)]
pub(super) struct OptionSpec {
    pub id: String,
    pub long: String,
    pub kind: Kind,
}

/// The heading of the help text of `haul cp` under which an option stands.
pub(crate) fn heading_in_cp(long: &str) -> String {
    let root = Cli::command();
    let own = root.find_subcommand("cp").into_iter().flat_map(clap::Command::get_arguments);
    let mut all = own.chain(root.get_arguments());
    let option = all.find(|option| option.get_long() == Some(long));
    option.and_then(Arg::get_help_heading).unwrap_or_default().to_owned()
}

/// The key of an option in a configuration file.
pub(super) fn key(long: &str) -> String {
    long.replace('-', "_")
}

/// The environment variable of an option.
pub(super) fn variable(long: &str) -> String {
    format!("HAUL_{}", key(long).to_ascii_uppercase())
}

impl OptionSpec {
    /// The options of `command`, the general ones included.
    pub(super) fn of_command(command: &str) -> Vec<Self> {
        let root = Cli::command();
        let general = root.get_arguments();
        let own = root.find_subcommand(command).into_iter().flat_map(clap::Command::get_arguments);
        own.chain(general).filter_map(Self::new).collect()
    }

    pub(super) fn commands() -> Vec<String> {
        Cli::command().get_subcommands().map(|sub| sub.get_name().to_owned()).collect()
    }

    /// The options of all commands, each once.
    pub(super) fn of_all_commands() -> Vec<Self> {
        let mut all: Vec<Self> = Self::commands().iter().flat_map(|name| Self::of_command(name)).collect();
        all.sort_by(|a, b| a.long.cmp(&b.long));
        all.dedup_by(|a, b| a.long == b.long);
        all
    }

    /// Whether it is present or absent.
    pub(super) fn is_switch(&self) -> bool {
        self.kind == Kind::Switch
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
    /// The words that give `value` to the option on a command line.
    pub(super) fn spell(self, long: &str, value: &str) -> Result<Vec<String>, String> {
        match self {
            Self::Switch => {
                let on = truth(value).ok_or("write true or false")?;
                Ok(on.then(|| format!("--{long}")).into_iter().collect())
            }
            Self::Count => {
                let times: u8 = value.parse().map_err(|_| "write a small number, for example 1")?;
                Ok(vec![format!("--{long}"); usize::from(times.min(9))])
            }
            Self::Value | Self::Set => Ok(vec![format!("--{long}={value}")]),
            Self::List => {
                let items = value.split(LIST_SEPARATOR).filter(|item| !item.is_empty());
                Ok(items.map(|item| format!("--{long}={item}")).collect())
            }
        }
    }
}

/// Reads yes or no in the usual spellings.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "1" => Some(true),
        "false" | "off" | "no" | "0" | "" => Some(false),
        _ => None,
    }
}
