//! Text form of quantities in configuration files: `"50ms"`, `"1Gbit"`, `"0.1%"`, for
//! `#[serde(with = "crate::text")]`.

use std::fmt;
use std::marker::PhantomData;

use haul_base::{Bytes, Probability, Rate, Span};
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

/// Quantity with a text form that parses back to the same value.
pub(crate) trait Text: Sized {
    /// Example of valid text, for error messages.
    const EXPECTED: &'static str;

    fn read(text: &str) -> Result<Self, String>;

    fn write(&self) -> String;

    /// Interprets a number without a unit, if the type allows one.
    fn bare(_: f64) -> Option<Self> {
        None
    }
}

impl Text for Span {
    const EXPECTED: &'static str = "a time with its unit, for example \"50ms\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|e: haul_base::UnitError| e.to_string())
    }

    fn write(&self) -> String {
        self.exact()
    }
}

impl Text for Rate {
    const EXPECTED: &'static str = "a rate with its unit, for example \"800Mbit\" or \"1.5Gbit\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|e: haul_base::UnitError| e.to_string())
    }

    fn write(&self) -> String {
        self.exact()
    }
}

impl Text for Bytes {
    const EXPECTED: &'static str = "a size with its unit, for example \"64KiB\" or \"1MB\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|e: haul_base::UnitError| e.to_string())
    }

    fn write(&self) -> String {
        self.exact()
    }
}

impl Text for Probability {
    const EXPECTED: &'static str = "a share between 0 and 1, for example \"0.1%\" or 0.001";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|e: haul_base::UnitError| e.to_string())
    }

    fn write(&self) -> String {
        self.get().to_string()
    }

    fn bare(number: f64) -> Option<Self> {
        Self::new(number)
    }
}

pub(crate) fn serialize<T: Text, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&value.write())
}

pub(crate) fn deserialize<'de, T: Text, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    struct Reader<T>(PhantomData<T>);

    impl<T: Text> Visitor<'_> for Reader<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(T::EXPECTED)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            T::read(text).map_err(E::custom)
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
            let refused = || E::invalid_value(serde::de::Unexpected::Float(number), &self);
            T::bare(number).ok_or_else(refused)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
            let refused = || E::invalid_value(serde::de::Unexpected::Signed(number), &self);
            T::bare(number as f64).ok_or_else(refused)
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
            let refused = || E::invalid_value(serde::de::Unexpected::Unsigned(number), &self);
            T::bare(number as f64).ok_or_else(refused)
        }
    }

    from.deserialize_any(Reader(PhantomData))
}

/// As above, for an optional quantity.
pub(crate) mod optional {
    use serde::{Deserializer, Serializer};

    use super::Text;

    #[expect(clippy::ref_option, reason = "the signature that serde expects")]
    pub(crate) fn serialize<T: Text, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, T: Text, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        super::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn written_values_read_back_equal(n in 1u64..1 << 50, scale in 0u32..10, p in 0.0f64..=1.0) {
            let n = n / 10u64.pow(scale) * 10u64.pow(scale) + u64::from(scale == 0);
            let n = n.max(1);
            prop_assert_eq!(Span::read(&Span::from_nanos(n).write()), Ok(Span::from_nanos(n)));
            prop_assert_eq!(Rate::read(&Rate::from_bps(n).write()), Ok(Rate::from_bps(n)));
            prop_assert_eq!(Bytes::read(&Bytes(n).write()), Ok(Bytes(n)));
            let p = Probability::new(p).unwrap();
            prop_assert_eq!(Probability::read(&p.write()), Ok(p));
        }
    }

    #[test]
    fn shares_are_percentages_or_numbers_up_to_one() {
        assert_eq!(Probability::read("0.1%").map(Probability::get), Ok(0.001));
        assert_eq!(Probability::read("0.25").map(Probability::get), Ok(0.25));
        assert!(Probability::read("101%").is_err() && Probability::read("1.5").is_err());
        assert!(Probability::read("nan").is_err() && Probability::read("").is_err());
    }
}
