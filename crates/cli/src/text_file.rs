//! Reads users' text files. Errors name the line and column.

use std::io::{self, Read};
use std::path::Path;

use haul_base::Bytes;

use crate::fault::{self, Fault};

const MAX_BYTES: u64 = 1 << 28;

/// Reads an open file completely; `hint` says what to do if it is too long or not text.
pub(crate) fn text_of(
    file: &Path,
    opened: io::Result<impl Read>,
    hint: &'static str,
) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    let read = opened.and_then(|open| open.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    let read = read.map_err(|error| fault::io(format_args!("cannot read {}", file.display()), &error))?;
    if read as u64 > MAX_BYTES {
        let message = format!("{} has more than {}", file.display(), Bytes(MAX_BYTES));
        return Err(fault::usage(message, hint));
    }
    String::from_utf8(bytes).map_err(|error| {
        let (valid, bytes) = (error.utf8_error().valid_up_to(), error.into_bytes());
        let before = String::from_utf8_lossy(&bytes[..valid]);
        let problem = format!("byte {:#04x} is not valid text", bytes[valid]);
        wrong(file, position_after(&before), &problem, hint)
    })
}

pub(crate) fn wrong(file: &Path, (line, column): (usize, usize), problem: &str, hint: &'static str) -> Fault {
    fault::usage(format!("{}: line {line}, column {column}: {problem}", file.display()), hint)
}

/// Describes in one line why and where `text` is not valid TOML.
pub(crate) fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (line, column) = position_after(before);
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    format!("line {line}, column {column}: {message}")
}

/// Returns the line and column after this text, counted from 1.
fn position_after(text: &str) -> (usize, usize) {
    let line = text.rsplit('\n').next().unwrap_or_default();
    (text.matches('\n').count() + 1, line.chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_utf8_and_endless_files_are_refused_with_the_reason() {
        let read = |bytes: &'static [u8]| text_of(Path::new("f"), Ok(bytes), "hint");
        assert_eq!(read("é = 1\n".as_bytes()).unwrap(), "é = 1\n");
        let error = read(b"a\n\xc3\xa9\xff").unwrap_err();
        assert_eq!(
            (error.code.exit_code(), &*error.message),
            (2, "f: line 2, column 2: byte 0xff is not valid text")
        );
        let error = text_of(Path::new("f"), Ok(io::repeat(b'x')), "hint").unwrap_err();
        assert!(error.code.exit_code() == 2 && error.message.contains("more than"), "{error}");
    }

    #[test]
    fn a_toml_error_is_reported_in_one_line() {
        for (text, words) in [
            ("rate = \n", "line 1, column 8: string values must be quoted; expected literal string"),
            ("[a]\n[a]\n", "line 2, column 2: duplicate key"),
        ] {
            let error = text.parse::<toml::Table>().unwrap_err();
            assert_eq!(toml_problem(text, &error).replace(", expected", "; expected"), words);
        }
    }
}
