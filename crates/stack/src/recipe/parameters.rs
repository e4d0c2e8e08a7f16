//! Parameters of micro-protocols: declared in the registry, checked before anything is built.

use haul_base::{Bytes, Rate, Span, UnitError};

use super::error::RecipeError;
use super::part::Part;
use super::place::place;

/// Type and range of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParameterKind {
    /// A rate: `200Mbit`, or `unlimited`.
    Rate,
    /// A size: `64KiB`.
    Bytes,
    /// A time: `50ms`.
    Span,
    /// A rate in this inclusive range.
    RateIn(Rate, Rate),
    /// A size in this inclusive range.
    BytesIn(Bytes, Bytes),
    /// A time in this inclusive range.
    SpanIn(Span, Span),
    /// An integer in this inclusive range.
    Integer(u64, u64),
    /// A number in this inclusive range.
    Number(f64, f64),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
}

/// Specification of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterSpec {
    /// Name in the micro-protocol's table of the recipe.
    pub name: &'static str,
    /// Type and range.
    pub kind: ParameterKind,
    /// Default value, as text.
    pub default: &'static str,
    /// Help text for users.
    pub help: &'static str,
}

/// A checked value.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// Of [`ParameterKind::Rate`] or [`ParameterKind::RateIn`].
    Rate(Rate),
    /// Of [`ParameterKind::Bytes`] or [`ParameterKind::BytesIn`].
    Bytes(Bytes),
    /// Of [`ParameterKind::Span`] or [`ParameterKind::SpanIn`].
    Span(Span),
    /// Of [`ParameterKind::Integer`].
    Integer(u64),
    /// Of [`ParameterKind::Number`].
    Number(f64),
    /// Of [`ParameterKind::Flag`].
    Flag(bool),
    /// Of [`ParameterKind::Choice`]: index of the word.
    Choice(usize),
    /// Of [`ParameterKind::Text`].
    Text(String),
}

impl ParameterKind {
    fn read(self, text: &str) -> Result<ParameterValue, String> {
        use ParameterValue as Value;
        match self {
            Self::Rate if text == "unlimited" => Ok(Value::Rate(Rate::MAX)),
            Self::Rate => match text.parse::<Rate>() {
                Ok(Rate::ZERO) => Err("a rate must be above zero, for example 200Mbit".to_owned()),
                read => read.map(Value::Rate).map_err(|e| e.to_string()),
            },
            Self::Bytes => text.parse().map(Value::Bytes).map_err(|e: UnitError| e.to_string()),
            Self::Span => text.parse().map(Value::Span).map_err(|e: UnitError| e.to_string()),
            Self::RateIn(from, to) => within(text, from, to, "rate").map(Value::Rate),
            Self::BytesIn(from, to) => within(text, from, to, "size").map(Value::Bytes),
            Self::SpanIn(from, to) => within(text, from, to, "time").map(Value::Span),
            Self::Integer(from, to) => match text.parse() {
                Ok(number) if (from..=to).contains(&number) => Ok(Value::Integer(number)),
                _ => Err(format!("write a whole number from {from} to {to}")),
            },
            Self::Number(from, to) => match text.parse() {
                Ok(number) if (from..=to).contains(&number) => Ok(Value::Number(number)),
                _ => Err(format!("write a number from {from} to {to}")),
            },
            Self::Flag => text.parse().map(Value::Flag).map_err(|_| "write true or false".to_owned()),
            Self::Choice(words) => match words.iter().position(|&word| word == text) {
                Some(at) => Ok(Value::Choice(at)),
                None => Err(format!("write one of: {}", words.join(", "))),
            },
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
        Ok(_) => Err(format!("write a {what} from {from} to {to}")),
        Err(error) => Err(error.to_string()),
    }
}

impl std::fmt::Display for ParameterKind {
    /// Writes the valid values, for tables and help texts.
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

/// The parameters of a micro-protocol or a control law. Implemented by
/// [`configuration!`](crate::configuration).
pub trait Configuration: Clone + std::fmt::Debug + Default + PartialEq {
    /// Name of the micro-protocol or the law.
    const NAME: &'static str;
    /// The parameters, for recipes, help texts and tables.
    const PARAMETERS: &'static [ParameterSpec];

