//! Headers for consecutive packets of a super-packet, as if they had been sent as a packet of their own.

use std::ops::Range;

use haul_base::Ecn;

use super::checksum::{Checksum, pseudo_header};
use super::layout::{Layout, TCP, Version, addresses};
use super::vnet::{Gso, Vnet};

/// Capacity for IP and TCP headers with all options, and for 192 bytes of IPv6 extensions.
pub(crate) const MAX_HEADER: usize = 320;

const TCP_FLAGS: usize = 13;
const FIN_AND_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;
/// Offset of the checksum in a TCP and in a UDP header.
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;

/// Headers to write before a payload.
#[derive(Debug)]
pub(crate) struct Header {
    bytes: [u8; MAX_HEADER],
    len: usize,
    /// Device header.
    pub vnet: Vnet,
    /// Whether TCP's CWR flag is set.
    pub cwr: bool,
    /// Range of the super-packet that follows as payload.
    pub payload: Range<usize>,
}

impl Header {
    /// Returns the IP and transport headers.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Builds the headers for the packets `range` of the super-packet `packet`. A single packet keeps its
/// headers, except for the mark "congestion experienced". Returns `None` if the headers exceed [`MAX_HEADER`]
/// bytes.
pub(crate) fn header_of(
    layout: &Layout,
    packet: &[u8],
    range: Range<u16>,
    congestion: bool,
) -> Option<Header> {
    let len = layout.payload;
    let mut header = Header {
        bytes: [0; MAX_HEADER],
        len,
        vnet: layout.vnet,
        cwr: false,
        payload: layout.payload_range(range.clone()),
    };
    header.bytes.get_mut(..len)?.copy_from_slice(packet.get(..len)?);
    if layout.packets > 1 {
        cut(layout, &range, &mut header);
    }
    if layout.protocol == TCP && len > layout.transport + TCP_FLAGS {
        header.cwr = header.bytes[layout.transport + TCP_FLAGS] & CWR != 0;
    }
    if congestion {
        set_congestion(layout.version, &mut header.bytes[..len]);
    }
    if layout.version == Version::V4 && (layout.packets > 1 || congestion) {
        write_v4_checksum(&mut header.bytes[..layout.transport]);
    }
    Some(header)
}

/// Returns one packet of a super-packet, or a single packet, as on the wire, with complete checksums.
pub(crate) fn complete(layout: &Layout, packet: &[u8], index: u16, congestion: bool) -> Option<Vec<u8>> {
    let header = header_of(layout, packet, index..index + 1, congestion)?;
    let mut assembled = [header.bytes(), packet.get(header.payload.clone())?].concat();
    if header.vnet.needs_checksum {
        let start = usize::from(header.vnet.checksum_start);
        let field = start + usize::from(header.vnet.checksum_offset);
        // The checksum field holds the pseudo-header's sum, which is part of the checksum.
        let checksum = !Checksum::default().bytes(assembled.get(start..)?).fold();
        // In UDP, zero means no checksum (RFC 768).
        let none = checksum == 0 && layout.protocol != TCP;
        write_u16(&mut assembled, field, if none { 0xffff } else { checksum });
    }
    Some(assembled)
}

/// Sets lengths, identification, sequence number, flags and partial checksum.
fn cut(layout: &Layout, range: &Range<u16>, header: &mut Header) {
    let (is_first, is_last) = (range.start == 0, range.end == layout.packets);
    let transport_len = layout.payload - layout.transport + header.payload.len();
    let (ip, transport) = header.bytes[..header.len].split_at_mut(layout.transport);
    match layout.version {
        Version::V4 => {
            write_u16(ip, 2, (layout.transport + transport_len) as u16);
            // RFC 6864: unique per packet where required; the kernel increments it in the same way.
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(range.start);
            write_u16(ip, 4, id);
        }
        Version::V6 => write_u16(ip, 4, (layout.transport - 40 + transport_len) as u16),
    }
    let checksum_offset = if layout.protocol == TCP {
        let skipped = u32::from(range.start) * layout.stride as u32;
        let seq = [transport[4], transport[5], transport[6], transport[7]];
        let seq = u32::from_be_bytes(seq).wrapping_add(skipped);
        transport[4..8].copy_from_slice(&seq.to_be_bytes());
        if !is_last {
            transport[TCP_FLAGS] &= !FIN_AND_PSH;
        }
        if !is_first {
            transport[TCP_FLAGS] &= !CWR;
        }
        TCP_CHECKSUM
    } else {
        write_u16(transport, 4, transport_len as u16);
        UDP_CHECKSUM
    };
    let sum = pseudo_header(addresses(layout.version, ip), layout.protocol, transport_len as u32);
    write_u16(transport, usize::from(checksum_offset), sum.fold());
    let alone = header.payload.len() <= layout.stride;
    header.vnet = Vnet {
        needs_checksum: true,
        gso: if alone { Gso::None } else { layout.vnet.gso },
        header_len: layout.payload as u16,
        gso_size: if alone { 0 } else { layout.stride as u16 },
        checksum_start: layout.transport as u16,
        checksum_offset,
    };
}

fn write_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn set_congestion(version: Version, ip: &mut [u8]) {
    match version {
        Version::V4 => ip[1] |= Ecn::Ce as u8,
        Version::V6 => ip[1] |= (Ecn::Ce as u8) << 4,
    }
}

fn write_v4_checksum(ip: &mut [u8]) {
    write_u16(ip, 10, 0);
    let sum = Checksum::default().bytes(ip).fold();
    write_u16(ip, 10, !sum);
}
