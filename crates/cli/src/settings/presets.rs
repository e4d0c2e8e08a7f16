//! Presets and recipe files. A recipe contains session parameters, or a table per micro-protocol.

use std::fs::File;
use std::path::{Path, PathBuf};

use haul_base::{Bytes, suggestion};
use haul_proto::{check_object_recipe, law_names};
use haulage::RecipeError;
use toml::{Table, Value};

use super::{IN_RECIPE, PARAMETERS, Parameter, RECIPES, Settings, TAG_LEN, parameter_names, session_key};
use crate::config::{ConfigRow, Origin, Setting, scalar};
use crate::fault::{self, Fault};
use crate::text_file::{text_of, toml_problem};

/// Shipped presets that only set parameters; those of micro-protocols are [`haulage::PRESETS`].
const SHIPPED: [(&str, &str); 2] = [
    ("default", include_str!("../../presets/default.toml")),
    ("fixed", include_str!("../../presets/fixed.toml")),
];

#[derive(Debug, Clone)]
pub(crate) struct Preset {
    /// Name of a shipped preset, or the file's name without `.toml`.
    pub name: String,
    /// Recipe file; `None` if compiled in.
    pub file: Option<PathBuf>,
    pub text: String,
}

impl Preset {
    pub(crate) fn default_preset() -> Self {
        Self::compiled_in(&SHIPPED[0])
    }

    /// Returns all compiled-in presets that only set parameters.
    #[cfg(test)]
    pub(crate) fn shipped() -> Vec<Self> {
        SHIPPED.iter().map(Self::compiled_in).collect()
    }

    pub(crate) fn all() -> Vec<Self> {
        SHIPPED.iter().chain(haulage::PRESETS).map(Self::compiled_in).collect()
    }

    fn compiled_in(&(name, text): &(&str, &str)) -> Self {
        Self { name: name.to_owned(), file: None, text: text.to_owned() }
    }

    /// Returns the shipped preset of this name, or the recipe file if the text contains a `/` or ends in
    /// `.toml`.
    pub(crate) fn find(name_or_file: &str) -> Result<Self, Fault> {
        let path = Path::new(name_or_file);
        if name_or_file.contains('/') || path.extension().is_some_and(|end| end == "toml") {
            return Self::load(path);
        }
        let known = SHIPPED.iter().chain(haulage::PRESETS);
        let found = known.clone().find(|known| known.0 == name_or_file);
        found.map(Self::compiled_in).ok_or_else(|| {
            let names: Vec<&str> = known.map(|known| known.0).collect();
            let near = suggestion(name_or_file, names.iter().copied());
            let names = names.join(", ");
            fault::usage(
                format!("there is no preset `{name_or_file}`{near}"),
                format!("the presets are {names}; write ./{name_or_file} for a recipe file"),
            )
        })
    }

    fn load(path: &Path) -> Result<Self, Fault> {
        let hint = "a recipe is TOML; `haul presets NAME` prints one to start from";
        let text = text_of(path, File::open(path), hint)?;
        let name = path.file_stem().map_or_else(|| "recipe".into(), |stem| stem.to_string_lossy());
        Ok(Self { name: name.into_owned(), file: Some(path.to_owned()), text })
    }

    pub(crate) fn description(&self) -> String {
        let table = self.table();
        let line = table.get("description").or_else(|| table.get("summary"));
        line.and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// Whether it is a recipe for messages; all others carry files, memory and byte streams.
    pub(crate) fn carries_messages(&self) -> bool {
        let table = self.table();
        table.values().any(Value::is_table) && !table.contains_key("object")
    }

    fn table(&self) -> Table {
        self.text.parse().unwrap_or_default()
    }

    fn origin(&self) -> Origin {
        let file = self.file.as_ref().map(|path| path.display().to_string());
        Origin::Preset(file.unwrap_or_else(|| self.name.clone()))
    }

    /// Returns the values. A recipe with tables replaces the whole recipe; one of session parameters changes
    /// those of `bulk`, which has the values of the default preset.
    pub(crate) fn settings(&self) -> Result<Settings, Fault> {
        let mut settings = Settings {
            crypto: None,
            offload: true,
            socket_buffer: Bytes(64 << 20),
            recipe: haulage::preset("bulk").map_err(fault::of)?,
        };
        let (origin, name) = (self.origin(), &self.name);
        let table: Table =
            self.text.parse().map_err(|error| self.problem(&toml_problem(&self.text, &error)))?;
        if table.values().any(Value::is_table) {
            let recipe = haulage::Recipe::parse(&self.text)
                .map_err(|e| fault::usage(format!("{origin}: {e}"), RECIPES))?;
            settings.recipe = recipe.clone();
            // Checks the parameters that have short names.
            for (of_part, key) in IN_RECIPE {
                let value = of_part.split_once('.').and_then(|(part, parameter)| recipe.get(part, parameter));
                value.map_or(Ok(()), |value| settings.set(&origin, key, value))?;
            }
        } else {
            for (key, value) in table.iter().filter(|(key, _)| *key != "description") {
                let value = scalar(value);
                let text = value.ok_or_else(|| self.problem(&format!("{key} must be a single value")))?;
                settings.set(&origin, key, &text)?;
            }
        }
        settings.recipe.name.clone_from(name);
        Ok(settings)
    }

    fn problem(&self, words: &str) -> Fault {
        fault::usage(
            format!("{}: {words}", self.origin()),
            format!("a recipe is TOML with the keys {}", parameter_names()),
        )
    }
}

impl Settings {
    /// Starts from a preset and applies settings in order.
    pub(crate) fn build(preset: &Preset, settings: &[Setting]) -> Result<Self, Fault> {
        let built = Self::collect(preset, settings)?;
        // Builds the stack once, so that errors are reported before anything starts.
        let problem = |error| fault::usage(format!("preset {}: {error}", built.recipe.name), hint(&error));
        check_object_recipe(&built.recipe, TAG_LEN).map_err(problem)?;
        Ok(built)
    }

    /// Like [`Settings::build`], without checking that the stack can be built.
    pub(crate) fn collect(preset: &Preset, settings: &[Setting]) -> Result<Self, Fault> {
        let mut collected = preset.settings()?;
        for Setting { origin, key, value } in settings {
            collected.set(origin, session_key(key), value)?;
        }
        Ok(collected)
    }

    /// Returns every parameter with its value and origin: the last of `settings` that set it, or the preset.
    pub(crate) fn rows(&self, preset: &Preset, settings: &[Setting]) -> Vec<ConfigRow> {
        let row = |Parameter { key, show, .. }: &Parameter| {
            let sets_it =
                |set: &&Setting| Parameter::find(session_key(&set.key)).is_ok_and(|found| found.key == *key);
            let set = settings.iter().rfind(sets_it).map(|set| set.origin.clone());
            let origin = set.unwrap_or_else(|| preset.origin()).to_string();
            ConfigRow { key: format!("set.{key}"), value: Some(show(self)), origin }
        };
        PARAMETERS.iter().map(row).collect()
    }
}

fn hint(error: &RecipeError) -> String {
    match error {
        RecipeError::Unbuildable { protocol, message }
            if protocol == "rate_control" && message.starts_with("switch") =>
        {
            let laws = law_names().join(", ");
            format!("a rule is `CONDITION -> LAW`, as in `loss > 5% -> tfrc`; the laws are {laws}")
        }
        _ => RECIPES.to_owned(),
    }
}
