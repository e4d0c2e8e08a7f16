//! The control socket of a running copy or pipe, for `haul ctl`. Request and reply are a line of JSON each.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use haul_proto::{ControllerError, LawChange, Part};
use haulage::{LawRequestError, LawRequests};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fault::{self, Fault};

/// Timeout for a client to send its request and to accept the reply.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum length of a request or reply, bytes.
pub(crate) const MAX_LINE: u64 = 1 << 20;
/// Name prefix of sockets that do not listen yet.
const UNNAMED: &str = ".";
const MAX_SOCKETS: u32 = 1_000;

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    Sends,
    Receives,
}

/// A transfer whose control law can be changed: by its sender, or by a request to the sender.
pub(crate) trait Controlled {
    /// Returns the present `rate_control` of the sender's recipe, if it has one.
    fn law(&self) -> Option<Part>;

    /// Changes it. After an error it is unchanged.
    fn change(&mut self, change: &LawChange) -> Result<(), Fault>;

    /// Returns the counters, as in a trace.
    fn data(&self) -> Option<Value> {
        None
    }
}

impl Controlled for LawRequests {
    fn law(&self) -> Option<Part> {
        self.law().cloned()
    }

    fn change(&mut self, change: &LawChange) -> Result<(), Fault> {
        self.request(change).map_err(|error| match error {
            LawRequestError::Law(error) => unknown(error),
            LawRequestError::TooLong => fault::usage(error.to_string(), "change fewer parameters at a time"),
            error => fault::usage(error.to_string(), "try again"),
        })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn unknown(error: ControllerError) -> Fault {
    fault::usage(error.to_string(), "`haul presets` lists the controllers and their parameters")
}

/// A Unix socket that only its owner can open.
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    side: Side,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

/// Opens a socket that gets its name when it listens: `haul ctl` removes named sockets that do not listen, as
/// their processes are dead.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let directory = path.parent().ok_or(NotFound)?;
    let listening =
        tempfile::Builder::new().prefix(UNNAMED).make_in(directory, |made| UnixListener::bind(made))?;
    fs::set_permissions(&listening, fs::Permissions::from_mode(0o600))?;
    listening.as_file().set_nonblocking(true)?;
    Ok(listening.persist_noclobber(path)?)
}

impl ControlSocket {
    /// Returns `None` if it cannot be opened: the copy runs without it.
    pub(crate) fn open(side: Side) -> Option<Self> {
        let bind = || made_directory().and_then(|directory| Self::bind(&directory));
        // Another process may have removed the empty directory in between.
        let bound = bind().or_else(|error| if error.kind() == NotFound { bind() } else { Err(error) });
        let opened = bound.map(|(listener, path)| Self { listener, path, side });
        opened.inspect_err(|error| tracing::debug!(%error, "`haul ctl` cannot reach this copy")).ok()
    }

    fn bind(directory: &Path) -> io::Result<(UnixListener, PathBuf)> {
        let pid = process::id();
        for number in 1..=MAX_SOCKETS {
            let name = if number == 1 { pid.to_string() } else { format!("{pid}.{number}") };
            let path = directory.join(name);
            let listener = match listen_at(&path) {
                // It belongs to another copy of this process, or to a dead process with the same ID.
                Err(error) if error.kind() == AlreadyExists => match UnixStream::connect(&path) {
                    Ok(_) => continue,
                    Err(_) => fs::remove_file(&path).and_then(|()| listen_at(&path))?,
                },
                other => other?,
            };
            return Ok((listener, path));
        }
        Err(AlreadyExists.into())
    }

    pub(crate) fn answer(&self, controlled: &mut impl Controlled, moved: u64) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let request = read(&stream).map_err(|error| fault::io("cannot read the request", &error));
            let reply = request.and_then(|changes| self.reply(&changes, controlled, moved));
            let error =
                |Fault { message, hint, .. }| json!({ "error": { "message": message, "hint": hint } });
            let reply = reply.unwrap_or_else(error);
            // The client may have disconnected.
            let _ = stream.write_all(format!("{reply}\n").as_bytes());
        }
    }

    fn reply(
        &self,
        changes: &[(String, String)],
        controlled: &mut impl Controlled,
        moved: u64,
    ) -> Result<Value, Fault> {
        if !changes.is_empty() {
            let Some(law) = controlled.law() else {
                let hint = "give --controller or another preset next time";
                return Err(fault::usage("its recipe has no rate_control", hint));
            };
            controlled.change(&LawChange::parse(&law, changes).map_err(unknown)?)?;
            tracing::info!(?changes, "the control law was changed");
        }
        let law = controlled.law().map(|part| part.texts().into_iter().collect::<Value>());
        Ok(json!({ "side": self.side, "rate_control": law, "bytes": moved, "data": controlled.data() }))
    }
}

/// Reads the parameters of `rate_control` to change, possibly none, and their new values.
fn read(stream: &UnixStream) -> io::Result<Vec<(String, String)>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(stream.take(MAX_LINE)));
    Ok(Vec::deserialize(&mut json)?)
}

/// Ignores a relative path, as the XDG base directory specification requires: `haul ctl` may run elsewhere.
fn directory_by(runtime: Option<PathBuf>) -> PathBuf {
    match runtime.filter(|path| path.is_absolute()) {
        Some(path) => path.join("haul"),
        None => std::env::temp_dir().join(format!("haul-{}", geteuid().as_raw())),
    }
}

fn made_directory() -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(directory()?) {
        Err(error) if error.kind() != AlreadyExists => Err(error),
        _ => directory(),
    }
}

/// Returns the directory of the user's control sockets, which must be accessible only by the user if it exists.
pub(crate) fn directory() -> io::Result<PathBuf> {
    let path = directory_by(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    let Ok(found) = fs::symlink_metadata(&path) else { return Ok(path) };
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
        let words = format!("{} is not a directory accessible only by you", path.display());
        return Err(io::Error::other(words));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visible_socket_accepts_connections() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(process::id().to_string());
        for _ in 0..300 {
            let waiting = path.clone();
            let client = std::thread::spawn(move || {
                loop {
                    match UnixStream::connect(&waiting) {
                        Err(error) if error.kind() == NotFound => {}
                        other => return other.map(drop),
                    }
                }
            });
            let _listener = listen_at(&path).unwrap();
            client.join().unwrap().unwrap();
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn the_directory_does_not_depend_on_the_current_directory() {
        for (runtime, is_taken) in [("/run/user/7", true), ("run", false), ("", false)] {
            let directory = directory_by(Some(PathBuf::from(runtime)));
            assert!(directory.is_absolute(), "{runtime}");
            assert_eq!(directory == Path::new(runtime).join("haul"), is_taken, "{runtime}");
        }
    }

    #[test]
    fn sockets_of_one_process_have_unique_names_and_stale_ones_are_reused() {
        let place = tempfile::tempdir().unwrap();
        let pid = process::id().to_string();
        drop(UnixListener::bind(place.path().join(&pid)).unwrap());
        let opened = [(); 2].map(|()| ControlSocket::bind(place.path()).unwrap());
        let names = opened.each_ref().map(|(_, path)| path.file_name().unwrap().to_str().unwrap());
        assert_eq!(names, [pid.as_str(), &format!("{pid}.2")]);
    }
}
