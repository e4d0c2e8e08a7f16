//! `haul serve`: serves clients until it is stopped.

mod filesystem;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use haul_engine::{HaulUrl, Incoming, ListenOptions, Listener, write_secret_file};
use haul_mover::{MinFree, Root};
use haul_wire::control::{Fault, FaultCode, Request};
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use zeroize::Zeroizing;

use crate::args::{Assignment, ServeArgs};
use crate::commands::agent;
use crate::fault;
use crate::output::{RunReport, eprint_lines, error_lines, json_value, out_json, out_url, stdout_error};
use crate::settings::{parameter_names, session_key};
use crate::signals::INTERRUPTED;
use crate::standard_streams::check_stdout;
use crate::transfer::{Context, Cpu, Policy, Quotas, SessionProgress, Sessions, answer, bind, next_client};

/// Wildcard of each address family, and an address for documentation (RFC 5737, 3849); nothing is sent there.
const PROBE_ADDRESSES: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];

/// Limit of open files below which a server warns: idle it has 20; a session of large files takes 8 or more.
const FEW_FILES: u64 = 64;

pub(crate) fn run(context: &Context, args: &ServeArgs) -> Result<u8, Fault> {
    if args.for_ssh {
        return agent::serve(context, args);
    }
    check_parameters(&args.set)?;
    args.url_file.is_none().then(check_stdout).transpose()?;
    let root = Root::beneath(&args.root)?;
    let context = Context { quotas: Quotas::new(args.capacity), ..context.clone() };
    let policy = Policy {
        durability: args.sync,
        min_free: args.min_free.map_or(MinFree::Share, |bytes| MinFree::Bytes(bytes.0)),
        ..Policy::new(root.clone(), args.read_only, context)
    };
    let options =
        ListenOptions { expires: args.expires.map(Into::into), ..policy.listen_options(args.listen) };
    let write_url = args.url_file.as_deref().map(url_writer).transpose()?;
    // Before the first thread that receives from the network is started.
    let restricted = filesystem::restrict(&root, args.read_only);
    let access = if args.read_only { "reading" } else { "reading and writing" };
    let listener = bind(&options, &[args.listen.ip()], args.port_range.as_ref())?;
    let host = args.host.clone().unwrap_or_else(|| own_address(listener.local_addr().ip()).to_string());
    let url = listener.url(&host, b"");
    if let Some(write) = write_url {
        write(&url)?;
    }
    let context = &policy.context;
    announce(context, args, access, &listener, &url);
    if let Some(why) = stdout_error() {
        let hint = "free space where stdout goes, or write it to a file with --url-file";
        return Err(Fault::new(FaultCode::Io, format!("cannot print the URL: {why}"), hint));
    }
    warn_of_few_files();
    context.inform(filesystem::describe(&restricted, &args.root, access));
    let sessions = Sessions::new(args.max_sessions.into(), args.max_per_address.into(), args.idle_timeout);
    let server = Server { policy: &policy, sessions, was_interrupted: AtomicBool::new(false) };
    Ok(if args.once { server.once(&listener) } else { server.forever(&listener) })
}

fn warn_of_few_files() {
    if let Some(most) = getrlimit(Resource::Nofile).current.filter(|&most| most < FEW_FILES) {
        eprint_lines(format_args!(
            "warning: only {most} files may be open in this process, so clients may be turned away; raise the limit \
             (ulimit -n 1024)"
        ));
    }
}

/// Rejects typed parameters that only some recipes have; those of a configuration file are for clients.
fn check_parameters(typed: &[Assignment]) -> Result<(), Fault> {
    let of_part = |set: &&Assignment| session_key(&set.key).contains('.');
    typed.iter().find(of_part).map_or(Ok(()), |Assignment { key, .. }| {
        Err(fault::usage(
            format!("flag --set: a server cannot set {key}, which the client's recipe decides"),
            format!("give it to `haul cp` or `haul bench`; a server sets {}", parameter_names()),
        ))
    })
}

struct Server<'a> {
    policy: &'a Policy,
    sessions: Sessions,
    /// Whether stopping this server has interrupted a session.
    was_interrupted: AtomicBool,
}

