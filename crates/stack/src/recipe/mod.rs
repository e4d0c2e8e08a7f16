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
mod place;
mod text;

use std::fmt::Write as _;

pub use configuration::joined;
pub use error::RecipeError;
pub use parameters::{
    Configuration, ParameterKind, ParameterSpec, ParameterType, ParameterValue, Parameters,
};
pub use part::Part;
pub(crate) use place::place;

/// A stack described as data. Not yet checked: see [`Registry::compile`](crate::Registry::compile).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Recipe {
    /// Name by which users choose the recipe.
    pub name: String,
    /// One-line description for users.
    pub summary: String,
    /// The micro-protocols, in order.
    pub parts: Vec<Part>,
    /// Where the recipe was read from, for error messages; empty if it was built in code.
    pub(crate) source: String,
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
        match self.parts.iter_mut().find(|known| known.name == part.name) {
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

    /// Sets a parameter, named `micro_protocol.parameter`.
    ///
    /// # Errors
    /// If the recipe has no such micro-protocol, or the name has no dot.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), RecipeError> {
        let found = key.split_once('.').and_then(|(part, parameter)| {
            Some((self.parts.iter().position(|known| known.name == part)?, parameter))
        });
        let Some((part, parameter)) = found else { return Err(self.no_such(key)) };
        let part = &mut self.parts[part];
        match part.parameters.iter_mut().find(|(name, _)| name == parameter) {
            Some(old) => value.clone_into(&mut old.1),
            None => part.parameters.push((parameter.to_owned(), value.to_owned())),
        }
        Ok(())
    }

    /// Changes parameters of a micro-protocol, typed.
    ///
    /// # Errors
    /// If the recipe has no such micro-protocol, or one of its parameters has an invalid value.
    pub fn change<C: Configuration>(&mut self, change: impl FnOnce(&mut C)) -> Result<(), RecipeError> {
        let before: C = self.configuration()?.ok_or_else(|| self.no_such(C::NAME))?;
        let mut after = before.clone();
        change(&mut after);
        for (new, old) in after.texts().into_iter().zip(before.texts()) {
            if new != old {
                self.set(&format!("{}.{}", C::NAME, new.0), &new.1)?;
            }
        }
        Ok(())
    }

    fn no_such(&self, key: &str) -> RecipeError {
        let known = self.parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ");
        RecipeError::NoSuchPart { key: key.to_owned(), known }
    }

    /// Resets a parameter to its default.
    pub fn unset(&mut self, part: &str, parameter: &str) {
        for part in self.parts.iter_mut().filter(|known| known.name == part) {
            part.parameters.retain(|(name, _)| name != parameter);
        }
    }

    /// Returns a parameter as written in the recipe.
    pub fn get(&self, part: &str, parameter: &str) -> Option<&str> {
        self.part(part)?.get(parameter)
    }

    /// Returns a micro-protocol with its explicit parameters.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// Returns the typed parameters of a micro-protocol; `None` if the recipe does not have it. Ignores other
    /// parameters in its table, such as those of a control law.
    ///
    /// # Errors
    /// [`RecipeError::Value`] if a parameter has an invalid value.
    pub fn configuration<C: Configuration>(&self) -> Result<Option<C>, RecipeError> {
        let read = |part| Ok(Parameters::known(part, C::PARAMETERS, &self.source)?.read());
        self.part(C::NAME).map(read).transpose()
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
                let _ = writeln!(out, "{key} = {}", quoted(value));
            }
        }
        out
    }

    /// Whether both recipes describe the same stack with the same parameters, whatever their names.
    pub fn same_stack(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}
