//! What ssh starts on this machine for a client: a server for one session (`haul serve --for-ssh`) or a copy
//! (`haul cp --for-ssh`). One line on stdin is the request. Both stop when stdin ends, except a server that
//! has its client, and a detached copy.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Sender, bounded};
use haul_engine::{HaulUrl, ListenOptions, Listener};
use haul_mover::{MinFree, Root};
use haul_wire::control::{Fault, Preserve, Request, RunMode};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::args::ServeArgs;
use crate::endpoint::parse_url;
use crate::fault;
use crate::output::{
    EventLog, ItemCallback, RunReport, eprint_lines, item_lines, out_verbatim, write_stdout,
};
use crate::settings::Settings;
use crate::signals::{self, Cancel, Hangup, INTERRUPTED};
use crate::ssh::{Announcement, Job, MAX_JOB, MAX_PERMIT, Permit};
use crate::transfer::{
    Context, Cpu, Policy, answer, bind, download, next_client, reach, server::POLL, upload,
    with_firewall_hint,
};

/// Reads the request, one line of at most `max_len` bytes; `None` if stdin ends without one.
fn from_stdin<T: DeserializeOwned>(max_len: u64) -> Option<Result<T, Fault>> {
    let mut line = Vec::new();
    let read = io::stdin().lock().take(max_len).read_until(b'\n', &mut line);
    matches!(read, Ok(1..))
        .then(|| serde_json::from_slice(&line).map_err(|error| not_a_request(&error.to_string())))
}

fn not_a_request(why: &str) -> Fault {
    let message = format!("the request on stdin was not understood: {why}");
    fault::usage(message, "this option is internal to `haul cp` with HOST:PATH")
}

fn wait_for_end_of_stdin() {
    // Retries after a signal; any other failure counts as the end.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
}

/// Changes to the home directory, to which paths are relative: a forced command may run elsewhere.
fn change_to_home() {
    if let Some(home) = std::env::home_dir() {
        // Without it, absolute paths still work.
        let _ = std::env::set_current_dir(home);
    }
}

fn announce(announcement: &Announcement) {
    out_verbatim(String::from_utf8_lossy(&announcement.line()).trim_end());
}

/// Wildcard addresses: that of IPv4 is used if the other cannot be bound.
const ANY: [IpAddr; 2] = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
/// Placeholder for the host in the URL. The client replaces it.
const PLACEHOLDER_HOST: &str = "by-ssh";

/// Serves one session. Returns the exit code. A failure to listen is also announced to the other side of ssh.
pub(crate) fn serve(context: &Context, args: &ServeArgs) -> Result<u8, Fault> {
    change_to_home();
    // Without `--min-free`, a copy over ssh may fill the disk, as its user may.
    let min_free = args.min_free.map_or(MinFree::Nothing, |bytes| MinFree::Bytes(bytes.0));
    let policy = Policy { min_free, ..Policy::new(Root::Anywhere, args.read_only, context.clone()) };
    let options =
        ListenOptions { expires: args.expires.map(Into::into), ..policy.listen_options((ANY[0], 0).into()) };
    let listener = bind(&options, &ANY, args.port_range.as_ref()).inspect_err(|fault| {
        announce(&Announcement { fault: Some(fault.clone()), ..Announcement::ours() });
    })?;
    announce(&Announcement {
        url: Some(listener.url(PLACEHOLDER_HOST, b"").to_string()),
        hosts: announced_hosts(args, std::env::var("SSH_CONNECTION").ok().as_deref()),
        ..Announcement::ours()
    });
    let permits = listen_to_stdin()?;
    let permit = loop {
        match permits.recv_timeout(POLL) {
            Ok(permit) => break permit?,
            Err(RecvTimeoutError::Timeout) if !context.cancel.is_requested() => {}
            Err(_) => return Ok(INTERRUPTED),
        }
    };
    let is_over =
        || context.cancel.is_requested() || matches!(permits.try_recv(), Err(TryRecvError::Disconnected));
    let preserve = if let Permit::Put(_, _, preserve) = permit { preserve } else { Preserve::default() };
    let policy = policy.permitting(preserve);
    Ok(serve_session(&listener, &policy, &permit, is_over))
}

/// Returns a channel with the permit, one line on stdin; disconnected when stdin ends.
fn listen_to_stdin() -> Result<Receiver<Result<Permit, Fault>>, Fault> {
    let (sender, permits) = channel();
    fault::spawn("haul-stdin", move || {
        if let Some(permit) = from_stdin(MAX_PERMIT) {
            let _ = sender.send(permit);
        }
        wait_for_end_of_stdin();
    })?;
    Ok(permits)
}

