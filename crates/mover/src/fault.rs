//! Faults from errors of the operating system, with paths escaped for display.

/// Formats a path for display: terminal control characters and bytes that are not UTF-8 are escaped.
pub(crate) use haul_base::printable_bytes as show;
use haul_wire::control::{ControlMessage, Fault, FaultCode};
use rustix::io::Errno;

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
    /// Creates the fault for an operating system error while `doing` something to the destination `path`.
    pub(crate) fn destination(doing: &str, path: &[u8], errno: Errno) -> Self {
        let scope = match errno {
            Errno::NOSPC
            | Errno::DQUOT
            | Errno::ROFS
            | Errno::MFILE
            | Errno::NFILE
            | Errno::IO
            | Errno::NOMEM
            | Errno::STALE => Scope::Job,
            _ => Scope::Entry,
        };
        Self { fault: errno_fault(classify(false, errno), doing, path, errno), scope }
    }

    /// Creates a fault of one entry; its message is the path followed by `what`.
    pub(crate) fn entry(code: FaultCode, path: &[u8], what: &str, hint: &str) -> Self {
        Self { fault: path_fault(code, path, what, hint), scope: Scope::Entry }
    }

    /// Returns the fault of one entry, or fails with one that aborts the job.
    pub(crate) fn of_entry(self) -> Result<Fault, Fault> {
        if self.scope == Scope::Job { Err(self.fault) } else { Ok(self.fault) }
    }
}

/// Creates the fault for an operating system error while `doing` something to the source `path`.
pub(crate) fn source_fault(doing: &str, path: &[u8], errno: Errno) -> Fault {
    errno_fault(classify(true, errno), doing, path, errno)
}

fn errno_fault((code, hint): (FaultCode, &str), doing: &str, path: &[u8], errno: Errno) -> Fault {
    let why = match errno {
        Errno::XDEV => "it leads outside the served directory".to_owned(),
        Errno::LOOP => "the path contains a symbolic link, or links form a loop".to_owned(),
        _ => std::io::Error::from(errno).to_string(),
    };
    let why = why.split(" (os error").next().unwrap_or_default();
    // The base directory itself: all other paths are relative to it.
    let path = if path.is_empty() { b"." } else { path };
    Fault::new(code, format!("cannot {doing} `{}`: {why}", show(path)), hint)
}

/// Creates a fault whose message is the path followed by `what`.
pub(crate) fn path_fault(code: FaultCode, path: &[u8], what: &str, hint: &str) -> Fault {
    Fault::new(code, format!("`{}` {what}", show(path)), hint)
}

fn classify(at_source: bool, errno: Errno) -> (FaultCode, &'static str) {
    use FaultCode as C;
    match errno {
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
    }
}

pub(crate) fn unexpected(message: &ControlMessage) -> Fault {
    violation(&format!("unexpected {} message", message.name()))
}

pub(crate) fn early_disconnect(who: &str) -> Fault {
    let message = format!("the {who} disconnected before the transfer was complete");
    Fault::new(FaultCode::ControlLost, message, "run the same command again")
}

pub(crate) fn violation(what: &str) -> Fault {
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
    fn unprintable_bytes_of_a_path_are_shown_as_escapes() {
        assert_eq!(show(b"a\nb\xff"), "a\\nb\\xff");
        assert_eq!(show("größe".as_bytes()), "größe");
    }

    #[test]
    fn the_root_is_shown_as_a_dot() {
        let fault = IoFault::destination("write to", b"", Errno::ROFS).fault;
        assert_eq!(fault.message, "cannot write to `.`: Read-only file system");
    }

    #[test]
    fn a_full_disk_fails_the_job_and_a_denied_file_only_the_entry() {
        let full = IoFault::destination("write", b"x", Errno::NOSPC);
        assert_eq!((full.fault.code, full.scope), (FaultCode::DiskFull, Scope::Job));
        let quota = IoFault::destination("write", b"x", Errno::DQUOT);
        assert_eq!(quota.fault.code, FaultCode::DiskFull);
        let denied = IoFault::destination("open", b"x", Errno::ACCESS);
        assert_eq!((denied.fault.code, denied.scope), (FaultCode::ReadOnly, Scope::Entry));
        let denied = source_fault("open", b"x", Errno::ACCESS);
        assert_eq!(denied.code, FaultCode::Unreadable);
        assert!(denied.message.contains("cannot open `x`: Permission denied"), "{}", denied.message);
        let read_only = IoFault::destination("create", b"x", Errno::ROFS);
        assert_eq!((read_only.fault.code, read_only.scope), (FaultCode::ReadOnly, Scope::Job));
        let no_descriptors = IoFault::destination("create", b"x", Errno::MFILE);
        assert_eq!(no_descriptors.scope, Scope::Job);
        assert!(no_descriptors.fault.hint.contains("ulimit -n"), "{}", no_descriptors.fault.hint);
    }

    #[test]
    fn a_path_that_leaves_the_root_is_reported_as_an_escape() {
        let escape = source_fault("read", b"../x", Errno::XDEV);
        assert_eq!(escape.code, FaultCode::PathEscape);
        assert!(escape.message.contains("leads outside the served directory"), "{}", escape.message);
    }

    #[test]
    fn every_classified_error_has_a_hint() {
        for errno in
            [Errno::NOSPC, Errno::ROFS, Errno::NOENT, Errno::ACCESS, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP]
        {
            for at_source in [true, false] {
                assert!(!classify(at_source, errno).1.is_empty(), "{errno:?}");
            }
        }
    }
}
