//! `[user@]host:path`, as in scp and rsync.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use haul_base::printable_bytes;
use percent_encoding::percent_decode;

use crate::fault::{self, Fault};

const SCHEME: &str = "ssh://";

#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{destination}")]
pub(crate) struct SshHost {
    /// Destination for ssh: `[user@]host`, an IPv6 address without brackets.
    pub destination: String,
    pub port: Option<u16>,
}

/// Parses an argument; `None` for a local path: without a colon before the first slash. The path on the host is
/// absolute, or relative to the remote user's home directory, and never empty.
pub(crate) fn parse(word: &OsStr) -> Result<Option<(SshHost, Vec<u8>)>, Fault> {
    let bytes = word.as_bytes();
    if bytes.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME.as_bytes())) {
        return from_url(&bytes[SCHEME.len()..]).map(Some);
    }
    let Some((host, path)) = split(bytes) else { return Ok(None) };
    // What is not text is a local name with a colon.
    let Ok(host) = std::str::from_utf8(host) else { return Ok(None) };
    if host.is_empty() {
        let shown = printable_bytes(word.as_bytes());
        let hint = format!("write ./{shown} for a local file");
        return Err(fault::usage(format!("`{shown}` does not name a host"), hint));
    }
    Ok(Some((SshHost::new(host, None)?, from_home(path)?)))
}

/// Splits at the colon behind the host, which may be in brackets.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let name = bytes.split(|&b| b == b'/').next().unwrap_or_default();
    // An @ behind a colon belongs to the path.
    let user = name.split(|&b| b == b':').next().unwrap_or_default();
    let start = user.iter().position(|&b| b == b'@').map_or(0, |at| at + 1);
    let colon = if name[start..].starts_with(b"[") {
        start + name[start..].windows(2).position(|pair| pair == b"]:")? + 1
    } else {
        name.iter().position(|&b| b == b':')?
    };
    Some((&bytes[..colon], &bytes[colon + 1..]))
}

/// Parses `[USER@]HOST[:PORT]/PATH`; `/~/PATH` is relative to the home directory, as in git.
fn from_url(rest: &[u8]) -> Result<(SshHost, Vec<u8>), Fault> {
    let wrong = |what: &str| {
        let shown = printable_bytes(rest);
        fault::usage(format!("`{SCHEME}{shown}`: {what}"), "write ssh://[USER@]HOST[:PORT]/PATH")
    };
    let slash = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
    let authority = &rest[..slash];
    let (host, port) = split(authority).map_or((authority, None), |(host, port)| (host, Some(port)));
    let host = std::str::from_utf8(host).map_err(|_| wrong("the host is not valid text"))?;
    let number = |port| std::str::from_utf8(port).ok()?.parse().ok();
    let port: Option<u16> =
        port.map(|port| number(port).ok_or_else(|| wrong("the port is not a number"))).transpose()?;
    let path =
        decoded(&rest[slash..]).ok_or_else(|| wrong("a % is not followed by two hexadecimal digits"))?;
    let path = path.strip_prefix(b"/").filter(|path| path.starts_with(b"~")).unwrap_or(&path);
    Ok((SshHost::new(host, port)?, from_home(path)?))
}

fn decoded(path: &[u8]) -> Option<Vec<u8>> {
    let is_hex = |digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit);
    let mut escapes = path.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    let are_complete = escapes.all(|(at, _)| path.get(at + 1..at + 3).is_some_and(is_hex));
    are_complete.then(|| percent_decode(path).collect())
}

/// Returns the path relative to the remote user's home directory, or absolute.
fn from_home(path: &[u8]) -> Result<Vec<u8>, Fault> {
    let relative = match path {
        [b'~'] => b"",
        [b'~', b'/', rest @ ..] => rest,
        [b'~', ..] => {
            let shown = printable_bytes(path);
            let message = format!("`{shown}`: home directories of other users are not supported");
            let hint = "write the full path; for a file whose name starts with ~ write HOST:./~NAME";
            return Err(fault::usage(message, hint));
        }
        _ => path,
    };
    Ok(if relative.is_empty() { b".".to_vec() } else { relative.to_vec() })
}

impl SshHost {
    /// Creates one from `[user@]host`, where the host may be in brackets.
    fn new(text: &str, port: Option<u16>) -> Result<Self, Fault> {
        let (user, host) = text.split_at(text.rfind('@').map_or(0, |at| at + 1));
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let destination = format!("{user}{host}");
        let is_odd = |c: char| c.is_whitespace() || c.is_control();
        let starts_oddly = host.is_empty() || host.starts_with('-') || destination.starts_with(['-', '@']);
        if starts_oddly || destination.contains(is_odd) || port == Some(0) {
            let hint = "write [USER@]HOST:PATH; for a local file with a colon in its name write ./NAME";
            return Err(fault::usage(format!("`{destination}` is not a valid host"), hint));
        }
        Ok(Self { destination, port })
    }

