//! Option value types specific to the command line.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use haul_base::{Rate, UnitError};
use haul_engine::HaulUrl;
use haul_proto::EVIDENCE;
use haul_wire::control::Durability;

/// `KEY=VALUE` as given to `--set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub key: String,
    pub value: String,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok(Self { key: key.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err("write KEY=VALUE, for example chunk=64MB".to_owned()),
        }
    }
}

/// Checks `--rate`: a maximum rate, or `unlimited` to lift one set by a preset or configuration file. Recipes
/// parse the text.
pub(super) fn ceiling(text: &str) -> Result<String, String> {
    match text {
        "unlimited" => Ok(text.to_owned()),
        _ => text.parse().map(Rate::exact).map_err(|error| format!("{error}; for no limit write unlimited")),
    }
}

/// Parser for the kinds of evidence of `--diagnosis`. Recipes parse the text.
pub(super) fn diagnosis() -> PossibleValuesParser {
    EVIDENCE.map(|(name, help)| PossibleValue::new(name).help(help)).into()
}

pub(super) fn durability() -> impl TypedValueParser<Value = Durability> {
    let values = [
        ("files", "Before each file is reported as done"),
        ("end", "All at once, before the copy is reported as done"),
        ("none", "Not synced; the kernel writes them back later"),
    ];
    let names = values.map(|(name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::from(names).map(|name| match name.as_str() {
        "files" => Durability::Synced,
        "end" => Durability::AtEnd,
        _ => Durability::Cached,
    })
}

pub(super) fn positive<T: FromStr<Err = UnitError> + Default + PartialEq>(text: &str) -> Result<T, String> {
    match text.parse() {
        Ok(zero) if zero == T::default() => Err("must not be zero; give more, or leave it out".to_owned()),
        parsed => parsed.map_err(|error: UnitError| error.to_string()),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortRange(pub RangeInclusive<u16>);

impl FromStr for PortRange {
    type Err = String;

    /// Parses `5000-5100`, or `5000` for a single port.
    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse().ok().filter(|&port| port > 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self(first..=last)),
            _ => Err("write for example 50000-50100, the lower port first".to_owned()),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.0.start(), self.0.end());
        if first == last { first.fmt(f) } else { write!(f, "{first}-{last}") }
    }
}

/// Parses a listening address: `1.2.3.4:5000`, `[::1]:5000`, or `:5000` for all IPv4 addresses.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port));
    }
    text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => format!("the port is missing; write for example {ip}:2640"),
        Ok(IpAddr::V6(ip)) => format!("the port is missing; write for example [{ip}]:2640"),
        Err(_) => {
            "write ADDR:PORT with a numeric address, for example 0.0.0.0:2640, [::]:2640 or :2640".to_owned()
        }
    })
}

/// Parses the host of a URL: a name or an address. Strips brackets around an IPv6 address.
pub(super) fn host(text: &str) -> Result<String, String> {
    let host = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text).to_owned();
    let (port, path, fingerprint, secret) = (1, Vec::new(), [0; 32], [0; 32].into());
    let url = HaulUrl { host, port, path, fingerprint, secret, expires: None };
    let is_read_back = url.to_string().parse().is_ok_and(|read: HaulUrl| read == url);
    let hint = "write a name or an address without a port, for example data.example.org or 2001:db8::7";
    is_read_back.then_some(url.host).ok_or_else(|| hint.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use proptest::prelude::*;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn a_ceiling_is_a_rate_or_unlimited_and_other_words_get_a_hint() {
        for (text, exact) in [("unlimited", "unlimited"), ("800Mbit", "800Mbit")] {
            assert_eq!(ceiling(text).as_deref(), Ok(exact));
            assert_eq!(ceiling(exact).as_deref(), Ok(exact));
        }
        for other in ["0", "0bit", "off", "none", "inf", "-1", ""] {
            assert!(ceiling(other).unwrap_err().ends_with("write unlimited"), "{other}");
        }
    }

    #[test]
    fn listen_addresses_must_be_numeric_and_have_a_port() {
        let parse = listen_address;
        assert_eq!(parse(":5000").unwrap().to_string(), "0.0.0.0:5000");
        assert_eq!(parse("[::1]:7").unwrap().to_string(), "[::1]:7");
        assert!(parse("10.0.0.1").unwrap_err().contains("10.0.0.1:2640"));
        assert!(parse("::1").unwrap_err().contains("[::1]:2640"));
        assert!(parse("localhost:5").unwrap_err().contains("numeric"));
    }

    #[test]
    fn the_host_for_a_url_must_be_a_name_or_an_address() {
        for (text, read) in [
            ("data.example.org", "data.example.org"),
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("fe80::1%eth0", "fe80::1%eth0"),
        ] {
            assert_eq!(host(text).as_deref(), Ok(read));
        }
        for text in ["", "a b", "example.org:2640", "192.0.2.7:1", "[::1]:1", "a/b", "me@a", "größe", "[a]:"]
        {
            assert!(host(text).is_err(), "{text}");
        }
        for command in ["serve", "pipe --listen"] {
            let words = format!("haul {command} --host example.org:2640");
            assert!(Cli::command().try_get_matches_from(words.split(' ')).is_err(), "{words}");
        }
    }

    #[test]
    fn a_port_range_is_one_port_or_two() {
        let range: PortRange = "50000-50002".parse().unwrap();
        assert_eq!(range.0.collect::<Vec<_>>(), [50_000, 50_001, 50_002]);
        assert_eq!("7".parse::<PortRange>().unwrap().0.count(), 1);
        assert_eq!("1-65535".parse::<PortRange>().unwrap().0.count(), 65_535);
        for wrong in ["", "-", "0-5", "9-8", "1-70000", "a-b", "1-2-3", "+1-2-"] {
            assert!(wrong.parse::<PortRange>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_shown_port_range_parses_back(a in 1u16.., b in 1u16..) {
            let range = PortRange(a.min(b)..=a.max(b));
            prop_assert_eq!(range.to_string().parse(), Ok(range));
        }

        #[test]
        fn parsing_values_never_panics(text in ".{0,30}") {
            let _ = listen_address(&text);
            let _ = text.parse::<PortRange>();
            if let Ok(assignment) = text.parse::<Assignment>() {
                prop_assert!(!assignment.key.is_empty());
                prop_assert!(!assignment.key.contains('='));
            }
        }
    }
}
