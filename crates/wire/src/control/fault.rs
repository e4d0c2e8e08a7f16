use std::fmt;

use haul_base::Printable;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Something that went wrong, in a form that travels to the peer and ends up before a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// What kind of failure.
    pub code: FaultCode,
    /// What happened and why, one sentence.
    pub message: String,
    /// What to do about it; may be empty.
    pub hint: String,
    /// Whether the same command may succeed when it is repeated unchanged.
    pub retryable: bool,
    /// The machine that it happened on, where that was found out. It is no part of what travels to a peer: the side
    /// that receives a fault knows better whom it is from.
    pub host: Option<Host>,
}

/// A machine, as seen by the one that shows a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// This one.
    Here,
    /// Another one, by the name or address that it was reached by.
    Named(String),
}

/// Most bytes of a fault's message and hint together.
pub(super) const MAX_FAULT_TEXT: usize = 64 << 10;
/// Longer messages are cut: the longest path has room, with each byte as an escape.
const MAX_MESSAGE: usize = 56 << 10;
/// Longer hints are cut.
const MAX_HINT: usize = 4 << 10;

impl Fault {
    /// The same fault, and where it happened unless that is known.
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        self.host.get_or_insert(host);
        self
    }

    /// As the side understands it that the fault was sent to: that somebody stopped the sender does not mean that
    /// anybody stopped this side.
    #[must_use]
    pub fn from_peer(mut self) -> Self {
        if self.code == FaultCode::Interrupted {
            self.code = FaultCode::PeerStopped;
            self.retryable = true;
        }
        self
    }

    /// A fault with a message and a hint, which are cut if they are too long to travel; [`FaultCode::is_retryable`]
    /// says whether it is retryable.
    pub fn new(code: FaultCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (message, hint) = (shortened(message.into(), MAX_MESSAGE), shortened(hint.into(), MAX_HINT));
        Self { code, message, hint, retryable: code.is_retryable(), host: None }
    }
}

/// As much of a text as may travel.
fn shortened(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|&at| text.is_char_boundary(at)).unwrap_or_default();
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The machine if it is known, the message, and the hint in parentheses; all of it is [`Printable`], because the text
/// may come from a peer and go to a terminal.
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

/// What travels to a peer.
#[derive(Serialize, Deserialize)]
struct Sent {
    code: FaultCode,
    message: String,
    hint: String,
    retryable: bool,
}

/// What one program of this project tells another in text.
#[derive(Serialize, Deserialize)]
struct Told {
    #[serde(flatten)]
    fault: Sent,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<Host>,
}

impl Sent {
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
        let fault = Sent::of(self);
        if to.is_human_readable() {
            Told { fault, host: self.host.clone() }.serialize(to)
        } else {
            fault.serialize(to)
        }
    }
}

impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            let Told { fault, host } = Told::deserialize(from)?;
            Ok(fault.on(host))
        } else {
            Ok(Sent::deserialize(from)?.on(None))
        }
    }
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
    /// A file set takes more memory than this side gives it.
    SetTooLarge,
    /// A person or a signal stopped the other side.
    PeerStopped,
}

impl FaultCode {
    /// Every code, in the order in which they are numbered on the wire.
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

    /// The exit code of the `haul` program when this failure ends it: 1 failed, 2 usage, 4 verification
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
                | Self::PeerStopped
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
    fn where_it_happened_is_shown_and_does_not_travel_to_a_peer() {
        let fault = Fault::new(FaultCode::Io, "no", "").on(Host::Named("far\n".to_owned()));
        assert_eq!(fault.to_string(), r"on far\n: no");
        assert_eq!(fault.clone().on(Host::Here), fault, "who was there first knows it");
        let bytes = postcard::to_allocvec(&fault).unwrap();
        assert_eq!(bytes, postcard::to_allocvec(&Fault::new(FaultCode::Io, "no", "")).unwrap());
        assert_eq!(postcard::from_bytes::<Fault>(&bytes).unwrap().host, None);
    }

    #[test]
    fn a_stopped_peer_does_not_mean_that_this_side_was_stopped() {
        let of_peer = Fault::new(FaultCode::Interrupted, "stopped", "").from_peer();
        assert_eq!((of_peer.code, of_peer.retryable), (FaultCode::PeerStopped, true));
        let other = Fault::new(FaultCode::DiskFull, "full", "");
        assert_eq!(other.clone().from_peer(), other);
    }
}
