use std::fmt;

use haul_base::Printable;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An error in a form that is sent to the peer and shown to users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// Kind of failure.
    pub code: FaultCode,
    /// What happened and why, in one sentence.
    pub message: String,
    /// How to fix it; may be empty.
    pub hint: String,
    /// Whether repeating the same command unchanged may succeed.
    pub retryable: bool,
    /// Machine on which it happened, if known. Not sent to the peer: the receiver of a fault knows better
    /// whom it came from.
    pub host: Option<Host>,
}

/// A machine, from the point of view of the one that shows a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// This machine.
    Here,
    /// Another machine, by the name or address used to reach it.
    Named(String),
}

/// Maximum length of a fault's message and hint together in bytes.
pub(super) const MAX_FAULT_TEXT: usize = 64 << 10;
/// Longer messages are truncated. Long enough for the longest path with each byte escaped.
const MAX_MESSAGE: usize = 56 << 10;
/// Longer hints are truncated.
const MAX_HINT: usize = 4 << 10;

impl Fault {
    /// Sets the host unless it is known.
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        self.host.get_or_insert(host);
        self
    }

    /// Converts a fault received from the peer to the local point of view: an interrupted peer does not mean
    /// that this side was interrupted.
    #[must_use]
    pub fn from_peer(mut self) -> Self {
        if self.code == FaultCode::Interrupted {
            self.code = FaultCode::PeerStopped;
            self.retryable = true;
        }
        self
    }

    /// Creates a fault. Message and hint are truncated if they are too long to send;
    /// [`FaultCode::is_retryable`] determines whether it is retryable.
    pub fn new(code: FaultCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (message, hint) = (truncated(message.into(), MAX_MESSAGE), truncated(hint.into(), MAX_HINT));
        Self { code, message, hint, retryable: code.is_retryable(), host: None }
    }
}

/// Truncates a text to the length that may be sent.
fn truncated(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|&at| text.is_char_boundary(at)).unwrap_or_default();
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Formats the machine if known, the message, and the hint in parentheses. All of it is [`Printable`], as the
/// text may come from a peer and go to a terminal.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            None => {}
            Some(Host::Here) => f.write_str("here: ")?,
            Some(Host::Named(name)) => write!(f, "on {}: ", Printable(name))?,
        }
        write!(f, "{}", Printable(&self.message))?;
        if !self.hint.is_empty() {
            write!(f, " ({})", Printable(&self.hint))?;
        }
        Ok(())
    }
}

/// Binary form, sent to a peer.
#[derive(Serialize, Deserialize)]
struct BinaryFault {
    code: FaultCode,
    message: String,
    hint: String,
    retryable: bool,
}

/// Text form, exchanged between programs of this project.
#[derive(Serialize, Deserialize)]
struct TextFault {
    #[serde(flatten)]
    fault: BinaryFault,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<Host>,
}

impl BinaryFault {
    fn of(fault: &Fault) -> Self {
        let Fault { code, message, hint, retryable, host: _ } = fault.clone();
        Self { code, message, hint, retryable }
    }

    fn on(self, host: Option<Host>) -> Fault {
        let Self { code, message, hint, retryable } = self;
        Fault { code, message, hint, retryable, host }
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let fault = BinaryFault::of(self);
        if to.is_human_readable() {
            TextFault { fault, host: self.host.clone() }.serialize(to)
        } else {
            fault.serialize(to)
        }
    }
}

impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            let TextFault { fault, host } = TextFault::deserialize(from)?;
            Ok(fault.on(host))
        } else {
            Ok(BinaryFault::deserialize(from)?.on(None))
        }
    }
}