    /// Converts checked parameters.
    ///
    /// # Panics
    /// If the parameters belong to something else.
    fn read(parameters: &Parameters) -> Self;

    /// Returns all parameters as text, which parses to the same values.
    fn texts(&self) -> Vec<(&'static str, String)>;
}

/// Type of a field of a [`Configuration`].
pub trait ParameterType: Sized {
    /// Type and range of a parameter declared without a range.
    const KIND: ParameterKind;

    /// Converts a checked value, if it is of this type.
    fn of(value: &ParameterValue) -> Option<Self>;

    /// Returns the value as text, which parses to the same value.
    fn text(&self) -> String;
}

macro_rules! parameter_types {
    ($($type:ty: $kind:expr, $variant:ident($value:ident) => $of:expr, $text:expr;)*) => {$(
        impl ParameterType for $type {
            const KIND: ParameterKind = $kind;

            fn of(value: &ParameterValue) -> Option<Self> {
                match value {
                    ParameterValue::$variant($value) => $of,
                    _ => None,
                }
            }

            fn text(&self) -> String {
                let text: fn(&Self) -> String = $text;
                text(self)
            }
        }
    )*};
}

parameter_types! {
    Rate: ParameterKind::Rate, Rate(value) => Some(*value),
        |rate| if *rate == Self::MAX { "unlimited".to_owned() } else { rate.exact() };
    Bytes: ParameterKind::Bytes, Bytes(value) => Some(*value), |size| size.exact();
    Span: ParameterKind::Span, Span(value) => Some(*value), |span| span.exact();
    f64: ParameterKind::Number(f64::MIN, f64::MAX), Number(value) => Some(*value), Self::to_string;
    bool: ParameterKind::Flag, Flag(value) => Some(*value), Self::to_string;
    String: ParameterKind::Text, Text(value) => Some(value.clone()), Self::clone;
    u8: ParameterKind::Integer(0, 0xFF), Integer(value) => (*value).try_into().ok(), Self::to_string;
    u16: ParameterKind::Integer(0, 0xFFFF), Integer(value) => (*value).try_into().ok(), Self::to_string;
    u32: ParameterKind::Integer(0, 0xFFFF_FFFF), Integer(value) => (*value).try_into().ok(), Self::to_string;
    u64: ParameterKind::Integer(0, u64::MAX), Integer(value) => Some(*value), Self::to_string;
    usize: ParameterKind::Integer(0, u64::MAX), Integer(value) => (*value).try_into().ok(), Self::to_string;
}

/// The checked parameters of one micro-protocol, including defaults.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Parameters {
    values: Vec<(&'static str, ParameterValue)>,
}

impl Parameters {
    /// Checks the parameters in a recipe against their specifications. `source` is the recipe's text, for the
    /// position of an error, or empty.
    ///
    /// # Errors
    /// If a parameter is not declared, or has an invalid value.
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
        Self::known(part, specs, source)
    }

    /// As [`Parameters::check`], but ignores undeclared parameters.
    pub(super) fn known(part: &Part, specs: &[ParameterSpec], source: &str) -> Result<Self, RecipeError> {
        let values = specs.iter().map(|spec| {
            let text = part.get(spec.name).unwrap_or(spec.default);
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

    /// Returns these parameters, typed.
    ///
    /// # Panics
    /// If they belong to something else.
    pub fn read<C: Configuration>(&self) -> C {
        C::read(self)
    }

    /// Returns the defaults, for [`configuration!`](crate::configuration).
    ///
    /// # Panics
    /// If a default is not a valid value.
    #[doc(hidden)]
    pub fn default_of<C: Configuration>() -> C {
        let checked = Self::known(&Part::default(), C::PARAMETERS, "");
        checked.unwrap_or_else(|error| panic!("a default of {}: {error}", C::NAME)).read()
    }

    /// Returns one parameter, for [`configuration!`](crate::configuration).
    ///
    /// # Panics
    /// If there is no parameter of this name and type.
    #[doc(hidden)]
    pub fn value<T: ParameterType>(&self, name: &str) -> T {
        let found = self.values.iter().find(|(known, _)| *known == name);
        found
            .and_then(|(_, value)| T::of(value))
            .unwrap_or_else(|| panic!("no parameter `{name}` of this type is declared"))
    }
}
