//! Failures as shown to users.

use std::fmt;
use std::io::ErrorKind;
use std::thread::{self, JoinHandle};

use haul_engine::{Direction, EngineError, UrlError};
use haul_proto::connection::ENCRYPTION_REQUIRED;
pub(crate) use haul_wire::control::{Fault, FaultCode, Host};

pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Fault {
    Fault::new(FaultCode::Usage, message, hint)
}

/// Creates a fault for an I/O error; `what` is for example "cannot read config.toml".
pub(crate) fn io(what: impl fmt::Display, error: &std::io::Error) -> Fault {
    let (code, hint) = match error.kind() {
        ErrorKind::NotFound => (FaultCode::NoSuchPath, "check the name"),
        ErrorKind::PermissionDenied => (FaultCode::Unreadable, "check the permissions"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            (FaultCode::DiskFull, "free space and run it again")
        }
        ErrorKind::ReadOnlyFilesystem => (FaultCode::ReadOnly, "choose another place"),
        ErrorKind::NotADirectory => (FaultCode::NotADirectory, "check the path"),
        ErrorKind::IsADirectory => (FaultCode::IsADirectory, "name a file"),
        _ => (FaultCode::Io, ""),
    };
    Fault::new(code, format!("{what}: {error}"), hint)
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Fault> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|error| io("cannot start a thread", &error))
}

/// Replaces the hint if contact with the peer was lost.
pub(crate) fn if_lost(mut fault: Fault, hint: &str) -> Fault {
    if matches!(fault.code, FaultCode::ControlLost | FaultCode::PeerSilent | FaultCode::PeerStopped) {
        hint.clone_into(&mut fault.hint);
    }
    fault
}

/// Sets the host of a fault to this machine, unless it has one or concerns both machines or their connection.
pub(crate) fn on_this_machine(fault: Fault) -> Fault {
    use FaultCode::{Expired, Interrupted, NotAuthorised, PeerStopped, Usage, VersionMismatch};
    let is_of_both_sides =
        matches!(fault.code, Usage | Interrupted | PeerStopped | VersionMismatch | Expired | NotAuthorised);
    if is_of_both_sides || is_network_fault(fault.code) { fault } else { fault.on(Host::Here) }
}

/// Whether the connection between two machines failed, rather than one of them.
pub(crate) fn is_network_fault(code: FaultCode) -> bool {
    use FaultCode::{ControlLost, PeerSilent, UdpBlocked, Unreachable};
    matches!(code, ControlLost | PeerSilent | UdpBlocked | Unreachable)
}

const SAME_VERSION: &str = "install the same version of haul on both sides";
const EXPIRED: &str = "ask for a new URL: start `haul serve` or `haul pipe --listen` again there";

/// Converts an error to the engine's fault, with the cause of a failed connection and a hint.
pub(crate) fn of(error: impl Into<EngineError>) -> Fault {
    let error = error.into();
    let mut fault = error.fault();
    if let EngineError::Connect { source, .. } = &error {
        let (reason, hint) = connect_failure(source);
        return Fault { message: format!("{error}: {reason}"), hint: hint.to_owned(), ..fault };
    }
    if fault.hint.is_empty() {
        fault.hint = hint(&error);
    }
    fault
}

fn connect_failure(error: &std::io::Error) -> (String, &'static str) {
    let network = "check the network of this machine and the host in the URL (`ip route get ADDRESS`)";
    match error.kind() {
        ErrorKind::ConnectionRefused => (
            "connection refused, nothing is listening there".to_owned(),
            "check that `haul serve` or `haul pipe --listen` still runs there, and the port in the URL",
        ),
        ErrorKind::TimedOut => (
            "no answer".to_owned(),
            "check that the host is up and that no firewall on the path drops this TCP port",
        ),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            (format!("unreachable ({error})"), network)
        }
        _ => (error.to_string(), network),
    }
}

