//! Rates, sizes and probabilities, with the notation that the command line accepts.
//!
//! Rates are bits per second with decimal prefixes (`800Mbit`, `1.5Gbit`); sizes are bytes with decimal or
//! binary prefixes (`1GB`, `64KiB`). A bare number is rejected, as tools differ in whether it means bits or
//! bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Span;

/// A rate in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Rate(u64);

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Bytes(pub u64);

/// A probability or share in `[0, 1]`.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Probability(f64);

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The number has no unit.
    #[error("`{0}` has no unit; write for example {1}")]
    NoUnit(String, &'static str),
    /// The unit is unknown for this quantity.
    #[error("`{0}` has an unknown unit; write for example {1}")]
    UnknownUnit(String, &'static str),
    /// The text does not start with a number.
    #[error("`{0}` does not start with a number; write for example {1}")]
    NoNumber(String, &'static str),
    /// The value is out of range.
    #[error("`{0}` is out of range; {1}")]
    OutOfRange(String, &'static str),
}

const RATE_EXAMPLES: &str = "800Mbit or 1.5Gbit";
const NO_RATE: &str = "a rate must be above zero, for example 800Mbit";
const SIZE_EXAMPLES: &str = "64KiB or 1GB";
const SPAN_EXAMPLES: &str = "50ms, 10s or 2m";
const SHARE_EXAMPLES: &str = "0.1% or 0.001";

impl Rate {
    /// No transmission.
    pub const ZERO: Self = Self(0);
    /// No limit.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a rate from bits per second.
    pub const fn from_bps(bps: u64) -> Self {
        Self(bps)
    }

    /// Creates a rate from megabits (10^6) per second.
    pub const fn from_mbps(mbps: u64) -> Self {
        Self(mbps.saturating_mul(1_000_000))
    }

    /// Returns the rate in bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Returns the rate at which `bytes` are transferred in `span`; zero if `span` is zero.
    pub fn from_transfer(bytes: u64, span: Span) -> Self {
        if span == Span::ZERO {
            return Self::ZERO;
        }
        let bps = u128::from(bytes) * 8_000_000_000 / u128::from(span.as_nanos());
        Self(u64::try_from(bps).unwrap_or(u64::MAX))
    }

    /// Formats the rate exactly, in the largest unit without a fraction: `1Gbit`, `1500kbit`. Parses back to
    /// the same rate.
    pub fn exact(self) -> String {
        exact(self.0, &[(1_000_000_000, "Gbit"), (1_000_000, "Mbit"), (1_000, "kbit"), (1, "bit")])
    }

    /// Returns the time that `bytes` take at this rate, rounded up; `Span::MAX` at rate zero.
    pub fn time_for(self, bytes: u64) -> Span {
        if self.0 == 0 {
            return Span::MAX;
        }
        let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(self.0));
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the number of whole bytes transferred in `span`.
    pub fn bytes_in(self, span: Span) -> u64 {
        let bytes = u128::from(self.0) * u128::from(span.as_nanos()) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Multiplies the rate by `factor`; a negative or non-finite factor gives zero.
    #[must_use]
    pub fn mul_f64(self, factor: f64) -> Self {
        if factor.is_finite() && factor > 0.0 { Self((self.0 as f64 * factor) as u64) } else { Self::ZERO }
    }
}

impl Bytes {
    /// Formats the size exactly, in the largest unit without a fraction: `64KiB`, `1GB`. Parses back to the
    /// same size.
    pub fn exact(self) -> String {
        const UNITS: [(u64, &str); 7] = [
            (1 << 30, "GiB"),
            (1_000_000_000, "GB"),
            (1 << 20, "MiB"),
            (1_000_000, "MB"),
            (1 << 10, "KiB"),
            (1_000, "kB"),
            (1, "B"),
        ];
        exact(self.0, &UNITS)
    }
}

impl Span {
    /// Formats the span exactly, in the largest unit without a fraction: `2ms`, `1500us`. Parses back to the
    /// same span.
    pub fn exact(self) -> String {
        exact(self.as_nanos(), &[(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")])
    }
}

fn exact(value: u64, units: &[(u64, &str)]) -> String {
    let fits = |&&(size, _): &&(u64, &str)| value.is_multiple_of(size) && value > 0;
    let (size, unit) = units.iter().find(fits).or(units.last()).copied().unwrap_or((1, ""));
    format!("{}{unit}", value / size)
}

impl Probability {
    /// Probability 0.
    pub const ZERO: Self = Self(0.0);

    /// Creates a probability; `None` if `p` is not in `[0, 1]`.
    pub fn new(p: f64) -> Option<Self> {
        (0.0..=1.0).contains(&p).then_some(Self(p))
    }

    /// Returns the value in `[0, 1]`.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bps = self.0 as f64;
        match self.0 {
            u64::MAX => f.write_str("unlimited"),
            n if n >= 1_000_000_000 => write!(f, "{:.2} Gbit/s", bps / 1e9),
            n if n >= 1_000_000 => write!(f, "{:.1} Mbit/s", bps / 1e6),
            n if n >= 1_000 => write!(f, "{:.1} kbit/s", bps / 1e3),
            n => write!(f, "{n} bit/s"),
        }
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0 as f64;
        match self.0 {
            n if n >= 1_000_000_000_000 => write!(f, "{:.2} TB", b / 1e12),
            n if n >= 1_000_000_000 => write!(f, "{:.2} GB", b / 1e9),
            n if n >= 1_000_000 => write!(f, "{:.1} MB", b / 1e6),
            n if n >= 1_000 => write!(f, "{:.1} kB", b / 1e3),
            n => write!(f, "{n} B"),
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn split<'t>(text: &'t str, examples: &'static str) -> Result<(&'t str, String), UnitError> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    number.parse::<f64>().map_err(|_| UnitError::NoNumber(text.to_owned(), examples))?;
    if unit.trim().is_empty() {
        return Err(UnitError::NoUnit(text.to_owned(), examples));
    }
    Ok((number, unit.trim().to_ascii_lowercase()))
}

/// Returns `number`, whole or not, times `factor`. Whole numbers are exact.
fn scaled(text: &str, number: &str, factor: u64) -> Result<u64, UnitError> {
    let scaled = if let Ok(whole) = number.parse::<u64>() {
        whole.checked_mul(factor)
    } else {
        let scaled = number.parse::<f64>().map_or(f64::NAN, |value| value * factor as f64);
        (scaled < u64::MAX as f64).then_some(scaled.round() as u64)
    };
    scaled.ok_or_else(|| UnitError::OutOfRange(text.to_owned(), "it must fit in 64 bits"))
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        // Zero is invalid even with a unit, so do not complain about a missing unit.
        if text.trim().parse() == Ok(0.0) {
            return Err(UnitError::OutOfRange(text.to_owned(), NO_RATE));
        }
        let (number, unit) = split(text, RATE_EXAMPLES)?;
        let unit = unit.trim_end_matches("/s").trim_end_matches("ps");
        let factor = match unit {
            "bit" => 1,
            "kbit" => 1_000,
            "mbit" => 1_000_000,
            "gbit" => 1_000_000_000,
            "tbit" => 1_000_000_000_000,
            _ => return Err(UnitError::UnknownUnit(text.to_owned(), RATE_EXAMPLES)),
        };
        match scaled(text, number, factor)? {
            0 => Err(UnitError::OutOfRange(text.to_owned(), NO_RATE)),
            bps => Ok(Self(bps)),
        }
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, SIZE_EXAMPLES)?;
        let factor = match unit.as_str() {
            "b" => 1,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "tib" => 1 << 40,
            _ => return Err(UnitError::UnknownUnit(text.to_owned(), SIZE_EXAMPLES)),
        };
        scaled(text, number, factor).map(Self)
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, SPAN_EXAMPLES)?;
        let factor = match unit.as_str() {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return Err(UnitError::UnknownUnit(text.to_owned(), SPAN_EXAMPLES)),
        };
        scaled(text, number, factor).map(Self::from_nanos)
    }
}

impl FromStr for Probability {
    type Err = UnitError;

    /// Parses a fraction (`0.001`) or a percentage (`0.1%`).
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let text = text.trim();
        let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number.trim(), 100.0));
        let value: f64 = number.parse().map_err(|_| UnitError::NoNumber(text.to_owned(), SHARE_EXAMPLES))?;
        let share = Self::new(value / scale);
        share.ok_or_else(|| UnitError::OutOfRange(text.to_owned(), "it must be between 0 and 1 (100%)"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_sizes_and_times_parse_as_documented() {
        assert_eq!("800Mbit".parse(), Ok(Rate::from_mbps(800)));
        assert_eq!("1.5Gbit".parse(), Ok(Rate::from_mbps(1500)));
        assert_eq!("10 gbit/s".parse(), Ok(Rate::from_mbps(10_000)));
        assert_eq!("64KiB".parse(), Ok(Bytes(65_536)));
        assert_eq!("1GB".parse(), Ok(Bytes(1_000_000_000)));
        assert_eq!("50ms".parse(), Ok(Span::from_millis(50)));
        assert_eq!("2m".parse(), Ok(Span::from_secs(120)));
    }

    #[test]
    fn shares_are_fractions_or_per_cent() {
        assert_eq!("0.25".parse(), Ok(Probability(0.25)));
        assert_eq!(" 25 %".parse(), Ok(Probability(0.25)));
        assert_eq!("0.1%".parse(), Ok(Probability(0.001)));
        for wrong in ["101%", "1.5", "-1%", "NaN"] {
            assert!(wrong.parse::<Probability>().unwrap_err().to_string().contains("100%"), "{wrong}");
        }
        for wrong in ["", "%", "1%%", "1ms"] {
            assert!(wrong.parse::<Probability>().unwrap_err().to_string().contains("0.1%"), "{wrong}");
        }
    }

    #[test]
    fn a_bare_number_is_refused_with_a_hint() {
        let error = "800".parse::<Rate>().unwrap_err();
        assert!(error.to_string().contains("800Mbit"), "{error}");
        assert!("1000".parse::<Bytes>().is_err());
        assert!("10".parse::<Span>().is_err());
    }

    #[test]
    fn bits_are_not_a_size_and_bytes_are_not_a_rate() {
        assert!("10Mbit".parse::<Bytes>().is_err());
        assert!("10MB".parse::<Rate>().is_err());
    }

    #[test]
    fn a_rate_of_zero_is_refused_with_and_without_a_unit() {
        for text in ["0", " 0.0 ", "00", "0Mbit", "0.1bit"] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("above zero") && !error.contains("unit"), "{error}");
        }
        assert!("".parse::<Rate>().is_err());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,24}") {
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Span>();
            let _ = text.parse::<Probability>();
        }

        #[test]
        fn exact_texts_parse_to_the_same_value(number: u64) {
            prop_assert_eq!(Bytes(number).exact().parse(), Ok(Bytes(number)));
            prop_assert_eq!(Span::from_nanos(number).exact().parse(), Ok(Span::from_nanos(number)));
            let rate = Rate::from_bps(number.max(1));
            prop_assert_eq!(rate.exact().parse(), Ok(rate));
        }

        #[test]
        fn time_for_and_bytes_in_agree(bps in 1_000u64..1_000_000_000_000, bytes in 0u64..1_000_000_000) {
            let rate = Rate::from_bps(bps);
            let back = rate.bytes_in(rate.time_for(bytes));
            // Rounding up the time by less than a nanosecond adds at most rate * 1 ns.
            prop_assert!(back >= bytes && back <= bytes + bps / 8_000_000_000 + 1);
        }
    }
}
