use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that went wrong, in a form that travels to the peer and ends up before a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Fault {
    /// What kind of failure.
    pub code: FaultCode,
    /// What happened and why, one sentence.
    pub message: String,
    /// What to do about it; may be empty.
    pub hint: String,
    /// Whether the same command may succeed when it is repeated unchanged.
    pub retryable: bool,
}

impl Fault {
    /// A fault with a message and a hint; [`FaultCode::is_retryable`] says whether it is retryable.
    pub fn new(code: FaultCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into(), retryable: code.is_retryable() }
    }
}

/// The message, and the hint in parentheses. Control characters are replaced, because the text may come from
/// a peer and go to a terminal.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_printable(f, &self.message)?;
        if !self.hint.is_empty() {
            f.write_str(" (")?;
            write_printable(f, &self.hint)?;
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// Writes `text` with every control character replaced by U+FFFD.
pub(crate) fn write_printable(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    use fmt::Write as _;
    text.chars().try_for_each(|c| f.write_char(if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }))
}

/// Kinds of failure. New kinds are added at the end: the position is what travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultCode {
    /// The request makes no sense as it was given.
    Usage,
    /// The peer could not prove who it is.
    NotAuthorised,
    /// The invitation (URL) is no longer valid.
    Expired,
    /// The two sides speak different versions of the protocol.
    VersionMismatch,
    /// The server's policy forbids it.
    NotPermitted,
    /// A path does not exist.
    NoSuchPath,
    /// A file or directory exists and cannot be read.
    Unreadable,
    /// No space or quota left where the files go.
    DiskFull,
    /// The place where the files go cannot be written.
    ReadOnly,
    /// A directory was needed and something else is there.
    NotADirectory,
    /// A file was needed and a directory is there.
    IsADirectory,
    /// A path leads out of the permitted root.
    PathEscape,
    /// A file changed while it was read.
    SourceChanged,
    /// The received bytes are not those that were sent.
    VerifyFailed,
    /// UDP does not pass between the two hosts.
    UdpBlocked,
    /// The control connection broke.
    ControlLost,
    /// The peer stopped answering.
    PeerSilent,
    /// A person or a signal stopped the transfer.
    Interrupted,
    /// Reading or writing a disk failed in another way.
    Io,
    /// A defect of the program.
    Internal,
    /// The server serves as many sessions as it may.
    Busy,
    /// No connection could be made at all.
    Unreachable,
    /// Neither a file nor a directory nor a symbolic link: no command moves it.
    SpecialFile,
}

impl FaultCode {
    /// Every code, in the order in which they are numbered on the wire.
    pub const ALL: [Self; 23] = [
        Self::Usage,
        Self::NotAuthorised,
        Self::Expired,
        Self::VersionMismatch,
        Self::NotPermitted,
        Self::NoSuchPath,
        Self::Unreadable,
        Self::DiskFull,
        Self::ReadOnly,
        Self::NotADirectory,
        Self::IsADirectory,
        Self::PathEscape,
        Self::SourceChanged,
        Self::VerifyFailed,
        Self::UdpBlocked,
        Self::ControlLost,
        Self::PeerSilent,
        Self::Interrupted,
        Self::Io,
        Self::Internal,
        Self::Busy,
        Self::Unreachable,
        Self::SpecialFile,
    ];

    /// The exit code of the `haul` program when this failure ends it: 1 failed, 2 usage, 4 verification
    /// failed, 5 unreachable or UDP blocked, 6 not authorised, 7 disk or permission, 8 source changed while
    /// reading, 130 interrupted. (3, some files failed, follows from a summary and not from one fault.)
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::VersionMismatch | Self::Internal | Self::Busy => 1,
            Self::Usage => 2,
            Self::VerifyFailed => 4,
            Self::UdpBlocked | Self::ControlLost | Self::PeerSilent | Self::Unreachable => 5,
            Self::NotAuthorised | Self::Expired | Self::NotPermitted | Self::PathEscape => 6,
            Self::NoSuchPath
            | Self::Unreadable
            | Self::DiskFull
            | Self::ReadOnly
            | Self::NotADirectory
            | Self::IsADirectory
            | Self::SpecialFile
            | Self::Io => 7,
            Self::SourceChanged => 8,
            Self::Interrupted => 130,
        }
    }

    /// Whether repeating the same command unchanged can help with failures of this kind.
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::SourceChanged
                | Self::VerifyFailed
                | Self::ControlLost
                | Self::PeerSilent
                | Self::Interrupted
                | Self::Busy
                | Self::Unreachable
        )
    }

    /// The name that scripts see, for example `disk_full`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::NotAuthorised => "not_authorised",
            Self::Expired => "expired",
            Self::VersionMismatch => "version_mismatch",
            Self::NotPermitted => "not_permitted",
            Self::NoSuchPath => "no_such_path",
            Self::Unreadable => "unreadable",
            Self::DiskFull => "disk_full",
            Self::ReadOnly => "read_only",
            Self::NotADirectory => "not_a_directory",
            Self::IsADirectory => "is_a_directory",
            Self::PathEscape => "path_escape",
            Self::SourceChanged => "source_changed",
            Self::VerifyFailed => "verify_failed",
            Self::UdpBlocked => "udp_blocked",
            Self::ControlLost => "control_lost",
            Self::PeerSilent => "peer_silent",
            Self::Interrupted => "interrupted",
            Self::Io => "io",
            Self::Internal => "internal",
            Self::Busy => "busy",
            Self::Unreachable => "unreachable",
            Self::SpecialFile => "special_file",
        }
    }
}

impl fmt::Display for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbering_on_the_wire_is_frozen() {
        for (number, code) in FaultCode::ALL.into_iter().enumerate() {
            assert_eq!(postcard::to_allocvec(&code).unwrap(), [number as u8], "{code}");
        }
    }

    #[test]
    fn exit_codes_follow_the_table_of_the_command_line() {
        let table = [
            (FaultCode::Internal, 1),
            (FaultCode::Usage, 2),
            (FaultCode::VerifyFailed, 4),
            (FaultCode::UdpBlocked, 5),
            (FaultCode::Unreachable, 5),
            (FaultCode::NotAuthorised, 6),
            (FaultCode::Expired, 6),
            (FaultCode::DiskFull, 7),
            (FaultCode::Unreadable, 7),
            (FaultCode::SourceChanged, 8),
            (FaultCode::Interrupted, 130),
        ];
        for (code, exit) in table {
            assert_eq!(code.exit_code(), exit, "{code}");
        }
        // 0 would hide the failure, 3 is for summaries.
        assert!(FaultCode::ALL.iter().all(|c| ![0, 3].contains(&c.exit_code())));
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = FaultCode::ALL.iter().map(|c| c.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FaultCode::ALL.len());
    }

    #[test]
    fn a_peer_cannot_send_terminal_sequences() {
        let fault = Fault::new(FaultCode::Io, "bad\x1b[2Jdisk\u{9b}", "replace\r it");
        assert_eq!(fault.to_string(), "bad\u{fffd}[2Jdisk\u{fffd} (replace\u{fffd} it)");
    }
}
