//! The HELLO exchange: the client opens the UDP path with HELLOs of several sizes, the server answers each
//! with a `HELLO_ACK` of the same size. It tells both that UDP passes, the client that datagrams of these
//! sizes do, and how long a round trip takes.
//!
//! HELLOs have keys of their own, and so packet numbers of their own: the data path starts at packet number
//! 0, and neither has to ask the other. Everything here is sans-IO.

mod driver;
mod responder;

use std::net::{IpAddr, SocketAddr};

use haul_base::{Span, Time};
use haul_wire::packet::{CommonHeader, HelloBody, PacketKind};

pub use self::driver::HelloDriver;
pub use self::responder::HelloResponder;
pub(crate) use self::responder::{LateHellos, write_ack};
use crate::EngineError;
use crate::crypto::Opener;

/// Datagrams of this size (UDP payload bytes) pass on every path that is supported: what QUIC asks for
/// (RFC 9000, section 14).
pub const MIN_DATAGRAM: u16 = 1200;
/// Sizes besides [`MIN_DATAGRAM`] that are tried: Ethernet's 1,500 bytes and jumbo frames' 9,000, less 8 of
/// UDP header and 20 of IPv4 header.
const IPV4_SIZES: [u16; 3] = [MIN_DATAGRAM, 1472, 8972];
/// The same less the 40 bytes of IPv6 header.
const IPV6_SIZES: [u16; 3] = [MIN_DATAGRAM, 1452, 8952];
/// A slot for any HELLO needs so many bytes.
pub const MAX_HELLO: usize = 8972;

/// The sizes of HELLO to send to `peer`, smallest first.
fn sizes_for(peer: SocketAddr) -> [u16; 3] {
    match peer.ip() {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_none() => IPV6_SIZES,
        _ => IPV4_SIZES,
    }
}

/// The largest datagrams that are known to pass, UDP payload bytes; [`MIN_DATAGRAM`] where nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramSizes {
    /// From this end to the peer.
    pub outgoing: u16,
    /// From the peer to this end.
    pub incoming: u16,
}

impl Default for DatagramSizes {
    fn default() -> Self {
        Self { outgoing: MIN_DATAGRAM, incoming: MIN_DATAGRAM }
    }
}

/// Whether a datagram claims to belong to the HELLO exchange and not to the data path.
pub fn is_hello(datagram: &[u8]) -> bool {
    let kind = datagram.first().and_then(|&byte| PacketKind::from_byte(byte));
    matches!(kind, Some(PacketKind::Hello | PacketKind::HelloAck))
}

/// This end's part in the exchange. Whoever owns the socket gives it the datagrams for which [`is_hello`]
/// holds, and sends what it wants to send, before and also during the transfer of data.
#[derive(Debug)]
pub enum HelloExchange {
    /// The client's part.
    Driver(HelloDriver),
    /// The server's part.
    Responder(HelloResponder),
}

impl HelloExchange {
    /// Takes a datagram; whether it was an authentic part of the exchange. The bytes are decrypted in place.
    pub fn on_packet(&mut self, now: Time, packet: &mut [u8]) -> bool {
        match self {
            Self::Driver(driver) => driver.on_packet(now, packet),
            Self::Responder(responder) => responder.on_packet(packet),
        }
    }

    /// When to call [`on_deadline`](Self::on_deadline); `None`: not before the next packet.
    pub fn deadline(&self) -> Option<Time> {
        match self {
            Self::Driver(driver) => driver.deadline(),
            Self::Responder(_) => None,
        }
    }

    /// The deadline has passed (calling early is harmless).
    pub fn on_deadline(&mut self, now: Time) {
        if let Self::Driver(driver) = self {
            driver.on_deadline(now);
        }
    }

    /// Writes the next datagram into `slot`, which should have [`MAX_HELLO`] bytes, and gives its length. To
    /// be called after every input until it gives `None`.
    pub fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        match self {
            Self::Driver(driver) => driver.poll_transmit(now, slot),
            Self::Responder(responder) => responder.poll_transmit(slot),
        }
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has something to write.
    pub fn wants_transmit(&mut self) -> bool {
        match self {
            Self::Driver(driver) => driver.wants_transmit(),
            Self::Responder(responder) => responder.wants_transmit(),
        }
    }

    /// The system refused a datagram of this length as too large for the interface.
    pub fn on_too_large(&mut self, len: usize) {
        if let Self::Driver(driver) = self {
            driver.on_too_large(len);
        }
    }

    /// What is known to pass.
    pub fn sizes(&self) -> DatagramSizes {
        match self {
            Self::Driver(driver) => driver.sizes(),
            Self::Responder(responder) => responder.sizes(),
        }
    }

    /// The shortest round trip seen, from HELLO to `HELLO_ACK`. Only the client sees any.
    pub fn round_trip(&self) -> Option<Span> {
        match self {
            Self::Driver(driver) => driver.round_trip(),
            Self::Responder(_) => None,
        }
    }

    /// [`EngineError::UdpBlocked`] once no answer can be hoped for. `udp_seen`: the server has said that it
    /// hears the client ([`Control::udp_seen`](crate::Control::udp_seen)).
    pub fn failure(&self, now: Time, udp_seen: bool) -> Option<EngineError> {
        match self {
            Self::Driver(driver) => driver.failure(now, udp_seen),
            Self::Responder(_) => None,
        }
    }
}

/// Opens a packet of the expected kind whose body tells the datagram's true size.
fn open_body(open: &mut Opener, kind: PacketKind, packet: &mut [u8]) -> Option<HelloBody> {
    let header = CommonHeader::parse(packet).ok().filter(|h| h.kind == kind)?;
    let size = packet.len();
    let header_len = kind.header_len();
    let body_len = haul_proto::Open::open(open, packet, header_len, header.pn).ok()?;
    let body = HelloBody::parse(&packet[header_len..header_len + body_len]).ok()?;
    (usize::from(body.size) == size).then_some(body)
}

/// Opens a HELLO.
pub(crate) fn open_hello(open: &mut Opener, packet: &mut [u8]) -> Option<HelloBody> {
    open_body(open, PacketKind::Hello, packet)
}

#[cfg(test)]
mod tests;