/// Kinds of failure. New kinds are added at the end: the position is the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultCode {
    /// The request is invalid.
    Usage,
    /// The peer failed to authenticate.
    NotAuthorised,
    /// The URL has expired.
    Expired,
    /// The peers use different versions of the protocol.
    VersionMismatch,
    /// The server's policy forbids it.
    NotPermitted,
    /// A path does not exist.
    NoSuchPath,
    /// A file or directory exists and cannot be read.
    Unreadable,
    /// No space or quota is left at the destination.
    DiskFull,
    /// The destination is not writable.
    ReadOnly,
    /// A directory was expected.
    NotADirectory,
    /// A file was expected.
    IsADirectory,
    /// A path leads out of the permitted root.
    PathEscape,
    /// A file changed while it was being read.
    SourceChanged,
    /// The received bytes differ from those sent.
    VerifyFailed,
    /// UDP packets do not get through between the two hosts.
    UdpBlocked,
    /// The control connection broke.
    ControlLost,
    /// The peer stopped answering.
    PeerSilent,
    /// The user or a signal stopped the transfer.
    Interrupted,
    /// A disk read or write failed for another reason.
    Io,
    /// A bug in the program.
    Internal,
    /// The server has reached its limit of sessions.
    Busy,
    /// No connection could be established.
    Unreachable,
    /// Neither a file nor a directory nor a symbolic link: not supported by any command.
    SpecialFile,
    /// A file set needs more memory than this side allows.
    SetTooLarge,
    /// The user or a signal stopped the peer.
    PeerStopped,
}

impl FaultCode {
    /// Every code, in the order of its number on the wire.
    pub const ALL: [Self; 25] = [
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
        Self::SetTooLarge,
        Self::PeerStopped,
    ];

    /// Returns the exit code of the `haul` program for this failure: 1 failed, 2 usage, 4 verification
    /// failed, 5 unreachable or UDP blocked, 6 not authorised, 7 disk or permission, 8 source changed while
    /// reading, 130 interrupted. (3, some files failed, follows from a summary and not from one fault.)
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::VersionMismatch | Self::Internal | Self::Busy | Self::SetTooLarge => 1,
            Self::Usage => 2,
            Self::VerifyFailed => 4,
            Self::UdpBlocked
            | Self::ControlLost
            | Self::PeerSilent
            | Self::Unreachable
            | Self::PeerStopped => 5,
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

    /// Whether repeating the same command unchanged may succeed.
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
                | Self::PeerStopped
        )
    }

    /// Returns the name for scripts, for example `disk_full`.
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
            Self::SetTooLarge => "set_too_large",
            Self::PeerStopped => "peer_stopped",
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
    fn the_numbering_on_the_wire_never_changes() {
        for (number, code) in FaultCode::ALL.into_iter().enumerate() {
            assert_eq!(postcard::to_allocvec(&code).unwrap(), [number as u8], "{code}");
        }
    }

    #[test]
    fn exit_codes_match_the_documented_table() {
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
            (FaultCode::PeerStopped, 5),
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
        assert_eq!(fault.to_string(), r"bad\x1b[2Jdisk\u{9b} (replace\r it)");
    }
    #[test]
    fn the_location_of_a_fault_is_shown_but_not_sent() {
        let fault = Fault::new(FaultCode::Io, "no", "").on(Host::Named("far\n".to_owned()));
        assert_eq!(fault.to_string(), r"on far\n: no");
        assert_eq!(fault.clone().on(Host::Here), fault, "who was there first knows it");
        let bytes = postcard::to_allocvec(&fault).unwrap();
        assert_eq!(bytes, postcard::to_allocvec(&Fault::new(FaultCode::Io, "no", "")).unwrap());
        assert_eq!(postcard::from_bytes::<Fault>(&bytes).unwrap().host, None);
    }

    #[test]
    fn a_stopped_peer_is_not_a_local_stop() {
        let of_peer = Fault::new(FaultCode::Interrupted, "stopped", "").from_peer();
        assert_eq!((of_peer.code, of_peer.retryable), (FaultCode::PeerStopped, true));
        let other = Fault::new(FaultCode::DiskFull, "full", "");
        assert_eq!(other.clone().from_peer(), other);
    }
}
