//! Locates the parts of a packet.

use haul_base::Ecn;

use super::vnet::{Gso, Vnet};

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
pub(super) const UDP_HEADER: usize = 8;
const TCP_HEADER: usize = 20;
/// IPv6 extension headers to skip: hop-by-hop, routing, destination options (RFC 8200 section 4).
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// RFC 791.
    V4,
    /// RFC 8200.
    V6,
}

/// The packet cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a complete IP packet")]
pub(crate) struct Malformed;

/// Layout of one packet or super-packet, and how it is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// IP version.
    pub version: Version,
    /// Transport protocol; for fragments, the protocol of the first fragment's header.
    pub protocol: u8,
    /// Offset of the transport header.
    pub transport: usize,
    /// Offset of the payload for super-packets; for others the same as `transport`.
    pub payload: usize,
    /// Total length in bytes.
    pub len: usize,
    /// Payload bytes per packet, except the last.
    pub stride: usize,
    /// Number of packets.
    pub packets: u16,
    /// Flow hash over addresses, ports and protocol.
    pub flow: u32,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// Device header of the packet.
    pub vnet: Vnet,
}

impl Layout {
    /// Parses a packet and its device header.
    ///
    /// # Errors
    /// [`Malformed`] if it is not an IP packet, is truncated, or cannot be split as its header specifies.
    pub(crate) fn parse(vnet: Vnet, packet: &[u8]) -> Result<Self, Malformed> {
        let (version, protocol, transport, ecn) = match packet.first().ok_or(Malformed)? >> 4 {
            4 => parse_v4(packet)?,
            6 => parse_v6(packet)?,
            _ => return Err(Malformed),
        };
        let mut layout = Self {
            version,
            protocol,
            transport,
            payload: transport,
            len: packet.len(),
            stride: packet.len(),
            packets: 1,
            flow: flow_of(version, protocol, packet, transport),
            ecn,
            vnet,
        };
        if vnet.gso != Gso::None {
            layout.find_pieces(packet)?;
        } else if vnet.needs_checksum {
            let field = usize::from(vnet.checksum_start) + usize::from(vnet.checksum_offset);
            if field + 2 > packet.len() {
                return Err(Malformed);
            }
        }
        Ok(layout)
    }

    /// Returns the bytes of packet `index`, including its IP header.
    pub(crate) fn packet_bytes(&self, index: u16) -> u32 {
        let start = self.payload_range(index..index + 1);
        (self.payload + start.len()) as u32
    }

    /// Returns the payload range of some packets.
    pub(super) fn payload_range(&self, packets: std::ops::Range<u16>) -> std::ops::Range<usize> {
        if self.packets == 1 {
            return self.payload..self.len;
        }
        let at = |packet: u16| (self.payload + usize::from(packet) * self.stride).min(self.len);
        at(packets.start)..at(packets.end)
    }

    /// Returns the offset of the UDP header; `None` for other protocols and later fragments (RFC 791).
    pub(crate) fn udp_header(&self, packet: &[u8]) -> Option<usize> {
        let is_v4 = self.version == Version::V4;
        let later = is_v4 && packet.get(6..8).is_some_and(|field| field[0] & 0x1f != 0 || field[1] != 0);
        (self.protocol == UDP && !later).then_some(self.transport)
    }

    /// Returns the payload range of packet `index`, if it is UDP.
    pub(crate) fn udp_payload(&self, index: u16) -> std::ops::Range<usize> {
        let range = self.payload_range(index..index + 1);
        range.start.max(self.transport + UDP_HEADER)..range.end
    }

    /// Checks that the kind of super-packet matches its headers, and determines where to split it.
    fn find_pieces(&mut self, packet: &[u8]) -> Result<(), Malformed> {
        let fits = match self.vnet.gso {
            Gso::None => false,
            Gso::Tcp4 => self.protocol == TCP && self.version == Version::V4,
            Gso::Tcp6 => self.protocol == TCP && self.version == Version::V6,
            Gso::Udp => self.protocol == UDP,
        };
        let header = match self.protocol {
            TCP => usize::from(packet.get(self.transport + 12).ok_or(Malformed)? >> 4) * 4,
            _ => UDP_HEADER,
        };
        let least = if self.protocol == TCP { TCP_HEADER } else { UDP_HEADER };
        self.payload = self.transport + header;
        self.stride = usize::from(self.vnet.gso_size);
        let complete = fits && header >= least && self.payload < self.len && self.stride > 0;
        if !complete || !self.vnet.needs_checksum {
            return Err(Malformed);
        }
        let packets = (self.len - self.payload).div_ceil(self.stride);
        self.packets = u16::try_from(packets).map_err(|_| Malformed)?;
        Ok(())
    }
}

type Parsed = (Version, u8, usize, Ecn);

fn parse_v4(packet: &[u8]) -> Result<Parsed, Malformed> {
    let header = usize::from(packet[0] & 0xf) * 4;
    if header < IPV4_HEADER || packet.len() < header {
        return Err(Malformed);
    }
    Ok((Version::V4, packet[9], header, Ecn::from_bits(packet[1])))
}

fn parse_v6(packet: &[u8]) -> Result<Parsed, Malformed> {
    if packet.len() < IPV6_HEADER {
        return Err(Malformed);
    }
    let (mut protocol, mut at) = (packet[6], IPV6_HEADER);
    while EXTENSIONS.contains(&protocol) {
        let Some(header) = packet.get(at..at + 2) else { return Err(Malformed) };
        protocol = header[0];
        at += (usize::from(header[1]) + 1) * 8;
    }
    if at > packet.len() {
        return Err(Malformed);
    }
    Ok((Version::V6, protocol, at, Ecn::from_bits(packet[1] >> 4)))
}

/// Computes FNV-1a over addresses, protocol and ports.
fn flow_of(version: Version, protocol: u8, packet: &[u8], transport: usize) -> u32 {
    let ports = match protocol {
        TCP | UDP => packet.get(transport..transport + 4).unwrap_or_default(),
        _ => &[],
    };
    let bytes = addresses(version, packet).iter().chain(ports).chain(std::slice::from_ref(&protocol));
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Returns both addresses as one slice.
pub(super) fn addresses(version: Version, packet: &[u8]) -> &[u8] {
    match version {
        Version::V4 => &packet[12..20],
        Version::V6 => &packet[8..40],
    }
}
