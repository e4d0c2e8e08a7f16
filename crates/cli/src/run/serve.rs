//! `haul serve`.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use haul_engine::{EngineError, HaulUrl, Incoming, ListenOptions, Listener};
use haul_mover::Root;
use haul_wire::control::{Fault, FaultCode, Request, RunMode};
use serde_json::json;

use super::outcome::Cpu;
use super::policy::Policy;
use super::server::{POLL, answer, listen_options, name};
use super::{Context, ports, ssh_server};
use crate::args::ServeArgs;
use crate::fault::{self, Shown};
use crate::output::{RunReport, Summary, json_value, tell};
use crate::signals::INTERRUPTED;

/// Sessions at a time; more are sent away and can come again.
const MAX_SESSIONS: usize = 64;
/// An address from the block for documentation (RFC 5737); nothing is sent there.
const ELSEWHERE: (&str, u16) = ("192.0.2.1", 9);

/// Serves until it is stopped, or one session with `--once`. Returns the exit code.
///
/// # Errors
/// When it cannot begin.
pub(crate) fn serve(context: &Context, args: &ServeArgs) -> Result<u8, Fault> {
    if args.for_ssh {
        return ssh_server::serve(context, args);
    }
    let policy = Policy::new(Root::beneath(&args.root)?, args.read_only, context)
        .insisting_on(args.sync.into())
        .dividing(args.capacity);
    let options =
        ListenOptions { expires: args.expires.map(Into::into), ..listen_options(args.listen.0, &policy) };
    let listener = match args.port_range {
        Some(range) => ports::bind_within(&options, &[args.listen.0.ip()], range)?,
        None => Listener::bind(options)?,
    };
    let host = args.host.clone().unwrap_or_else(|| own_address(listener.local_addr().ip()).to_string());
    let url = listener.url(&host, b"");
    announce(context, args, &listener, &url)?;
    let server =
        Server { context, policy: &policy, sessions: AtomicUsize::new(0), was_cut: AtomicBool::new(false) };
    if args.once { server.once(&listener) } else { server.forever(&listener) }
}

struct Server<'a> {
    context: &'a Context,
    policy: &'a Policy,
    sessions: AtomicUsize,
    /// The end of this server has cut a session off.
    was_cut: AtomicBool,
}

