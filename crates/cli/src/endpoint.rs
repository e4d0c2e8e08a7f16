//! What a source or destination on the command line means.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::fault::{self, Fault};

/// A place to copy from or to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// On this machine.
    Local(PathBuf),
    /// At a server: the URL as it was given.
    Url(String),
}

/// The scheme of URLs that `haul serve` prints.
const SCHEME: &str = "haul://";

impl Endpoint {
    /// Tells paths from URLs, in the manner of scp: a colon before the first slash makes a name remote, so
    /// that a local `a:b` is written `./a:b`.
    ///
    /// # Errors
    /// Empty names, other kinds of URL, and `host:path`, which needs ssh.
    pub fn parse(word: &OsStr) -> Result<Self, Fault> {
        if word.is_empty() {
            return Err(fault::usage("an empty name is no path", "write . for the current directory"));
        }
        // What is not UTF-8 can only be a path of this machine.
        let Some(text) = word.to_str() else { return Ok(Self::Local(PathBuf::from(word))) };
        if text.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME)) {
            return Ok(Self::Url(text.to_owned()));
        }
        if let Some((scheme, _)) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) {
            return Err(fault::usage(
                format!("`{scheme}://` is not a kind of URL that this program knows"),
                "use the haul:// URL that `haul serve` prints on the other machine",
            ));
        }
        match text.split_once(':') {
            Some((host, path)) if !host.contains('/') => Err(over_ssh(text, host, path)),
            _ => Ok(Self::Local(PathBuf::from(text))),
        }
    }

    /// Whether it is at a server.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Url(_))
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn over_ssh(text: &str, host: &str, path: &str) -> Fault {
    if host.is_empty() {
        return fault::usage(
            format!("`{text}` names no host"),
            format!("a file of this machine is written ./{text}"),
        );
    }
    let root = if path.is_empty() { "." } else { path };
    fault::usage(
        format!("`{text}` is on another machine, and copying over ssh is not in this release"),
        format!(
            "run `haul serve --root {root}` on {host} and use its URL; a file of this machine is written ./{text}"
        ),
    )
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
    fn names_with_a_host_are_refused_with_a_way_out() {
        for text in ["host:path", "me@host:/abs", "host:", "a:b"] {
            let fault = parse(text).unwrap_err();
            assert!(fault.message.contains("ssh is not in this release"), "{fault}");
            assert!(fault.hint.contains("haul serve"), "{fault}");
            assert!(fault.hint.contains(&format!("./{text}")), "{fault}");
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
