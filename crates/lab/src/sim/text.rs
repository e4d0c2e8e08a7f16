//! Text form of values in scenario files.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use haul_base::{Bytes, Rate, Span};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A quantity written as text with its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Text<T>(pub T);

/// Example of valid text.
pub(super) trait Spelling: FromStr<Err = haul_base::UnitError> {
    /// Example, for error messages.
    const EXPECTED: &'static str;
}

impl Spelling for Span {
    const EXPECTED: &'static str = "a time with its unit, for example \"50ms\"";
}

impl Spelling for Rate {
    const EXPECTED: &'static str = "a rate with its unit, for example \"800Mbit\"";
}

impl Spelling for Bytes {
    const EXPECTED: &'static str = "a size with its unit, for example \"64KiB\" or \"1MB\"";
}

impl<'de, T: Spelling> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);

        impl<T: Spelling> Visitor<'_> for Reader<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map(Text).map_err(E::custom)
            }
        }

        from.deserialize_str(Reader(PhantomData))
    }
}

/// One name, or several in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names(pub Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a path, or a list of names in the order in which packets meet them")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Names, E> {
                Ok(Names(vec![name.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }

        from.deserialize_any(Reader)
    }
}