impl Server<'_> {
    /// Serves one session after the other until one was neither a check nor a dry run; returns its exit code.
    fn once(&self, listener: &Listener) -> u8 {
        while let Some(incoming) = self.next(listener) {
            let is_check = matches!(incoming.request(), Request::Check) || incoming.request().is_dry_run();
            let report = self.serve(incoming, SessionProgress::default());
            if !is_check {
                return report.exit_code();
            }
        }
        INTERRUPTED
    }

    fn forever(&self, listener: &Listener) -> u8 {
        thread::scope(|scope| {
            while let Some(incoming) = self.next(listener) {
                let permit = match self.sessions.enter(incoming.peer().ip()) {
                    Ok(permit) => permit,
                    Err(fault) => {
                        incoming.refuse(fault);
                        continue;
                    }
                };
                let session = move || drop(self.serve(incoming, permit.session_progress.clone()));
                let started =
                    thread::Builder::new().name("haul-session".to_owned()).spawn_scoped(scope, session);
                if let Err(error) = started {
                    eprint_lines(error_lines(&fault::io("cannot start a session", &error)));
                }
            }
        });
        self.policy.context.inform("stopped");
        if self.was_interrupted.load(Ordering::Relaxed) { INTERRUPTED } else { 0 }
    }

    fn next(&self, listener: &Listener) -> Option<Incoming> {
        next_client(listener, || self.policy.context.cancel.is_requested())
    }

    fn serve(&self, incoming: Incoming, session_progress: SessionProgress) -> RunReport {
        let (peer, request) = (incoming.peer(), incoming.request().name());
        let is_dry = incoming.request().is_dry_run();
        self.policy.context.inform(format!("{peer} {request}: begins"));
        let context = Context { session_progress, cpu: Cpu::from_now(), ..self.policy.context.clone() };
        let report = answer(incoming, self.policy, &context);
        // Clients interrupt sessions too.
        if report.exit_code() == INTERRUPTED && self.policy.context.cancel.is_requested() {
            self.was_interrupted.store(true, Ordering::Relaxed);
        }
        self.log(peer, request, is_dry, &report);
        report
    }

    fn log(&self, peer: SocketAddr, request: &str, is_dry: bool, report: &RunReport) {
        if self.policy.context.json {
            out_json(&json!({
                "schema": 1, "event": "session", "peer": peer.to_string(), "request": request,
                "dry_run": is_dry, "result": json_value(report),
            }));
        }
        let session = format!("{peer} {request}: ");
        eprint_lines(report.problems().with_prefix(&session));
        let done = match &report.error {
            // The client was not sent the notes.
            Some(_) => return self.policy.context.inform(report.note_lines().with_prefix(&session)),
            None if is_dry => "dry run, nothing was moved".to_owned(),
            None if report.is_nothing_done() => "nothing was moved".to_owned(),
            None if report.bytes == 0 && report.files == 0 => "done".to_owned(),
            None => report.moved(),
        };
        self.policy.context.inform(format!("{session}{done}"));
    }
}

/// Prints the URL, for which users and scripts wait, or the file that contains it.
fn announce(context: &Context, args: &ServeArgs, access: &str, listener: &Listener, url: &HaulUrl) {
    let (file, address) = (args.url_file.as_deref(), listener.local_addr());
    match file {
        _ if context.json => {
            // With `--url-file`, the URL is in that file only.
            let (key, place) = file
                .map_or_else(|| ("url", url.to_string()), |file| ("url_file", file.to_string_lossy().into()));
            let address = address.to_string();
            out_json(&json!({ "schema": 1, "event": "listening", key: place, "address": address }));
        }
        None => out_url(url),
        Some(file) => context.inform(format!("the URL is in {}", file.display())),
    }
    context.inform(format!(
        "serving {} for {access} on {address} (TCP and UDP); anyone with the URL has access; Ctrl-C stops",
        args.root.display()
    ));
}

/// Starts a thread that writes the URL to a file, anywhere if it starts before Landlock's restriction.
fn url_writer(path: &Path) -> Result<impl FnOnce(&HaulUrl) -> Result<(), Fault> + use<>, Fault> {
    let (sender, urls) = channel::<HaulUrl>();
    let path = path.to_owned();
    // There is no URL if the server could not start.
    let write = move || urls.recv().map_or(Ok(()), |url| write_url(&path, &url));
    let writer = fault::spawn("haul-url", write)?;
    Ok(move |url: &HaulUrl| {
        // If the thread has ended, joining it tells why.
        let _ = sender.send(url.clone());
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(crate) fn write_url(path: &Path, url: &HaulUrl) -> Result<(), Fault> {
    let text = Zeroizing::new(format!("{url}\n"));
    let written = write_secret_file(path, text.as_bytes());
    written.map_err(|e| fault::io(format!("cannot write the URL to {}", path.display()), &e))
}

/// Returns the address for the URL: the one listened on; for a wildcard, the one that this machine uses
/// toward others, or else 127.0.0.1.
pub(crate) fn own_address(listening: IpAddr) -> IpAddr {
    if !listening.is_unspecified() {
        return listening;
    }
    let address_toward = |(any, remote): &(&str, &str)| {
        let socket = UdpSocket::bind(any)?;
        socket.connect(remote)?;
        socket.local_addr()
    };
    // IPv6 is for a machine without a route over IPv4.
    let families = if listening.is_ipv6() { &PROBE_ADDRESSES[..] } else { &PROBE_ADDRESSES[..1] };
    let found = families.iter().find_map(|family| address_toward(family).ok());
    found.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_never_contains_the_unspecified_address() {
        assert!(!own_address(IpAddr::from([0, 0, 0, 0])).is_unspecified());
        assert_eq!(own_address(IpAddr::from([10, 1, 2, 3])), IpAddr::from([10, 1, 2, 3]));
    }
}
