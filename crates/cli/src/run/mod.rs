//! The commands that move data: what each does with the engine and the mover.

mod bench;
mod beside;
mod copy;
mod demo;
mod drive;
mod leftovers;
mod limits;
mod link;
mod memory;
mod outcome;
mod pipe;
mod plan;
mod policy;
mod serve;
mod server;
mod usage;
mod wire;

use haul_wire::control::{Manners, Preserve};

use crate::output::{EventLog, ProgressStyle, RunReport, json_value};
use crate::settings::Settings;
use crate::signals::Cancel;

pub(crate) use bench::{bench, plan_bench};
pub(crate) use copy::{cp, plan_cp};
pub(crate) use demo::demo;
pub(crate) use leftovers::{clean, status};
pub(crate) use pipe::pipe;
pub use plan::{CopyPlan, DryRun};
pub(crate) use serve::serve;

/// What every run is given besides its own options.
#[derive(Debug)]
pub struct Context {
    /// How data is carried.
    pub settings: Settings,
    /// The recipe parameters that somebody has set, by name; the others are the preset's.
    pub named: Vec<String>,
    /// What happens to what is at the destination of a copy.
    pub manners: Manners,
    /// What of files is preserved.
    pub preserve: Preserve,
    /// Whether to stop.
    pub cancel: Cancel,
    /// Where the trace goes.
    pub events: EventLog,
    /// How progress is shown.
    pub style: ProgressStyle,
    /// Whether words for people are unwanted.
    pub quiet: bool,
    /// Whether results are wanted as JSON.
    pub json: bool,
}

impl Context {
    /// A report that has failed, with the names of what was to be used.
    fn failed(&self, fault: crate::fault::Fault) -> RunReport {
        self.report(RunReport::failed(fault))
    }

    /// Fills in the names of what was used.
    fn report(&self, report: RunReport) -> RunReport {
        let Settings { preset, controller, .. } = &self.settings;
        RunReport { preset: preset.clone(), controller: (*controller).to_owned(), ..report }
    }

    /// Closes the trace of a run.
    fn trace_end(&self, report: &RunReport) {
        self.events.write("end", json_value(report));
    }

    /// Says something to people, unless they do not want it.
    fn say(&self, words: &str) {
        if !self.quiet {
            eprintln!("{words}");
        }
    }
}
