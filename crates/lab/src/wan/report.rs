//! Results of a run, as JSON and as text.

use std::fmt::Write;

use haul_wan::{Offloads, Snapshot};
use serde::Serialize;

use super::plan::Plan;
use crate::load::{FlowReport, LoadEvent};

/// Results of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Version of this format.
    pub schema: u32,
    /// Seed of all random decisions.
    pub seed: u64,
    /// Seconds since the path was started.
    pub seconds: f64,
    /// The path as configured at the start.
    pub path: Plan,
    /// Kinds of super-packets that the kernel passes whole.
    pub offloads: Offloads,
    /// From A to B.
    pub forth: DirectionReport,
    /// From B to A.
    pub back: DirectionReport,
    /// Busy periods of the load generator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<LoadEvent>,
    /// Cross traffic flows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<FlowReport>,
    /// Changes made during the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<AppliedChange>,
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct AppliedChange {
    /// Time in seconds since the start.
    pub at: f64,
    /// The change as requested.
    pub change: String,
}

/// Results of one direction.
#[derive(Debug, Serialize)]
pub(crate) struct DirectionReport {
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Whether `sent + copies = received + drops + inside`.
    pub adds_up: bool,
    /// Super-packets or packets that the kernel dropped before the emulator read them, because its queue was
    /// full. Not included in `sent`.
    pub overrun_buffers: u64,
}

impl DirectionReport {
    /// Creates the results of one direction; `overrun_buffers` is the kernel's count of drops.
    pub(crate) fn new(snapshot: Snapshot, overrun_buffers: u64) -> Self {
        Self { adds_up: snapshot.adds_up(), snapshot, overrun_buffers }
    }

    fn words(&self) -> String {
        let Snapshot { sent, received, inside, copies, drops, marked, damaged, .. } = &self.snapshot;
        let mut words = format!("{} packets sent, {} received", sent.packets, received.packets);
        for (count, what) in
            [(copies, "copies"), (inside, "under way"), (marked, "marked"), (damaged, "damaged")]
        {
            if *count > 0 {
                let _ = write!(words, ", {count} {what}");
            }
        }
        for (reason, count) in drops.iter() {
            let _ = write!(words, ", {count} lost ({})", reason.name());
        }
        if self.overrun_buffers > 0 {
            let _ = write!(words, "; the emulator was too late for {} more buffers", self.overrun_buffers);
        }
        if !self.adds_up {
            words.push_str("; THE COUNTS DO NOT ADD UP");
        }
        words
    }
}

impl Report {
    /// Returns a two-line summary.
    pub(crate) fn words(&self) -> String {
        format!("A to B: {}\nB to A: {}", self.forth.words(), self.back.words())
    }
}
