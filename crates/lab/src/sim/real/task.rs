//! What the ends of a real run are to do, and the files of its directory that they share.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the task is, in the directory of a run.
pub(super) const TASK: &str = "task.json";
/// The trace of the client.
pub(super) const EVENTS: &str = "events.jsonl";
/// The emulator's control socket.
pub(super) const CONTROL: &str = "control";

/// What the ends do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) haul: PathBuf,
    /// Arguments of the client, without its files.
    pub(super) client: Vec<String>,
    /// If it is a copy from or to one.
    pub(super) application: Option<Application>,
    pub(super) changes: Vec<Change>,
    pub(super) suspension: Option<Suspension>,
    /// The control groups of the ends: the file to which each writes its number.
    pub(super) client_group: Option<PathBuf>,
    pub(super) server_group: Option<PathBuf>,
}

/// What stands at the client's end, and is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Application {
    /// Into the copy's stdin.
    Writes { bytes: u64, bps: u64 },
    /// From the copy's stdout.
    Reads { bytes: u64, bps: u64 },
}

/// A change of the path, as a line for the emulator's control socket.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Change {
    /// From the start of the session.
    pub(super) at_ms: u64,
    pub(super) line: String,
}

/// The server is stopped for `stop_ms` of each `every_ms`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Suspension {
    pub(super) every_ms: u64,
    pub(super) stop_ms: u64,
}
