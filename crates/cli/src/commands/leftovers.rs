//! `haul status` and `haul clean`: show and remove what interrupted transfers have left behind.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use haul_base::{Span, printable_bytes};
use haul_mover::{JournalReport, JournalState, find_journals, remove_journal, subdirectories};
use serde_json::{Value, json};

use crate::args::{CleanArgs, PlaceArgs};
use crate::fault::{self, Fault, shown};
use crate::output::{Lines, count, out, out_fields, put_name, tell};

pub(crate) fn status(place: &PlaceArgs, quiet: bool, as_object: bool) -> u8 {
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

pub(crate) fn clean(args: &CleanArgs, quiet: bool, as_object: bool) -> u8 {
    let mut search = Search::run(&args.place);
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    for found in std::mem::take(&mut search.found) {
        match remove(&found, args) {
            Ok(None) => removed.push(found),
            Ok(Some(why)) => left.push((found, why)),
            Err(fault) => {
                // Otherwise it is shown among the errors.
                if as_object {
                    left.push((found, fault.message.clone()));
                }
                search.faults.push(fault);
            }
        }
    }
    if as_object {
        let removed: Vec<Value> = removed.iter().map(as_json).collect();
        let mut objects: Vec<Value> = left.iter().map(|(found, _)| as_json(found)).collect();
        objects.iter_mut().zip(&left).for_each(|(object, (_, why))| object["why"] = json!(why));
        let fields = json!({ "dry_run": args.dry_run, "removed": removed, "left": objects });
        out_fields(fields, search.faults.first());
        return search.end(None, &args.place);
    }
    let does = if args.dry_run { "would remove" } else { "removed" };
    for found in &removed {
        let parts = count(found.journal.parts, "temporary file");
        out(format!("{does} {} with {parts} of {}", found.shown(), found.journal.occupied));
    }
    for (found, why) in left.iter().filter(|_| !quiet) {
        tell(format_args!("left alone: {}: {why}", found.shown()));
    }
    let reports_none = removed.is_empty() && left.is_empty() && !quiet;
    search.end(reports_none.then_some("Nothing to remove"), &args.place)
}

/// Removes a journal and its files (unless it is a dry run), or returns why it stays.
fn remove(found: &Found, args: &CleanArgs) -> Result<Option<String>, Fault> {
    match &found.journal.state {
        JournalState::Running => return Ok(Some("its transfer is running".to_owned())),
        JournalState::NotOurs(why) => return Ok(Some(why.clone())),
        JournalState::LeftOver => {}
    }
    if let Some(limit) = args.older_than.filter(|&limit| found.age < limit) {
        return Ok(Some(format!("it is younger than {}", age(limit))));
    }
    if args.dry_run {
        return Ok(None);
    }
    match remove_journal(&found.directory, &found.journal) {
        Ok(true) => Ok(None),
        Ok(false) => Ok(Some("a transfer has resumed it in the meantime".to_owned())),
        Err(error) => Err(fault::io(format!("cannot remove the files of {}", found.shown()), &error)),
    }
}

struct Found {
    directory: PathBuf,
    journal: JournalReport,
    age: Span,
}

#[derive(Default)]
struct Search {
    found: Vec<Found>,
    faults: Vec<Fault>,
}

impl Found {
    fn shown(&self) -> String {
        printable_bytes(self.directory.join(&self.journal.name).as_os_str().as_bytes())
    }
}

impl Search {
    /// Searches these directories (none: this one) and, if `recursive`, their subdirectories.
    fn run(PlaceArgs { directories, recursive }: &PlaceArgs) -> Self {
        let mut search = Self::default();
        let mut waiting: Vec<PathBuf> = directories.iter().rev().cloned().collect();
        if directories.is_empty() {
            waiting.push(PathBuf::from("."));
        }
        while let Some(directory) = waiting.pop() {
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
                waiting.extend(names.into_iter().map(|name| directory.join(name)));
            }
        }
        search
    }

    /// Prints the faults, or that there is `nothing`, and returns the exit code.
    fn end(&self, nothing: Option<&str>, place: &PlaceArgs) -> u8 {
        if let Some(nothing) = nothing.filter(|_| self.faults.is_empty()) {
            let search_hint = if place.recursive { "" } else { " (-r includes subdirectories)" };
            tell(format_args!("{nothing}{search_hint}."));
        }
        self.faults.iter().for_each(|fault| tell(shown(fault)));
        self.faults.first().map_or(0, |fault| fault.code.exit_code())
    }
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

fn as_json(found: &Found) -> Value {
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
fn age(span: Span) -> String {
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
    use std::fs;
    use std::path::PathBuf;

    use haul_base::Bytes;

    use super::*;

    #[test]
    fn ages_are_shown_in_one_unit() {
        let of = |seconds| age(Span::from_secs(seconds));
        assert_eq!([of(0), of(59), of(60), of(7199), of(90_000)], ["0 s", "59 s", "1 min", "1 h", "1 d"]);
    }

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
