//! `haul serve --for-ssh`, which ssh starts: serves one session as the user there, and ends with it or with stdin.

use std::io::{self, BufRead, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};

use haul_engine::{ListenOptions, Listener};
use haul_mover::{MinFree, Root};
use haul_wire::control::{Fault, Request};

use crate::args::ServeArgs;
use crate::fault;
use crate::output::out_verbatim;
use crate::signals::INTERRUPTED;
use crate::ssh::{Announcement, MAX_PERMIT, Permit};
use crate::transfer::{
    Context, Cpu, Policy, Pulse, answer, bind_within, listen_options, next_client, server::POLL,
};

/// All addresses of the machine; where there is no IPv6, those of IPv4.
const ANY: [IpAddr; 2] = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
/// What stands in the URL for a host; the client knows better.
const SOME_HOST: &str = "by-ssh";

/// Serves one session. Returns the exit code.
///
/// # Errors
/// When it cannot begin; the other side of ssh has been told.
pub(crate) fn serve(context: &Context, args: &ServeArgs) -> Result<u8, Fault> {
    go_home();
    // A copy by ssh may fill the disk as its user may, unless that one has said otherwise.
    let min_free = args.min_free.map_or(MinFree::Nothing, |bytes| MinFree::Bytes(bytes.0));
    let policy = Policy { min_free, ..Policy::new(Root::Anywhere, args.read_only, context.clone()) };
    let options = ListenOptions {
        expires: args.expires.map(Into::into),
        ..listen_options((ANY[0], 0).into(), &policy)
    };
    let listener = bind(&options, args).inspect_err(|fault| {
        say(&Announcement { fault: Some(fault.clone()), ..Announcement::ours() });
    })?;
    say(&Announcement {
        url: Some(listener.url(SOME_HOST, b"").to_string()),
        hosts: own_hosts(args, std::env::var("SSH_CONNECTION").ok().as_deref()),
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
    let until =
        || context.cancel.is_requested() || matches!(permits.try_recv(), Err(TryRecvError::Disconnected));
    let policy = policy.permitting(permit.preserve());
    Ok(one_session(&listener, &policy, &permit, until))
}

/// The permit, the one line on stdin; disconnected when stdin ends.
fn listen_to_stdin() -> Result<Receiver<Result<Permit, Fault>>, Fault> {
    let (sender, permits) = channel();
    let listen = move || {
        let mut stdin = io::stdin().lock();
        let mut line = Vec::new();
        if matches!((&mut stdin).take(MAX_PERMIT).read_until(b'\n', &mut line), Ok(1..)) {
            let permit = serde_json::from_slice(&line);
            let _ = sender.send(permit.map_err(|error| {
                let message = format!("what is to be served is not understood: {error}");
                fault::usage(message, "this option is for `haul cp … host:…`, which starts it itself")
            }));
        }
        // Retries after a signal by itself; any other failure is an end too.
        let _ = io::copy(&mut stdin, &mut io::sink());
        drop(sender);
    };
    fault::spawn("haul-stdin", listen)?;
    Ok(permits)
}

fn bind(options: &ListenOptions, args: &ServeArgs) -> Result<Listener, Fault> {
    if let Some(range) = args.port_range {
        return bind_within(options, &ANY, range);
    }
    let v4 = ListenOptions { addr: SocketAddr::new(ANY[1], 0), ..options.clone() };
    Listener::bind(options.clone()).or_else(|_| Listener::bind(v4)).map_err(fault::of)
}

/// Where others may find this machine: what its owner says, and the address by which ssh was reached.
fn own_hosts(args: &ServeArgs, connection: Option<&str>) -> Vec<String> {
    // "client address, client port, server address, server port" (ssh(1)).
    let reached = connection.and_then(|words| words.split_whitespace().nth(2));
    // A zone (`%eth0`) means something on this machine only.
    let reached = reached.filter(|address| address.parse::<IpAddr>().is_ok());
    args.host.iter().cloned().chain(reached.map(str::to_owned)).collect()
}

fn one_session(listener: &Listener, policy: &Policy, permit: &Permit, until: impl Fn() -> bool) -> u8 {
    while let Some(incoming) = next_client(listener, &until) {
        if let Err(fault) = permit.check(incoming.request()) {
            incoming.refuse(fault);
            continue;
        }
        let is_check = matches!(incoming.request(), Request::Check);
        let report = answer(incoming, policy, Cpu::from_now(), &Pulse::default());
        if !is_check {
            return report.exit_code();
        }
    }
    INTERRUPTED
}

/// Paths are relative to the home directory, wherever a forced command may have led.
pub(crate) fn go_home() {
    if let Some(home) = std::env::home_dir() {
        // Without it, absolute paths still work.
        let _ = std::env::set_current_dir(home);
    }
}

/// Calls `then` when nobody is at the other end of stdin any more.
pub(crate) fn at_end_of_stdin(then: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
    fault::spawn("haul-stdin", move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        then();
    })
    .map(drop)
}

/// Says it on stdout, which ssh carries.
fn say(announcement: &Announcement) {
    out_verbatim(String::from_utf8_lossy(&announcement.line()).trim_end());
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn hosts(words: &str, connection: Option<&str>) -> Vec<String> {
        match Cli::try_parse_from(words.split(' ')).unwrap().command {
            Some(Command::Serve(args)) => own_hosts(&args, connection),
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