/// Returns the addresses to announce: `--host`, and the address at which ssh was reached.
fn announced_hosts(args: &ServeArgs, connection: Option<&str>) -> Vec<String> {
    // "client address, client port, server address, server port" (ssh(1)).
    let server_address = connection.and_then(|words| words.split_whitespace().nth(2));
    // An address with a zone (`%eth0`) is useless to other machines.
    let server_address = server_address.filter(|address| address.parse::<IpAddr>().is_ok());
    args.host.iter().cloned().chain(server_address.map(str::to_owned)).collect()
}

fn serve_session(listener: &Listener, policy: &Policy, permit: &Permit, is_over: impl Fn() -> bool) -> u8 {
    while let Some(incoming) = next_client(listener, &is_over) {
        if let Err(fault) = permit.check(incoming.request()) {
            incoming.refuse(fault);
            continue;
        }
        let is_check = matches!(incoming.request(), Request::Check);
        let context = Context { cpu: Cpu::from_now(), ..policy.context.clone() };
        let report = answer(incoming, policy, &context);
        if !is_check {
            return report.exit_code();
        }
    }
    INTERRUPTED
}

/// Runs the copy that stdin describes, with events and report in JSON on stdout. Returns the exit code.
pub(crate) fn run() -> Result<u8, Fault> {
    change_to_home();
    let cancel = signals::watch(Hangup::Ignores)?;
    let reporter = Reporter::start()?;
    send_blocking(&reporter.lines, Announcement::ours().line());
    let job: Result<Job, Fault> = from_stdin(MAX_JOB).unwrap_or_else(|| Err(not_a_request("it has ended")));
    let report = job.and_then(|job| execute(&job, cancel, &reporter)).unwrap_or_else(RunReport::failed);
    reporter.log(send_blocking).write("result", json!({ "report": report }));
    reporter.finish();
    Ok(report.exit_code())
}

/// Leaves the session of ssh, and redirects stderr to a log file. Returns the file's path.
fn detach() -> Result<PathBuf, Fault> {
    // Fails for a process group leader; one that sshd started already leads its own session.
    let _ = rustix::process::setsid();
    // In the user's state directory (XDG base directory specification).
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let name = format!("haul/copy-{seconds}-{}.log", std::process::id());
    let path = state.unwrap_or_default().join(name);
    let failed = |e: io::Error| fault::io(format!("cannot write the log {}", path.display()), &e);
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
    let log: File = OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(failed)?;
    rustix::stdio::dup2_stderr(&log).map_err(|errno| failed(errno.into()))?;
    Ok(path)
}

/// Runs a job: detached if it requests that, otherwise until stdin ends.
fn execute(job: &Job, cancel: Cancel, reporter: &Reporter) -> Result<RunReport, Fault> {
    if job.detach {
        let log = detach()?;
        let detached = json!({ "log": log.display().to_string(), "pid": std::process::id() });
        reporter.log(send_blocking).write("detached", detached);
        job.actions.iter().for_each(eprint_lines);
    } else {
        let cancel = cancel.clone();
        fault::spawn("haul-stdin", move || {
            wait_for_end_of_stdin();
            cancel.request();
        })?;
    }
    let report = try_copy(job, cancel, reporter).unwrap_or_else(RunReport::failed);
    if job.detach {
        // Stderr is the log file.
        eprint_lines(&report);
    }
    Ok(report)
}

/// Returns what lists each change, if requested: on stdout, or in the log of a detached job.
fn item_callback(job: &Job, reporter: &Reporter) -> Option<ItemCallback> {
    if job.transfer.receive_policy.run == RunMode::Move {
        return None;
    }
    if job.detach {
        return Some(item_lines(true, eprint_lines));
    }
    // Waits for space without a timeout: after the reader has gone, writes fail and the queue still empties.
    let log = reporter.log(|lines, line| drop(lines.send(line)));
    Some(Arc::new(move |item| log.write("item", json!({ "item": item }))))
}

/// The options come from the job; the configuration of this machine is for its own users.
fn context(job: &Job, cancel: Cancel, reporter: &Reporter) -> Result<Context, Fault> {
    let &Job { crypto, offload, socket_buffer, .. } = job;
    let recipe = haulage::registry().parse(&job.recipe);
    let recipe = recipe.map_err(|error| fault::usage(format!("the job's recipe: {error}"), ""))?;
    let settings = Settings { crypto, offload, socket_buffer, recipe };
    let quiet = Context::quiet(settings, job.transfer, cancel);
    Ok(Context { on_item: item_callback(job, reporter), events: reporter.log(send_or_drop), ..quiet })
}

