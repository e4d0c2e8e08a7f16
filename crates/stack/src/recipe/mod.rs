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

impl Recipe {
    /// An empty recipe of this name, to be built in code.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Adds a micro-protocol: a name stands for its defaults, a [`Configuration`] for its parameters.
    #[must_use]
    pub fn with(mut self, part: impl Into<Part>) -> Self {
        self.parts.push(part.into());
        self
    }

    /// Puts a micro-protocol in the place of the one of this name, or adds it.
    pub fn put(&mut self, part: impl Into<Part>) {
        let part = part.into();
        match self.parts.iter_mut().find(|known| known.name == part.name) {
            Some(known) => *known = part,
            None => self.parts.push(part),
        }
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
    /// If the recipe has no such micro-protocol, or a parameter of it cannot have the value that it has.
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

    /// Gives a parameter its default again.
    pub fn unset(&mut self, part: &str, parameter: &str) {
        for part in self.parts.iter_mut().filter(|known| known.name == part) {
            part.parameters.retain(|(name, _)| name != parameter);
        }
    }

    /// A parameter as it stands in the recipe.
    pub fn get(&self, part: &str, parameter: &str) -> Option<&str> {
        self.part(part)?.get(parameter)
    }

    /// A micro-protocol with the parameters that it is given.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// The parameters of a micro-protocol, typed; `None` if the recipe does not have it. Others in its table, as those
    /// of a control law, are not looked at.
    ///
    /// # Errors
    /// [`RecipeError::Value`] if a parameter cannot have the value that it is given.
    pub fn configuration<C: Configuration>(&self) -> Result<Option<C>, RecipeError> {
        let read = |part| Ok(Parameters::known(part, C::PARAMETERS, &self.source)?.read());
        self.part(C::NAME).map(read).transpose()
    }

    /// Whether the recipe has this micro-protocol.
    pub fn has(&self, part: &str) -> bool {
        self.part(part).is_some()
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
