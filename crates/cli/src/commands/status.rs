//! `haul status`: shows what transfers that were interrupted have left and what can be resumed.

use serde_json::{Value, json};

use super::leftovers::{Search, as_json, elsewhere, row};
use crate::args::StatusArgs;
use crate::output::{out, out_json, tell};

/// Shows what can be resumed. Gives the exit code.
pub(crate) fn run(args: &StatusArgs, quiet: bool, as_object: bool) -> u8 {
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
