//! Options of a socket.

use haul_base::Bytes;

/// Whether the kernel may segment and coalesce datagrams (`UDP_SEGMENT`, `UDP_GRO`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Offload {
    /// Use what the kernel offers.
    #[default]
    Auto,
    /// One socket buffer per datagram, `sendmmsg` and `recvmmsg` only. Slower, but drops and bursts then
    /// consist of single datagrams, which makes measurements easier to interpret.
    Off,
}

/// Options for opening a socket. Whatever is not granted shows in [`Capabilities`](crate::Capabilities); only
/// opening and binding can fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether connected sockets may share the local port (`SO_REUSEPORT`), as a listener's sessions do.
    pub reuse_port: bool,
    /// Whether a socket bound to `[::]` also serves IPv4, overriding the system's default
    /// (`net.ipv6.bindv6only`).
    pub dual_stack: bool,
    /// Receive buffer size to request, in the kernel's accounting of whole socket buffers.
    pub recv_buffer: Bytes,
    /// Send buffer size to request, in the same accounting.
    pub send_buffer: Bytes,
    /// Segmentation and coalescing.
    pub offload: Offload,
}

impl Options {
    /// 64 MiB: 50 ms at 10 Gbit/s, for which a receiver may well be descheduled.
    pub const DEFAULT_BUFFER: Bytes = Bytes(64 << 20);
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reuse_port: false,
            dual_stack: false,
            recv_buffer: Self::DEFAULT_BUFFER,
            send_buffer: Self::DEFAULT_BUFFER,
            offload: Offload::Auto,
        }
    }
}
