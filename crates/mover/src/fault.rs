//! Faults from errors of the operating system, with paths escaped for display.

/// Formats a path for display: terminal control characters and bytes that are not UTF-8 are escaped.
pub(crate) use haul_base::printable_bytes as show;
use haul_wire::control::{ControlMessage, Fault, FaultCode};
use rustix::io::Errno;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Source,
    Destination,
}

/// What an error aborts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// One entry; the others continue.
    Entry,
    /// The whole job: every further entry would fail in the same way.
    Job,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct IoFault {
    pub(crate) fault: Fault,
    pub(crate) scope: Scope,
}

/// A plain fault aborts the job.
impl From<Fault> for IoFault {
    fn from(fault: Fault) -> Self {
        Self { fault, scope: Scope::Job }
    }
}

impl IoFault {
    /// Creates the fault for an operating system error while `doing` something to the source `path`.
    pub(crate) fn source(doing: &str, path: &[u8], errno: Errno) -> Self {
        Self::new(Side::Source, doing, path, errno)
    }

    /// Creates the fault for an operating system error while `doing` something to the destination `path`.
    pub(crate) fn destination(doing: &str, path: &[u8], errno: Errno) -> Self {
        Self::new(Side::Destination, doing, path, errno)
    }

    fn new(side: Side, doing: &str, path: &[u8], errno: Errno) -> Self {
        let (code, scope, hint) = classify(side, errno);
        let why = why(errno);
        // The base directory itself: all other paths are relative to it.
        let path = if path.is_empty() { b"." } else { path };
        Self { fault: Fault::new(code, format!("cannot {doing} `{}`: {why}", show(path)), hint), scope }
    }

    /// Creates a fault of one entry; its message is the path followed by `what`.
    pub(crate) fn entry(code: FaultCode, path: &[u8], what: &str, hint: &str) -> Self {
        Self { fault: of_path(code, path, what, hint), scope: Scope::Entry }
    }
}

/// Creates a fault whose message is the path followed by `what`.
pub(crate) fn of_path(code: FaultCode, path: &[u8], what: &str, hint: &str) -> Fault {
    Fault::new(code, format!("`{}` {what}", show(path)), hint)
}

fn why(errno: Errno) -> String {
    match errno {
        Errno::XDEV => "it leads outside the served directory".to_owned(),
        Errno::LOOP => "the path contains a symbolic link, or links form a loop".to_owned(),
        _ => {
            let text = std::io::Error::from(errno).to_string();
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    }
}

fn classify(side: Side, errno: Errno) -> (FaultCode, Scope, &'static str) {
    use FaultCode as C;
    let at_source = side == Side::Source;
    let scope = match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::ROFS => Scope::Job,
        Errno::MFILE | Errno::NFILE | Errno::IO | Errno::NOMEM | Errno::STALE if !at_source => Scope::Job,
        _ => Scope::Entry,
    };
    let (code, hint) = match errno {
        Errno::NOSPC | Errno::DQUOT => {
            (C::DiskFull, "free space or quota at the destination, then run the same command again")
        }
        Errno::ROFS => (C::ReadOnly, "the file system is mounted read-only; choose another destination"),
        Errno::MFILE | Errno::NFILE => (C::Io, "raise the limit on open files (ulimit -n)"),
        Errno::IO | Errno::NOMEM | Errno::STALE if at_source => (C::Io, "check the system log"),
        Errno::IO | Errno::NOMEM | Errno::STALE => (C::Io, "check the system log of the receiving machine"),
        Errno::NOENT if at_source => (C::NoSuchPath, "check the spelling of the path"),
        Errno::NOENT => (C::NoSuchPath, "create the directory first"),
        Errno::ACCESS | Errno::PERM if at_source => {
            (C::Unreadable, "run as a user who can read it, or change its permissions")
        }
        Errno::ACCESS | Errno::PERM => {
            (C::ReadOnly, "run as a user who can write there, or change the permissions")
        }
        Errno::NOTDIR => (C::NotADirectory, "a component of the path is not a directory"),
        Errno::ISDIR => (C::IsADirectory, "move the directory out of the way, or choose another name"),
        Errno::XDEV => (C::PathEscape, "name a path inside it, without `..` or links that lead outside"),
        Errno::LOOP => (C::PathEscape, "name the real path, without links"),
        Errno::NAMETOOLONG => (C::Io, "this file system does not support names or paths of this length"),
        Errno::INVAL | Errno::ILSEQ => (C::Io, "this file system may not support this name"),
        Errno::FBIG => (C::Io, "the file is larger than the file system or a limit permits"),
        _ => (C::Io, ""),
    };
    (code, scope, hint)
}

/// The fault for a message that the peer may not send, or not now.
pub(crate) fn unexpected(message: &ControlMessage) -> Fault {
    protocol(&format!("unexpected {} message", message.name()))
}

pub(crate) fn left_early(who: &str) -> Fault {
    let message = format!("the {who} disconnected before the transfer was complete");
    Fault::new(FaultCode::ControlLost, message, "run the same command again")
}

pub(crate) fn protocol(what: &str) -> Fault {
    Fault::new(
        FaultCode::Internal,
        format!("the peer violated the protocol: {what}"),
        "use the same version of haul on both sides",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_bytes_of_a_path_are_shown_as_escapes() {
        assert_eq!(show(b"a\nb\xff"), "a\\nb\\xff");
        assert_eq!(show("größe".as_bytes()), "größe");
    }

    #[test]
    fn the_root_has_a_name() {
        let fault = IoFault::destination("write to", b"", Errno::ROFS).fault;
        assert_eq!(fault.message, "cannot write to `.`: Read-only file system");
    }

    #[test]
    fn a_full_disk_ends_the_job_and_a_forbidden_file_only_itself() {
        let full = IoFault::destination("write", b"x", Errno::NOSPC);
        assert_eq!((full.fault.code, full.scope), (FaultCode::DiskFull, Scope::Job));
        let quota = IoFault::destination("write", b"x", Errno::DQUOT);
        assert_eq!(quota.fault.code, FaultCode::DiskFull);
        let denied = IoFault::source("open", b"x", Errno::ACCESS);
        assert_eq!((denied.fault.code, denied.scope), (FaultCode::Unreadable, Scope::Entry));
        assert!(
            denied.fault.message.contains("cannot open `x`: Permission denied"),
            "{}",
            denied.fault.message
        );
        let frozen = IoFault::destination("create", b"x", Errno::ROFS);
        assert_eq!((frozen.fault.code, frozen.scope), (FaultCode::ReadOnly, Scope::Job));
        let crowded = IoFault::destination("create", b"x", Errno::MFILE);
        assert_eq!(crowded.scope, Scope::Job);
        assert!(crowded.fault.hint.contains("ulimit -n"), "{}", crowded.fault.hint);
    }

    #[test]
    fn a_path_that_leaves_the_root_is_called_so() {
        let escape = IoFault::source("read", b"../x", Errno::XDEV).fault;
        assert_eq!(escape.code, FaultCode::PathEscape);
        assert!(escape.message.contains("leads outside the served directory"), "{}", escape.message);
    }

    #[test]
    fn every_classified_error_has_a_hint() {
        for errno in
            [Errno::NOSPC, Errno::ROFS, Errno::NOENT, Errno::ACCESS, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP]
        {
            for side in [Side::Source, Side::Destination] {
                assert!(!classify(side, errno).2.is_empty(), "{errno:?}");
            }
        }
    }
}
