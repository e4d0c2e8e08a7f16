//! What to do about a failure of the engine, which knows no commands.

use std::io;

use haul_engine::{Direction, EngineError, UrlError};
use haul_proto::connection::ENCRYPTION_REQUIRED;
use haul_wire::control::{Fault, FaultCode};

const EXPIRED: &str = "ask for a new URL: start `haul serve` again on the server";

/// A failure of the engine with a reason and a hint for people, as it also travels to the peer.
pub(crate) fn of(error: impl Into<EngineError>) -> Fault {
    let error = error.into();
    let mut fault = error.fault();
    if let EngineError::Connect { source, .. } = &error {
        fault.message = format!("{error}: {}", connect_reason(source));
    }
    if fault.hint.is_empty() {
        fault.hint = hint(&error);
    }
    fault
}

fn connect_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused, nothing listens there".to_owned(),
        io::ErrorKind::TimedOut => "no answer".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            format!("unreachable ({error})")
        }
        _ => error.to_string(),
    }
}

/// Empty if nobody knows, or the failure itself says it.
fn hint(error: &EngineError) -> String {
    let hint = match error {
        EngineError::Expired(_) => EXPIRED,
        EngineError::Peer(fault) if fault.code == FaultCode::Expired => EXPIRED,
        EngineError::Peer(fault) if fault.code == FaultCode::NotAuthorised => {
            "use the URL that `haul serve` printed last, all of it"
        }
        EngineError::Peer(fault) if fault.message == ENCRYPTION_REQUIRED => {
            "leave out `--set crypto=none`, or start the server with `haul serve --set crypto=none`"
        }
        EngineError::Peer(fault) if fault.code == FaultCode::PeerStopped => "run it again on both sides",
        EngineError::Peer(fault) if fault.code == FaultCode::Busy => "run the same command again in a while",
        EngineError::Resolve { .. } => "check the host's name in the URL, or put its IP address there",
        EngineError::Connect { source, .. } => connect_hint(source.kind()),
        EngineError::NotHaul { .. } => {
            "check host and port in the URL; another program may have the port, or a proxy is in between"
        }
        EngineError::Certificate(_) => {
            "`haul serve` makes a new certificate at each start: use the URL that it printed last. If \
             you did, someone else answers at this address: do not trust it"
        }
        EngineError::UdpBlocked { port, direction } => return udp_hint(*port, *direction),
        EngineError::UdpForbidden(_) => {
            "look there for a firewall rule that rejects outgoing UDP (`nft list ruleset`)"
        }
        EngineError::Tls { .. }
        | EngineError::ControlLost(_)
        | EngineError::TimedOut { .. }
        | EngineError::Silent(_) => "run the same command again",
        EngineError::Url(UrlError::KeyVersion(_)) => "install the same version of haul on both sides",
        EngineError::Url(_) => {
            "copy the whole URL as `haul serve` prints it, in quotes: haul://HOST:PORT/PATH?k=KEY \
             (an IPv6 address in [brackets])"
        }
        EngineError::TooLong(_) => "name fewer paths in one command, or a directory that holds them",
        EngineError::Listen { .. } => {
            "choose another address or port with --listen (`ss -tulpn` shows which are in use, \
             `ip address` which addresses this machine has)"
        }
        EngineError::System { .. } => "check the limits of this process (`ulimit -a`) and free memory",
        EngineError::Recipe(_) => {
            "`haul presets` lists recipes that work with the commands that take them, `haul presets NAME` \
             prints one to start from (docs/recipes.md)"
        }
        EngineError::Message(_) => "send smaller messages, or raise the limit in the recipe on both sides",
        EngineError::Resumption(_) => "connect anew with the server's URL",
        EngineError::MicroProtocol { .. } => {
            "other sessions are not affected; mend the micro-protocol or leave it out"
        }
        _ => "",
    };
    hint.to_owned()
}

fn connect_hint(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ConnectionRefused => {
            "check that `haul serve` still runs there, and the port in the URL"
        }
        io::ErrorKind::TimedOut => {
            "check that the host is up and that no firewall drops this TCP port on the way"
        }
        _ => "check the network of this machine and the host in the URL (`ip route get ADDRESS`)",
    }
}

