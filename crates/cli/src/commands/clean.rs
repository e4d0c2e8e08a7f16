//! `haul clean`: removes what transfers that were interrupted have left.

use haul_mover::{JournalState, remove_journal};
use serde_json::{Value, json};

use super::leftovers::{Found, Search, age, as_json, elsewhere, line, with};
use crate::args::CleanArgs;
use crate::fault::{self, Fault};
use crate::output::{out, out_json, tell};

/// What becomes of a journal.
enum Fate {
    Removed,
    Left(String),
}

/// Removes what was left behind. Gives the exit code.
pub(crate) fn run(args: &CleanArgs, quiet: bool, as_object: bool) -> u8 {
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

fn fate(found: &Found, args: &CleanArgs) -> Result<Fate, Fault> {
    match &found.journal.state {
        JournalState::Running => return Ok(Fate::Left("its transfer is running".to_owned())),
        JournalState::NotOurs(why) => return Ok(Fate::Left(why.clone())),
        JournalState::LeftOver => {}
    }
    if let Some(limit) = args.older_than.filter(|&limit| found.age < limit) {
        return Ok(Fate::Left(format!("it is younger than {}", age(limit))));
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
