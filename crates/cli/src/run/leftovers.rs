//! `haul status` and `haul clean`: what transfers that were cut off have left behind.

mod words;

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use haul_base::{Span, printable_bytes};
use haul_mover::{JournalReport, JournalState, find_journals, remove_journal};
use serde_json::{Value, json};

use self::words::{as_json, line, row};
use crate::args::{CleanArgs, StatusArgs};
use crate::fault::{self, Fault, shown};
use crate::output::{ErrorObject, out, out_json, tell};

/// A journal and the directory that it lies in.
struct Found {
    directory: PathBuf,
    journal: JournalReport,
    age: Span,
}

/// What was found, and what went wrong meanwhile.
#[derive(Default)]
struct Search {
    found: Vec<Found>,
    faults: Vec<Fault>,
}

/// What becomes of a journal.
enum Fate {
    Removed,
    Left(String),
}

/// Shows what can be resumed. Gives the exit code.
pub(crate) fn status(args: &StatusArgs, quiet: bool, as_object: bool) -> u8 {
    let search = Search::run(&args.place.directories, args.place.recursive);
    if as_object {
        let journals: Vec<Value> = search.found.iter().map(as_json).collect();
        out_json(&search.object(&json!({ "journals": journals })));
    } else {
        for found in &search.found {
            out(row(found));
        }
    }
    if search.found.is_empty() && search.faults.is_empty() && !quiet && !as_object {
        tell(format_args!("Nothing was left behind here{}.", elsewhere(args.place.recursive)));
    }
    search.end()
}

/// Removes what was left behind. Gives the exit code.
pub(crate) fn clean(args: &CleanArgs, quiet: bool, as_object: bool) -> u8 {
    let mut search = Search::run(&args.place.directories, args.place.recursive);
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    for found in std::mem::take(&mut search.found) {
        match fate(&found, args) {
            Ok(Fate::Removed) => removed.push(found),
            Ok(Fate::Left(why)) => left.push((found, why)),
            Err(fault) => {
                // People read it among the errors.
                if as_object {
                    left.push((found, fault.message.clone()));
                }
                search.faults.push(fault);
            }
        }
    }
    if as_object {
        let removed: Vec<Value> = removed.iter().map(as_json).collect();
        let left: Vec<Value> =
            left.iter().map(|(found, why)| with(as_json(found), "why", json!(why))).collect();
        out_json(&search.object(&json!({ "dry_run": args.dry_run, "removed": removed, "left": left })));
        return search.end();
    }
    for found in &removed {
        out(line(found, args.dry_run));
    }
    for (found, why) in left.iter().filter(|_| !quiet) {
        tell(format_args!("left alone: {}: {why}", found.shown()));
    }
    if removed.is_empty() && left.is_empty() && search.faults.is_empty() && !quiet {
        tell(format_args!("There is nothing to remove{}.", elsewhere(args.place.recursive)));
    }
    search.end()
}

/// Where else to look, if nothing was found.
fn elsewhere(recursive: bool) -> &'static str {
    if recursive { "" } else { " (-r looks below)" }
}

fn fate(found: &Found, args: &CleanArgs) -> Result<Fate, Fault> {
    match &found.journal.state {
        JournalState::Running => return Ok(Fate::Left("its transfer is running".to_owned())),
        JournalState::NotOurs(why) => return Ok(Fate::Left(why.clone())),
        JournalState::LeftOver => {}
    }
    if let Some(limit) = args.older_than.filter(|&limit| found.age < limit) {
        return Ok(Fate::Left(format!("it is younger than {}", words::age(limit))));
    }
    if args.dry_run {
        return Ok(Fate::Removed);
    }
    match remove_journal(&found.directory, &found.journal) {
        Ok(true) => Ok(Fate::Removed),
        Ok(false) => Ok(Fate::Left("a transfer has taken it over meanwhile".to_owned())),
        Err(error) => Err(fault::io(format!("cannot remove what belongs to {}", found.shown()), &error)),
    }
}

impl Found {
    /// The journal's path for people.
    fn shown(&self) -> String {
        printable_bytes(self.directory.join(&self.journal.name).as_os_str().as_bytes())
    }
}

impl Search {
    /// Looks into these directories (none: this one), and below them.
    fn run(directories: &[PathBuf], recursive: bool) -> Self {
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

    fn object(&self, content: &Value) -> String {
        let error = self.faults.first().map(|fault| ErrorObject::from(fault.clone()));
        let object = with(content.clone(), "schema", json!(1));
        with(with(object, "ok", json!(self.faults.is_empty())), "error", json!(error)).to_string()
    }

    /// Says what went wrong and gives the exit code.
    fn end(&self) -> u8 {
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
fn with(mut object: Value, key: &str, value: Value) -> Value {
    object[key] = value;
    object
}
