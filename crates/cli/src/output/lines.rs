//! Output to stdout and stderr.

use std::fmt::{Display, Write as _};
use std::io::{self, ErrorKind, Write as _};
use std::sync::OnceLock;

use haul_base::{Printable, is_unprintable};
use haul_engine::HaulUrl;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde_json::Value;

const KEY: &str = "k=";
/// Minimum length of what counts as a key; complete ones have at least 87 characters.
const MIN_KEY_LEN: usize = 32;

/// Lines for users, without keys of URLs. Control characters are escaped, so that names of files and peers
/// cannot forge a line or control the terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lines(String);

impl Lines {
    pub(crate) fn push(&mut self, line: impl Display) {
        self.0.push_str(&without_keys(&Printable(line).to_string()));
        self.0.push('\n');
    }

    #[cfg(test)]
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn append(&mut self, others: &Self) {
        self.0.push_str(&others.0);
    }

    /// Prefixes each line with `words`.
    #[must_use]
    pub(crate) fn with_prefix(&self, words: &impl Display) -> Self {
        let mut lines = Self::default();
        self.0.lines().for_each(|line| lines.push(format_args!("{words}{line}")));
        lines
    }
}

impl<T: Display> From<T> for Lines {
    fn from(line: T) -> Self {
        let mut lines = Self::default();
        lines.push(line);
        lines
    }
}

pub(crate) fn without_keys(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let mut parts = text.split(KEY);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (secret, rest) = part.split_at(part.find(|c| !is_part(c)).unwrap_or(part.len()));
        out.extend([KEY, if secret.len() < MIN_KEY_LEN { secret } else { "..." }, rest]);
    }
    out
}

static WRITE_ERROR: OnceLock<String> = OnceLock::new();

/// Writes to stdout and flushes it. Returns whether its reader has closed it.
pub(crate) fn write_stdout(bytes: &[u8]) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(true),
        written => written.map(|()| false),
    }
}

/// Writes to stdout, and records if that fails. A closed pipe is not an error.
fn print(bytes: &[u8]) {
    if let Err(error) = write_stdout(bytes) {
        let _ = WRITE_ERROR.set(error.to_string());
    }
}

/// Returns the error of the first result that could not be written.
pub(crate) fn stdout_error() -> Option<&'static str> {
    WRITE_ERROR.get().map(String::as_str)
}

pub(crate) fn out(lines: impl Into<Lines>) {
    print(lines.into().0.as_bytes());
}

pub(crate) fn out_json(json: &Value) {
    out_verbatim(&escape_controls(&json.to_string()));
}

/// Writes text to stdout without escaping it.
pub(crate) fn out_verbatim(text: &str) {
    print(zeroize::Zeroizing::new(format!("{text}\n")).as_bytes());
}

pub(crate) fn out_url(url: &HaulUrl) {
    out_verbatim(&zeroize::Zeroizing::new(url.to_string()));
}

/// Writes a line to stderr without escaping it, if stdout is used for data.
pub(crate) fn eprint_verbatim(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Progress line of the terminal, above which messages are printed.
pub(super) static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Writes messages to stderr. A closed stderr is not an error.
pub(crate) fn eprint_lines(lines: impl Into<Lines>) {
    let lines = lines.into();
    let write = || drop(io::stderr().write_all(lines.0.as_bytes()));
    match &*BAR.lock() {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Escapes the control characters that serde leaves in strings: those above U+001F.
pub(crate) fn escape_controls(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unprintable(c) {
            // All of them are in the basic multilingual plane. Writing to a String cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_key_of_a_url_is_redacted_wherever_it_occurs() {
        let key = "AYmS9th9Jqwkhtyr02VkkZxZ_DL96lOLkxBl6-x4hprLYiPFH5KvH4U27UOM25Vau5Msk7XfJecUKov7BaLPdgY";
        let line = format!("Run: haul cp a 'haul://h:1/p?k={key}' 'haul://h:1/?x=1&k={key}#y' k=v");
        assert_eq!(
            Lines::from(line).as_str(),
            "Run: haul cp a 'haul://h:1/p?k=...' 'haul://h:1/?x=1&k=...#y' k=v\n"
        );
        assert_eq!(without_keys("k=k=k="), "k=k=k=");
    }

    #[test]
    fn a_prefix_is_escaped_and_starts_every_line() {
        let mut lines = Lines::from("a\nb");
        lines.push("c");
        assert_eq!(lines.with_prefix(&"x\n: ").as_str(), "x\\n: a\\nb\nx\\n: c\n");
        assert_eq!(lines.as_str().lines().count(), 2);
    }

    proptest! {
        #[test]
        fn no_text_adds_a_line_or_a_control_character(words in prop::collection::vec(".*", 0..5)) {
            let mut lines = Lines::default();
            for word in &words {
                lines.push(word);
            }
            prop_assert_eq!(lines.as_str().matches('\n').count(), words.len());
            prop_assert!(!lines.as_str().replace('\n', "").contains(is_unprintable));
        }

        #[test]
        fn escaped_json_keeps_its_meaning_without_control_characters(text in ".*") {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert!(!escape_controls(&json).contains(is_unprintable));
            prop_assert_eq!(serde_json::from_str::<String>(&escape_controls(&json)).unwrap(), text);
        }
    }
}