fn try_copy(job: &Job, cancel: Cancel, reporter: &Reporter) -> Result<RunReport, Fault> {
    let (mut context, url) = (context(job, cancel, reporter)?, parse_url(&job.server)?);
    let add_hint = |fault| match job.hosts.as_slice() {
        [] => fault,
        _ => with_firewall_hint(fault, url.port, job.ports.as_deref()),
    };
    let url = reach(&context, &url, &job.hosts).map_err(add_hint)?;
    if job.transfer.receive_policy.run == RunMode::ListChanges {
        let log = reporter.log(send_blocking);
        let report_plan = move |negotiated| log.write("plan", json!({ "negotiated": negotiated }));
        context.on_negotiated = Some(Arc::new(report_plan));
    }
    let Job { sources, destination, selection, .. } = job;
    let mut report = if job.fetches {
        download(&context, &url, sources, selection, destination)
    } else {
        let url = HaulUrl { path: destination.clone(), ..url };
        upload(&context, &url, sources.clone(), selection)
    };
    report.error = report.error.map(add_hint);
    Ok(report)
}

/// Capacity of the queue, lines.
const QUEUE: usize = 64;
/// Timeout for a line that must not be lost to get space in the queue, and at the end for writing the rest.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Writes lines to stdout from a thread of its own.
#[derive(Debug)]
pub(crate) struct Reporter {
    lines: Sender<Vec<u8>>,
    is_flushed: crossbeam_channel::Receiver<()>,
}

impl Reporter {
    pub(crate) fn start() -> Result<Self, Fault> {
        let (lines, queued) = bounded::<Vec<u8>>(QUEUE);
        let (flushed, is_flushed) = bounded(1);
        let write = move || {
            for line in queued {
                // The copy continues without a reader.
                let _ = write_stdout(&line);
            }
            let _ = flushed.send(());
        };
        fault::spawn("haul-reporter", write)?;
        Ok(Self { lines, is_flushed })
    }

    /// Returns an event log whose lines `send` queues.
    fn log(&self, send: fn(&Sender<Vec<u8>>, Vec<u8>)) -> EventLog {
        let lines = self.lines.clone();
        let write = move |line: &[u8]| {
            send(&lines, line.to_vec());
            Ok(())
        };
        EventLog::to(Box::new(write), "stdout".to_owned())
    }

    /// Waits up to `TIMEOUT` until everything is written. All event logs must have been dropped.
    pub(crate) fn finish(self) {
        drop(self.lines);
        let _ = self.is_flushed.recv_timeout(TIMEOUT);
    }
}

fn send_blocking(lines: &Sender<Vec<u8>>, line: Vec<u8>) {
    let _ = lines.send_timeout(line, TIMEOUT);
}

fn send_or_drop(lines: &Sender<Vec<u8>>, line: Vec<u8>) {
    let _ = lines.try_send(line);
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn events_are_passed_on_as_complete_lines_and_dropped_when_full() {
        let (lines, queued) = bounded(2);
        let events = Reporter { lines, is_flushed: bounded(0).1 }.log(send_or_drop);
        for event in ["a", "b", "c"] {
            events.write(event, Value::Null);
        }
        let received = || {
            let line: Value = serde_json::from_slice(queued.try_recv().ok()?.strip_suffix(b"\n")?).ok()?;
            line["event"].as_str().map(str::to_owned)
        };
        assert_eq!((received().as_deref(), received().as_deref()), (Some("a"), Some("b")));
        events.write("d", Value::Null);
        assert_eq!((received().as_deref(), received()), (Some("d"), None));
    }
}

#[cfg(test)]
mod serve_tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn hosts(words: &str, connection: Option<&str>) -> Vec<String> {
        match Cli::try_parse_from(words.split(' ')).unwrap().command {
            Some(Command::Serve(args)) => announced_hosts(&args, connection),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_address_by_which_ssh_was_reached_is_announced() {
        let connection = Some("192.0.2.1 50000 192.0.2.2 22");
        assert_eq!(hosts("haul serve", connection), ["192.0.2.2"]);
        assert_eq!(hosts("haul serve --host far.example.org", connection), ["far.example.org", "192.0.2.2"]);
        assert_eq!(hosts("haul serve", Some("::1 5 2001:db8::1 22")), ["2001:db8::1"]);
        for odd in [None, Some(""), Some("a b c d"), Some("fe80::1%e 5 fe80::2%eth0 22")] {
            assert!(hosts("haul serve", odd).is_empty(), "{odd:?}");
        }
    }
}
