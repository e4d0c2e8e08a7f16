//! `haul clean`: removes what interrupted transfers have left behind.

use haul_mover::{JournalState, remove_journal};
use serde_json::{Value, json};

use super::leftovers::{Found, Search, age, as_json};
use crate::args::CleanArgs;
use crate::fault::{self, Fault};
use crate::output::{count, eprint_lines, out, out_fields};

pub(crate) fn run(args: &CleanArgs, quiet: bool, as_object: bool) -> u8 {
    let mut search = Search::run(&args.place);
    let (mut removed, mut skipped) = (Vec::new(), Vec::new());
    for found in std::mem::take(&mut search.found) {
        match remove(&found, args) {
            Ok(None) => removed.push(found),
            Ok(Some(reason)) => skipped.push((found, reason)),
            Err(fault) => {
                // Otherwise it is shown among the errors.
                if as_object {
                    skipped.push((found, fault.message.clone()));
                }
                search.faults.push(fault);
            }
        }
    }
    if as_object {
        let removed: Vec<Value> = removed.iter().map(as_json).collect();
        let mut objects: Vec<Value> = skipped.iter().map(|(found, _)| as_json(found)).collect();
        objects.iter_mut().zip(&skipped).for_each(|(object, (_, reason))| object["why"] = json!(reason));
        let fields = json!({ "dry_run": args.dry_run, "removed": removed, "left": objects });
        out_fields(fields, search.faults.first());
        return search.end(None, &args.place);
    }
    let verb = if args.dry_run { "would remove" } else { "removed" };
    for found in &removed {
        let parts = count(found.journal.parts, "temporary file");
        out(format!("{verb} {} with {parts} of {}", found.shown(), found.journal.occupied));
    }
    for (found, reason) in skipped.iter().filter(|_| !quiet) {
        eprint_lines(format_args!("left alone: {}: {reason}", found.shown()));
    }
    let reports_none = removed.is_empty() && skipped.is_empty() && !quiet;
    search.end(reports_none.then_some("Nothing to remove"), &args.place)
}

/// Removes a journal and its files (unless it is a dry run), or returns why it stays.
fn remove(found: &Found, args: &CleanArgs) -> Result<Option<String>, Fault> {
    match &found.journal.state {
        JournalState::Running => return Ok(Some("its transfer is running".to_owned())),
        JournalState::NotOurs(reason) => return Ok(Some(reason.clone())),
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
