//! Writes the signatures of real runs to files by cause of loss: training data for `haul train`.

use std::fs;
use std::io;
use std::path::Path;

use haul_diagnosis::write_signature;

use super::results::{Cell, Results};
use crate::sim::RunReport;

/// Prefixes of file names: nearly all losses of a window were in the receiving host, in a queue, or neither.
const CAUSES: [(&str, Option<bool>); 3] = [("host", Some(true)), ("network", Some(false)), ("other", None)];

/// Writes the kept windows of each real run to `CAUSE-VALUES-SEED.sig` in this directory, created if needed.
///
/// # Errors
/// If a file cannot be written.
pub(super) fn write_signatures(results: &Results, to: &Path) -> io::Result<()> {
    for cell in &results.cells {
        for run in &cell.runs {
            for (cause, by_host) in CAUSES {
                let Some(text) = text(cell, run, by_host) else { continue };
                fs::create_dir_all(to)?;
                fs::write(to.join(format!("{cause}-{}-{}.sig", file_name(&cell.name()), run.seed)), text)?;
            }
        }
    }
    Ok(())
}

/// Returns the windows of a run with this cause as text.
fn text(cell: &Cell, run: &RunReport, by_host: Option<bool>) -> Option<String> {
    let of_cause = run.windows().filter(|window| window.labels.is_some() && window.by_host == by_host);
    let windows: String = of_cause.map(|window| write_signature(&window.signature)).collect();
    (!windows.is_empty()).then(|| format!("# {}, seed {}\n{windows}", cell.name(), run.seed))
}

/// Joins the words of a name with hyphens.
fn file_name(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_contain_only_words() {
        assert_eq!(
            file_name("host, suspended 10 of 100 ms: RTT 0.5 %"),
            "host-suspended-10-of-100-ms-rtt-0-5"
        );
    }
}