    pub(crate) fn name(&self) -> &str {
        self.destination.rsplit_once('@').map_or(&self.destination, |(_, host)| host)
    }

    pub(crate) fn place(&self, path: &[u8]) -> String {
        format!("{}:{}", self.in_brackets(), printable_bytes(path))
    }

    /// Returns the destination, with an IPv6 address in brackets.
    pub(crate) fn in_brackets(&self) -> String {
        match self.name() {
            v6 if v6.contains(':') => self.destination.replace(v6, &format!("[{v6}]")),
            _ => self.destination.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Option<(String, Option<u16>, String)> {
        let found = super::parse(OsStr::new(text)).unwrap_or_else(|fault| panic!("{text}: {fault}"));
        found.map(|(host, path)| (host.destination, host.port, String::from_utf8(path).unwrap()))
    }

    #[test]
    fn a_colon_before_the_first_slash_makes_a_name_remote() {
        let parsed = |host: &str, port, path: &str| Some((host.to_owned(), port, path.to_owned()));
        for (text, expected) in [
            ("host:x", parsed("host", None, "x")),
            ("me@host:/data/a:b", parsed("me@host", None, "/data/a:b")),
            ("host:", parsed("host", None, ".")),
            ("host:~", parsed("host", None, ".")),
            ("host:~/a b", parsed("host", None, "a b")),
            ("[::1]:/x", parsed("::1", None, "/x")),
            ("me@[fe80::1%eth0]:x", parsed("me@fe80::1%eth0", None, "x")),
            ("[host]:x", parsed("host", None, "x")),
            ("me@corp@host:x", parsed("me@corp@host", None, "x")),
            ("ssh://me@host:22/a%20b", parsed("me@host", Some(22), "/a b")),
            ("SSH://host/~/x", parsed("host", None, "x")),
            ("ssh://host", parsed("host", None, ".")),
            ("ssh://[::1]:2222/x", parsed("::1", Some(2222), "/x")),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        for local in ["x", "./a:b", "/a:b", "a/b:c", "[x]", "[a:b", "me@[a]/b:c", "-"] {
            assert_eq!(parse(local), None, "{local}");
        }
    }

    #[test]
    fn hosts_that_look_like_options_or_are_malformed_are_refused() {
        for text in
            ["-oProxyCommand=x:y", "me@-host:x", "-l@host:x", "@host:x", "a b:c", ":x", "h@:x", "[]:x"]
        {
            assert!(super::parse(OsStr::new(text)).is_err(), "{text}");
        }
        for text in
            ["ssh:///x", "ssh://host:0/x", "ssh://host:x/y", "ssh://h/%4", "ssh://h/%zz", "host:~you/x"]
        {
            assert!(super::parse(OsStr::new(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn paths_are_bytes_and_hosts_are_text() {
        let parse = |bytes: &[u8]| super::parse(OsStr::from_bytes(bytes)).unwrap();
        assert_eq!(parse(b"host:\xff").unwrap().1, b"\xff");
        assert_eq!(parse(b"host:a@[b").unwrap().1, b"a@[b");
        assert_eq!(parse(b"\xff:x"), None);
        assert_eq!(parse(b"ssh://host/%FF").unwrap().1, b"/\xff");
    }

    #[test]
    fn an_ssh_path_is_shown_as_it_was_written() {
        for text in ["me@host:/x", "me@[::1]:/x", "[::1]:y"] {
            let (host, path) = super::parse(OsStr::new(text)).unwrap().unwrap();
            assert_eq!(host.place(&path), text);
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..40), text in "[a:@/\\[\\]~%-]{0,12}") {
            let _ = super::parse(OsStr::from_bytes(&bytes));
            let _ = super::parse(OsStr::new(&text));
            let _ = super::parse(OsStr::new(&format!("ssh://{text}")));
        }

        #[test]
        fn any_path_after_a_host_is_kept(user in "([a-z]{1,5}@)?", path in prop::collection::vec(any::<u8>(), 1..30)) {
            prop_assume!(path[0] != b'~');
            let mut word = format!("{user}host:").into_bytes();
            word.extend(&path);
            let (host, found) = super::parse(OsStr::from_bytes(&word)).unwrap().unwrap();
            prop_assert_eq!(found, path);
            prop_assert_eq!(host.name(), "host");
        }

        #[test]
        fn a_leading_dot_slash_is_always_local(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            let mut word = b"./".to_vec();
            word.extend(bytes);
            prop_assert_eq!(super::parse(OsStr::from_bytes(&word)), Ok(None));
        }
    }
}
