//! Values of parameters, and their specifications.

use std::fmt;

use haul_base::{Bytes, Rate, Span};

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

/// A value.
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
    /// Of [`ParameterKind::Choice`].
    Choice(&'static str),
    /// Of [`ParameterKind::Text`].
    Text(String),
}

impl fmt::Display for ParameterValue {
    /// Writes the value so that it parses to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(Rate::MAX) => f.write_str("unlimited"),
            Self::Rate(rate) => f.write_str(&rate.exact()),
            Self::Bytes(size) => f.write_str(&size.exact()),
            Self::Span(span) => f.write_str(&span.exact()),
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
            Self::Choice(word) => f.write_str(word),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl ParameterSpec {
    /// Returns the default value.
    ///
    /// # Panics
    /// If the declared text is not a valid value.
    pub fn default_value(&self) -> ParameterValue {
        let value = self.kind.parse(self.default);
        value.unwrap_or_else(|allowed| panic!("the default of `{}` is invalid: {allowed}", self.name))
    }
}

impl ParameterKind {
    pub(super) fn parse(self, text: &str) -> Result<ParameterValue, String> {
        use ParameterValue as Value;
        // A text that is no value is refused by the check.
        let or_text = |value: Option<Value>| value.unwrap_or_else(|| Value::Text(text.to_owned()));
        let value = match self {
            Self::Rate | Self::RateIn(..) if text == "unlimited" => Ok(Value::Rate(Rate::MAX)),
            Self::Rate | Self::RateIn(..) => text.parse().map(Value::Rate),
            Self::Bytes | Self::BytesIn(..) => text.parse().map(Value::Bytes),
            Self::Span | Self::SpanIn(..) => text.parse().map(Value::Span),
            Self::Integer(..) => Ok(or_text(text.parse().map(Value::Integer).ok())),
            Self::Number(..) => Ok(or_text(text.parse().map(Value::Number).ok())),
            Self::Flag => Ok(or_text(text.parse().map(Value::Flag).ok())),
            Self::Choice(words) => {
                Ok(or_text(words.iter().find(|word| **word == text).map(|word| Value::Choice(word))))
            }
            Self::Text => Ok(or_text(None)),
        };
        let value = value.map_err(|error| error.to_string())?;
        self.check(&value).map(|()| value)
    }

    /// Checks type and range; an error describes valid values.
    pub(super) fn check(self, value: &ParameterValue) -> Result<(), String> {
        if self.includes(value) { Ok(()) } else { Err(self.wanted()) }
    }

    fn includes(self, value: &ParameterValue) -> bool {
        use ParameterValue as Value;
        match (self, value) {
            (Self::Rate, Value::Rate(rate)) => *rate > Rate::ZERO,
            (Self::RateIn(from, to), Value::Rate(rate)) => (from..=to).contains(rate),
            (Self::BytesIn(from, to), Value::Bytes(size)) => (from..=to).contains(size),
            (Self::SpanIn(from, to), Value::Span(span)) => (from..=to).contains(span),
            (Self::Integer(from, to), Value::Integer(number)) => (from..=to).contains(number),
            (Self::Number(from, to), Value::Number(number)) => (from..=to).contains(number),
            (Self::Choice(words), Value::Choice(word)) => words.contains(word),
            (Self::Bytes, Value::Bytes(_))
            | (Self::Span, Value::Span(_))
            | (Self::Flag, Value::Flag(_))
            | (Self::Text, Value::Text(_)) => true,
            _ => false,
        }
    }

    fn wanted(self) -> String {
        let what = match self {
            Self::Rate => return "a rate must be above zero, for example 200Mbit".to_owned(),
            Self::RateIn(..) => "a rate from ",
            Self::BytesIn(..) => "a size from ",
            Self::SpanIn(..) => "a time from ",
            Self::Integer(..) => "a whole number from ",
            Self::Number(..) => "a number from ",
            Self::Choice(_) => "one of: ",
            Self::Flag => "",
            Self::Bytes | Self::Span | Self::Text => "a ",
        };
        format!("write {what}{self}")
    }
}

impl fmt::Display for ParameterKind {
    /// Writes the valid values, for tables and help texts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// Type of a field of a [`Configuration`](crate::Configuration).
pub trait ParameterType: Sized {
    /// Type and range of a parameter declared without a range.
    const KIND: ParameterKind;

    /// Converts a value, if it is of this type.
    fn of(value: &ParameterValue) -> Option<Self>;

    /// Converts to a value.
    fn value(&self) -> ParameterValue;
}

macro_rules! parameter_types {
    ($($type:ty: $kind:expr, $variant:ident($value:ident) => $of:expr, $to:expr;)*) => {$(
        impl ParameterType for $type {
            const KIND: ParameterKind = $kind;

            fn of(value: &ParameterValue) -> Option<Self> {
                match value {
                    ParameterValue::$variant($value) => $of,
                    _ => None,
                }
            }

            fn value(&self) -> ParameterValue {
                let to: fn(&Self) -> _ = $to;
                ParameterValue::$variant(to(self))
            }
        }
    )*};
}

parameter_types! {
    Rate: ParameterKind::Rate, Rate(value) => Some(*value), |rate| *rate;
    Bytes: ParameterKind::Bytes, Bytes(value) => Some(*value), |size| *size;
    Span: ParameterKind::Span, Span(value) => Some(*value), |span| *span;
    f64: ParameterKind::Number(f64::MIN, f64::MAX), Number(value) => Some(*value), |number| *number;
    bool: ParameterKind::Flag, Flag(value) => Some(*value), |flag| *flag;
    String: ParameterKind::Text, Text(value) => Some(value.clone()), Self::clone;
    u8: ParameterKind::Integer(0, 0xFF), Integer(value) => (*value).try_into().ok(), |number| (*number).into();
    u16: ParameterKind::Integer(0, 0xFFFF), Integer(value) => (*value).try_into().ok(), |number| (*number).into();
    u32: ParameterKind::Integer(0, 0xFFFF_FFFF), Integer(value) => (*value).try_into().ok(), |number| (*number).into();
    u64: ParameterKind::Integer(0, u64::MAX), Integer(value) => Some(*value), |number| *number;
    usize: ParameterKind::Integer(0, u64::MAX), Integer(value) => (*value).try_into().ok(), |number| *number as u64;
}
