//! Invariants of reading ssh's output, for the fuzz target and a test.

use std::io::{BufReader, Read as _};

use serde_json::Value;

use super::SshHost;
use super::messages::{Announcement, MAX_HOSTS, MAX_OUTPUT, Scanned, scan_output};

/// Checks that the search for an announcement finds the same however the bytes are divided, gives up after a
/// limit, and reads what can be written and read again. The first byte is the length of the pieces in which
/// the others are read. Returns whether there was an announcement of this version.
///
/// # Panics
/// If an invariant is violated.
pub fn announcement(bytes: &[u8]) -> bool {
    let Some((&size, output)) = bytes.split_first() else { return false };
    let found = scan(output, output.len().max(1));
    assert_eq!(scan(output, usize::from(size).max(1)), found, "in pieces of {size}");
    let Some((json, after)) = found else { return false };
    assert!(output.ends_with(&after) && json.is_object());
    let host = SshHost { destination: "far".to_owned(), port: None };
    let Ok(read) = Announcement::read(&json, &host) else { return false };
    assert!(read.hosts.len() <= MAX_HOSTS && read.fault.is_none());
    let (reread, after) = scan(&read.line(), 7).expect("what was written can be found");
    assert!(after.is_empty());
    assert_eq!(Announcement::read(&reread, &host), Ok(read), "the announcement changed");
    true
}

fn scan(output: &[u8], size: usize) -> Option<(Value, Vec<u8>)> {
    let mut from = BufReader::with_capacity(size, output);
    let line = match scan_output(&mut from) {
        Scanned::Announced(json) => {
            let mut after = Vec::new();
            from.read_to_end(&mut after).expect("it lies in memory");
            return Some((json, after));
        }
        Scanned::End(line) => {
            assert!(output.len() <= MAX_OUTPUT, "it does not give up");
            line
        }
        Scanned::TooMuch(line) => line,
    };
    assert!(line.is_none_or(|line| line.chars().count() <= 120));
    None
}

#[cfg(test)]
mod tests {
    use haul_base::Rng;

    use super::*;

    #[test]
    fn the_announcement_check_holds_for_seeded_inputs() {
        let valid = |rng: &mut Rng| {
            let hosts = (0..rng.below(10)).map(|at| format!("192.0.2.{at}")).collect();
            let url = rng.chance(0.7).then(|| "haul://h:1/?k=x".to_owned());
            let output = Announcement { url, hosts, ..Announcement::ours() };
            let banner =
                ["", "Welcome!\n", "#haul-over-ssh# nonsense\n", "#haul-over"][rng.below(4) as usize];
            [&[rng.next_u64() as u8], banner.as_bytes(), &output.line(), b"{}\n"].concat()
        };
        haul_testing::fuzz::drive("announcement", 10_000, valid, announcement);
    }
}
