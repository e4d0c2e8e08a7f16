//! Presets: recipes with a name, compiled in, and recipe files.

use std::path::{Path, PathBuf};

use haul_base::{Bytes, Span};
use toml::Table;

use super::{Crypto, PARAMETERS, Parameter, Settings};
use crate::config::{Origin, scalar};
use crate::fault::{self, Fault};
use haul_base::suggestion;

/// The presets of this release.
const SHIPPED: [(&str, &str); 2] = [
    ("default", include_str!("../../presets/default.toml")),
    ("fixed", include_str!("../../presets/fixed.toml")),
];

/// Where a preset's text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PresetSource {
    /// Compiled in.
    Shipped,
    /// A file of the user's.
    File(PathBuf),
}

/// A named recipe.
#[derive(Debug, Clone)]
pub struct Preset {
    /// Its name: that of a shipped preset, or the file's name without `.toml`.
    pub name: String,
    /// Where it comes from.
    pub source: PresetSource,
    /// The recipe as TOML.
    pub text: String,
}

impl Preset {
    /// The preset that is used when none is asked for.
    pub fn default_preset() -> Self {
        Self::shipped().swap_remove(0)
    }

    /// All presets that are compiled in.
    pub fn shipped() -> Vec<Self> {
        let preset = |&(name, text): &(&str, &str)| Self {
            name: name.to_owned(),
            source: PresetSource::Shipped,
            text: text.to_owned(),
        };
        SHIPPED.iter().map(preset).collect()
    }

    /// The shipped preset of this name, or the recipe file if the text looks like a path (has a `/` or ends
    /// in `.toml`).
    ///
    /// # Errors
    /// Unknown names, with the nearest known one, and files that cannot be read.
    pub fn find(name_or_file: &str) -> Result<Self, Fault> {
        let path = Path::new(name_or_file);
        if name_or_file.contains('/') || path.extension().is_some_and(|end| end == "toml") {
            return Self::load(path);
        }
        Self::shipped().into_iter().find(|preset| preset.name == name_or_file).ok_or_else(|| {
            let names = SHIPPED.map(|(name, _)| name);
            fault::usage(
                format!("no preset is called `{name_or_file}`{}", suggestion(name_or_file, names)),
                format!(
                    "the presets are {}; a recipe file is written with a slash, ./{name_or_file}",
                    names.join(", ")
                ),
            )
        })
    }

    fn load(path: &Path) -> Result<Self, Fault> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| fault::io(format!("cannot read the recipe {}", path.display()), &e))?;
        let name = path.file_stem().map_or_else(|| "recipe".into(), |stem| stem.to_string_lossy());
        Ok(Self { name: name.into_owned(), source: PresetSource::File(path.to_owned()), text })
    }

    /// What it is for, in one line.
    pub fn description(&self) -> String {
        let table: Table = self.text.parse().unwrap_or_default();
        table.get("description").and_then(|value| value.as_str()).unwrap_or_default().to_owned()
    }

    pub(super) fn origin(&self) -> Origin {
        match &self.source {
            PresetSource::Shipped => Origin::Preset(self.name.clone()),
            PresetSource::File(path) => Origin::Preset(path.display().to_string()),
        }
    }

    /// The values, those that the recipe leaves out being the default preset's.
    pub(super) fn settings(&self) -> Result<Settings, Fault> {
        let mut settings = Settings {
            preset: self.name.clone(),
            controller: "delivery",
            rate: None,
            chunk: Bytes(100_000_000),
            feedback_interval: Span::from_millis(2),
            crypto: Crypto::Auto,
            offload: true,
            socket_buffer: Bytes(64 << 20),
        };
        self.apply(&mut settings)?;
        Ok(settings)
    }

    fn apply(&self, settings: &mut Settings) -> Result<(), Fault> {
        let table: Table = self.text.parse().map_err(|e| self.problem(&format!("{e}")))?;
        for (key, value) in table.iter().filter(|(key, _)| *key != "description") {
            let parameter = Parameter::find(key).map_err(|e| super::at(&self.origin(), e))?;
            let text = scalar(value).ok_or_else(|| self.problem(&format!("{key} must be a single value")))?;
            parameter
                .set(settings, &text)
                .map_err(|problem| super::value_problem(&self.origin(), parameter, &text, &problem))?;
        }
        Ok(())
    }

    fn problem(&self, words: &str) -> Fault {
        let keys: Vec<&str> = PARAMETERS.iter().map(|p| p.key).collect();
        fault::usage(
            format!("{}: {words}", self.origin()),
            format!("a recipe is TOML with the keys {}", keys.join(", ")),
        )
    }
}
