//! What a source or destination on the command line means.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::fault::{self, Fault};
use crate::ssh::SshPath;

/// A place to copy from or to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// On this machine.
    Local(PathBuf),
    /// At a server: the URL as it was given.
    Url(String),
    /// On a machine that ssh leads to.
    Ssh(SshPath),
}

/// The scheme of URLs that `haul serve` prints.
const SCHEME: &str = "haul://";

impl Endpoint {
    /// Tells paths, URLs and `host:path` apart, the last in the manner of scp: a colon before the first slash
    /// makes a name remote, so that a local `a:b` is written `./a:b`.
    ///
    /// # Errors
    /// Empty names, other kinds of URL, and hosts that can be none.
    pub fn parse(word: &OsStr) -> Result<Self, Fault> {
        if word.is_empty() {
            return Err(fault::usage("an empty name is no path", "write . for the current directory"));
        }
        let text = word.to_str().unwrap_or_default();
        if text.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME)) {
            return Ok(Self::Url(text.to_owned()));
        }
        let scheme = text.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| is_scheme(scheme));
        if let Some(scheme) = scheme.filter(|scheme| !scheme.eq_ignore_ascii_case("ssh")) {
            return Err(fault::usage(
                format!("`{scheme}://` is not a kind of URL that this program knows"),
                "use the haul:// URL that `haul serve` prints on the other machine, or HOST:PATH for ssh",
            ));
        }
        Ok(SshPath::parse(word)?.map_or_else(|| Self::Local(PathBuf::from(word)), Self::Ssh))
    }

    /// Whether it is on another machine.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Url(_) | Self::Ssh(_))
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Endpoint, Fault> {
        Endpoint::parse(OsStr::new(text))
    }

    #[test]
    fn paths_and_urls_are_told_apart() {
        for path in ["a", "./a:b", "/x:y/z", "a/b:c", "..", "dir/", "-", "a b"] {
            assert_eq!(parse(path), Ok(Endpoint::Local(path.into())));
        }
        for url in ["haul://h:1/p?k=x", "HAUL://h:1/"] {
            assert_eq!(parse(url), Ok(Endpoint::Url(url.into())));
        }
    }

    #[test]
    fn names_with_a_host_are_for_ssh() {
        for text in ["host:path", "me@host:/abs", "host:", "a:b", "ssh://host/x"] {
            assert!(matches!(parse(text), Ok(Endpoint::Ssh(_))), "{text}");
        }
        assert!(parse(":x").unwrap_err().message.contains("names no host"));
        assert!(parse("https://x/").unwrap_err().message.contains("https://"));
        assert!(parse("").is_err());
    }

    #[test]
    fn bytes_that_are_no_text_are_a_path() {
        let word = OsStr::from_bytes(b"\xff:\xfe");
        assert_eq!(Endpoint::parse(word), Ok(Endpoint::Local(word.into())));
    }

    proptest! {
        #[test]
        fn nothing_panics_and_a_leading_dot_slash_is_always_local(text in "[^\0]{0,30}") {
            let _ = parse(&text);
            let local = format!("./{text}");
            let is_url = local.contains("://") && is_scheme(local.split("://").next().unwrap());
            prop_assert!(is_url || parse(&local).is_ok());
        }
    }
}
