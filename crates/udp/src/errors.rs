//! Errors, by what the caller can do about them. An error's message excludes its source.

use std::io;
use std::net::SocketAddr;

/// A socket could not be opened, bound or connected.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The system has no more sockets.
    #[error(
        "cannot open a UDP socket; check the limit of open files (`ulimit -n`) and that the address family is enabled"
    )]
    Open(#[source] io::Error),
    /// The local address is not available.
    #[error("cannot bind a UDP socket to {addr}; {}", bind_hint(source))]
    Bind {
        /// Requested address.
        addr: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The peer cannot be reached from here.
    #[error("cannot connect the UDP socket to {peer}; {}", connect_hint(source))]
    Connect {
        /// Requested peer.
        peer: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The state of an open socket cannot be read.
    #[error("cannot read the state of the UDP socket")]
    Query(#[source] io::Error),
}

/// Returns the kernel's error.
impl From<SocketError> for io::Error {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::Open(source)
            | SocketError::Bind { source, .. }
            | SocketError::Connect { source, .. }
            | SocketError::Query(source) => source,
        }
    }
}

fn bind_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program holds this UDP port: stop it or choose another port (`ss -ulpn` lists them)"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address (`ip address` lists what it has)"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need privilege: choose a higher one",
        _ => "choose another address or port",
    }
}

fn connect_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            "there is no route to it (`ip route get ADDRESS` shows why)"
        }
        Some(libc::EAFNOSUPPORT) => "the socket and the peer are of different address families",
        Some(libc::EINVAL) => "the socket's local address cannot reach it",
        _ => "check the address",
    }
}

/// Which queue had no space for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FullQueue {
    /// The socket's send buffer (`EAGAIN`): wait until the socket is writable.
    SocketBuffer,
    /// A queue of this machine below the socket (`ENOBUFS`: queueing discipline or device). The socket stays
    /// writable, so waiting for that would spin: retry a little later.
    LocalQueue,
}

