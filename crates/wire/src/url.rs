//! `haul://HOST:PORT/PATH?k=...`: everything that a client needs to reach a server and to authenticate it.
//!
//! `k` is base64url without padding of `version (1) | certificate fingerprint (32) | secret (32) | expiry (8,
//! optional)`, with the expiry in seconds since 1970, big-endian. The path is percent-encoded, may contain
//! any byte, and is relative to the server's root.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use zeroize::Zeroizing;

use crate::secret::Secret;

const KEY_VERSION: u8 = 1;
/// Length of version, fingerprint, secret and expiry.
const MAX_KEY_LEN: usize = 1 + 32 + 32 + 8;
/// Characters to encode in a path: all but the unreserved characters of RFC 3986 and the slash.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
const SCHEME: &str = "haul://";

/// Address of a path on a server, with the data that authenticates both peers. It contains a secret:
/// [`fmt::Display`] shows it, as that is the purpose of the URL, and [`fmt::Debug`] does not.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("{}?k=(secret)", self.without_key())]
pub struct HaulUrl {
    /// Host name, IPv4 address, or IPv6 address without brackets.
    pub host: String,
    /// The port, the same for TCP and UDP.
    pub port: u16,
    /// Path below the server's root, without a leading slash; empty for the root itself.
    pub path: Vec<u8>,
    /// SHA-256 of the server's certificate.
    pub fingerprint: [u8; 32],
    /// Secret that clients must know.
    pub secret: Secret,
    /// Expiry in seconds since 1970; `None` if the URL is valid while the server runs.
    pub expires: Option<u64>,
}

/// Why a text is not a `haul://` URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It does not start with `haul://`.
    #[error("the URL does not start with haul://")]
    Scheme,
    /// The host is missing or invalid.
    #[error("the URL has no valid host")]
    Host,
    /// The port is missing or not in 1-65535.
    #[error("the URL has no valid port")]
    Port,
    /// `?k=` is missing.
    #[error("the URL carries no key (?k=...)")]
    NoKey,
    /// The key after `?k=` is damaged.
    #[error("the key of the URL is damaged or incomplete")]
    Key,
    /// The URL was made by a newer version.
    #[error("the key of the URL has version {0}; this program supports version {KEY_VERSION}")]
    KeyVersion(u8),
}

impl HaulUrl {
    /// Whether the URL has expired at `now`, in seconds since 1970.
    pub fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|at| now >= at)
    }

    /// Returns host and port in URL notation.
    pub fn authority(&self) -> String {
        format!("{}:{}", display_host(&self.host), self.port)
    }

    /// Returns the URL without its secret.
    pub fn without_key(&self) -> String {
        format!("{SCHEME}{}/{}", self.authority(), percent_encode(&self.path, ENCODED))
    }

    fn key(&self) -> Zeroizing<String> {
        // Full capacity at once: growing would leave a copy of the secret behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_KEY_LEN));
        bytes.push(KEY_VERSION);
        bytes.extend_from_slice(&self.fingerprint);
        bytes.extend_from_slice(self.secret.as_bytes());
        bytes.extend(self.expires.iter().flat_map(|at| at.to_be_bytes()));
        BASE64URL_NOPAD.encode(&bytes).into()
    }
}

fn display_host(host: &str) -> String {
    if host.contains(':') { format!("[{}]", host.replace('%', "%25")) } else { host.to_owned() }
}

impl fmt::Display for HaulUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}?k={}", self.without_key(), *self.key())
    }
}

impl FromStr for HaulUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        let scheme = text.get(..SCHEME.len()).ok_or(UrlError::Scheme)?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return Err(UrlError::Scheme);
        }
        let (place, query) = text[SCHEME.len()..].split_once('?').ok_or(UrlError::NoKey)?;
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (host, port) = parse_authority(authority)?;
        let (fingerprint, secret, expires) = parse_key(query)?;
        let path = percent_decode_str(path).collect();
        Ok(Self { host, port, path, fingerprint, secret, expires })
    }
}

fn parse_authority(authority: &str) -> Result<(String, u16), UrlError> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once("]:").ok_or(UrlError::Host)?;
        (parse_v6(host)?, port)
    } else {
        let (host, port) = authority.rsplit_once(':').ok_or(UrlError::Port)?;
        (checked(host)?.to_owned(), port)
    };
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err(UrlError::Port);
    }
    match port.parse() {
        Ok(0) | Err(_) => Err(UrlError::Port),
        Ok(port) => Ok((host, port)),
    }
}

/// Parses an IPv6 address, optionally with a zone after `%25` (RFC 6874).
fn parse_v6(text: &str) -> Result<String, UrlError> {
    let (address, zone) = match text.split_once("%25") {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    address.parse::<Ipv6Addr>().map_err(|_| UrlError::Host)?;
    match zone {
        None => Ok(address.to_owned()),
        Some(zone) => Ok(format!("{address}%{}", checked(zone)?)),
    }
}

fn checked(name: &str) -> Result<&str, UrlError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let is_name = (1..=253).contains(&name.len()) && name.bytes().all(allowed);
    is_name.then_some(name).ok_or(UrlError::Host)
}

type Key = ([u8; 32], Secret, Option<u64>);

