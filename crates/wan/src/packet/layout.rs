//! Where the parts of a packet are.

use haul_base::Ecn;

use super::vnet::{Gso, Vnet};

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
pub(super) const UDP_HEADER: usize = 8;
const TCP_HEADER: usize = 20;
/// IPv6 extension headers that are passed over on the way to the transport header: hop-by-hop, routing,
/// destination options (RFC 8200 section 4).
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// The version of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// RFC 791.
    V4,
    /// RFC 8200.
    V6,
}

/// Why a packet cannot be carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a complete IP packet")]
pub(crate) struct Malformed;

/// Where the parts of one packet or super-packet are, and how it is to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The version of IP.
    pub version: Version,
    /// The transport protocol; that of the first fragment's header for fragments.
    pub protocol: u8,
    /// Where the transport header starts.
    pub transport: usize,
    /// Where the payload starts; only super-packets need it, for others it is the transport header's start.
    pub payload: usize,
    /// Bytes of the whole.
    pub len: usize,
    /// Payload bytes of every piece but the last.
    pub stride: usize,
    /// How many packets it is.
    pub packets: u16,
    /// Which flow it belongs to: a hash over addresses, ports and protocol.
    pub flow: u32,
    /// Its ECN bits.
    pub ecn: Ecn,
    /// What came in front of it.
    pub vnet: Vnet,
}

impl Layout {
    /// Looks at a packet and the header that came with it.
    ///
    /// # Errors
    /// [`Malformed`] for what is no IP packet, is cut short, or cannot be cut as its header says.
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

    /// Bytes of the packet with number `index`, counted from its IP header.
    pub(crate) fn packet_bytes(&self, index: u16) -> u32 {
        let start = self.payload_range(index..index + 1);
        (self.payload + start.len()) as u32
    }

    /// Where the payload of some packets is.
    pub(super) fn payload_range(&self, packets: std::ops::Range<u16>) -> std::ops::Range<usize> {
        if self.packets == 1 {
            return self.payload..self.len;
        }
        let at = |packet: u16| (self.payload + usize::from(packet) * self.stride).min(self.len);
        at(packets.start)..at(packets.end)
    }

    /// Where the UDP header starts; `None` for other protocols, and for fragments that are not the first (RFC 791).
    pub(crate) fn udp_header(&self, packet: &[u8]) -> Option<usize> {
        let is_v4 = self.version == Version::V4;
        let later = is_v4 && packet.get(6..8).is_some_and(|field| field[0] & 0x1f != 0 || field[1] != 0);
        (self.protocol == UDP && !later).then_some(self.transport)
    }

    /// Where the payload of the packet with number `index` is, if it is UDP.
    pub(crate) fn udp_payload(&self, index: u16) -> std::ops::Range<usize> {
        let range = self.payload_range(index..index + 1);
        range.start.max(self.transport + UDP_HEADER)..range.end
    }

    /// The kind of super-packet fits its headers; find out where it has to be cut.
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

/// FNV-1a over addresses, protocol and ports.
fn flow_of(version: Version, protocol: u8, packet: &[u8], transport: usize) -> u32 {
    let ports = match protocol {
        TCP | UDP => packet.get(transport..transport + 4).unwrap_or_default(),
        _ => &[],
    };
    let bytes = addresses(version, packet).iter().chain(ports).chain(std::slice::from_ref(&protocol));
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Both addresses, side by side.
pub(super) fn addresses(version: Version, packet: &[u8]) -> &[u8] {
    match version {
        Version::V4 => &packet[12..20],
        Version::V6 => &packet[8..40],
    }
}
