//! `--show-config`: every value and where it came from.

use std::collections::BTreeMap;

use clap::ArgMatches;
use serde::Serialize;

use super::options::{self, Kind, OptionSpec};
use super::{Origin, is_typed};
use crate::output::Lines;

/// One option or parameter, for people and as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigRow {
    /// The key as in a configuration file.
    pub key: String,
    /// The value in force; `None` if it has none.
    pub value: Option<String>,
    /// Where it came from.
    pub origin: String,
}

/// The rows as a table.
pub struct Show<'a>(pub &'a [ConfigRow]);

impl From<Show<'_>> for Lines {
    fn from(Show(rows): Show<'_>) -> Self {
        let shown = |row: &ConfigRow| row.value.clone().unwrap_or_else(|| "-".to_owned());
        let keys = rows.iter().map(|row| row.key.len()).max().unwrap_or(0);
        let values = rows.iter().map(|row| shown(row).chars().count()).max().unwrap_or(0);
        let mut lines = Self::default();
        for row in rows {
            lines.push(format_args!("{:keys$}  {:values$}  {}", row.key, shown(row), row.origin));
        }
        lines
    }
}

/// One row for each option but `--set`, whose parameters the recipe shows.
pub(super) fn rows(
    options: &[OptionSpec],
    matches: &ArgMatches,
    chosen: &BTreeMap<String, (Origin, String)>,
    typed: &ArgMatches,
) -> Vec<ConfigRow> {
    let shown = options.iter().filter(|option| option.kind != Kind::Set);
    shown
        .map(|option| {
            let chosen_value = chosen.get(&option.long);
            let origin = match chosen_value {
                _ if is_typed(typed, option) => Origin::Flag(option.long.clone()),
                Some((origin, _)) => origin.clone(),
                None => Origin::Default,
            };
            // Without a command nothing was completed, so the chosen value stands for itself.
            let value = raw(matches, option).or_else(|| chosen_value.map(|(_, value)| value.clone()));
            ConfigRow { key: options::key(&option.long), value, origin: origin.to_string() }
        })
        .collect()
}

/// The option's value as text.
pub(super) fn raw(matches: &ArgMatches, option: &OptionSpec) -> Option<String> {
    let scope = matches.subcommand().map_or(matches, |(_, sub)| sub);
    if !scope.try_contains_id(&option.id).unwrap_or(false) {
        return None;
    }
    match option.kind {
        Kind::Switch => Some(scope.get_flag(&option.id).to_string()),
        Kind::Count => Some(scope.get_count(&option.id).to_string()),
        Kind::Value | Kind::Set | Kind::List => {
            let values: Vec<_> = scope.get_raw(&option.id)?.map(|value| value.to_string_lossy()).collect();
            Some(values.join(" "))
        }
    }
}