fn hint(error: &EngineError) -> String {
    let hint = match error {
        EngineError::Expired(_) => EXPIRED,
        EngineError::Peer(fault) if fault.code == FaultCode::Expired => EXPIRED,
        EngineError::Peer(fault) if fault.code == FaultCode::NotAuthorised => {
            "use the complete URL that `haul serve` or `haul pipe --listen` printed last"
        }
        EngineError::Peer(fault) if fault.message == ENCRYPTION_REQUIRED => {
            "leave out `--set crypto=none`, or start the server with `haul serve --set crypto=none`"
        }
        EngineError::Peer(fault) if fault.code == FaultCode::PeerStopped => "run it again on both sides",
        EngineError::Peer(fault) if fault.code == FaultCode::Busy => "run the same command again later",
        EngineError::Resolve { .. } => "check the host name in the URL, or use an IP address",
        EngineError::NotHaul { .. } => {
            "check host and port in the URL; another program may use the port, or a proxy may be in between"
        }
        EngineError::Certificate(_) => {
            "`haul serve` and `haul pipe --listen` create a new certificate at each start: use the URL printed last. If you did, another server responds at this address: do not trust it"
        }
        EngineError::UdpBlocked { port, direction } => return udp_hint(*port, *direction),
        EngineError::UdpForbidden(_) => {
            "check for a firewall rule that rejects outgoing UDP there (`nft list ruleset`)"
        }
        EngineError::Tls { .. }
        | EngineError::ControlLost(_)
        | EngineError::TimedOut { .. }
        | EngineError::Silent(_) => "run the same command again",
        EngineError::Cipher(_)
        | EngineError::Protocol(_)
        | EngineError::Version(_)
        | EngineError::Url(UrlError::KeyVersion(_)) => SAME_VERSION,
        EngineError::Peer(fault) if fault.code == FaultCode::VersionMismatch => SAME_VERSION,
        EngineError::Url(_) => {
            "copy the whole URL as it was printed, in quotes: haul://HOST:PORT/PATH?k=KEY \
             (an IPv6 address in [brackets])"
        }
        EngineError::TooLong(_) => "name fewer paths in one command, or a directory that contains them",
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
        EngineError::Resumption(_) => "connect again with the server's URL",
        EngineError::MicroProtocol { .. } => {
            "other sessions are not affected; fix the micro-protocol or leave it out"
        }
        _ => "",
    };
    hint.to_owned()
}