fn parse_key(query: &str) -> Result<Key, UrlError> {
    let mut parameters = query.split('#').next().unwrap_or_default().split('&');
    let key = parameters.find_map(|p| p.strip_prefix("k=")).ok_or(UrlError::NoKey)?;
    let bytes = BASE64URL_NOPAD.decode(key.trim_end_matches('=').as_bytes());
    let bytes = Zeroizing::new(bytes.map_err(|_| UrlError::Key)?);
    let (&version, rest) = bytes.split_first().ok_or(UrlError::Key)?;
    if version != KEY_VERSION {
        return Err(UrlError::KeyVersion(version));
    }
    let (fingerprint, rest) = rest.split_first_chunk::<32>().ok_or(UrlError::Key)?;
    let (secret, expiry) = rest.split_first_chunk::<32>().ok_or(UrlError::Key)?;
    let expires = match <[u8; 8]>::try_from(expiry) {
        Ok(at) => Some(u64::from_be_bytes(at)),
        Err(_) if expiry.is_empty() => None,
        Err(_) => return Err(UrlError::Key),
    };
    Ok((*fingerprint, Secret::from(*secret), expires))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url() -> HaulUrl {
        HaulUrl {
            host: "data.example.org".to_owned(),
            port: 7000,
            path: b"set one/\xff".to_vec(),
            fingerprint: [1; 32],
            secret: [2; 32].into(),
            expires: Some(1_900_000_000),
        }
    }

    #[test]
    fn a_url_round_trips() {
        let text = url().to_string();
        assert!(text.starts_with("haul://data.example.org:7000/set%20one/%FF?k=AQEB"), "{text}");
        assert_eq!(text.parse(), Ok(url()));
        let forever = HaulUrl { expires: None, path: Vec::new(), ..url() };
        assert_eq!(forever.to_string().parse(), Ok(forever));
    }

    #[test]
    fn ipv6_addresses_are_bracketed_and_keep_their_zone() {
        for host in ["::1", "2001:db8::7", "fe80::1%eth0"] {
            let url = HaulUrl { host: host.to_owned(), ..url() };
            assert_eq!(url.to_string().parse(), Ok(url));
        }
        let text = HaulUrl { host: "fe80::1%eth0".to_owned(), ..url() }.to_string();
        assert!(text.starts_with("haul://[fe80::1%25eth0]:7000/"), "{text}");
    }

    #[test]
    fn the_slash_before_the_path_is_optional() {
        let url = HaulUrl { path: Vec::new(), ..url() };
        let text = url.to_string().replace("/?k", "?k");
        assert_eq!(text.parse(), Ok(url));
    }

    #[test]
    fn errors_name_the_invalid_part() {
        let good = url().to_string();
        let cases = [
            (good.replace("haul:", "http:"), UrlError::Scheme),
            ("x".to_owned(), UrlError::Scheme),
            (good.replace("data.example.org", ""), UrlError::Host),
            (good.replace("data.example.org", "a b"), UrlError::Host),
            (good.replace("data.example.org", "[::zz]"), UrlError::Host),
            (good.replace(":7000", ""), UrlError::Port),
            (good.replace(":7000", ":0"), UrlError::Port),
            (good.replace(":7000", ":+7"), UrlError::Port),
            (good.replace(":7000", ":70000"), UrlError::Port),
            (good.replace("?k=", "?q="), UrlError::NoKey),
            (good[..good.len() - 5].to_owned(), UrlError::Key),
            (good.replace("?k=AQ", "?k=Ag"), UrlError::KeyVersion(2)),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<HaulUrl>(), Err(error), "{text}");
        }
    }

    #[test]
    fn debug_output_hides_the_secret() {
        let shown = format!("{:?}", url());
        assert!(shown.contains("data.example.org") && !shown.contains(&url().key()[..8]), "{shown}");
    }

    #[test]
    fn expiry_is_the_first_invalid_second() {
        assert!(!url().is_expired(1_899_999_999));
        assert!(url().is_expired(1_900_000_000));
        assert!(!HaulUrl { expires: None, ..url() }.is_expired(u64::MAX));
    }

    proptest! {
        #[test]
        fn any_path_round_trips(
            path in prop::collection::vec(any::<u8>(), 0..200),
            port in 1u16..,
            fingerprint in any::<[u8; 32]>(),
            secret in any::<[u8; 32]>(),
            expires in any::<Option<u64>>(),
            v6 in any::<[u16; 8]>(),
            name in "[a-z0-9.-]{1,40}",
            use_v6 in any::<bool>(),
        ) {
            let host = if use_v6 { Ipv6Addr::from(v6).to_string() } else { name };
            let url = HaulUrl { host, port, path, fingerprint, secret: secret.into(), expires };
            prop_assert_eq!(url.to_string().parse(), Ok(url));
        }

        #[test]
        fn parsing_never_panics(text in ".{0,120}", tail in ".{0,40}") {
            let _ = text.parse::<HaulUrl>();
            let _ = format!("haul://{text}").parse::<HaulUrl>();
            let _ = format!("haul://[{text}").parse::<HaulUrl>();
            let _ = format!("haul://h:1/{text}?k={tail}").parse::<HaulUrl>();
        }
    }
}
