//! `haul status` and `haul clean`: what transfers that were cut off have left behind.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use haul_base::{Span, printable_bytes};
use haul_mover::{JournalReport, JournalState, find_journals};
use serde_json::{Value, json};

use crate::fault::{self, Fault, shown};
use crate::output::{ErrorObject, Lines, Name, count, tell};

/// A journal and the directory that it lies in.
pub(super) struct Found {
    pub(super) directory: PathBuf,
    pub(super) journal: JournalReport,
    pub(super) age: Span,
}

/// What was found, and what went wrong meanwhile.
#[derive(Default)]
pub(super) struct Search {
    pub(super) found: Vec<Found>,
    pub(super) faults: Vec<Fault>,
}

/// Where else to look, if nothing was found.
pub(super) fn elsewhere(recursive: bool) -> &'static str {
    if recursive { "" } else { " (-r looks below)" }
}

impl Found {
    /// The journal's path for people.
    pub(super) fn shown(&self) -> String {
        printable_bytes(self.directory.join(&self.journal.name).as_os_str().as_bytes())
    }
}

impl Search {
    /// Looks into these directories (none: this one), and below them.
    pub(super) fn run(directories: &[PathBuf], recursive: bool) -> Self {
        let here = [PathBuf::from(".")];
        let now = SystemTime::now();
        let mut search = Self::default();
        let mut waiting: Vec<PathBuf> =
            if directories.is_empty() { here.to_vec() } else { directories.iter().rev().cloned().collect() };
        while let Some(directory) = waiting.pop() {
            if let Err(error) = search.look(&directory, now) {
                search.faults.push(fault::io(format!("cannot look into {}", directory.display()), &error));
            } else if recursive {
                // What cannot be listed any more has been reported above or has gone.
                waiting.extend(below(&directory).unwrap_or_default());
            }
        }
        search
    }

    fn look(&mut self, directory: &Path, now: SystemTime) -> io::Result<()> {
        for journal in find_journals(directory)? {
            // A time in the future is no age.
            let age = span(now.duration_since(journal.modified).unwrap_or_default());
            self.found.push(Found { directory: directory.to_owned(), journal, age });
        }
        Ok(())
    }

    pub(super) fn object(&self, content: &Value) -> String {
        let error = self.faults.first().map(|fault| ErrorObject::from(fault.clone()));
        let object = with(content.clone(), "schema", json!(1));
        with(with(object, "ok", json!(self.faults.is_empty())), "error", json!(error)).to_string()
    }

    /// Says what went wrong and gives the exit code.
    pub(super) fn end(&self) -> u8 {
        for fault in &self.faults {
            tell(shown(fault));
        }
        self.faults.first().map_or(0, |fault| fault.code.exit_code())
    }
}

/// The directories in a directory, the last name first. Links are not followed.
fn below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut below = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            below.push(entry.path());
        }
    }
    below.sort_unstable_by(|a, b| b.cmp(a));
    Ok(below)
}

fn span(time: Duration) -> Span {
    Span::from_nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// The object with one more field.
pub(super) fn with(mut object: Value, key: &str, value: Value) -> Value {
    object[key] = value;
    object
}

/// Files that are named; the others are counted.
const NAMED: usize = 20;

/// A journal and its files, on lines of their own.
pub(super) fn row(found: &Found) -> Lines {
    let journal = &found.journal;
    let state = match &journal.state {
        JournalState::NotOurs(why) => {
            return Lines::from(format_args!("{}  left alone: {why}", found.shown()));
        }
        JournalState::Running => "running",
        JournalState::LeftOver if journal.files.is_empty() => "left over, nothing to resume",
        JournalState::LeftOver => "left over, can be resumed",
    };
    let mut lines = Lines::from(format_args!(
        "{}  {state}, {} old, {} taking {}",
        found.shown(),
        age(found.age),
        count(journal.parts, "temporary file"),
        journal.occupied
    ));
    for file in journal.files.iter().take(NAMED) {
        lines.push(format_args!("    {}  {} of {}", printable_bytes(&file.path), file.have, file.size));
    }
    if let Some(more) = journal.files.len().checked_sub(NAMED).filter(|&more| more > 0) {
        lines.push(format_args!("    and {} more", count(more as u64, "file")));
    }
    lines
}

/// What is removed with a journal.
pub(super) fn line(found: &Found, dry_run: bool) -> String {
    let (does, journal) = (if dry_run { "would remove" } else { "removed" }, &found.journal);
    format!(
        "{does} {} with {} of {}",
        found.shown(),
        count(journal.parts, "temporary file"),
        journal.occupied
    )
}

/// A journal for scripts.
pub(super) fn as_json(found: &Found) -> Value {
    let journal = &found.journal;
    let (state, why) = match &journal.state {
        JournalState::Running => ("running", None),
        JournalState::LeftOver => ("left_over", None),
        JournalState::NotOurs(why) => ("not_ours", Some(why)),
    };
    let file = |file: &haul_mover::PartialFile| {
        let mut object = json!({ "have": file.have.0, "size": file.size.0 });
        Name(file.path.clone()).put(&mut object, "path");
        object
    };
    let have: u64 = journal.files.iter().map(|file| file.have.0).sum();
    let mut object = json!({
        "journal": journal.name,
        "state": state,
        "why": why,
        "age_seconds": found.age.as_secs_f64(),
        "have_bytes": have,
        "temporary_files": journal.parts,
        "occupied_bytes": journal.occupied.0,
        "files": journal.files.iter().map(file).collect::<Vec<_>>(),
    });
    Name::from(found.directory.as_os_str()).put(&mut object, "directory");
    object
}

/// A time for people, in the largest unit of which there is at least one.
pub(super) fn age(span: Span) -> String {
    let seconds = span.as_secs_f64() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use haul_base::Bytes;

    use super::*;

    #[test]
    fn ages_read_in_one_unit() {
        let of = |seconds| age(Span::from_secs(seconds));
        assert_eq!([of(0), of(59), of(60), of(7199), of(90_000)], ["0 s", "59 s", "1 min", "1 h", "1 d"]);
    }

    #[test]
    fn many_files_are_counted() {
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
        let text = row(&found).to_string();
        assert!(text.starts_with("d/.haul-00000001.journal  left over, can be resumed, 5 s old"), "{text}");
        assert!(text.ends_with("f19  19 B of 100 B\n    and 3 files more\n"), "{text}");
        assert_eq!(as_json(&found)["have_bytes"], 253);
    }
}
