//! Recipes: stacks written as data. A recipe is TOML: a table per micro-protocol, in the order in which handlers
//! of equal order run, with its parameters.
//!
//! ```toml
//! name = "viz"
//! summary = "a stream at the rate that the receiver asks for, nothing repeated"
//!
//! [fixed_size]
//! [sequenced_segment]
//! [fixed_rate]
//! rate = "200Mbit"
//! ```

mod error;
mod parameters;
mod text;

use std::fmt::Write as _;

pub use error::RecipeError;
pub use parameters::{ParameterKind, ParameterSpec, Parameters};
pub(crate) use text::place;

/// A stack written as data. Not checked yet: [`Registry::compile`](crate::Registry::compile) does that.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Recipe {
    /// The name that users choose it by.
    pub name: String,
    /// A line for people.
    pub summary: String,
    /// The micro-protocols in order.
    pub parts: Vec<Part>,
    /// Where it was read from, for errors; empty if it was built in code.
    pub(crate) source: String,
}

/// One micro-protocol of a recipe with the parameters that it is given, as text.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Part {
    /// Name of the micro-protocol.
    pub name: String,
    /// Parameter and value.
    pub parameters: Vec<(String, String)>,
}

impl Recipe {
    /// An empty recipe of this name, to be built in code.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Adds a micro-protocol with its defaults.
    #[must_use]
    pub fn with(self, part: &str) -> Self {
        self.with_parameters(part, &[])
    }

    /// Adds a micro-protocol with parameters.
    #[must_use]
    pub fn with_parameters(mut self, part: &str, parameters: &[(&str, &str)]) -> Self {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let parameters = parameters.iter().map(owned).collect();
        self.parts.push(Part { name: part.to_owned(), parameters });
        self
    }

    /// Takes a micro-protocol out.
    #[must_use]
    pub fn without(mut self, part: &str) -> Self {
        self.parts.retain(|known| known.name != part);
        self
    }

    /// Sets a parameter, named `micro_protocol.parameter`.
    ///
    /// # Errors
    /// If the recipe has no such micro-protocol, or the name has no dot.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), RecipeError> {
        let split = key.split_once('.');
        let known = || self.parts.iter().map(|part| part.name.clone()).collect::<Vec<_>>().join(", ");
        let Some((part, parameter)) = split else {
            return Err(RecipeError::NoSuchPart { key: key.to_owned(), known: known() });
        };
        let known = known();
        let Some(part) = self.parts.iter_mut().find(|p| p.name == part) else {
            return Err(RecipeError::NoSuchPart { key: key.to_owned(), known });
        };
        match part.parameters.iter_mut().find(|(name, _)| name == parameter) {
            Some(old) => value.clone_into(&mut old.1),
            None => part.parameters.push((parameter.to_owned(), value.to_owned())),
        }
        Ok(())
    }

    /// Gives a parameter its default again.
    pub fn unset(&mut self, part: &str, parameter: &str) {
        for part in self.parts.iter_mut().filter(|known| known.name == part) {
            part.parameters.retain(|(name, _)| name != parameter);
        }
    }

    /// A parameter as it stands in the recipe.
    pub fn get(&self, part: &str, parameter: &str) -> Option<&str> {
        let part = self.parts.iter().find(|p| p.name == part)?;
        part.parameters.iter().find(|(name, _)| name == parameter).map(|(_, value)| value.as_str())
    }

    /// Whether the recipe has this micro-protocol.
    pub fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|p| p.name == part)
    }

    /// The recipe as TOML; reading it gives the same recipe.
    pub fn to_toml(&self) -> String {
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let mut out = format!("name = {}\n", quoted(&self.name));
        if !self.summary.is_empty() {
            let _ = writeln!(out, "summary = {}", quoted(&self.summary));
        }
        for part in &self.parts {
            let _ = writeln!(out, "\n[{}]", part.name);
            for (key, value) in &part.parameters {
                let _ = writeln!(out, "{key} = {}", quoted(value));
            }
        }
        out
    }

    /// Whether both are the same stack with the same parameters, whatever their names.
    pub fn same_stack(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}