fn udp_hint(port: u16, direction: Direction) -> String {
    match direction {
        Direction::ClientToServer => format!(
            "TCP works and UDP does not: let UDP port {port} in at the server's firewall, or choose a port \
             that is open for UDP with `haul serve --listen`"
        ),
        Direction::ServerToClient => format!(
            "the server hears the client: let answers from UDP port {port} in at the client's firewall or NAT"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_say_what_happened_and_what_to_do() {
        let refused = EngineError::Connect {
            authority: "host:7000".to_owned(),
            source: io::Error::from(io::ErrorKind::ConnectionRefused).into(),
        };
        let fault = of(refused);
        assert_eq!(fault.code, FaultCode::Unreachable);
        let wanted = "cannot connect to host:7000 (TCP): connection refused, nothing listens there";
        assert_eq!(fault.message, wanted);
        assert!(fault.hint.contains("haul serve"), "{fault}");
    }

    #[test]
    fn blocked_udp_names_port_and_direction() {
        let fault = of(EngineError::UdpBlocked { port: 7011, direction: Direction::ServerToClient });
        assert_eq!(fault.code, FaultCode::UdpBlocked);
        assert!(fault.message.contains("7011") && fault.message.contains("from the server to the client"));
    }

    #[test]
    fn what_may_not_leave_is_blocked_here() {
        let fault = of(EngineError::UdpForbidden(io::Error::other("Operation not permitted").into()));
        assert_eq!(fault.code, FaultCode::UdpBlocked);
        assert!(fault.message.contains("not permitted") && fault.hint.contains("firewall rule"), "{fault}");
    }

    #[test]
    fn a_lost_connection_can_be_retried_with_the_same_command() {
        let fault = of(EngineError::ControlLost("reset".to_owned()));
        assert!(fault.retryable && fault.hint.contains("same command"), "{fault}");
    }

    #[test]
    fn what_the_peer_said_is_passed_on_unchanged() {
        let fault = Fault::new(FaultCode::DiskFull, "disk full", "make room");
        assert_eq!(of(EngineError::Peer(fault.clone())), fault);
    }

    #[test]
    fn a_port_that_is_taken_names_the_option() {
        let taken = EngineError::Listen {
            addr: ([127, 0, 0, 1], 7).into(),
            source: io::Error::other("in use").into(),
        };
        let fault = of(taken);
        assert_eq!(fault.message, "cannot listen on 127.0.0.1:7: in use");
        assert!(fault.hint.contains("--listen"), "{fault}");
    }

    #[test]
    fn a_job_that_the_other_side_has_broken_off_is_to_be_run_again() {
        let stopped = || Fault::new(FaultCode::Interrupted, "the writer was dropped", "").from_peer();
        assert!(of(EngineError::Peer(stopped())).hint.contains("run it again"));
        let told = Fault { hint: "wait".to_owned(), ..stopped() };
        assert_eq!(of(EngineError::Peer(told)).hint, "wait");
    }

    #[test]
    fn a_server_that_refuses_need_not_know_what_to_do() {
        for (code, words) in [
            (FaultCode::NotAuthorised, "haul serve"),
            (FaultCode::Expired, "haul serve"),
            (FaultCode::Busy, "in a while"),
        ] {
            let fault = of(EngineError::Peer(Fault::new(code, "no", "")));
            assert!(fault.message == "no" && fault.hint.contains(words), "{fault}");
        }
        let fault = of(EngineError::Peer(Fault::new(FaultCode::NotPermitted, ENCRYPTION_REQUIRED, "")));
        assert!(fault.hint.contains("crypto=none"), "{fault}");
    }

    #[test]
    fn whatever_is_wrong_with_a_url_has_a_hint() {
        for error in
            [UrlError::Scheme, UrlError::Host, UrlError::NoKey, UrlError::Key, UrlError::KeyVersion(2)]
        {
            assert!(!of(error).hint.is_empty(), "{error}");
        }
    }
}
