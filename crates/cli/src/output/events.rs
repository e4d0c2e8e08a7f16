//! The trace of a run: one JSON object per line, each with `t`, the seconds since the start, and `event`.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::escape_controls;
use super::lines::write_stdout;
use crate::fault::{self, Fault};
use crate::standard_streams::check_stdout;

const TRACE: &[u8] = b"{\"";

#[derive(Clone)]
pub(crate) struct EventLog {
    started: Instant,
    /// `None` discards events.
    file: Option<Arc<Mutex<Sink>>>,
    /// Source machine of the events, if several machines send.
    machine: Option<String>,
}

type WriteLine = Box<dyn FnMut(&[u8]) -> io::Result<()> + Send>;

struct Sink {
    name: String,
    write: WriteLine,
    /// First write error; nothing is written after it.
    broken: Option<io::Error>,
}

impl EventLog {
    pub(crate) fn none() -> Self {
        Self { started: Instant::now(), file: None, machine: None }
    }

    /// Opens the log of `--events`; `-` is stdout, unless that is used for something else.
    pub(crate) fn open(path: Option<&Path>, use_of_stdout: Option<&str>) -> Result<Self, Fault> {
        let Some(path) = path else { return Ok(Self::none()) };
        if path.as_os_str() != "-" {
            return Self::create(path);
        }
        if let Some(other) = use_of_stdout {
            let message = format!("{other} and --events - both mean stdout");
            return Err(fault::usage(message, "leave one of them out, or name a file for the events"));
        }
        check_stdout()?;
        Ok(Self::to(Box::new(|line| write_stdout(line).map(drop)), "stdout".to_owned()))
    }

    /// Creates a trace, which may replace another one. Events are not buffered.
    fn create(path: &Path) -> Result<Self, Fault> {
        if is_no_trace(path) {
            let message = format!("{} exists and does not contain events", path.display());
            return Err(fault::usage(message, "name another file with --events, or delete this one"));
        }
        let mut file = File::create(path)
            .map_err(|e| fault::io(format!("cannot write the events to {}", path.display()), &e))?;
        Ok(Self::to(Box::new(move |line| file.write_all(line)), path.display().to_string()))
    }

    /// Creates a log that calls `write`; `name` is for messages.
    pub(crate) fn to(write: WriteLine, name: String) -> Self {
        let sink = Arc::new(Mutex::new(Sink { name, write, broken: None }));
        Self { started: Instant::now(), file: Some(sink), machine: None }
    }

    /// Returns the same log for the events of one of several machines, which contain its name.
    pub(crate) fn of(&self, machine: &str) -> Self {
        Self { machine: Some(machine.to_owned()), ..self.clone() }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.file.is_some()
    }

    /// Writes one event; `fields` is an object or null.
    pub(crate) fn write(&self, event: &str, mut fields: Value) {
        let Some(file) = &self.file else { return };
        let microseconds = (self.started.elapsed().as_secs_f64() * 1e6).round();
        let mut object = json!({ "t": microseconds / 1e6, "event": event });
        if let Some(machine) = &self.machine {
            object["machine"] = json!(machine);
        }
        for (name, value) in fields.as_object_mut().into_iter().flatten() {
            object[name] = value.take();
        }
        let line = escape_controls(&object.to_string()) + "\n";
        let mut sink = file.lock();
        if sink.broken.is_none() {
            sink.broken = (sink.write)(line.as_bytes()).err();
        }
    }

    pub(crate) fn finish(&self) -> Result<(), Fault> {
        let Some(file) = &self.file else { return Ok(()) };
        let Sink { name, broken, .. } = &mut *file.lock();
        broken.take().map_or(Ok(()), |e| Err(fault::io(format!("cannot write the events to {name}"), &e)))
    }
}

/// Whether a non-empty file is not a trace, such as a source named by mistake.
fn is_no_trace(path: &Path) -> bool {
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
    let mut start = [0; TRACE.len()];
    is_file && File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_err() || start != *TRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_an_object_with_time_and_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let log = EventLog::create(&path).unwrap();
        log.write("start", json!({"sources": ["a"]}));
        log.of("far").write("session", Value::Null);
        log.write("end", Value::Null);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with('\n'), "whoever follows the file sees all of it");
        log.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line["t"].is_number()));
        assert_eq!((&lines[1]["machine"], &lines[2]["machine"]), (&json!("far"), &Value::Null));
        assert_eq!((&lines[0]["event"], &lines[0]["sources"][0]), (&json!("start"), &json!("a")));
    }

    #[test]
    fn a_log_without_a_file_is_silent_and_a_bad_path_is_named() {
        EventLog::none().write("start", Value::Null);
        assert!(EventLog::none().finish().is_ok());
        let fault = EventLog::create(Path::new("/dev/null/x")).err().unwrap();
        assert!(fault.message.contains("/dev/null/x"), "{fault}");
    }

    #[test]
    fn only_an_existing_trace_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        for contents in ["x", "results of a year\n"] {
            std::fs::write(&path, contents).unwrap();
            assert!(EventLog::create(&path).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), contents);
        }
        std::fs::write(&path, "").unwrap();
        for _ in 0..2 {
            EventLog::create(&path).unwrap().write("start", Value::Null);
            assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        }
    }
}
