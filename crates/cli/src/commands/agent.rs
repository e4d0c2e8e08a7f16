//! `haul cp --for-ssh`: what ssh starts on a machine that is to copy from or to another one for a person
//! elsewhere. The job comes on stdin; what happens goes to stdout, one JSON object per line.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_wire::control::{Fault, FaultCode, RunMode};
use serde_json::{Value, json};

use crate::args::{Command, CpArgs};
use crate::commands::cp::{self, How};
use crate::commands::serve::for_ssh::{at_end_of_stdin, go_home};
use crate::config::{Resolved, Sources, StartError, resolve};
use crate::endpoint::Machine;
use crate::fault;
use crate::output::{EventLog, Items, Lines, RunReport, Summary, WriteLine, item_line, tell};
use crate::settings::{Preset, Settings};
use crate::signals::{self, Cancel, Hangup};
use crate::ssh::{Announcement, Job, MAX_JOB};
use crate::transfer::by_ssh::{reach, with_way_out};
use crate::transfer::context::Context;
use crate::transfer::plan::{CopyPlan, Way};
use crate::transfer::select::chosen;
use crate::transfer::session::negotiate;

/// Does what stdin says. Returns the exit code.
pub(crate) fn run() -> Result<u8, Fault> {
    go_home();
    let cancel = signals::watch(Hangup::PassesBy)?;
    let reporter = Reporter::start()?;
    reporter.tell(&Announcement::ours().line());
    let report = match read_job().and_then(|job| begin(&job, &cancel, &reporter).map(|()| job)) {
        Ok(job) => execute(&job, cancel, &reporter),
        Err(fault) => RunReport::failed(fault),
    };
    reporter.event("result", &json!({ "report": report }));
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
        reporter.event("detached", &json!({ "log": log.display().to_string(), "pid": std::process::id() }));
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

/// `$XDG_STATE_HOME/haul`, or `~/.local/state/haul` (XDG base directory specification), or the current
/// directory.
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
    let report = prepare(job, cancel, reporter).and_then(|prepared| copy(prepared, job, reporter));
    let report = report.unwrap_or_else(RunReport::failed);
    log(Summary(&report).into());
    report
}

type Prepared = (Context, CopyPlan, Box<CpArgs>);

fn prepare(job: &Job, cancel: Cancel, reporter: &Reporter) -> Result<Prepared, Fault> {
    let mut argv = vec![OsString::from("haul"), OsString::from("cp")];
    argv.extend(job.words.iter().cloned().map(OsString::from));
    // What the person has is in the words; what this machine has configured is for its own users.
    let Resolved { command, settings, .. } = resolve(&argv, &Sources::default()).map_err(not_understood)?;
    let Command::Cp(args) = &command else { return Err(fault::usage("the job is no copy", "")) };
    let plan = CopyPlan::parse(&args.paths)?;
    let leads_on = match plan.way()? {
        Way::Send(_) => matches!(plan.to, Machine::Ssh(_)),
        Way::Fetch(from, _) => matches!(from, Machine::Ssh(_)),
        Way::Many | Way::Between { .. } => true,
    };
    if leads_on {
        return Err(fault::usage("the job leads to yet another machine", ""));
    }
    let stack = haulage::Recipe::parse(&job.recipe)
        .map_err(|error| fault::usage(format!("the job's recipe: {error}"), ""))?;
    let mut quiet = Context::quiet(&command, &Preset::default_preset(), &settings, cancel)?;
    quiet.transfer.receive_policy.run = job.run;
    let context = Context {
        settings: Settings { stack, ..quiet.settings },
        items: items(job, reporter),
        events: EventLog::to(lossy(reporter.lines.clone()), "stdout".to_owned()),
        ..quiet
    };
    Ok((context, plan, args.clone()))
}

/// Who learns what is done to each name: the person; the log where that one may leave, and nothing may wait.
fn items(job: &Job, reporter: &Reporter) -> Items {
    if job.run == RunMode::Move {
        return Items::Hidden;
    }
    if job.detach {
        return Items::To(Arc::new(|item| tell(item_line(item))));
    }
    // It waits for room without a limit: when the reader is gone, writing fails and nobody waits.
    let lines = reporter.lines.clone();
    Items::To(Arc::new(move |item| drop(lines.send(line("item", &json!({ "item": item }))))))
}

fn not_understood(error: StartError) -> Fault {
    match error {
        StartError::Fault(fault) => fault,
        StartError::Clap(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            let version = env!("CARGO_PKG_VERSION");
            let message = format!("haul {version} over there does not take this: {first}");
            Fault::new(FaultCode::Usage, message, "install the same version of haul on all machines")
        }
    }
}

fn copy((context, mut plan, args): Prepared, job: &Job, reporter: &Reporter) -> Result<RunReport, Fault> {
    let port = plan.url_mut().map(|url| url.port).filter(|_| !job.hosts.is_empty());
    let way_out = |fault| match port {
        Some(port) => with_way_out(fault, port, job.ports.as_deref()),
        None => fault,
    };
    if let Some(url) = plan.url_mut() {
        *url = reach(&context, url, &job.hosts).map_err(way_out)?;
    }
    if let (RunMode::ListChanges, Some(url)) = (job.run, plan.url_mut()) {
        let negotiated = negotiate(&context, url).map_err(way_out)?;
        reporter.event("plan", &json!({ "negotiated": negotiated }));
    }
    let selection = chosen(&args, plan.count())?;
    let mut report = cp::copy(&context, &plan, How { selection: &selection, ssh: &args.ssh });
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

    /// Queues a line that must not be lost; waits up to `TIMEOUT` for room.
    pub(crate) fn tell(&self, line: &[u8]) {
        let _ = self.lines.send_timeout(line.to_vec(), TIMEOUT);
    }

    /// An event that must not be lost; `fields` is an object.
    pub(crate) fn event(&self, name: &str, fields: &Value) {
        self.tell(&line(name, fields));
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

/// Takes lines, and drops those for which there is no room.
fn lossy(lines: Sender<Vec<u8>>) -> WriteLine {
    Box::new(move |line| {
        let _ = lines.try_send(line.to_vec());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_passed_on_and_those_without_room_are_left_out() {
        let (lines, waiting) = bounded(2);
        let events = EventLog::to(lossy(lines), "stdout".to_owned());
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
