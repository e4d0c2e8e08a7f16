//! One micro-protocol of a recipe.

use super::error::RecipeError;
use super::parameters::{ParameterSpec, ParameterType, ParameterValue};

/// One micro-protocol of a recipe with its explicit parameters; the others have their defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the micro-protocol.
    pub name: &'static str,
    /// Names and values of the parameters.
    pub parameters: Vec<(&'static str, ParameterValue)>,
}

impl Part {
    /// Returns an explicit parameter.
    pub fn get(&self, parameter: &str) -> Option<&ParameterValue> {
        self.parameters.iter().find(|(name, _)| *name == parameter).map(|(_, value)| value)
    }

    /// Returns an explicit parameter of this type.
    pub fn value<T: ParameterType>(&self, parameter: &str) -> Option<T> {
        self.get(parameter).and_then(T::of)
    }

    /// Sets a parameter.
    pub fn put(&mut self, parameter: &'static str, value: ParameterValue) {
        match self.parameters.iter_mut().find(|(name, _)| *name == parameter) {
            Some(old) => old.1 = value,
            None => self.parameters.push((parameter, value)),
        }
    }

    /// Returns names and values of the explicit parameters as text.
    pub fn texts(&self) -> Vec<(String, String)> {
        self.parameters.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
    }

    /// Sets a parameter to the value of a text.
    ///
    /// # Errors
    /// If `specs` has no such parameter, or the value is invalid.
    pub fn parse(&mut self, specs: &[ParameterSpec], parameter: &str, text: &str) -> Result<(), RecipeError> {
        let spec = self.spec(specs, parameter)?;
        let value = spec.kind.parse(text).map_err(|allowed| self.wrong(spec.name, text, allowed))?;
        self.put(spec.name, value);
        Ok(())
    }

    /// Checks all parameters, and adds the defaults of those that are not explicit.
    ///
    /// # Errors
    /// If `specs` lacks a parameter, or a value is invalid.
    pub fn complete(&self, specs: &[ParameterSpec]) -> Result<Self, RecipeError> {
        for (name, value) in &self.parameters {
            let kind = self.spec(specs, name)?.kind;
            let wrong = |allowed| self.wrong(name, &value.to_string(), allowed);
            kind.check(value).map_err(wrong)?;
        }
        let value = |spec: &ParameterSpec| {
            let default = || spec.kind.parse(spec.default);
            let value = self.get(spec.name).cloned().map_or_else(default, Ok);
            let wrong = |allowed| self.wrong(spec.name, spec.default, allowed);
            value.map(|value| (spec.name, value)).map_err(wrong)
        };
        Ok(Self { name: self.name, parameters: specs.iter().map(value).collect::<Result<_, _>>()? })
    }

    fn spec<'s>(
        &self,
        specs: &'s [ParameterSpec],
        parameter: &str,
    ) -> Result<&'s ParameterSpec, RecipeError> {
        specs.iter().find(|spec| spec.name == parameter).ok_or_else(|| {
            let names: Vec<_> = specs.iter().map(|spec| spec.name).collect();
            RecipeError::UnknownParameter {
                protocol: self.name.to_owned(),
                parameter: parameter.to_owned(),
                allowed: if names.is_empty() { "none".to_owned() } else { names.join(", ") },
            }
        })
    }

    /// Returns the error for an invalid value.
    pub(crate) fn wrong(&self, parameter: &str, value: &str, allowed: String) -> RecipeError {
        let (protocol, parameter, value) = (self.name.to_owned(), parameter.to_owned(), value.to_owned());
        RecipeError::Value { protocol, parameter, value, allowed }
    }
}

impl From<&'static str> for Part {
    /// Creates a micro-protocol with default parameters.
    fn from(name: &'static str) -> Self {
        Self { name, parameters: Vec::new() }
    }
}
