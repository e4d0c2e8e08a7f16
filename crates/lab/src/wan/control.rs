//! The control socket: one command per line, one line of JSON per answer.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use haul_sim::StageChange;
use haul_wan::PathDirection;
use serde_json::{Value, json};

use super::change::Change;
use crate::problem::Problem;

/// A request to the running path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command {
    /// A change as on the command line.
    Set(Change),
    /// A change of one stage, as in path files.
    Stage(PathDirection, String, StageChange),
    /// Print the counters.
    Counters,
    /// End the emulator.
    Stop,
}

/// A command and the channel for its answer.
pub(crate) struct Question {
    /// Command.
    pub command: Command,
    /// Channel for the answer.
    pub answer: Sender<Value>,
}

/// An open control socket; its file is removed when dropped.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
}

/// Maximum length of a command line.
const MAX_LINE: u64 = 64 << 10;

impl Control {
    /// Listens at `path` and passes each question to `forward`, which returns whether it will be answered.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub(crate) fn open(
        path: &Path,
        forward: impl Fn(Question) -> bool + Clone + Send + 'static,
    ) -> Result<Self, Problem> {
        let refused = |error: &io::Error| {
            let hint = if error.kind() == io::ErrorKind::AlreadyExists {
                "the file exists already; remove it if no emulator uses it"
            } else {
                "choose a short path in a directory that exists; the longest has about 90 bytes"
            };
            Problem::usage(format!("cannot listen at {}: {error}", path.display()), hint)
        };
        let listener = listen_at(path).map_err(|e| refused(&e))?;
        let control = Self { path: path.to_owned() };
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let forward = forward.clone();
                let serve = move || serve(&stream, &forward);
                // Without a thread, this connection is not answered.
                let _ = std::thread::Builder::new().name("control".to_owned()).spawn(serve);
            }
        };
        let started = std::thread::Builder::new().name("control".to_owned()).spawn(accept);
        started.map_err(|e| refused(&e))?;
        Ok(control)
    }
}

/// Creates a listening socket. A bound socket that does not listen yet refuses connections, so it gets its
/// name only when it listens.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let listening = tempfile::Builder::new().make_in(directory, |made| UnixListener::bind(made))?;
    Ok(listening.persist_noclobber(path)?)
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Answers one connection until it ends.
fn serve(stream: &UnixStream, forward: &impl Fn(Question) -> bool) {
    let mut lines = BufReader::new(io::Read::take(stream, MAX_LINE));
    let mut writer = stream;
    let mut line = String::new();
    while matches!(lines.read_line(&mut line), Ok(len) if len > 0) {
        let answer = match parse(line.trim()) {
            Ok(command) => handle(command, forward),
            Err(error) => json!({ "error": error }),
        };
        if writeln!(writer, "{answer}").is_err() {
            return;
        }
        line.clear();
        lines.get_mut().set_limit(MAX_LINE);
    }
}

fn handle(command: Command, forward: &impl Fn(Question) -> bool) -> Value {
    let (answer, answered) = channel();
    let over = || json!({ "error": "the path has ended" });
    if !forward(Question { command, answer }) {
        return over();
    }
    answered.recv().unwrap_or_else(|_| over())
}

const COMMANDS: &str = "set KEY=VALUE, stage forth|back NAME {CHANGE}, counters, or stop";

fn parse(line: &str) -> Result<Command, String> {
    let (verb, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match (verb, rest.trim()) {
        ("counters", "") => Ok(Command::Counters),
        ("stop", "") => Ok(Command::Stop),
        ("set", change) => change.parse().map(Command::Set),
        ("stage", rest) => stage(rest),
        _ => Err(format!("`{line}` is no command; write {COMMANDS}")),
    }
}

fn stage(rest: &str) -> Result<Command, String> {
    let mut words = rest.splitn(3, char::is_whitespace);
    let (Some(way), Some(name), Some(change)) = (words.next(), words.next(), words.next()) else {
        return Err("write for example: stage forth bottleneck {\"rate\": \"20Mbit\"}".to_owned());
    };
    let way = match way {
        "forth" => PathDirection::Forth,
        "back" => PathDirection::Back,
        _ => return Err(format!("`{way}` is no direction; write forth or back")),
    };
    let change = serde_json::from_str(change).map_err(|e| format!("no change of a stage: {e}"))?;
    Ok(Command::Stage(way, name.to_owned(), change))
}

#[cfg(test)]
mod tests {
    use haul_base::Rate;

    use super::*;

    #[test]
    fn the_socket_accepts_connections_once_it_is_visible() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..300 {
            let path = place.path().join(number.to_string());
            let client = {
                let path = path.clone();
                std::thread::spawn(move || {
                    loop {
                        match UnixStream::connect(&path) {
                            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                            other => return other.map(drop),
                        }
                    }
                })
            };
            let _control = Control::open(&path, |_| false).unwrap();
            client.join().unwrap().unwrap();
        }
    }

    #[test]
    fn commands_are_parsed() {
        assert_eq!(parse("counters"), Ok(Command::Counters));
        assert_eq!(parse("stop"), Ok(Command::Stop));
        assert!(matches!(parse("set loss=1%"), Ok(Command::Set(_))));
        let rate = StageChange::Rate(Rate::from_mbps(20));
        let expected = Command::Stage(PathDirection::Back, "bottleneck".to_owned(), rate);
        assert_eq!(parse("stage back bottleneck {\"rate\": \"20Mbit\"}"), Ok(expected));
    }

    #[test]
    fn invalid_commands_are_answered_with_the_valid_ones() {
        assert!(parse("sett loss=1%").unwrap_err().contains("counters"));
        assert!(parse("set colour=red").unwrap_err().contains("burst-loss"));
        assert!(parse("stage up loss {}").unwrap_err().contains("forth"));
        assert!(parse("stage forth loss {").is_err());
    }
}
