//! UDT for comparison: runs `scripts/bench/udt/flow.cpp` as a separate program.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::figures::Arrival;
use super::job::Stream;
use crate::problem::{Problem, While};

/// First UDT port; each lane has its own.
const PORT: u16 = 7_940;
/// First line printed by the receiver.
const LISTENING: &str = "listening";

/// Kills a program when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // In most cases it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn end(&mut self, program: &Path) -> Result<(), Problem> {
        let status = self.0.wait().while_doing("cannot wait for the program of UDT")?;
        if status.success() { Ok(()) } else { Err(failed(program, &status.to_string())) }
    }
}

fn failed(program: &Path, why: &str) -> Problem {
    Problem::failed(format!("{}: {why}", program.display()), "scripts/bench/udt.sh builds it")
}

fn start(program: &Path, arguments: &[String], stdout: Stdio) -> Result<Running, Problem> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(stdout);
    command.spawn().map(Running).while_doing(&format!("cannot start {}", program.display()))
}

fn port(stream: &Stream) -> String {
    (PORT + stream.lane).to_string()
}

/// Receives a stream until its end.
pub(super) fn receive(program: &Path, stream: &Stream) -> Result<Vec<Arrival>, Problem> {
    let arguments = ["recv".to_owned(), port(stream), stream.message.to_string()];
    let mut running = start(program, &arguments, Stdio::piped())?;
    let mut text = String::new();
    if let Some(stdout) = running.0.stdout.take() {
        BufReader::new(stdout).read_to_string(&mut text).while_doing("cannot read what UDT received")?;
    }
    running.end(program)?;
    arrivals(text.as_bytes(), stream.message).map_err(|line| failed(program, &format!("it printed `{line}`")))
}

/// Sends a stream at its rate, or at 1 Tbit/s without one. Waits until the other side listens.
pub(super) fn send(program: &Path, stream: &Stream) -> Result<(), Problem> {
    let host = std::env::var("HAUL_WAN_B").unwrap_or_default();
    let rate = stream.rate_bps.unwrap_or(1_000_000_000_000).to_string();
    let rest = [stream.message.to_string(), stream.millis.to_string()];
    let arguments = [&["send".to_owned(), host, port(stream), rate][..], &rest].concat();
    start(program, &arguments, Stdio::null())?.end(program)
}

/// Parses the receiver's output. The error is the invalid line.
fn arrivals(text: &[u8], message: usize) -> Result<Vec<Arrival>, String> {
    let mut lines = text.lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    if first != LISTENING {
        return Err(first);
    }
    let mut arrivals: Vec<Arrival> = Vec::new();
    for line in lines {
        let earlier = arrivals.last().map_or(0, |last| last.0);
        match line.parse() {
            Ok(at) if at >= earlier => arrivals.push((at, message)),
            _ => return Err(line),
        }
    }
    Ok(arrivals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_read_and_malformed_lines_are_reported() {
        assert_eq!(arrivals(b"listening\n5\n5\n70\n", 9), Ok(vec![(5, 9), (5, 9), (70, 9)]));
        assert_eq!(arrivals(b"listening\n", 9), Ok(Vec::new()));
        for (text, wrong) in [("", ""), ("5\n", "5"), ("listening\n7\n6\n", "6"), ("listening\n7x\n", "7x")] {
            assert_eq!(arrivals(text.as_bytes(), 9), Err(wrong.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn a_program_that_fails_is_no_result() {
        let stream = Stream {
            carrier: super::super::job::Carrier::Udt("/bin/false".into()),
            rate_bps: None,
            millis: 10,
            message: 100,
            change: None,
            lane: 0,
        };
        for program in ["/bin/false", "/nowhere/flow"].map(Path::new) {
            assert!(receive(program, &stream).is_err() && send(program, &stream).is_err());
        }
        assert!(receive(Path::new("/bin/echo"), &stream).is_err(), "echo does not listen");
    }
}
