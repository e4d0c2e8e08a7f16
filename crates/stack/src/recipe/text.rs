//! Parsing recipes from TOML.

use super::Recipe;
use super::error::RecipeError;
use super::part::Part;
use super::place::find;

fn at(text: &str, offset: usize, message: String) -> RecipeError {
    let before = &text[..offset.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    RecipeError::Text { line, column, message }
}

impl Recipe {
    /// Parses a recipe.
    ///
    /// # Errors
    /// [`RecipeError::Text`] with line and column if the text is not a recipe.
    pub fn parse(text: &str) -> Result<Self, RecipeError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let offset = error.span().map_or(0, |span| span.start);
            at(text, offset, error.message().trim().to_owned())
        })?;
        let mut recipe = Recipe { source: text.to_owned(), ..Recipe::default() };
        for (key, value) in &table {
            match (key.as_str(), value) {
                ("name", toml::Value::String(name)) => recipe.name.clone_from(name),
                ("summary", toml::Value::String(summary)) => recipe.summary.clone_from(summary),
                (name, toml::Value::Table(parameters)) if name != "name" && name != "summary" => {
                    recipe.parts.push(part(text, key, parameters)?);
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
}

/// Checks the name of a micro-protocol or a parameter, which must be a bare TOML key.
fn check_name(text: &str, name: &str, table: &str, key: Option<&str>) -> Result<(), RecipeError> {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(is_bare) {
        return Ok(());
    }
    Err(at(
        text,
        find(text, table, key),
        format!("`{name}` is not a valid name: use letters, digits, `_` and `-`"),
    ))
}

fn part(text: &str, name: &str, parameters: &toml::Table) -> Result<Part, RecipeError> {
    check_name(text, name, name, None)?;
    let value = |(key, value): (&String, &toml::Value)| {
        check_name(text, key, name, Some(key))?;
        let written = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => value.to_string(),
            _ => {
                let message = format!("`{name}.{key}` must be a string, number or boolean");
                return Err(at(text, find(text, name, Some(key)), message));
            }
        };
        Ok((key.clone(), written))
    };
    let parameters = parameters.iter().map(value).collect::<Result<_, _>>()?;
    Ok(Part { name: name.to_owned(), parameters })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_name_line_and_column() {
        let error = Recipe::parse("name = \"x\"\n[a]\nrate = [1]\n").unwrap_err().to_string();
        assert!(error.starts_with("line 3, column 1: `a.rate` must be"), "{error}");
        let error = Recipe::parse("name = \"x\"\nspeed = 3\n").unwrap_err().to_string();
        assert!(error.starts_with("line 2, column 1: `speed`"), "{error}");
        let error = Recipe::parse("name = \"x\"\n[a\n").unwrap_err().to_string();
        assert!(error.starts_with("line 2, column "), "{error}");
    }

    #[test]
    fn unwritable_values_are_refused() {
        for (text, words) in [
            ("name.ame =33 ", "`name`"),
            ("[summary]\n", "`summary`"),
            ("['a b']\n", "`a b` is not a valid name"),
            ("[a]\n'b.c' = 1\n", "`b.c` is not a valid name"),
            ("[a]\n'' = 1\n", "`` is not a valid name"),
        ] {
            let error = Recipe::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn order_is_kept() {
        let recipe = Recipe::parse("name = \"x\"\n[zebra]\n[ape]\nb = 1\na = true\n").unwrap();
        assert_eq!(recipe.parts[0].name, "zebra");
        assert_eq!(recipe.parts[1].parameters, [("b".into(), "1".into()), ("a".into(), "true".into())]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(\\PC|\n|=|\\[|\\]|\"){0,200}") {
            let _ = Recipe::parse(&text);
        }

        #[test]
        fn a_recipe_round_trips(
            name in "\\PC{0,20}",
            parts in prop::collection::btree_map("[a-z_]{1,8}", prop::collection::btree_map("[a-z]{1,5}", "\\PC{0,12}", 0..3), 0..4),
        ) {
            prop_assume!(!parts.contains_key("name") && !parts.contains_key("summary"));
            let mut recipe = Recipe::new(&name);
            for (part, parameters) in parts {
                recipe.parts.push(Part { name: part, parameters: parameters.into_iter().collect() });
            }
            let read = Recipe::parse(&recipe.to_toml()).unwrap();
            prop_assert_eq!((read.name, read.parts), (recipe.name, recipe.parts));
        }
    }
}
