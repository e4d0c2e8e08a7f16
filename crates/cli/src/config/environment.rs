//! Option values in environment variables `HAUL_<OPTION>`.

use super::options::{self, Kind, OptionSpec};
use super::{Layer, Origin, Setting, Sources};
use crate::endpoint::VARIABLE;
use crate::fault::{self, Fault};
use haul_base::suggestion;

/// What `haul-lab wan` tells its command begins so.
const OF_THE_LAB: &str = "HAUL_WAN_";
/// Variables that are no options.
const OTHERS: [&str; 6] =
    [VARIABLE, "HAUL_LOG", "HAUL_CONFIG", "HAUL_FAULTS", "HAUL_DISK_RATE", "HAUL_DISK_FOLDS"];

/// What the environment says about `options`. Remarks on names that nothing knows go to `notes`.
pub(super) fn layer(
    options: &[OptionSpec],
    sources: &Sources,
    notes: &mut Vec<String>,
) -> Result<Layer, Fault> {
    let mut layer = Layer::default();
    for option in options {
        let name = options::variable(&option.long);
        let Some(value) = sources.variable(&name)? else { continue };
        let origin = Origin::Environment(name);
        if option.kind == Kind::Set {
            layer.set = assignments(&origin, &value)?;
        } else {
            layer.values.insert(option.long.clone(), (origin, value));
        }
    }
    note_strangers(sources, notes);
    Ok(layer)
}

fn assignments(origin: &Origin, text: &str) -> Result<Vec<Setting>, Fault> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    words
        .map(|word| match word.parse() {
            Ok(assignment) => Ok(Setting { origin: origin.clone(), assignment }),
            Err(problem) => Err(fault::usage(
                format!("{origin}: `{word}`: {problem}"),
                "separate several by spaces: HAUL_SET=\"chunk=64MB offload=off\"",
            )),
        })
        .collect()
}

fn note_strangers(sources: &Sources, notes: &mut Vec<String>) {
    let known: Vec<String> =
        OptionSpec::of_all_commands().iter().map(|option| options::variable(&option.long)).collect();
    let is_other = |name: &String| OTHERS.contains(&name.as_str()) || name.starts_with(OF_THE_LAB);
    for name in sources.names_with_prefix("HAUL_") {
        if !known.contains(&name) && !is_other(&name) {
            let near = suggestion(&name, known.iter().map(String::as_str));
            notes.push(format!("nothing reads the environment variable {name}{near}"));
        }
    }
}
