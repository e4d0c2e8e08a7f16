//! The end of a running copy that can be spoken to: one line of JSON asks, one answers.

use std::fs;
use std::io::ErrorKind::NotFound;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use haul_engine::{Role, Transfer, law_in_force};
use haul_proto::{ChosenLaw, Part};

use haul_wire::control::{Fault, Settings};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::place;
use crate::fault;
use crate::run::drive::{Watch, counters_json};

/// Whoever has connected writes at once; a copy does not wait for one who does not.
const PATIENCE: Duration = Duration::from_millis(200);
/// No request is longer.
const LONGEST: u64 = 64 << 10;
/// Copies of one process that can be spoken to.
const MOST: u32 = 1_000;

/// What is asked.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    /// Parameters of `rate_control` and their new values.
    #[serde(default)]
    pub(super) set: Vec<(String, String)>,
}

/// What this side does, as far as it can be changed.
pub(in crate::run) enum Side {
    /// It sends, by this law; `None` if its recipe has no law of its own to be changed.
    Sends(Option<Part>),
    Receives,
}

impl Side {
    pub(in crate::run) fn of_sender(settings: &Settings) -> Self {
        Self::Sends(law_in_force(settings))
    }
}

/// A socket that only its owner can open, for as long as the copy runs.
pub(in crate::run) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    side: Side,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Whoever looks for copies removes what cannot be removed here. The directory goes with the last copy.
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

impl ControlSocket {
    /// Opens one for the client's side of a session; a server's peers are no business of who looks here. A copy runs
    /// without it where none can be had.
    pub(in crate::run) fn open(watch: &Watch<'_>, side: Side) -> Option<Self> {
        if watch.role != Role::Client {
            return None;
        }
        let bind = || place::made().and_then(|directory| Self::bind(&directory));
        // The last copy of another process may just have taken the directory with it.
        let bound = bind().or_else(|error| if error.kind() == NotFound { bind() } else { Err(error) });
        let opened = bound.map(|(listener, path)| Self { listener, path, side });
        opened.inspect_err(|error| tracing::debug!(%error, "`haul ctl` cannot reach this copy")).ok()
    }

    fn bind(directory: &Path) -> io::Result<(UnixListener, PathBuf)> {
        let pid = process::id();
        for number in 1..=MOST {
            let name = if number == 1 { pid.to_string() } else { format!("{pid}.{number}") };
            let path = directory.join(name);
            let listener = match UnixListener::bind(&path) {
                // Another copy of this process, or what a process of the same number has left.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => match UnixStream::connect(&path) {
                    Ok(_) => continue,
                    Err(_) => fs::remove_file(&path).and_then(|()| UnixListener::bind(&path))?,
                },
                other => other?,
            };
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            return Ok((listener, path));
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// Answers who has asked since the last look.
    pub(in crate::run) fn answer(&mut self, transfer: &Transfer, moved: u64) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let answer = match read(&stream) {
                Ok(ask) => self.answer_to(&ask, transfer, moved),
                Err(error) => told_fault(&fault::io("cannot read what is asked", &error)),
            };
            // Who does not wait for the answer does not get it.
            let _ = stream.write_all(format!("{answer}\n").as_bytes());
        }
    }

    fn answer_to(&mut self, ask: &Ask, transfer: &Transfer, moved: u64) -> Value {
        if !ask.set.is_empty()
            && let Err(fault) = self.change(&ask.set, transfer)
        {
            return told_fault(&fault);
        }
        let (side, law) = match &self.side {
            Side::Sends(law) => ("sends", law.as_ref()),
            Side::Receives => ("receives", None),
        };
        let law = law.map(|part| part.parameters.iter().cloned().collect::<Value>());
        let data = transfer.counters().map(|counters| counters_json(&counters));
        json!({ "side": side, "rate_control": law, "bytes": moved, "data": data })
    }

    fn change(&mut self, changes: &[(String, String)], transfer: &Transfer) -> Result<(), Fault> {
        let part = match &mut self.side {
            Side::Sends(Some(part)) => part,
            Side::Sends(None) => {
                return Err(fault::usage(
                    "its recipe has no rate_control",
                    "choose another preset next time",
                ));
            }
            Side::Receives => {
                return Err(fault::usage(
                    "this side receives, and the sender's law decides",
                    "run it on the machine that sends",
                ));
            }
        };
        let changed = ChosenLaw::changed(part, changes);
        let law = ChosenLaw::check(&changed).map_err(|error| {
            fault::usage(error.to_string(), "`haul presets` lists the controllers and what they take")
        })?;
        transfer.switch_law(law);
        tracing::info!(changes = ?changes, "the control law was changed");
        *part = changed;
        Ok(())
    }
}

fn read(stream: &UnixStream) -> io::Result<Ask> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

fn told_fault(fault: &Fault) -> Value {
    json!({ "error": { "message": fault.message, "hint": fault.hint } })
}