fn udp_hint(port: u16, direction: Direction) -> String {
    match direction {
        Direction::ClientToServer => format!(
            "TCP works but UDP packets of 1,228 bytes (IPv6: 1,248) do not pass: open UDP port {port} in the server's firewall, or choose \
             an open port with `haul serve --listen`; check with `ping -M do -s 1200 HOST` that the path carries packets of this size"
        ),
        Direction::ServerToClient => format!(
            "the server receives the client's packets: allow replies from UDP port {port} through the client's firewall or NAT"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::error_lines;

    #[test]
    fn a_fault_is_shown_as_an_error_line_and_a_hint_line() {
        let fault = usage("`x` is no option\u{1b}[2J\nb", "try --help");
        assert_eq!(error_lines(&fault).as_str(), "error: `x` is no option\\x1b[2J\\nb\n hint: try --help\n");
        assert_eq!(error_lines(&usage("no", "")).as_str(), "error: no\n");
    }

    #[test]
    fn a_fault_names_the_machine_that_it_happened_on() {
        let full = || Fault::new(FaultCode::DiskFull, "no room", "");
        let far = full().on(Host::Named("far\n".to_owned()));
        assert_eq!(error_lines(&far).as_str(), "error: on far\\n: no room\n");
        assert_eq!(on_this_machine(far.clone()), far);
        assert_eq!(error_lines(&on_this_machine(full())).as_str(), "error: here: no room\n");
        let lost = Fault::new(FaultCode::ControlLost, "lost", "");
        assert_eq!(on_this_machine(lost.clone()), lost);
    }

    #[test]
    fn a_hint_for_lost_contact_changes_no_other() {
        let hint_of = |code| if_lost(Fault::new(code, "no", "old"), "new").hint;
        let lost = [FaultCode::ControlLost, FaultCode::PeerSilent, FaultCode::PeerStopped];
        assert_eq!(lost.map(hint_of), ["new"; 3]);
        assert_eq!([FaultCode::DiskFull, FaultCode::UdpBlocked].map(hint_of), ["old", "old"]);
    }

    #[test]
    fn errors_of_the_system_keep_their_kind() {
        let fault = io("cannot read x", &std::io::Error::from(ErrorKind::StorageFull));
        assert_eq!(fault.code, FaultCode::DiskFull);
        assert!(fault.message.starts_with("cannot read x: "));
    }
}

#[cfg(test)]
mod engine_tests {
    use std::io;

    use super::*;

    #[test]
    fn a_refused_connection_names_the_cause_and_the_remedy() {
        let refused = EngineError::Connect {
            authority: "host:7000".to_owned(),
            source: io::Error::from(ErrorKind::ConnectionRefused).into(),
        };
        let fault = of(refused);
        assert_eq!(fault.code, FaultCode::Unreachable);
        let expected = "cannot connect to host:7000 (TCP): connection refused, nothing is listening there";
        assert_eq!(fault.message, expected);
        assert!(fault.hint.contains("haul serve"), "{fault}");
    }

    #[test]
    fn blocked_udp_names_port_and_direction() {
        let fault = of(EngineError::UdpBlocked { port: 7011, direction: Direction::ServerToClient });
        assert_eq!(fault.code, FaultCode::UdpBlocked);
        assert!(fault.message.contains("7011") && fault.message.contains("from the server to the client"));
        let fault = of(EngineError::UdpBlocked { port: 7011, direction: Direction::ClientToServer });
        assert!(fault.hint.contains("7011") && fault.hint.contains("packets of 1,228 bytes"), "{fault}");
    }

    #[test]
    fn forbidden_udp_sends_are_reported_as_a_local_firewall_rule() {
        let fault = of(EngineError::UdpForbidden(io::Error::other("Operation not permitted").into()));
        assert_eq!(fault.code, FaultCode::UdpBlocked);
        assert!(fault.message.contains("not permitted") && fault.hint.contains("firewall rule"), "{fault}");
    }

    #[test]
    fn peers_of_different_versions_get_a_hint() {
        let refused = Fault::new(FaultCode::VersionMismatch, "version 7", "");
        for error in [
            EngineError::Version(7),
            EngineError::Protocol("nonsense".to_owned()),
            EngineError::Peer(refused),
        ] {
            assert!(of(error.clone()).hint.contains("same version"), "{error}");
        }
    }

    #[test]
    fn a_lost_connection_can_be_retried_with_the_same_command() {
        let fault = of(EngineError::ControlLost("reset".to_owned()));
        assert!(fault.retryable && fault.hint.contains("same command"), "{fault}");
    }

    #[test]
    fn a_fault_of_the_peer_is_passed_on_unchanged() {
        let fault = Fault::new(FaultCode::DiskFull, "disk full", "make room");
        assert_eq!(of(EngineError::Peer(fault.clone())), fault);
    }

    #[test]
    fn the_hint_for_a_taken_port_names_the_listen_option() {
        let taken = EngineError::Listen {
            addr: ([127, 0, 0, 1], 7).into(),
            source: io::Error::other("in use").into(),
        };
        let fault = of(taken);
        assert_eq!(fault.message, "cannot listen on 127.0.0.1:7: in use");
        assert!(fault.hint.contains("--listen"), "{fault}");
    }

    #[test]
    fn the_hint_for_a_job_interrupted_by_the_peer_is_to_run_it_again() {
        let stopped = || Fault::new(FaultCode::Interrupted, "the writer was dropped", "").from_peer();
        assert!(of(EngineError::Peer(stopped())).hint.contains("run it again"));
        let hinted = Fault { hint: "wait".to_owned(), ..stopped() };
        assert_eq!(of(EngineError::Peer(hinted)).hint, "wait");
    }

    #[test]
    fn a_refusal_without_a_hint_gets_one_from_the_client() {
        for (code, words) in [
            (FaultCode::NotAuthorised, "haul serve"),
            (FaultCode::Expired, "haul serve"),
            (FaultCode::Busy, "again later"),
        ] {
            let fault = of(EngineError::Peer(Fault::new(code, "no", "")));
            assert!(fault.message == "no" && fault.hint.contains(words), "{fault}");
        }
        let fault = of(EngineError::Peer(Fault::new(FaultCode::NotPermitted, ENCRYPTION_REQUIRED, "")));
        assert!(fault.hint.contains("crypto=none"), "{fault}");
    }

    #[test]
    fn every_url_error_has_a_hint() {
        for error in
            [UrlError::Scheme, UrlError::Host, UrlError::NoKey, UrlError::Key, UrlError::KeyVersion(2)]
        {
            assert!(!of(error).hint.is_empty(), "{error}");
        }
    }
}