impl Server<'_> {
    /// One session after the other until one has moved something; its exit code.
    fn once(&self, listener: &Listener) -> Result<u8, Fault> {
        while let Some(incoming) = self.next(listener)? {
            let is_check = only_looks(incoming.request());
            let report = self.serve(incoming);
            if !is_check {
                return Ok(report.exit_code());
            }
        }
        Ok(INTERRUPTED)
    }

    fn forever(&self, listener: &Listener) -> Result<u8, Fault> {
        thread::scope(|scope| {
            while let Some(incoming) = self.next(listener)? {
                if self.sessions.fetch_add(1, Ordering::Relaxed) >= MAX_SESSIONS {
                    self.sessions.fetch_sub(1, Ordering::Relaxed);
                    incoming.refuse(busy());
                    continue;
                }
                let session = move || {
                    self.serve(incoming);
                    self.sessions.fetch_sub(1, Ordering::Relaxed);
                };
                let started =
                    thread::Builder::new().name("haul-session".to_owned()).spawn_scoped(scope, session);
                if let Err(error) = started {
                    self.sessions.fetch_sub(1, Ordering::Relaxed);
                    tell(Shown(&fault::io("cannot start a session", &error)));
                }
            }
            Ok::<(), Fault>(())
        })?;
        self.context.say("stopped");
        Ok(if self.was_cut.load(Ordering::Relaxed) { INTERRUPTED } else { 0 })
    }

    /// The next client; `None` when it is time to stop.
    fn next(&self, listener: &Listener) -> Result<Option<Incoming>, Fault> {
        while !self.context.cancel.is_requested() {
            match listener.accept(POLL) {
                Ok(Some(incoming)) => return Ok(Some(incoming)),
                Ok(None) => {}
                Err(EngineError::Closed) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    fn serve(&self, incoming: Incoming) -> RunReport {
        let (peer, request) = (incoming.peer(), name(incoming.request()));
        self.context.say(&format!("{peer} {request}: begins"));
        let report = answer(incoming, self.policy, self.context, Cpu::from_now());
        // Clients interrupt theirs too.
        if report.exit_code() == INTERRUPTED && self.context.cancel.is_requested() {
            self.was_cut.store(true, Ordering::Relaxed);
        }
        self.log(peer, request, &report);
        report
    }

    fn log(&self, peer: SocketAddr, request: &str, report: &RunReport) {
        if self.context.json {
            let line = json!({
                "schema": 1, "event": "session", "peer": peer.to_string(), "request": request,
                "result": json_value(report),
            });
            print_line(&line.to_string());
        }
        let summary = Summary(report);
        for failure in summary.failures().lines() {
            tell(format_args!("{peer} {request}: {failure}"));
        }
        if report.error.is_some() {
            // The client has not got them.
            summary.notes().lines().for_each(|note| self.context.say(&format!("{peer} {request}: {note}")));
        }
        match &report.error {
            Some(fault) => tell(format_args!("{peer} {request}: {}", Shown(fault))),
            None if summary.is_nothing_done() => {
                self.context.say(&format!("{peer} {request}: nothing was moved"));
            }
            None if report.bytes == 0 && report.files == 0 => {
                self.context.say(&format!("{peer} {request}: done"));
            }
            None => self.context.say(&format!("{peer} {request}: {}", summary.moved())),
        }
    }
}

/// Whether a session will move nothing.
fn only_looks(request: &Request) -> bool {
    match request {
        Request::Check => true,
        Request::Put { manners, .. } => manners.run == RunMode::Itemise,
        Request::Get { run, .. } => *run == RunMode::Itemise,
        _ => false,
    }
}

fn busy() -> Fault {
    let message = format!("this server has {MAX_SESSIONS} sessions already");
    Fault::new(FaultCode::Busy, message, "try again later")
}

/// Prints the URL, which is the result that people and scripts wait for.
fn announce(context: &Context, args: &ServeArgs, listener: &Listener, url: &HaulUrl) -> Result<(), Fault> {
    if let Some(path) = &args.url_file {
        write_secret(path, &format!("{url}\n"))
            .map_err(|e| fault::io(format!("cannot write the URL to {}", path.display()), &e))?;
    }
    let address = listener.local_addr();
    if context.json {
        let line = json!({
            "schema": 1, "event": "listening", "url": url.to_string(), "address": address.to_string(),
        });
        print_line(&line.to_string());
    } else {
        print_line(&url.to_string());
    }
    let access = if args.read_only { "for reading" } else { "for reading and writing" };
    context.say(&format!(
        "serving {} {access} on {address}, TCP and UDP; whoever has the URL has access; Ctrl-C stops",
        args.root.display()
    ));
    Ok(())
}

fn print_line(line: &str) {
    let mut stdout = io::stdout().lock();
    // Nobody may be reading; the URL file and stderr remain.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Writes a file that only its owner can read; what was there is replaced whole.
pub(super) fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// The address to put into the URL: the one listened on, or for all addresses the one that this machine
/// uses toward others.
pub(super) fn own_address(listening: IpAddr) -> IpAddr {
    if !listening.is_unspecified() {
        return listening;
    }
    let toward_others = || {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect(ELSEWHERE)?;
        socket.local_addr()
    };
    toward_others().map_or(IpAddr::from([127, 0, 0, 1]), |addr: SocketAddr| addr.ip())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_url_file_is_for_its_owner_only_whatever_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("url");
        std::fs::write(&path, "old and readable").unwrap();
        write_secret(&path, "new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
        assert!(write_secret(Path::new("/dev/null/x"), "").is_err());
    }

    #[test]
    fn the_url_never_names_all_addresses() {
        assert!(!own_address(IpAddr::from([0, 0, 0, 0])).is_unspecified());
        assert_eq!(own_address(IpAddr::from([10, 1, 2, 3])), IpAddr::from([10, 1, 2, 3]));
    }
}
