//! Signatures as text: `.sig` files.
//!
//! ```text
//! # A comment. 1 is a packet that arrived, 0 a lost one, in sending order.
//! 1111 0111 1100 1
//! ---                            ends a window and starts the next
//! runs 71000 12+3 900 1500+2     a window in short form: packets, losses as position or position+packets
//! ```

use std::fmt::Write;

use crate::Signature;

/// Error in the text of signatures; lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct SignatureError {
    /// Line of the text, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Description of the error.
    pub problem: String,
}

/// Maximum number of packets in a `runs` line.
const MAX_PACKETS: u64 = 1 << 40;
const SHORT: &str = "runs";
const END: &str = "---";

/// Parses all windows of a text. The result is empty if the text has no packets.
///
/// # Errors
/// The first syntax error.
pub fn read_signatures(text: &str) -> Result<Vec<Signature>, SignatureError> {
    let (mut windows, mut present) = (Vec::new(), Signature::new());
    for (number, line) in text.lines().enumerate() {
        let content = line.split_once('#').map_or(line, |(content, _)| content);
        let first = content.split_whitespace().next();
        let at = |(column, problem)| SignatureError { line: number + 1, column, problem };
        if first == Some(SHORT) {
            windows.push(std::mem::take(&mut present));
            windows.push(read_runs(content).map_err(at)?);
        } else if content.trim() == END {
            windows.push(std::mem::take(&mut present));
        } else {
            read_symbols(content, &mut present).map_err(at)?;
        }
    }
    windows.push(present);
    windows.retain(|window| window.packets() > 0);
    Ok(windows)
}

/// Column of an error, and its description.
type Problem = (usize, String);

fn read_symbols(content: &str, into: &mut Signature) -> Result<(), Problem> {
    for (column, symbol) in content.chars().enumerate() {
        match symbol {
            '1' => into.received(1),
            '0' => into.lost(1),
            space if space.is_whitespace() => {}
            other => return Err((column + 1, format!("{other:?} is neither 0 nor 1"))),
        }
    }
    Ok(())
}

fn read_runs(content: &str) -> Result<Signature, Problem> {
    let words = content.split_whitespace().skip(1);
    // The words are slices of `content`, so the distance of their start addresses is the column.
    let column = |word: &str| content[..word.as_ptr().addr() - content.as_ptr().addr()].chars().count() + 1;
    let number = |word: &str, text: &str| {
        word.parse::<u64>()
            .ok()
            .filter(|number| *number <= MAX_PACKETS && !word.starts_with('+'))
            .ok_or_else(|| (column(text), format!("{word:?} is no number of packets")))
    };
    let mut signature = Signature::new();
    let mut packets = None;
    for word in words {
        let Some(total) = packets else {
            packets = Some(number(word, word)?);
            continue;
        };
        let (first, lost) = match word.split_once('+') {
            Some((first, lost)) => (number(first, word)?, number(lost, word)?),
            None => (number(word, word)?, 1),
        };
        if first < signature.packets() || first + lost > total || lost == 0 {
            let problem =
                format!("{word:?} is not behind what stands before it, or not among the {total} packets");
            return Err((column(word), problem));
        }
        signature.received(first - signature.packets());
        signature.lost(lost);
    }
    let total = packets.ok_or_else(|| (1, format!("{SHORT} needs the number of packets")))?;
    signature.received(total - signature.packets());
    Ok(signature)
}

/// Returns the window as a `runs` line.
pub fn write_signature(signature: &Signature) -> String {
    let mut line = format!("{SHORT} {}", signature.packets());
    for run in signature.runs() {
        // Writing to a string cannot fail.
        let _ = match run.packets {
            1 => write!(line, " {}", run.first),
            packets => write!(line, " {}+{packets}", run.first),
        };
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::Run;

    fn runs(signature: &Signature) -> Vec<(u64, u64)> {
        signature.runs().iter().map(|Run { first, packets }| (*first, *packets)).collect()
    }

    #[test]
    fn white_space_and_comments_are_ignored_and_windows_are_separated() {
        let text = "# two windows\r\n11 0\t1 # and a word\n0 0\n---\n1\n  runs 10 2+3 9  # short\n0\n";
        let read = read_signatures(text).unwrap();
        let found: Vec<_> = read.iter().map(|window| (window.packets(), runs(window))).collect();
        let expected =
            [(6, vec![(2, 1), (4, 2)]), (1, vec![]), (10, vec![(2, 3), (9, 1)]), (1, vec![(0, 1)])];
        assert_eq!(found, expected);
        assert_eq!(read_signatures(" # nothing\n---\n\n").unwrap(), []);
    }

    #[test]
    fn invalid_signatures_are_reported_with_their_position() {
        for (text, line, column, word) in [
            ("11\n1012", 2, 4, "'2'"),
            ("\u{feff}1", 1, 1, "neither"),
            ("1é", 1, 2, "'é'"),
            ("runs", 1, 1, "needs"),
            ("runs 10 5 5", 1, 11, "behind"),
            ("1\nruns 10 9+2", 2, 9, "among the 10"),
            ("runs 10 3+0", 1, 9, "behind"),
            ("runs 10 x", 1, 9, "\"x\""),
            ("runs -1", 1, 6, "\"-1\""),
            ("runs +10", 1, 6, "\"+10\""),
            ("runs 10 1++2", 1, 9, "\"+2\""),
            ("runs 99999999999999", 1, 6, "no number of packets"),
            ("runs 18446744073709551616", 1, 6, "no number of packets"),
        ] {
            let error = read_signatures(text).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{text:?}: {error}");
            assert!(error.to_string().contains(word), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn written_signatures_read_back(packets in 1u64..5_000, lost in vec(0u64..5_000, 0..200)) {
            let signature = Signature::of_lost(packets, lost);
            prop_assert_eq!(read_signatures(&write_signature(&signature)).unwrap(), vec![signature.clone()]);
            let long: String = signature.symbols().map(|arrived| if arrived { '1' } else { '0' }).collect();
            prop_assert_eq!(read_signatures(&long).unwrap(), vec![signature]);
        }

        #[test]
        fn reading_any_text_does_not_panic(text in "[01 #runs+\\-0-9\n]{0,200}|\\PC{0,50}") {
            if let Err(error) = read_signatures(&text) {
                let line = text.lines().nth(error.line - 1).unwrap();
                prop_assert!(error.column <= line.chars().count().max(1), "{}", error);
            }
        }
    }
}
