//! Parsing recipes from TOML, and parameters from text.

use crate::recipe::{Part, Recipe, RecipeError};
use crate::registry::Registry;

fn at(text: &str, offset: usize, message: String) -> RecipeError {
    let before = &text[..offset.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    RecipeError::Text { line, column, message }
}

/// Byte offset of `[table]`, or of `key =` within it; 0 if it is not found.
fn find(text: &str, table: &str, key: Option<&str>) -> usize {
    let mut offset = 0;
    let mut inside = table.is_empty();
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(header) = trimmed.strip_prefix('[') {
            inside = header.split(']').next().is_some_and(|name| name.trim() == table);
            if inside && key.is_none() {
                return offset + indent;
            }
        } else if inside && key.is_some_and(|key| trimmed.split('=').next().is_some_and(|k| k.trim() == key))
        {
            return offset + indent;
        }
        offset += line.len();
    }
    0
}

impl Registry {
    /// Parses a recipe.
    ///
    /// # Errors
    /// [`RecipeError::Text`] if the text is not a recipe; [`RecipeError::Line`] if there is no such
    /// micro-protocol or parameter, or a value is invalid.
    pub fn parse(&self, text: &str) -> Result<Recipe, RecipeError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let offset = error.span().map_or(0, |span| span.start);
            at(text, offset, error.message().trim().to_owned())
        })?;
        let mut recipe = Recipe::default();
        for (key, value) in &table {
            match (key.as_str(), value) {
                ("name", toml::Value::String(name)) => recipe.name.clone_from(name),
                ("summary", toml::Value::String(summary)) => recipe.summary.clone_from(summary),
                (name, toml::Value::Table(parameters)) if name != "name" && name != "summary" => {
                    recipe.parts.push(self.part(text, name, parameters)?);
                }
                _ => {
                    let message = format!(
                        "`{key}` is neither `name = \"...\"`, nor `summary = \"...\"`, nor a micro-protocol's table [{key}]"
                    );
                    return Err(at(text, find(text, "", Some(key)), message));
                }
            }
        }
        Ok(recipe)
    }

    fn part(&self, text: &str, name: &str, table: &toml::Table) -> Result<Part, RecipeError> {
        let in_line = |key, error| {
            let line = text[..find(text, name, key)].matches('\n').count() + 1;
            RecipeError::Line { line, error: Box::new(error) }
        };
        let registration = self.find(name).map_err(|error| in_line(None, error))?;
        let mut part = Part::from(registration.name);
        let mut parameters: Vec<(&String, &toml::Value)> = table.iter().collect();
        parameters.sort_by_key(|(key, _)| registration.is_further(key));
        for (key, value) in parameters {
            let written = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => {
                    value.to_string()
                }
                _ => {
                    let message = format!("`{name}.{key}` must be a string, number or boolean");
                    return Err(at(text, find(text, name, Some(key)), message));
                }
            };
            let specs = registration.specs(&part);
            part.parse(&specs, key, &written).map_err(|error| in_line(Some(key.as_str()), error))?;
        }
        // In the order of the text: both ends compare recipes in order.
        part.parameters.sort_by_key(|(name, _)| table.keys().position(|key| key == name));
        Ok(part)
    }

    /// Returns settings in an order in which parameters that exist only with some values of others, such as
    /// those of a control law, follow these. `key` returns the parameter, named `micro_protocol.parameter`.
    pub fn in_order<T>(&self, settings: impl IntoIterator<Item = T>, key: impl Fn(&T) -> &str) -> Vec<T> {
        let mut settings: Vec<T> = settings.into_iter().collect();
        settings.sort_by_key(|setting| {
            let name = key(setting).split_once('.');
            name.is_some_and(|(part, name)| self.get(part).is_some_and(|known| known.is_further(name)))
        });
        settings
    }

    /// Sets a parameter, named `micro_protocol.parameter`, to the value of a text.
    ///
    /// # Errors
    /// If there is no such micro-protocol in the recipe, or no such parameter, or the value is invalid.
    pub fn set(&self, recipe: &mut Recipe, key: &str, text: &str) -> Result<(), RecipeError> {
        let (name, parameter) = key.split_once('.').unwrap_or_default();
        let Some(part) = recipe.part_mut(name) else { return Err(recipe.no_such(key)) };
        let specs = self.find(name)?.specs(part);
        part.parse(&specs, parameter, text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::recipe::{ParameterKind, ParameterSpec};
    use crate::registry::Registration;

    const PARAMETERS: &[ParameterSpec] = &[
        ParameterSpec { name: "text", kind: ParameterKind::Text, default: "", help: "" },
        ParameterSpec { name: "rate", kind: ParameterKind::Rate, default: "unlimited", help: "" },
        ParameterSpec { name: "flag", kind: ParameterKind::Flag, default: "true", help: "" },
        ParameterSpec { name: "share", kind: ParameterKind::Number(-1e9, 1e9), default: "0", help: "" },
    ];

    fn registry() -> Registry {
        let mut registry = Registry::empty();
        for name in ["a", "zebra", "ape"] {
            let part = Registration::new(name, 1, "", |_, _| Err("not needed".to_owned()));
            registry.register(Registration { parameters: PARAMETERS, ..part });
        }
        registry
    }

    #[test]
    fn errors_name_line_and_column() {
        let error = |text| registry().parse(text).unwrap_err().to_string();
        let wrong = error("name = \"x\"\n[a]\nrate = [1]\n");
        assert!(wrong.starts_with("line 3, column 1: `a.rate` must be"), "{wrong}");
        let wrong = error("name = \"x\"\nspeed = 3\n");
        assert!(wrong.starts_with("line 2, column 1: `speed`"), "{wrong}");
        let wrong = error("name = \"x\"\n[a\n");
        assert!(wrong.starts_with("line 2, column "), "{wrong}");
        let wrong = error("name = \"x\"\n[ape]\n[a]\nflag = 0\n");
        assert_eq!(wrong, "line 4: `a.flag = 0`: write true or false");
    }

    #[test]
    fn wrong_names_are_refused() {
        for (text, words) in [
            ("name.ame =33 ", "`name`"),
            ("[summary]\n", "`summary`"),
            ("['a b']\n", "there is no micro-protocol `a b`"),
            ("[a]\n'b.c' = 1\n", "`a` has no parameter `b.c`"),
            ("[a]\n'' = 1\n", "`a` has no parameter ``"),
        ] {
            let error = registry().parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn order_is_kept() {
        let recipe = registry().parse("name = \"x\"\n[zebra]\n[ape]\nrate = '1bit'\nflag = true\n").unwrap();
        assert_eq!(recipe.parts[0].name, "zebra");
        let names: Vec<_> = recipe.parts[1].parameters.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["rate", "flag"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(\\PC|\n|=|\\[|\\]|\"){0,200}") {
            let _ = registry().parse(&text);
        }

        #[test]
        fn a_recipe_round_trips(
            name in "\\PC{0,20}",
            text in "\\PC{0,12}", share in -1e9..1e9f64, bits in 1u64.., flag in any::<bool>(),
        ) {
            let mut recipe = Recipe::new(&name).with("ape").with("a");
            let values: [(&str, String); 3] = [("share", share.to_string()), ("rate", format!("{bits}bit")), ("text", text.clone())];
            for (key, value) in values {
                registry().set(&mut recipe, &format!("ape.{key}"), &value).unwrap();
            }
            registry().set(&mut recipe, "a.flag", &flag.to_string()).unwrap();
            prop_assert_eq!(recipe.text("ape", "text"), Some(text));
            prop_assert_eq!(registry().parse(&recipe.to_toml()).unwrap(), recipe);
        }
    }
}
