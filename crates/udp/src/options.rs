//! What the caller asks of a socket.

use haul_base::Bytes;

/// Whether the kernel may cut and join datagrams for us (`UDP_SEGMENT`, `UDP_GRO`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Offload {
    /// Use what the kernel offers.
    #[default]
    Auto,
    /// One socket buffer per datagram, `sendmmsg` and `recvmmsg` only. Slower; drops and bursts are then of
    /// single datagrams, which makes measurements easier to read.
    Off,
}

/// What to ask for when a socket is opened. Whatever is not granted shows in
/// [`Capabilities`](crate::Capabilities); only opening and binding can fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Let several sockets share the local port (`SO_REUSEPORT`), as a listener and its sessions do.
    pub reuse_port: bool,
    /// Let a socket that is bound to `[::]` serve IPv4 too, whatever the system says (`net.ipv6.bindv6only`).
    pub dual_stack: bool,
    /// Receive buffer to ask for, in the kernel's accounting of whole socket buffers.
    pub recv_buffer: Bytes,
    /// Send buffer to ask for, in the same accounting.
    pub send_buffer: Bytes,
    /// Segmentation and coalescing.
    pub offload: Offload,
}

impl Options {
    /// 64 MiB: 50 ms at 10 Gbit/s, which is what a receiver may well be descheduled for.
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
