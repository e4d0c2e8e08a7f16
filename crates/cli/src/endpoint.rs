//! Parsing of sources and destinations on the command line.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use haul_engine::HaulUrl;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::args::URL_VARIABLE;
use crate::fault::{self, Fault};
use crate::signals::ended_by_signals;
use crate::ssh::{self, SshHost};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Machine {
    Here,
    /// A machine that runs `haul serve`. The path of the URL is ignored.
    Url(HaulUrl),
    /// A machine on which ssh starts a server.
    Ssh(SshHost),
}

pub(crate) type Place = (Machine, Vec<u8>);

/// Bytes read of a URL: its path has at most 12 KiB, three times that with escapes.
const MAX_URL_BYTES: usize = 64 << 10;
const SCHEME: &str = "haul://";

/// Tells local paths, URLs, `host:path` (as scp does) and `@FILE[:PATH]`, `@-`, `@env` apart (docs/cli.md,
/// Endpoints).
pub(crate) fn place(word: &OsStr) -> Result<Place, Fault> {
    let on_server = |mut url: HaulUrl| {
        let path = std::mem::take(&mut url.path);
        (Machine::Url(url), path)
    };
    if word.is_empty() {
        return Err(fault::usage("an empty name is not a path", "write . for the current directory"));
    }
    if let Some(from) = word.as_bytes().strip_prefix(b"@") {
        return url_from(from).map(on_server);
    }
    let text = word.to_str().unwrap_or_default();
    if text.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME)) {
        return parse_url(text).map(on_server);
    }
    if is_damaged_url(text) {
        let message = "this looks like a damaged URL of `haul serve` and would be taken for an ssh host";
        let hint = "copy the whole URL that `haul serve` printed, in quotes; write ./ in front of a local name like this";
        return Err(fault::usage(message, hint));
    }
    let scheme = text.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| is_scheme(scheme));
    if let Some(scheme) = scheme.filter(|scheme| !scheme.eq_ignore_ascii_case("ssh")) {
        let hint = "use the haul:// URL that `haul serve` prints on the other machine, or HOST:PATH for ssh";
        return Err(fault::usage(format!("`{scheme}://` URLs are not supported"), hint));
    }
    Ok(match ssh::parse(word)? {
        Some((host, path)) => (Machine::Ssh(host), path),
        None => (Machine::Here, word.as_bytes().to_vec()),
    })
}

/// Returns the URL of a command: from the argument, or from the environment; `usage` is the hint without one.
pub(crate) fn url(word: Option<&OsStr>, usage: &str) -> Result<HaulUrl, Fault> {
    let Some(word) = word else {
        let missing = |_| fault::usage("the server's URL is missing", usage);
        return parse_url(&from_environment().map_err(missing)?);
    };
    match word.as_bytes().strip_prefix(b"@") {
        Some(from) => url_from(from),
        None => parse_url(&word.to_string_lossy()),
    }
}

pub(crate) fn parse_url(text: &str) -> Result<HaulUrl, Fault> {
    text.parse::<HaulUrl>().map_err(fault::of)
}

fn url_from(from: &[u8]) -> Result<HaulUrl, Fault> {
    let mut parts = from.splitn(2, |&b| b == b':');
    let (from, below) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let text = match from {
        b"" => {
            let hint =
                "write @FILE, @- for stdin or @env for the environment; a file of that name is written ./@";
            return Err(fault::usage("`@` does not say where to find the URL", hint));
        }
        b"env" => from_environment()?,
        b"-" => ended_by_signals(from_stdin)?,
        file => ended_by_signals(|| from_file(Path::new(OsStr::from_bytes(file))))?,
    };
    let mut url = parse_url(&text).map_err(|wrong| {
        let place = OsString::from_vec([b"@", from].concat());
        Fault { message: format!("{}: {}", place.display(), wrong.message), ..wrong }
    })?;
    url.path = joined(&url.path, below);
    Ok(url)
}

fn joined(path: &[u8], below: &[u8]) -> Vec<u8> {
    let below = below.strip_prefix(b"/").unwrap_or(below);
    match (path, below) {
        (_, b"") => path.to_vec(),
        (b"", _) => below.to_vec(),
        (path, _) => [path.strip_suffix(b"/").unwrap_or(path), b"/", below].concat(),
    }
}

fn from_environment() -> Result<Zeroizing<String>, Fault> {
    let text = std::env::var(URL_VARIABLE).ok().filter(|text| !text.is_empty()).map(Zeroizing::new);
    let message = format!("the environment variable {URL_VARIABLE} is not set");
    text.ok_or_else(|| fault::usage(message, format!("export {URL_VARIABLE}=haul://…")))
}

fn from_file(path: &Path) -> Result<Zeroizing<String>, Fault> {
    // Has its final capacity, as a reallocation would leave a copy that is not zeroed.
    let mut text = Zeroizing::new(String::with_capacity(MAX_URL_BYTES));
    let read = File::open(path).and_then(|file| file.take(MAX_URL_BYTES as u64).read_to_string(&mut text));
    read.map_err(|e| fault::io(format!("cannot read the URL in {}", path.display()), &e))?;
    Ok(text)
}