/// Nothing was sent. Only [`SendError::Io`] means that the socket is unusable.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A queue is full; see [`FullQueue`] for what to wait for.
    #[error("no buffer space for the datagram now ({0:?})")]
    WouldBlock(FullQueue),
    /// A datagram is larger than the MTU of the outgoing interface, or than 65,507 bytes; a path MTU probe
    /// relies on this. Datagrams too large for a later link are *not* reported here (they are lost, and may
    /// show in [`Stats::packet_too_big`](crate::Stats)).
    #[error("the datagram is larger than the interface's MTU allows; send smaller ones")]
    TooLarge,
    /// The peer's host answered an earlier datagram with "port unreachable". The next one may succeed.
    #[error("the peer refuses datagrams: nothing is listening on its port")]
    Refused,
    /// The peer is currently unreachable: no route, interface down, or reported by a router.
    #[error("the peer is unreachable now")]
    Unreachable(#[source] io::Error),
    /// A local rule (firewall, security module) forbids it, or a router reported that it does.
    #[error(
        "sending is not permitted; check for a firewall rule that rejects outgoing UDP (`nft list ruleset`)"
    )]
    NotPermitted(#[source] io::Error),
    /// Any other error.
    #[error("cannot send")]
    Io(#[source] io::Error),
}

/// Nothing was received. Only [`RecvError::Io`] means that the socket is unusable.
#[derive(Debug, thiserror::Error)]
pub enum RecvError {
    /// No datagram is queued.
    #[error("no datagram is waiting")]
    WouldBlock,
    /// The peer's host answered a sent datagram with "port unreachable". Receive again.
    #[error("the peer refuses datagrams: nothing is listening on its port")]
    Refused,
    /// A router (or this machine) reported that a sent datagram was too large. Receive again.
    #[error("a datagram of ours was too large for the path")]
    PacketTooBig,
    /// A router reported that the peer is unreachable. Receive again.
    #[error("the peer is unreachable now")]
    Unreachable(#[source] io::Error),
    /// Any other error.
    #[error("cannot receive")]
    Io(#[source] io::Error),
}

/// Kinds of errors that the kernel returns for UDP. ICMP errors are converted by the kernel's
/// `icmp_err_convert` and `icmpv6_err_convert` tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    Interrupted,
    QueueFull(FullQueue),
    TooLarge,
    Refused,
    Unreachable,
    NotPermitted,
    /// GSO is not possible on this route, or not with this size.
    Offload,
    Other,
}

impl ErrorClass {
    pub(crate) fn of(error: &io::Error) -> Self {
        error.raw_os_error().map_or(Self::Other, Self::of_errno)
    }

    pub(crate) fn of_errno(errno: i32) -> Self {
        match errno {
            libc::EINTR => Self::Interrupted,
            libc::EAGAIN => Self::QueueFull(FullQueue::SocketBuffer),
            libc::ENOBUFS => Self::QueueFull(FullQueue::LocalQueue),
            libc::EMSGSIZE => Self::TooLarge,
            libc::ECONNREFUSED => Self::Refused,
            libc::EPERM | libc::EACCES => Self::NotPermitted,
            libc::EIO | libc::EINVAL => Self::Offload,
            libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EOPNOTSUPP => Self::Unreachable,
            _ => Self::Other,
        }
    }
}

impl SendError {
    /// Whether the socket is unusable.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Io(_))
    }

    pub(crate) fn from_os(error: io::Error) -> Self {
        match ErrorClass::of(&error) {
            ErrorClass::QueueFull(full) => Self::WouldBlock(full),
            ErrorClass::TooLarge => Self::TooLarge,
            ErrorClass::Refused => Self::Refused,
            // EINVAL: a blackhole route, and before Linux 5.14 a lost local address.
            ErrorClass::Unreachable | ErrorClass::Offload => Self::Unreachable(error),
            ErrorClass::NotPermitted => Self::NotPermitted(error),
            ErrorClass::Interrupted | ErrorClass::Other => Self::Io(error),
        }
    }
}

impl RecvError {
    /// Whether the socket is unusable.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Io(_))
    }

    pub(crate) fn from_os(error: io::Error) -> Self {
        match ErrorClass::of(&error) {
            ErrorClass::QueueFull(FullQueue::SocketBuffer) => Self::WouldBlock,
            ErrorClass::TooLarge => Self::PacketTooBig,
            ErrorClass::Refused => Self::Refused,
            ErrorClass::Unreachable | ErrorClass::NotPermitted => Self::Unreachable(error),
            _ => Self::Io(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_base::WithCauses;

    use super::*;

    fn os(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    #[test]
    fn both_kinds_of_full_are_would_block_and_distinguishable() {
        assert!(matches!(
            SendError::from_os(os(libc::EAGAIN)),
            SendError::WouldBlock(FullQueue::SocketBuffer)
        ));
        assert!(matches!(
            SendError::from_os(os(libc::ENOBUFS)),
            SendError::WouldBlock(FullQueue::LocalQueue)
        ));
        assert!(matches!(RecvError::from_os(os(libc::EAGAIN)), RecvError::WouldBlock));
    }

    #[test]
    fn network_errors_are_never_fatal() {
        for code in [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EMSGSIZE, libc::EACCES]
        {
            assert!(!SendError::from_os(os(code)).is_fatal(), "{code}");
            assert!(!RecvError::from_os(os(code)).is_fatal(), "{code}");
        }
        assert!(!SendError::from_os(os(libc::EINVAL)).is_fatal(), "a blackhole route");
        assert!(SendError::from_os(os(libc::EBADF)).is_fatal());
        assert!(RecvError::from_os(os(libc::EBADF)).is_fatal());
    }

    #[test]
    fn no_message_repeats_the_kernels_text() {
        use std::error::Error;

        let addr = "127.0.0.1:80".parse().unwrap();
        let kernel = || os(libc::ENETUNREACH);
        let errors: [Box<dyn Error>; 9] = [
            SocketError::Open(kernel()).into(),
            SocketError::Bind { addr, source: kernel() }.into(),
            SocketError::Connect { peer: addr, source: kernel() }.into(),
            SocketError::Query(kernel()).into(),
            SendError::Unreachable(kernel()).into(),
            SendError::NotPermitted(kernel()).into(),
            SendError::Io(kernel()).into(),
            RecvError::Unreachable(kernel()).into(),
            RecvError::Io(kernel()).into(),
        ];
        for error in errors {
            let source = error.source().expect("the kernel has said something").to_string();
            assert!(!error.to_string().contains(&source), "{error}");
            assert_eq!(WithCauses(&*error).to_string(), format!("{error}: {source}"));
        }
    }

    #[test]
    fn messages_have_hints() {
        let addr = "127.0.0.1:80".parse().unwrap();
        let text = SocketError::Bind { addr, source: os(libc::EADDRINUSE) }.to_string();
        assert!(text.contains("127.0.0.1:80") && text.contains("ss -ulpn"), "{text}");
    }
}
