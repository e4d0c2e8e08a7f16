//! Failures as people see them: what happened, why, and what to do.

use std::fmt;

pub use haul_wire::control::{Fault, FaultCode};

/// A mistake on the command line, in a configuration or in the environment.
pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Fault {
    Fault::new(FaultCode::Usage, message, hint)
}

/// An operating system's error while doing `what` (for example "cannot read config.toml").
pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Fault {
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

/// `fault`, with `hint` if contact with the other side was lost: what is to be done then only the command knows.
pub fn if_lost(mut fault: Fault, hint: &str) -> Fault {
    if matches!(fault.code, FaultCode::ControlLost | FaultCode::PeerSilent) {
        hint.clone_into(&mut fault.hint);
    }
    fault
}

/// A fault on lines of its own: `error: …` and, below it, `hint: …`. Control characters are replaced,
/// because the words may come from a peer.
pub struct Shown<'a>(pub &'a Fault);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", printable(&self.0.message))?;
        if self.0.hint.is_empty() {
            return Ok(());
        }
        write!(f, "\n hint: {}", printable(&self.0.hint))
    }
}

/// `text` without characters that a terminal would obey; line ends stay.
pub fn printable(text: &str) -> String {
    let safe = |c: char| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_reads_as_a_sentence_and_a_hint() {
        let fault = usage("`x` is no option\u{1b}[2J", "try --help");
        assert_eq!(Shown(&fault).to_string(), "error: `x` is no option\u{fffd}[2J\n hint: try --help");
        assert_eq!(Shown(&usage("no", "")).to_string(), "error: no");
    }

    #[test]
    fn a_hint_for_lost_contact_changes_no_other() {
        let hint_of = |code| if_lost(Fault::new(code, "no", "old"), "new").hint;
        assert_eq!([FaultCode::ControlLost, FaultCode::PeerSilent].map(hint_of), ["new", "new"]);
        assert_eq!([FaultCode::DiskFull, FaultCode::UdpBlocked].map(hint_of), ["old", "old"]);
    }

    #[test]
    fn errors_of_the_system_keep_their_kind() {
        let fault = io("cannot read x", &std::io::Error::from(std::io::ErrorKind::StorageFull));
        assert_eq!(fault.code, FaultCode::DiskFull);
        assert!(fault.message.starts_with("cannot read x: "));
    }
}
