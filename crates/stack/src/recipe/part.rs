//! One micro-protocol of a recipe.

/// One micro-protocol of a recipe with its explicit parameters, as text.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Part {
    /// Name of the micro-protocol.
    pub name: String,
    /// Names and values of the parameters.
    pub parameters: Vec<(String, String)>,
}

impl Part {
    /// Creates a micro-protocol with parameters as text.
    pub fn new(name: &str, parameters: &[(&str, &str)]) -> Self {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Self { name: name.to_owned(), parameters: parameters.iter().map(owned).collect() }
    }

    /// Returns a parameter as written.
    pub fn get(&self, parameter: &str) -> Option<&str> {
        self.parameters.iter().find(|(name, _)| name == parameter).map(|(_, value)| value.as_str())
    }
}

impl From<&str> for Part {
    /// Creates a micro-protocol with default parameters.
    fn from(name: &str) -> Self {
        Self::new(name, &[])
    }
}
