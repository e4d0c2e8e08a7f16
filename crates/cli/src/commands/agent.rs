//! `haul cp --for-ssh`: copies for a person elsewhere, started by ssh. The job comes on stdin, events go to stdout as JSON.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_engine::HaulUrl;
use haul_mover::Tell;
use haul_wire::control::{Fault, RunMode};
use serde_json::json;

use crate::commands::serve::for_ssh::{at_end_of_stdin, go_home};
use crate::endpoint::parse_url;
use crate::fault;
use crate::output::{EventLog, Lines, RunReport, item_lines, tell};
use crate::settings::Settings;
use crate::signals::{self, Cancel, Hangup};
use crate::ssh::{Announcement, Job, MAX_JOB};
use crate::transfer::{Context, Cpu, download, reach, upload, with_way_out};

/// Does what stdin says. Returns the exit code.
pub(crate) fn run() -> Result<u8, Fault> {
    go_home();
    let cancel = signals::watch(Hangup::PassesBy)?;
    let reporter = Reporter::start()?;
    patient(&reporter.lines, Announcement::ours().line());
    let report = match read_job().and_then(|job| begin(&job, &cancel, &reporter).map(|()| job)) {
        Ok(job) => execute(&job, cancel, &reporter),
        Err(fault) => RunReport::failed(fault),
    };
    reporter.log(patient).write("result", json!({ "report": report }));
    reporter.finish();
    Ok(report.exit_code())
}

fn read_job() -> Result<Job, Fault> {
    let mut line = Vec::new();
    let read = io::stdin().lock().take(MAX_JOB).read_until(b'\n', &mut line);
    read.map_err(|e| fault::io("cannot read the job", &e))?;
    serde_json::from_slice(&line).map_err(|error| {
        let message = format!("the job on stdin is none: {error}");
        fault::usage(message, "this option is for `haul cp hostA:… hostB:…`, which starts it itself")
    })
}

/// Ties the job to the person who gave it, or cuts it loose.
fn begin(job: &Job, cancel: &Cancel, reporter: &Reporter) -> Result<(), Fault> {
    if job.detach {
        let log = detach()?;
        let detached = json!({ "log": log.display().to_string(), "pid": std::process::id() });
        reporter.log(patient).write("detached", detached);
        return Ok(());
    }
    let cancel = cancel.clone();
    at_end_of_stdin(move || cancel.request())
}

/// Leaves the session of ssh, and stderr for a file of this machine. Returns the file.
fn detach() -> Result<PathBuf, Fault> {
    // Who is the leader of a session already has one of its own.
    let _ = rustix::process::setsid();
    let path = log_path();
    let failed = |e: io::Error| fault::io(format!("cannot write the log {}", path.display()), &e);
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
    let log: File = OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(failed)?;
    rustix::stdio::dup2_stderr(&log).map_err(|errno| failed(errno.into()))?;
    Ok(path)
}

/// In `$XDG_STATE_HOME/haul`, or `~/.local/state/haul` (XDG base directory specification), or the current directory.
fn log_path() -> PathBuf {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    state.unwrap_or_default().join("haul").join(format!("copy-{seconds}-{}.log", std::process::id()))
}

fn execute(job: &Job, cancel: Cancel, reporter: &Reporter) -> RunReport {
    let log = |lines: Lines| {
        if job.detach {
            // Stderr is the log file.
            tell(lines);
        }
    };
    job.actions.iter().for_each(|action| log(action.as_str().into()));
    let report = copy(job, cancel, reporter).unwrap_or_else(RunReport::failed);
    log((&report).into());
    report
}

/// Who learns what is done to each name: the person; the log where that one may leave, and nothing may wait.
fn teller(job: &Job, reporter: &Reporter) -> Option<Tell> {
    if job.transfer.receive_policy.run == RunMode::Move {
        return None;
    }
    if job.detach {
        return Some(item_lines(true, tell));
    }
    // It waits for room without a limit: when the reader is gone, writing fails and nobody waits.
    let log = reporter.log(|lines, line| drop(lines.send(line)));
    Some(Arc::new(move |item| log.write("item", json!({ "item": item }))))
}

