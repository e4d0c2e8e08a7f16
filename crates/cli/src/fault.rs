//! Failures as people see them: what happened, why, and what to do.

mod engine;

use std::fmt;
use std::thread::{self, JoinHandle};

pub(crate) use haul_wire::control::{Fault, FaultCode, Host};

pub(crate) use self::engine::of;
use crate::output::Lines;

/// A mistake on the command line, in a configuration or in the environment.
pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Fault {
    Fault::new(FaultCode::Usage, message, hint)
}

/// An operating system's error while doing `what` (for example "cannot read config.toml").
pub(crate) fn io(what: impl fmt::Display, error: &std::io::Error) -> Fault {
    use std::io::ErrorKind as Kind;
    let (code, hint) = match error.kind() {
        Kind::NotFound => (FaultCode::NoSuchPath, "check the name"),
        Kind::PermissionDenied => (FaultCode::Unreadable, "check the permissions"),
        Kind::StorageFull | Kind::QuotaExceeded => (FaultCode::DiskFull, "make room and run it again"),
        Kind::ReadOnlyFilesystem => (FaultCode::ReadOnly, "choose another place"),
        Kind::NotADirectory => (FaultCode::NotADirectory, "check the path"),
        Kind::IsADirectory => (FaultCode::IsADirectory, "name a file"),
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

/// `fault`, with `hint` if contact with the other side was lost: what is to be done then only the command knows.
pub(crate) fn if_lost(mut fault: Fault, hint: &str) -> Fault {
    if matches!(fault.code, FaultCode::ControlLost | FaultCode::PeerSilent | FaultCode::PeerStopped) {
        hint.clone_into(&mut fault.hint);
    }
    fault
}

/// A fault in words: `error: …` and, on a line below it, `hint: …`, with the machine that it happened on.
pub(crate) fn shown(fault: &Fault) -> Lines {
    let mut lines = Lines::from(format_args!("error: {}{}", place(fault), fault.message));
    if !fault.hint.is_empty() {
        lines.push(format_args!(" hint: {}", fault.hint));
    }
    lines
}

/// The machine that a fault happened on, in front of its message; nothing if no other machine takes part.
pub(crate) fn place(fault: &Fault) -> String {
    match &fault.host {
        None => String::new(),
        Some(Host::Here) => "here: ".to_owned(),
        Some(Host::Named(name)) => format!("on {name}: "),
    }
}

/// `fault`, marked as this machine's unless its host is known or it is one of the way between two machines.
pub(crate) fn here(fault: Fault) -> Fault {
    use FaultCode::{Expired, Interrupted, NotAuthorised, PeerStopped, Usage, VersionMismatch};
    let is_of_both =
        matches!(fault.code, Usage | Interrupted | PeerStopped | VersionMismatch | Expired | NotAuthorised);
    if is_of_both || is_of_way(fault.code) { fault } else { fault.on(Host::Here) }
}

/// Whether the way between two machines has failed, and neither of them alone.
pub(crate) fn is_of_way(code: FaultCode) -> bool {
    use FaultCode::{ControlLost, PeerSilent, UdpBlocked, Unreachable};
    matches!(code, ControlLost | PeerSilent | UdpBlocked | Unreachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_reads_as_a_sentence_and_a_hint() {
        let fault = usage("`x` is no option\u{1b}[2J\nb", "try --help");
        assert_eq!(shown(&fault).to_string(), "error: `x` is no option\\x1b[2J\\nb\n hint: try --help\n");
        assert_eq!(shown(&usage("no", "")).to_string(), "error: no\n");
    }

    #[test]
    fn a_fault_names_the_machine_that_it_happened_on() {
        let full = || Fault::new(FaultCode::DiskFull, "no room", "");
        let far = full().on(Host::Named("far\n".to_owned()));
        assert_eq!(shown(&far).to_string(), "error: on far\\n: no room\n");
        assert_eq!(here(far.clone()), far);
        assert_eq!(shown(&here(full())).to_string(), "error: here: no room\n");
        let lost = Fault::new(FaultCode::ControlLost, "lost", "");
        assert_eq!(here(lost.clone()), lost);
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
        let fault = io("cannot read x", &std::io::Error::from(std::io::ErrorKind::StorageFull));
        assert_eq!(fault.code, FaultCode::DiskFull);
        assert!(fault.message.starts_with("cannot read x: "));
    }
}
