//! Writes lines to stdout without blocking the work: the reader may be gone, or behind a stalled connection.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use haul_wire::control::Fault;
use serde_json::Value;

use crate::fault;

/// Lines that may be queued; further ones are dropped.
const QUEUE: usize = 64;
/// How long a line that must not be lost may wait for room.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How often they are tried again.
const TICK: Duration = Duration::from_millis(20);

/// Writes lines to stdout from a thread of its own.
#[derive(Debug)]
pub(crate) struct Reporter {
    lines: SyncSender<Vec<u8>>,
    is_through: Receiver<()>,
}

impl Reporter {
    pub(crate) fn start() -> Result<Self, Fault> {
        let (lines, waiting) = sync_channel::<Vec<u8>>(QUEUE);
        let (through, is_through) = sync_channel(1);
        let write = move || {
            for line in waiting {
                let mut stdout = io::stdout().lock();
                // When nobody reads any more, that changes nothing for the work.
                let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
            }
            let _ = through.send(());
        };
        fault::spawn("haul-reporter", write)?;
        Ok(Self { lines, is_through })
    }

    /// Queues a line that must not be lost; waits up to `TIMEOUT` for room.
    pub(crate) fn tell(&self, line: &[u8]) {
        let until = Instant::now() + TIMEOUT;
        let mut line = line.to_vec();
        while let Err(TrySendError::Full(back)) = self.lines.try_send(line) {
            if Instant::now() > until {
                return;
            }
            line = back;
            thread::sleep(TICK);
        }
    }

    /// An event that must not be lost; `fields` is an object.
    pub(crate) fn event(&self, name: &str, fields: &Value) {
        self.tell(&line(name, fields));
    }

    /// Queues events and waits for room without a limit. When the reader is gone, writing fails and nobody waits.
    pub(crate) fn blocking(&self) -> impl Fn(&str, &Value) + Send + Sync + use<> {
        let lines = self.lines.clone();
        // Without the thread that writes there is nobody to tell.
        move |name, fields| drop(lines.send(line(name, fields)))
    }

    /// Queues lines that may be dropped.
    pub(crate) fn writer(&self) -> Lines {
        Lines { lines: self.lines.clone(), line: Vec::new() }
    }

    /// Waits a while until all is written. Writers must be gone.
    pub(crate) fn finish(self) {
        let Self { lines, is_through } = self;
        drop(lines);
        let _ = is_through.recv_timeout(TIMEOUT);
    }
}

fn line(name: &str, fields: &Value) -> Vec<u8> {
    let mut object = serde_json::Map::new();
    object.insert("event".to_owned(), name.into());
    object.extend(fields.as_object().cloned().unwrap_or_default());
    format!("{}\n", Value::Object(object)).into_bytes()
}

/// Cuts what is written into lines and drops those for which there is no room.
#[derive(Debug)]
pub(crate) struct Lines {
    lines: SyncSender<Vec<u8>>,
    line: Vec<u8>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|&b| b == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let _ = self.lines.try_send(line);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_passed_on_and_those_without_room_are_left_out() {
        let (lines, waiting) = sync_channel(2);
        let mut writer = Lines { lines, line: Vec::new() };
        writer.write_all(b"a").unwrap();
        writer.write_all(b"b\nc\nd\ne").unwrap();
        assert_eq!(waiting.try_recv().unwrap(), b"ab\n");
        assert_eq!(waiting.try_recv().unwrap(), b"c\n");
        writer.write_all(b"f\n").unwrap();
        assert_eq!(waiting.try_recv().unwrap(), b"ef\n");
        assert!(waiting.try_recv().is_err());
    }
}
