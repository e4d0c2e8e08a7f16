//! Recipes: stacks described as data. A recipe is TOML with one table of parameters per micro-protocol. The
//! order of the tables is the order in which handlers of equal [`Order`](crate::Order) run.
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

mod configuration;
mod error;
mod parameters;
mod part;

use std::fmt::Write as _;

pub use configuration::{Configuration, default_of, joined};
pub use error::RecipeError;
pub use parameters::{ParameterKind, ParameterSpec, ParameterType, ParameterValue};
pub use part::Part;

/// A stack described as data. Not yet checked: see [`Registry::compile`](crate::Registry::compile).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Recipe {
    /// Name by which users choose the recipe.
    pub name: String,
    /// One-line description for users.
    pub summary: String,
    /// The micro-protocols, in order.
    pub parts: Vec<Part>,
}

impl Recipe {
    /// Creates an empty recipe of this name, to be filled in code.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Adds a micro-protocol: a name for its defaults, or a [`Configuration`] with its parameters.
    #[must_use]
    pub fn with(mut self, part: impl Into<Part>) -> Self {
        self.parts.push(part.into());
        self
    }

    /// Replaces the micro-protocol of the same name, or adds it.
    pub fn put(&mut self, part: impl Into<Part>) {
        let part = part.into();
        match self.part_mut(part.name) {
            Some(known) => *known = part,
            None => self.parts.push(part),
        }
    }

    /// Removes a micro-protocol.
    #[must_use]
    pub fn without(mut self, part: &str) -> Self {
        self.parts.retain(|known| known.name != part);
        self
    }

    /// Changes parameters of a micro-protocol.
    ///
    /// # Errors
    /// If the recipe has no such micro-protocol.
    pub fn change<C: Configuration>(&mut self, change: impl FnOnce(&mut C)) -> Result<(), RecipeError> {
        let Some(part) = self.part_mut(C::NAME) else { return Err(self.no_such(C::NAME)) };
        for (name, value) in part.changes(change) {
            part.put(name, value);
        }
        Ok(())
    }

    pub(crate) fn no_such(&self, key: &str) -> RecipeError {
        let known = self.parts.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
        RecipeError::NoSuchPart { key: key.to_owned(), known }
    }

    /// Resets a parameter to its default.
    pub fn unset(&mut self, part: &str, parameter: &str) {
        if let Some(part) = self.part_mut(part) {
            part.parameters.retain(|(name, _)| *name != parameter);
        }
    }

    /// Returns an explicit parameter as text.
    pub fn text(&self, part: &str, parameter: &str) -> Option<String> {
        self.part(part)?.get(parameter).map(ToString::to_string)
    }

    /// Returns a micro-protocol with its explicit parameters.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// Returns a micro-protocol, to be changed.
    pub fn part_mut(&mut self, name: &str) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.name == name)
    }

    /// Returns the typed parameters of a micro-protocol; `None` if the recipe does not have it. Ignores other
    /// parameters in its table, such as those of a control law.
    pub fn configuration<C: Configuration>(&self) -> Option<C> {
        self.part(C::NAME).map(Part::read)
    }

    /// Whether the recipe has this micro-protocol.
    pub fn has(&self, part: &str) -> bool {
        self.part(part).is_some()
    }

    /// Returns the recipe as TOML. Parsing it yields the same recipe.
    pub fn to_toml(&self) -> String {
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let mut out = format!("name = {}\n", quoted(&self.name));
        if !self.summary.is_empty() {
            let _ = writeln!(out, "summary = {}", quoted(&self.summary));
        }
        for part in &self.parts {
            let _ = writeln!(out, "\n[{}]", part.name);
            for (key, value) in &part.parameters {
                let _ = writeln!(out, "{key} = {}", quoted(&value.to_string()));
            }
        }
        out
    }

    /// Whether both recipes describe the same stack with the same parameters, whatever their names.
    pub fn same_stack(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}
