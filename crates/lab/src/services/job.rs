//! Jobs and results of the two ends, exchanged as JSON files.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::problem::{Problem, While};

/// Transport of the messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Carrier {
    /// A preset recipe.
    Recipe(String),
    /// The kernel's TCP with `TCP_NODELAY`.
    Tcp,
    /// TCP with linear timeouts for thin streams.
    TcpThin,
    /// Plain datagrams; for small messages only.
    Udp,
    /// UDT, by the program at this path; for streams only.
    Udt(PathBuf),
}

impl Carrier {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Recipe(name) => name.clone(),
            Self::Tcp => "TCP".to_owned(),
            Self::TcpThin => "TCP, thin".to_owned(),
            Self::Udp => "UDP".to_owned(),
            Self::Udt(_) => "UDT".to_owned(),
        }
    }
}

/// A stream of messages from A to B.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Stream {
    pub(super) carrier: Carrier,
    /// Bits of messages per second; without it, TCP sends as fast as it can.
    pub(super) rate_bps: Option<u64>,
    pub(super) millis: u64,
    pub(super) message: usize,
    /// Time in milliseconds after which the receiver requests another rate, and that rate.
    pub(super) change: Option<(u64, u64)>,
    /// Selects the TCP port or flow number, so that several streams can run at once.
    pub(super) lane: u16,
}

/// A job for both ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Job {
    /// Concurrent streams.
    Streams(Vec<Stream>),
    /// Small messages, each sent after the previous one was answered.
    Turnaround { carrier: Carrier, messages: usize, busy_poll_us: Option<u64> },
    /// Sensor readings in one direction.
    Readings { carrier: Carrier, readings: usize, gap_us: u64, constant: bool },
}

/// Measurements of a stream's receiver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct StreamResult {
    pub(super) bytes: u64,
    pub(super) goodput_bps: f64,
    /// 99 % quantile of the deviation of message intervals from the ideal interval, microseconds.
    pub(super) jitter_p99_us: f64,
    /// Time from the request for another rate until it is reached, milliseconds.
    pub(super) settled_ms: Option<f64>,
    /// Goodput after the change.
    pub(super) later_goodput_bps: Option<f64>,
}

/// Turn-around times, microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Turns {
    pub(super) times_us: Vec<f64>,
    /// CPU time of A per turn.
    pub(super) processor_us: f64,
    pub(super) unanswered: usize,
}

const JOB: &str = "job.json";

impl Job {
    pub(super) fn save(&self, directory: &Path) -> Result<(), Problem> {
        save(directory, JOB, self)
    }

    pub(super) fn load(directory: &Path) -> Result<Self, Problem> {
        load(directory, JOB)
    }
}

/// Writes a file atomically.
pub(super) fn save<T: Serialize>(directory: &Path, name: &str, value: &T) -> Result<(), Problem> {
    let (path, part) = (directory.join(name), directory.join(format!("{name}.part")));
    let text =
        serde_json::to_vec(value).map_err(|e| Problem::failed(format!("cannot write {name}: {e}"), ""))?;
    fs::write(&part, text).while_doing(&format!("cannot write {}", part.display()))?;
    fs::rename(&part, &path).while_doing(&format!("cannot rename {}", part.display()))
}

pub(super) fn load<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<T, Problem> {
    let path = directory.join(name);
    let text = fs::read(&path).while_doing(&format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text)
        .map_err(|e| Problem::failed(format!("{} is no result: {e}", path.display()), "one end failed"))
}
