//! What interrupted transfers have left behind, for `haul status` and `haul clean`.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use haul_base::{Span, printable_bytes};
use haul_mover::{JournalReport, JournalState, find_journals, subdirectories};
use serde_json::{Value, json};

use crate::args::PlaceArgs;
use crate::fault::{self, Fault};
use crate::output::{eprint_lines, error_lines, put_name};

pub(super) struct Found {
    pub(super) directory: PathBuf,
    pub(super) journal: JournalReport,
    pub(super) age: Span,
}

#[derive(Default)]
pub(super) struct Search {
    pub(super) found: Vec<Found>,
    pub(super) faults: Vec<Fault>,
}

impl Found {
    pub(super) fn shown(&self) -> String {
        printable_bytes(self.directory.join(&self.journal.name).as_os_str().as_bytes())
    }
}

impl Search {
    /// Searches these directories and, if `recursive`, their subdirectories.
    pub(super) fn run(PlaceArgs { directories, recursive }: &PlaceArgs) -> Self {
        let mut search = Self::default();
        let mut pending: Vec<PathBuf> = directories.iter().rev().cloned().collect();
        while let Some(directory) = pending.pop() {
            match find_journals(&directory) {
                Ok(journals) => search.found.extend(journals.into_iter().map(|journal| {
                    // A time in the future counts as age 0.
                    let age = journal.modified.elapsed().unwrap_or_default().into();
                    Found { directory: directory.clone(), journal, age }
                })),
                Err(error) => {
                    let what = format!("cannot read {}", directory.display());
                    search.faults.push(fault::io(what, &error));
                    continue;
                }
            }
            if *recursive {
                // One that cannot be listed has vanished. Sorted in reverse, as the last one is taken first.
                let mut names = subdirectories(&directory).unwrap_or_default();
                names.sort_unstable_by(|a, b| b.cmp(a));
                pending.extend(names.into_iter().map(|name| directory.join(name)));
            }
        }
        search
    }

    /// Prints the faults, or else `empty_message`, and returns the exit code.
    pub(super) fn end(&self, empty_message: Option<&str>, place: &PlaceArgs) -> u8 {
        if let Some(empty_message) = empty_message.filter(|_| self.faults.is_empty()) {
            let search_hint = if place.recursive { "" } else { " (-r includes subdirectories)" };
            eprint_lines(format_args!("{empty_message}{search_hint}."));
        }
        self.faults.iter().for_each(|fault| eprint_lines(error_lines(fault)));
        self.faults.first().map_or(0, |fault| fault.code.exit_code())
    }
}

pub(super) fn as_json(found: &Found) -> Value {
    let journal = &found.journal;
    let (state, why) = match &journal.state {
        JournalState::Running => ("running", None),
        JournalState::LeftOver => ("left_over", None),
        JournalState::NotOurs(why) => ("not_ours", Some(why)),
    };
    let file = |file: &haul_mover::PartialFile| {
        let mut object = json!({ "have": file.have.0, "size": file.size.0 });
        put_name(&mut object, "path", &file.path);
        object
    };
    let have: u64 = journal.files.iter().map(|file| file.have.0).sum();
    let mut object = json!({
        "journal": journal.name, "state": state, "why": why, "age_seconds": found.age.as_secs_f64(),
        "have_bytes": have, "temporary_files": journal.parts, "occupied_bytes": journal.occupied.0,
        "files": journal.files.iter().map(file).collect::<Vec<_>>(),
    });
    put_name(&mut object, "directory", found.directory.as_os_str().as_bytes());
    object
}

/// Formats an age in the largest unit of which there is at least one.
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
    use super::*;

    #[test]
    fn ages_are_shown_in_one_unit() {
        let of = |seconds| age(Span::from_secs(seconds));
        assert_eq!([of(0), of(59), of(60), of(7199), of(90_000)], ["0 s", "59 s", "1 min", "1 h", "1 d"]);
    }
}
