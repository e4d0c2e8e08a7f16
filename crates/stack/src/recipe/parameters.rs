//! Parameters of micro-protocols: declared in the registry, checked before anything is built.

use haul_base::{Bytes, Rate, Span, UnitError};

use super::text::place;
use super::{Part, RecipeError};

/// What a parameter may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParameterKind {
    /// `200Mbit`, or `unlimited`.
    Rate,
    /// `64KiB`.
    Bytes,
    /// `50ms`.
    Span,
    /// A rate from the first to the second.
    RateIn(Rate, Rate),
    /// A size from the first to the second.
    BytesIn(Bytes, Bytes),
    /// A time from the first to the second.
    SpanIn(Span, Span),
    /// A whole number from the first to the second.
    Integer(u64, u64),
    /// A number from the first to the second.
    Number(f64, f64),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
}

/// A parameter of a micro-protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterSpec {
    /// Name in the micro-protocol's table of the recipe.
    pub name: &'static str,
    /// What it may be.
    pub kind: ParameterKind,
    /// What it is when the recipe does not say.
    pub default: &'static str,
    /// For people.
    pub help: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Rate(Rate),
    Bytes(Bytes),
    Span(Span),
    Integer(u64),
    Number(f64),
    Flag(bool),
    Text(String),
}

impl ParameterKind {
    fn read(self, text: &str) -> Result<Value, String> {
        match self {
            Self::Rate if text == "unlimited" => Ok(Value::Rate(Rate::MAX)),
            Self::Rate => match text.parse::<Rate>() {
                Ok(Rate::ZERO) => Err("a rate must be more than nothing, for example 200Mbit".to_owned()),
                read => read.map(Value::Rate).map_err(|e| e.to_string()),
            },
            Self::Bytes => text.parse().map(Value::Bytes).map_err(|e: UnitError| e.to_string()),
            Self::Span => text.parse().map(Value::Span).map_err(|e: UnitError| e.to_string()),
            Self::RateIn(from, to) => within(text, from, to, "rate").map(Value::Rate),
            Self::BytesIn(from, to) => within(text, from, to, "size").map(Value::Bytes),
            Self::SpanIn(from, to) => within(text, from, to, "time").map(Value::Span),
            Self::Integer(from, to) => match text.parse() {
                Ok(number) if (from..=to).contains(&number) => Ok(Value::Integer(number)),
                _ => Err(format!("a whole number from {from} to {to} is wanted")),
            },
            Self::Number(from, to) => match text.parse() {
                Ok(number) if (from..=to).contains(&number) => Ok(Value::Number(number)),
                _ => Err(format!("a number from {from} to {to} is wanted")),
            },
            Self::Flag => text.parse().map(Value::Flag).map_err(|_| "true or false is wanted".to_owned()),
            Self::Choice(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
            Self::Choice(words) => Err(format!("one of these is wanted: {}", words.join(", "))),
            Self::Text => Ok(Value::Text(text.to_owned())),
        }
    }
}

fn within<T>(text: &str, from: T, to: T, what: &str) -> Result<T, String>
where
    T: std::str::FromStr<Err = UnitError> + PartialOrd + std::fmt::Display + Copy,
{
    match text.parse::<T>() {
        Ok(value) if (from..=to).contains(&value) => Ok(value),
        Ok(_) => Err(format!("a {what} from {from} to {to} is wanted")),
        Err(error) => Err(error.to_string()),
    }
}

impl std::fmt::Display for ParameterKind {
    /// What may be written, for tables and help texts.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rate => f.write_str("rate"),
            Self::Bytes => f.write_str("size"),
            Self::Span => f.write_str("time"),
            Self::RateIn(from, to) => write!(f, "{from} to {to}"),
            Self::BytesIn(from, to) => write!(f, "{from} to {to}"),
            Self::SpanIn(from, to) => write!(f, "{from} to {to}"),
            Self::Integer(from, to) => write!(f, "{from} to {to}"),
            Self::Number(from, to) => write!(f, "{from} to {to}"),
            Self::Flag => f.write_str("true or false"),
            Self::Choice(words) => f.write_str(&words.join(", ")),
            Self::Text => f.write_str("text"),
        }
    }
}

/// The checked parameters of one micro-protocol, defaults filled in.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Parameters {
    values: Vec<(&'static str, Value)>,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $variant:ident -> $t:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// If the registration does not declare a parameter of this name and kind.
        pub fn $name(&self, name: &str) -> $t {
            match self.value(name) {
                Value::$variant(value) => *value,
                other => panic!("parameter `{name}` is declared as {other:?}"),
            }
        }
    )*};
}

impl Parameters {
    /// Checks what a recipe gives against what is taken; `source` is the recipe's text, for the place of what is wrong,
    /// or empty.
    ///
    /// # Errors
    /// A parameter that is not declared, or a value that it cannot have.
    pub fn check(part: &Part, specs: &[ParameterSpec], source: &str) -> Result<Self, RecipeError> {
        let unknown = |given: &&(String, String)| !specs.iter().any(|spec| spec.name == given.0);
        if let Some((parameter, _)) = part.parameters.iter().find(unknown) {
            let names: Vec<_> = specs.iter().map(|spec| spec.name).collect();
            let allowed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(RecipeError::UnknownParameter {
                place: place(source, &part.name, Some(parameter)),
                protocol: part.name.clone(),
                parameter: parameter.clone(),
                allowed,
            });
        }
        let values = specs.iter().map(|spec| {
            let given = part.parameters.iter().find(|given| given.0 == spec.name);
            let text = given.map_or(spec.default, |given| given.1.as_str());
            let value = spec.kind.read(text).map_err(|allowed| RecipeError::Value {
                place: place(source, &part.name, Some(spec.name)),
                protocol: part.name.clone(),
                parameter: spec.name.to_owned(),
                value: text.to_owned(),
                allowed,
            });
            value.map(|value| (spec.name, value))
        });
        Ok(Self { values: values.collect::<Result<_, _>>()? })
    }

    fn value(&self, name: &str) -> &Value {
        let found = self.values.iter().find(|known| known.0 == name);
        &found.unwrap_or_else(|| panic!("parameter `{name}` is not declared")).1
    }

    getters! {
        /// The value of a rate.
        rate: Rate -> Rate;
        /// The value of a size.
        bytes: Bytes -> Bytes;
        /// The value of a time.
        span: Span -> Span;
        /// A whole number.
        integer: Integer -> u64;
        /// The value of a number.
        number: Number -> f64;
        /// Yes or no.
        flag: Flag -> bool;
    }

    /// A text or one of several words.
    ///
    /// # Panics
    /// As the others.
    pub fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Value::Text(text) => text,
            other => panic!("parameter `{name}` is declared as {other:?}"),
        }
    }
}
