//! Option values in a TOML file: keys at the top hold for every command that has them, a table named after a
//! command holds for that command, and a table `set` holds recipe parameters.

use std::path::Path;

use toml::{Table, Value};

use super::options::{self, Kind, OptionSpec};
use super::{Layer, Origin, Setting};
use crate::args::Assignment;
use crate::fault::{self, Fault};
use haul_base::suggestion;

/// What the file says to `command`.
pub(super) fn layer(command: &str, options: &[OptionSpec], path: &Path) -> Result<Layer, Fault> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| fault::io(format!("cannot read {}", path.display()), &e))?;
    parse(command, options, path, &text)
}

pub(super) fn parse(command: &str, options: &[OptionSpec], path: &Path, text: &str) -> Result<Layer, Fault> {
    let table: Table =
        text.parse().map_err(|e| fault::usage(format!("{}: {e}", path.display()), "correct the file"))?;
    let mut reader = Reader { path, layer: Layer::default() };
    let commands = OptionSpec::commands();
    let all = OptionSpec::of_all_commands();
    let mut sections = Vec::new();
    for (name, value) in &table {
        match value {
            Value::Table(section) if commands.contains(name) => sections.push((name, section)),
            _ => reader.take(name, value, &all, options, &commands)?,
        }
    }
    for (name, section) in sections {
        let own = OptionSpec::of_command(name);
        for (key, value) in section {
            let wanted = if name == command { options } else { &[] };
            reader.take(key, value, &own, wanted, &[])?;
        }
    }
    Ok(reader.layer)
}

struct Reader<'a> {
    path: &'a Path,
    layer: Layer,
}

impl Reader<'_> {
    /// Takes one key that must be among `known`, and keeps it if it is among `wanted`.
    fn take(
        &mut self,
        key: &str,
        value: &Value,
        known: &[OptionSpec],
        wanted: &[OptionSpec],
        sections: &[String],
    ) -> Result<(), Fault> {
        let long = key.replace('_', "-");
        let Some(spec) = known.iter().find(|o| o.long == long) else {
            return Err(self.unknown(key, known, sections));
        };
        let is_wanted = wanted.iter().any(|o| o.long == long);
        if spec.kind == Kind::Set {
            let settings = self.assignments(key, value)?;
            if is_wanted {
                self.layer.set.extend(settings);
            }
            return Ok(());
        }
        let text = match (spec.kind, value) {
            (Kind::List, Value::Array(items)) => self.list(key, items)?,
            _ => scalar(value).ok_or_else(|| self.bad(key, "a text, a number, true or false is needed"))?,
        };
        if is_wanted {
            self.layer.values.insert(long, (Origin::File(self.path.to_owned()), text));
        }
        Ok(())
    }

    fn list(&self, key: &str, items: &[Value]) -> Result<String, Fault> {
        let texts = items.iter().map(|item| {
            let text = item.as_str().filter(|text| !text.contains(options::LIST_SEPARATOR));
            text.ok_or_else(|| self.bad(key, "a list of texts of one line each is needed"))
        });
        Ok(texts.collect::<Result<Vec<_>, _>>()?.join(&options::LIST_SEPARATOR.to_string()))
    }

    fn assignments(&self, key: &str, value: &Value) -> Result<Vec<Setting>, Fault> {
        let origin = Origin::File(self.path.to_owned());
        let of = |assignment| Setting { origin: origin.clone(), assignment };
        let from_text = |value: &Value| {
            let text = value.as_str().ok_or_else(|| self.bad(key, "write \"KEY=VALUE\""))?;
            text.parse().map(of).map_err(|problem: String| self.bad(key, &problem))
        };
        match value {
            Value::Table(table) => table
                .iter()
                .map(|(name, value)| {
                    let value = scalar(value).ok_or_else(|| self.bad(name, "a text or number is needed"))?;
                    Ok(of(Assignment { key: name.clone(), value }))
                })
                .collect(),
            Value::Array(items) => items.iter().map(from_text).collect(),
            single => Ok(vec![from_text(single)?]),
        }
    }

    fn bad(&self, key: &str, problem: &str) -> Fault {
        fault::usage(format!("{}: {key}: {problem}", self.path.display()), "correct the file")
    }

    fn unknown(&self, key: &str, known: &[OptionSpec], sections: &[String]) -> Fault {
        let keys: Vec<String> = known.iter().map(|o| options::key(&o.long)).collect();
        let near = suggestion(key, keys.iter().chain(sections).map(String::as_str));
        fault::usage(
            format!("unknown key `{key}` in {}{near}", self.path.display()),
            "`haul --show-config` lists the keys; recipe parameters belong under [set]",
        )
    }
}

/// A TOML value as it would be written on the command line.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}