/// The person's options are in the job; what this machine has configured is for its own users.
fn context(job: &Job, cancel: Cancel, reporter: &Reporter) -> Result<Context, Fault> {
    let &Job { crypto, offload, socket_buffer, .. } = job;
    let recipe = haulage::Recipe::parse(&job.recipe)
        .map_err(|error| fault::usage(format!("the job's recipe: {error}"), ""))?;
    let settings = Settings { crypto, offload, socket_buffer, recipe };
    let quiet = Context::quiet(settings, job.transfer.clone(), cancel);
    Ok(Context { on_item: teller(job, reporter), events: reporter.log(lossy), ..quiet })
}

fn copy(job: &Job, cancel: Cancel, reporter: &Reporter) -> Result<RunReport, Fault> {
    let (mut context, url) = (context(job, cancel, reporter)?, parse_url(&job.server)?);
    let way_out = |fault| match job.hosts.as_slice() {
        [] => fault,
        _ => with_way_out(fault, url.port, job.ports.as_deref()),
    };
    let url = reach(&context, &url, &job.hosts).map_err(way_out)?;
    if job.transfer.receive_policy.run == RunMode::ListChanges {
        let log = reporter.log(patient);
        let tell = move |negotiated| log.write("plan", json!({ "negotiated": negotiated }));
        context.on_agreed = Some(Arc::new(tell));
    }
    let Job { sources, destination, selection, .. } = job;
    let mut report = if job.fetches {
        download(&context, &url, sources, selection, destination)
    } else {
        let url = HaulUrl { path: destination.clone(), ..url };
        upload(&context, &url, sources.clone(), selection, Cpu::ALL)
    };
    report.error = report.error.map(way_out);
    Ok(report)
}

/// Lines that may be queued; further ones are dropped.
const QUEUE: usize = 64;
/// How long a line that must not be lost may wait for room.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Writes lines to stdout from a thread of its own.
#[derive(Debug)]
pub(crate) struct Reporter {
    lines: Sender<Vec<u8>>,
    is_through: Receiver<()>,
}

impl Reporter {
    pub(crate) fn start() -> Result<Self, Fault> {
        let (lines, waiting) = bounded::<Vec<u8>>(QUEUE);
        let (through, is_through) = bounded(1);
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

    /// Events that `put` queues.
    fn log(&self, put: fn(&Sender<Vec<u8>>, Vec<u8>)) -> EventLog {
        let lines = self.lines.clone();
        let write = move |line: &[u8]| {
            put(&lines, line.to_vec());
            Ok(())
        };
        EventLog::to(Box::new(write), "stdout".to_owned())
    }

    /// Waits a while until all is written. Writers must be gone.
    pub(crate) fn finish(self) {
        drop(self.lines);
        let _ = self.is_through.recv_timeout(TIMEOUT);
    }
}

/// Queues a line that must not be lost, if there is room within `TIMEOUT`.
fn patient(lines: &Sender<Vec<u8>>, line: Vec<u8>) {
    let _ = lines.send_timeout(line, TIMEOUT);
}

/// Queues a line, or drops it where there is no room.
fn lossy(lines: &Sender<Vec<u8>>, line: Vec<u8>) {
    let _ = lines.try_send(line);
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn whole_lines_are_passed_on_and_those_without_room_are_left_out() {
        let (lines, waiting) = bounded(2);
        let events = Reporter { lines, is_through: bounded(0).1 }.log(lossy);
        for event in ["a", "b", "c"] {
            events.write(event, Value::Null);
        }
        let received = || {
            let line: Value = serde_json::from_slice(waiting.try_recv().ok()?.strip_suffix(b"\n")?).ok()?;
            line["event"].as_str().map(str::to_owned)
        };
        assert_eq!((received().as_deref(), received().as_deref()), (Some("a"), Some("b")));
        events.write("d", Value::Null);
        assert_eq!((received().as_deref(), received()), (Some("d"), None));
    }
}