/// Returns the first line of stdin, also to later calls.
fn from_stdin() -> Result<Zeroizing<String>, Fault> {
    static FIRST_LINE: Mutex<Option<Zeroizing<String>>> = Mutex::new(None);
    let mut known = FIRST_LINE.lock();
    if let Some(line) = &*known {
        return Ok(line.clone());
    }
    let mut line = Zeroizing::new(String::with_capacity(MAX_URL_BYTES));
    // Byte by byte: the rest stays unread.
    let stdin = rustix::io::dup(rustix::stdio::stdin()).map_err(io::Error::from).map(File::from);
    let read = stdin
        .and_then(|stdin| BufReader::with_capacity(1, stdin).take(MAX_URL_BYTES as u64).read_line(&mut line));
    read.map_err(|e| fault::io("cannot read the URL from stdin", &e))?;
    Ok(known.insert(line).clone())
}

/// Whether a word looks like a damaged URL with a key, which ssh would show in process lists.
fn is_damaged_url(text: &str) -> bool {
    let text = text.trim_start_matches([' ', '\t', '\n', '"', '\'']);
    let is_ours = |(scheme, _): (&str, &str)| scheme.eq_ignore_ascii_case("haul");
    text.split_once(':').is_some_and(is_ours) && text.contains("?k=")
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

    fn parse(text: &str) -> Result<Place, Fault> {
        place(OsStr::new(text))
    }

    fn on_server(path: &str) -> Place {
        (Machine::Url(url(b"")), path.as_bytes().to_vec())
    }

    fn url(path: &[u8]) -> HaulUrl {
        let (host, path) = ("h".to_owned(), path.to_vec());
        HaulUrl { host, port: 1, path, fingerprint: [1; 32], secret: [2; 32].into(), expires: None }
    }

    #[test]
    fn paths_and_urls_are_told_apart() {
        for path in ["a", "./a:b", "/x:y/z", "a/b:c", "..", "dir/", "-", "a b", "./@x", "a@b"] {
            assert_eq!(parse(path), Ok((Machine::Here, path.into())));
        }
        let text = url(b"p").to_string();
        for text in [text.clone(), text.replace("haul:", "HAUL:")] {
            assert_eq!(parse(&text), Ok(on_server("p")));
        }
    }

    #[test]
    fn a_url_can_be_read_from_a_file_and_extended_with_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("url");
        let word = |below: &str| format!("@{}{below}", file.display());
        for (inside, below, path) in [
            ("", "", ""),
            ("", ":a/b/", "a/b/"),
            ("", ":/a:b", "a:b"),
            ("in", ":x", "in/x"),
            ("in/", ":", "in/"),
        ] {
            std::fs::write(&file, format!("\n {}\n", url(inside.as_bytes()))).unwrap();
            assert_eq!(parse(&word(below)), Ok(on_server(path)), "{inside} {below}");
        }
        std::fs::write(&file, "haul://h:1/?k=AQSECRET").unwrap();
        let wrong = parse(&word("")).unwrap_err();
        assert!(wrong.message.contains("url: the key") && !wrong.to_string().contains("SECRET"), "{wrong}");
        let missing = parse("@/nowhere/url:x").unwrap_err();
        assert!(missing.message.contains("cannot read the URL in /nowhere/url:"), "{missing}");
        for word in ["@", "@:x"] {
            assert!(parse(word).unwrap_err().hint.contains("@FILE"), "{word}");
        }
    }

    #[test]
    fn names_with_a_host_are_ssh_paths() {
        for text in ["host:path", "me@host:/abs", "host:", "a:b", "ssh://host/x"] {
            assert!(matches!(parse(text), Ok((Machine::Ssh(_), _))), "{text}");
        }
        assert!(parse(":x").unwrap_err().message.contains("does not name a host"));
        assert!(parse("https://x/").unwrap_err().message.contains("https://"));
        assert!(parse("").is_err());
    }

    #[test]
    fn a_damaged_url_is_not_an_ssh_host_and_its_key_is_not_shown() {
        for start in
            ["haul:/h:1/", "haul:h:1/", " haul://h:1/", "'haul://h:1/", "\"HAUL:/h:1/", "haul:///h:1/"]
        {
            let wrong = parse(&format!("{start}?k=AQSECRET")).unwrap_err();
            assert!(!wrong.to_string().contains("SECRET") && wrong.hint.contains("whole URL"), "{wrong}");
        }
        assert!(matches!(parse("haul:x"), Ok((Machine::Ssh(_), _))));
        assert!(matches!(parse("./haul:x?k=y"), Ok((Machine::Here, _))));
    }

    #[test]
    fn arguments_that_are_not_utf8_are_paths() {
        let word = OsStr::from_bytes(b"\xff:\xfe");
        assert_eq!(place(word), Ok((Machine::Here, word.as_bytes().to_vec())));
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_a_leading_dot_slash_is_always_local(text in "[^\0]{0,30}") {
            if !text.starts_with('@') {
                let _ = parse(&text);
            }
            let local = format!("./{text}");
            let is_url = local.contains("://") && is_scheme(local.split("://").next().unwrap());
            prop_assert!(is_url || parse(&local).is_ok());
        }
    }
}
