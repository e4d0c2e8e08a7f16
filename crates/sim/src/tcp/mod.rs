//! Small models of TCP: Reno, CUBIC and BBR senders, and a receiver with selective acknowledgements.
//!
//! Both ends are sans-IO machines ([`haul_base::Machine`]). Each datagram has a 24-byte header before the
//! payload; with the 28 bytes of IP and UDP that a path adds this equals the 52 bytes of a real segment with
//! timestamps (IPv4 20, TCP 20, options 12), so packets have realistic sizes. The payload is never written or
//! read. Sequence numbers count segments. Not modelled: connection set-up and tear-down, flow control by
//! window updates (the receive window is constant), tail loss probes, and undoing of spurious reductions.

mod control;
mod receiver;
mod reduction;
mod scoreboard;
mod sender;
mod wire;

use haul_base::Span;

pub use control::{
    AckSample, Bbr, BbrConfig, Control, ControlKind, Cubic, CubicConfig, HystartConfig, LossSample,
    RateSample, Reno, cubic_k, cubic_window,
};
pub use receiver::{TcpReceiver, TcpReceiverConfig};
pub use sender::{TcpEvent, TcpSender, TcpSenderConfig, TcpStats};
pub use wire::{ACK_BLOCKS, HEADER};

/// Payload of a full segment for an MTU of 1,500, with timestamps.
pub const MSS: u32 = 1_448;

/// Bytes that IP and UDP add to a datagram; together with [`HEADER`] they equal IP and TCP headers.
pub const OVERHEAD: u32 = 28;

/// Bounds of the retransmission timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtoBounds {
    /// Minimum: 200 ms on Linux (`TCP_RTO_MIN`); 1 s in RFC 6298.
    pub min: Span,
    /// Maximum: 120 s on Linux (`TCP_RTO_MAX`).
    pub max: Span,
    /// Value before the first measurement: 1 s (RFC 6298, 2.1).
    pub first: Span,
}

impl Default for RtoBounds {
    fn default() -> Self {
        Self { min: Span::from_millis(200), max: Span::from_secs(120), first: Span::from_secs(1) }
    }
}

#[cfg(test)]
mod tests;
