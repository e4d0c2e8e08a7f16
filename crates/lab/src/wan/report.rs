//! The truth about a run, as JSON and in words.

use std::fmt::Write;

use haul_wan::{Offloads, Snapshot};
use serde::Serialize;

use super::plan::Plan;
use crate::load::{FlowReport, LoadEvent};

/// Everything that is known about a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Version of this form.
    pub schema: u32,
    /// Seed of every random decision.
    pub seed: u64,
    /// Seconds since the path was there.
    pub seconds: f64,
    /// The path as it was at the start.
    pub path: Plan,
    /// Which super-packets the kernel hands over whole.
    pub offloads: Offloads,
    /// From A to B.
    pub forth: DirectionReport,
    /// From B to A.
    pub back: DirectionReport,
    /// Spells of the load generator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<LoadEvent>,
    /// Background flows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<FlowReport>,
    /// What was changed while it ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<AppliedChange>,
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct AppliedChange {
    /// When, in seconds from the start.
    pub at: f64,
    /// What, as it was asked for.
    pub change: String,
}

/// One direction.
#[derive(Debug, Serialize)]
pub(crate) struct DirectionReport {
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Whether `sent + copies = received + drops + inside`.
    pub adds_up: bool,
    /// Super-packets or packets that never came to the emulator: the kernel had no room for them. They are not in
    /// `sent`.
    pub overrun_buffers: u64,
}

impl DirectionReport {
    /// Of one direction, with the kernel's count of what the emulator came too late for.
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
            let _ = write!(words, "; the emulator came too late for {} more buffers", self.overrun_buffers);
        }
        if !self.adds_up {
            words.push_str("; THE COUNTS DO NOT ADD UP");
        }
        words
    }
}

impl Report {
    /// Two lines for people.
    pub(crate) fn words(&self) -> String {
        format!("A to B: {}\nB to A: {}", self.forth.words(), self.back.words())
    }
}
