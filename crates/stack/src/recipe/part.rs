//! One micro-protocol of a recipe.

/// One micro-protocol of a recipe with the parameters that it is given, as text.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Part {
    /// Name of the micro-protocol.
    pub name: String,
    /// Parameter and value.
    pub parameters: Vec<(String, String)>,
}

impl Part {
    /// A micro-protocol with parameters as text.
    pub fn new(name: &str, parameters: &[(&str, &str)]) -> Self {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Self { name: name.to_owned(), parameters: parameters.iter().map(owned).collect() }
    }

    /// A parameter as it stands here.
    pub fn get(&self, parameter: &str) -> Option<&str> {
        self.parameters.iter().find(|(name, _)| name == parameter).map(|(_, value)| value.as_str())
    }
}

impl From<&str> for Part {
    /// A micro-protocol with its defaults.
    fn from(name: &str) -> Self {
        Self::new(name, &[])
    }
}
