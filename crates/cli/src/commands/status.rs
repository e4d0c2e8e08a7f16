//! `haul status`: shows what interrupted transfers have left behind.

use haul_base::printable_bytes;
use haul_mover::JournalState;
use serde_json::{Value, json};

use super::leftovers::{Found, Search, age, as_json};
use crate::args::PlaceArgs;
use crate::output::{Lines, count, out, out_fields};

pub(crate) fn run(place: &PlaceArgs, quiet: bool, as_object: bool) -> u8 {
    let search = Search::run(place);
    if as_object {
        let journals: Vec<Value> = search.found.iter().map(as_json).collect();
        out_fields(json!({ "journals": journals }), search.faults.first());
    } else {
        search.found.iter().for_each(|found| out(row(found)));
    }
    let reports_none = search.found.is_empty() && !quiet && !as_object;
    search.end(reports_none.then_some("No leftovers here"), place)
}

/// Maximum number of files listed per journal; the others are counted.
const MAX_LISTED_FILES: usize = 20;

fn row(found: &Found) -> Lines {
    let journal = &found.journal;
    let state = match &journal.state {
        JournalState::NotOurs(why) => {
            return Lines::from(format_args!("{}  left alone: {why}", found.shown()));
        }
        JournalState::Running => "running",
        JournalState::LeftOver if journal.files.is_empty() => "leftover, cannot be resumed",
        JournalState::LeftOver => "leftover, can be resumed",
    };
    let mut lines = Lines::from(format_args!(
        "{}  {state}, {} old, {} taking {}",
        found.shown(),
        age(found.age),
        count(journal.parts, "temporary file"),
        journal.occupied
    ));
    for file in journal.files.iter().take(MAX_LISTED_FILES) {
        lines.push(format_args!("    {}  {} of {}", printable_bytes(&file.path), file.have, file.size));
    }
    if let Some(more) = journal.files.len().checked_sub(MAX_LISTED_FILES).filter(|&more| more > 0) {
        lines.push(format_args!("    and {} more", count(more as u64, "file")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use haul_base::{Bytes, Span};
    use haul_mover::find_journals;

    use super::*;

    #[test]
    fn files_beyond_the_first_20_are_only_counted() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".haul-00000001.journal"), "").unwrap();
        let mut journal = find_journals(dir.path()).unwrap().remove(0);
        let file = |n: u64| haul_mover::PartialFile {
            path: format!("f{n}").into_bytes(),
            have: Bytes(n),
            size: Bytes(100),
        };
        journal.files = (0..23).map(file).collect();
        let found = Found { directory: PathBuf::from("d"), journal, age: Span::from_secs(5) };
        let text = row(&found);
        let text = text.as_str();
        assert!(text.starts_with("d/.haul-00000001.journal  leftover, can be resumed, 5 s old"), "{text}");
        assert!(text.ends_with("f19  19 B of 100 B\n    and 3 files more\n"), "{text}");
        assert_eq!(as_json(&found)["have_bytes"], 253);
    }
}
