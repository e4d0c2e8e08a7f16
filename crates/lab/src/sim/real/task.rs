//! Task of the ends of a real run, and the files that they share in its directory.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Task file in the directory of a run.
pub(super) const TASK: &str = "task.json";
/// Trace of the client.
pub(super) const EVENTS: &str = "events.jsonl";
/// The emulator's control socket.
pub(super) const CONTROL: &str = "control";

/// Task of both ends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) haul: PathBuf,
    /// Arguments of the client, without its files.
    pub(super) client: Vec<String>,
    /// Application, if the task is a copy from or to one.
    pub(super) application: Option<Application>,
    pub(super) changes: Vec<Change>,
    pub(super) suspension: Option<Suspension>,
    /// Control groups of the ends: the file to which each writes its PID.
    pub(super) client_group: Option<PathBuf>,
    pub(super) server_group: Option<PathBuf>,
}

/// A slow application at the client's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Application {
    /// Writes to the copy's stdin.
    Writes { bytes: u64, bps: u64 },
    /// Reads from the copy's stdout.
    Reads { bytes: u64, bps: u64 },
}

/// A change of the path, as a line for the emulator's control socket.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Change {
    /// Time since the start of the session, milliseconds.
    pub(super) at_ms: u64,
    pub(super) line: String,
}

/// The server is stopped for `stop_ms` per `every_ms`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Suspension {
    pub(super) every_ms: u64,
    pub(super) stop_ms: u64,
}
