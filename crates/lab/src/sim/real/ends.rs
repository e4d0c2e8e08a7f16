//! The two ends of a real run, inside their namespaces: `haul serve`, and either `haul bench` with changes
//! during the run, or `haul cp` with a slow application.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use clap::Args;
use haul_base::Rate;
use rustix::process::{Pid, Signal, kill_process};

use super::task::{Application, CONTROL, Change, EVENTS, Suspension, TASK, Task};

const URL: &str = "url";
/// Name of the data copied to or from an application.
const DATA: &str = "data";
/// Timeout for the server's URL.
const TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes that an application reads or writes at once.
const PIECE: usize = 16 << 10;

/// Arguments of the hidden command `real-end`.
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    /// Side, `a` or `b`
    #[arg(value_parser = ["a", "b"])]
    side: String,
    /// Directory of the task
    directory: PathBuf,
}

/// Runs one end.
pub(crate) fn end(args: &EndArgs) -> ExitCode {
    let done = task(&args.directory).and_then(|task| match args.side.as_str() {
        "a" => client(&task, &args.directory),
        _ => server(&task, &args.directory),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("haul-lab: real-end {}: {error}", args.side);
            ExitCode::from(1)
        }
    }
}

fn task(directory: &Path) -> io::Result<Task> {
    serde_json::from_slice(&fs::read(directory.join(TASK))?).map_err(io::Error::from)
}

/// Returns the command `haul` without the user's configuration.
fn haul(task: &Task) -> Command {
    let mut command = Command::new(&task.haul);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HAUL_")) {
        command.env_remove(name);
    }
    command.env("HAUL_CONFIG", "").stdin(Stdio::null());
    command
}

/// Joins a control group, so that processes started from here on are limited by it.
fn join(group: Option<&PathBuf>) -> io::Result<()> {
    group.map_or(Ok(()), |group| fs::write(group, std::process::id().to_string()))
}

fn server(task: &Task, directory: &Path) -> io::Result<()> {
    let address = std::env::var("HAUL_WAN_B").map_err(io::Error::other)?;
    join(task.server_group.as_ref())?;
    let mut command = haul(task);
    command.args(["serve", "--quiet", "--host", &address, "--root"]).arg(directory);
    let mut child = command.arg("--url-file").arg(directory.join(URL)).stdout(Stdio::null()).spawn()?;
    if let Some(suspension) = task.suspension {
        suspend(&child, suspension)?;
    }
    child.wait().map(drop)
}

/// Sleeps until `bytes` bytes are due at `rate` since `began`.
fn pace(rate: Rate, bytes: u64, began: Instant) {
    sleep(Duration::from(rate.time_for(bytes)).saturating_sub(began.elapsed()));
}

/// Reads until the end at `rate`.
fn take(mut from: impl Read, rate: Rate) -> io::Result<()> {
    let (mut piece, mut taken, began) = (vec![0; PIECE], 0, Instant::now());
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            read => taken += read as u64,
        }
        pace(rate, taken, began);
    }
}

/// Writes `bytes` bytes at `rate`.
fn feed(mut into: impl Write, bytes: u64, rate: Rate) -> io::Result<()> {
    let (piece, mut written, began) = (vec![0; PIECE], 0, Instant::now());
    while written < bytes {
        let remaining = usize::try_from(bytes - written).unwrap_or(PIECE);
        let piece = &piece[..remaining.min(PIECE)];
        into.write_all(piece)?;
        written += piece.len() as u64;
        pace(rate, written, began);
    }
    Ok(())
}

/// Stops the server repeatedly. Both are ended with the path.
fn suspend(child: &Child, suspension: Suspension) -> io::Result<()> {
    let server = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let stop = Duration::from_millis(suspension.stop_ms);
    let run = Duration::from_millis(suspension.every_ms).saturating_sub(stop);
    loop {
        sleep(run);
        kill_process(server, Signal::STOP)?;
        sleep(stop);
        kill_process(server, Signal::CONT)?;
    }
}

/// Runs the client, which prints its result, and changes the path meanwhile.
fn client(task: &Task, directory: &Path) -> io::Result<()> {
    let url = directory.join(URL);
    let started = Instant::now();
    while !url.is_file() {
        if started.elapsed() > TIMEOUT {
            return Err(io::Error::other("the server has written no URL"));
        }
        sleep(POLL_INTERVAL);
    }
    let events = directory.join(EVENTS);
    join(task.client_group.as_ref())?;
    let mut command = haul(task);
    command.args(&task.client).arg("--events").arg(&events);
    let url = format!("@{}", url.display());
    if let Some(application) = task.application {
        return beside(application, command, &url, directory);
    }
    let mut child = command.arg(url).spawn()?;
    change(&task.changes, &events, directory, &mut child)?;
    // Its output shows whether it has failed.
    child.wait().map(drop)
}

/// Runs a copy from or to an application, connected to the copy's stdin or stdout.
fn beside(application: Application, mut copy: Command, url: &str, directory: &Path) -> io::Result<()> {
    let remote = format!("{url}:{DATA}");
    match application {
        Application::Writes { bytes, bps } => {
            let mut child = copy.args(["--json", "-", &remote]).stdin(Stdio::piped()).spawn()?;
            let stdin = child.stdin.take();
            spawn(move || stdin.map(|stdin| feed(stdin, bytes, Rate::from_bps(bps))));
            child.wait().map(drop)
        }
        Application::Reads { bytes, bps } => {
            fs::write(directory.join(DATA), vec![7; usize::try_from(bytes).unwrap_or(usize::MAX)])?;
            let mut child = copy.args([&remote, "-"]).stdout(Stdio::piped()).spawn()?;
            let stdout = child.stdout.take();
            spawn(move || stdout.map(|stdout| take(stdout, Rate::from_bps(bps))));
            child.wait()?;
            // Stdout carried the data, so the result is taken from the trace.
            let trace = fs::read_to_string(directory.join(EVENTS))?;
            println!("{}", trace.lines().last().unwrap_or_default());
            Ok(())
        }
    }
}

/// Makes each change at its time after the session has started.
fn change(changes: &[Change], events: &Path, directory: &Path, child: &mut Child) -> io::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let has_begun = || fs::read_to_string(events).is_ok_and(|text| text.contains("\"event\":\"session\""));
    while !has_begun() {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        sleep(POLL_INTERVAL);
    }
    let begin = Instant::now();
    let mut stream = UnixStream::connect(directory.join(CONTROL))?;
    let mut answers = BufReader::new(stream.try_clone()?).lines();
    for Change { at_ms, line } in changes {
        sleep(Duration::from_millis(*at_ms).saturating_sub(begin.elapsed()));
        writeln!(stream, "{line}")?;
        let answer = answers.next().transpose()?.unwrap_or_default();
        if !answer.contains("\"ok\"") {
            return Err(io::Error::other(format!("{line}: {answer}")));
        }
    }
    Ok(())
}
