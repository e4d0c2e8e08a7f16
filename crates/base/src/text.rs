//! Text for users: file names and peers' messages, which may contain any bytes, and errors with their causes.

use std::error::Error;
use std::fmt::{self, Write as _};

/// Formats an error and all of its causes, for errors whose message excludes their [`source`](Error::source).
#[derive(Debug, Clone, Copy)]
pub struct WithCauses<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        std::iter::successors(self.0.source(), |&cause| cause.source())
            .try_for_each(|cause| write!(f, ": {cause}"))
    }
}

/// Formats a text so that it stays on its line and cannot control the terminal: control characters, and those
/// that change the order in which others are shown, are escaped, such as `\n`, `\x1b` or `\u{202e}`.
///
/// Backslashes are not escaped, so escaping twice changes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaper(f), "{}", self.0)
    }
}

struct Escaper<W>(W);

impl<W: fmt::Write> fmt::Write for Escaper<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_unprintable) {
            let (plain, found) = rest.split_at(at);
            self.0.write_str(plain)?;
            let mut following = found.chars();
            following.next().map_or(Ok(()), |c| escape(&mut self.0, c))?;
            rest = following.as_str();
        }
        self.0.write_str(rest)
    }
}

fn escape(to: &mut impl fmt::Write, c: char) -> fmt::Result {
    match c {
        '\n' => to.write_str("\\n"),
        '\r' => to.write_str("\\r"),
        '\t' => to.write_str("\\t"),
        c if c.is_ascii() => write!(to, "\\x{:02x}", u32::from(c)),
        c => write!(to, "\\u{{{:x}}}", u32::from(c)),
    }
}

/// Whether the character controls a terminal, or changes the line or order in which others are shown: C0 and
/// C1 controls and DEL (ECMA-48), line and paragraph separators, and the marks, embeddings, overrides and
/// isolates of the bidirectional algorithm (Unicode Standard Annex 9, section 2).
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Formats the bytes of a name for users: [`Printable`], with invalid UTF-8 as `\xff`.
pub fn printable_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{}", Printable(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn terminal_control_characters_are_escaped() {
        let forged = "a\nMoved\x1b[2K\r\u{9b}2J\u{202e}b\u{2066}\x07\x7f\t\\n";
        let shown = "a\\nMoved\\x1b[2K\\r\\u{9b}2J\\u{202e}b\\u{2066}\\x07\\x7f\\t\\n";
        assert_eq!(Printable(forged).to_string(), shown);
        assert_eq!(Printable("größe 文件 \u{1f600}").to_string(), "größe 文件 \u{1f600}");
        assert_eq!(printable_bytes(b"a\nb\xff\xc3\xb6"), "a\\nb\\xffö");
    }

    #[test]
    fn every_dangerous_character_is_escaped() {
        let threats = ('\0'..='\u{1f}').chain('\u{7f}'..='\u{9f}');
        let threats = threats.chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        assert!(threats.clone().all(is_unprintable) && threats.count() == 32 + 33 + 5 + 4);
    }

    proptest! {
        #[test]
        fn escaping_leaves_only_printable_text_and_is_idempotent(text in ".*", bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let once = Printable(&text).to_string();
            prop_assert!(!once.contains(is_unprintable));
            prop_assert_eq!(Printable(&once).to_string(), once);
            prop_assert!(!printable_bytes(&bytes).contains(is_unprintable));
        }
    }
}
