//! Combines single UDP packets, as receive offload does.

use super::layout::{Layout, UDP, UDP_HEADER, Version};
use super::vnet::{Gso, Vnet};

/// Maximum packets in a super-packet that every kernel accepts (`UDP_MAX_SEGMENTS` of Linux 4.18).
const MAX_PACKETS: u16 = 64;
/// Maximum bytes of an IP packet.
const MAX_BYTES: usize = 65_535;
/// The reserved bit and "don't fragment", which precede "more fragments" and the fragment offset (RFC 791).
const FLAGS_BEFORE_MORE: u32 = 2;
/// Offset of the checksum in a UDP header.
const CHECKSUM: u16 = 6;

/// A super-packet under construction, with the layout of its packets so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuperPacketBuilder {
    layout: Layout,
    is_closed: bool,
}

impl SuperPacketBuilder {
    /// Starts with a packet. Returns `None` if it cannot be combined: it is not a whole UDP datagram, or its
    /// checksum is already complete.
    pub(crate) fn begin(layout: &Layout, packet: &[u8]) -> Option<Self> {
        let payload = layout.transport + UDP_HEADER;
        let vnet = layout.vnet;
        let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) << FLAGS_BEFORE_MORE;
        let plain = match layout.version {
            // No options and no fragment.
            Version::V4 => layout.transport == 20 && fragment == 0,
            Version::V6 => layout.transport == 40,
        };
        let open = vnet.needs_checksum
            && usize::from(vnet.checksum_start) == layout.transport
            && vnet.checksum_offset == CHECKSUM;
        let declared = packet.get(layout.transport + 4..layout.transport + 6)?;
        let is_complete =
            usize::from(u16::from_be_bytes([declared[0], declared[1]])) == layout.len - layout.transport;
        let single = layout.packets == 1 && vnet.gso == Gso::None && layout.protocol == UDP;
        if !(single && plain && open && is_complete && payload < layout.len) {
            return None;
        }
        let stride = layout.len - payload;
        let vnet = Vnet { gso: Gso::Udp, gso_size: stride as u16, header_len: payload as u16, ..vnet };
        Some(Self { layout: Layout { payload, stride, vnet, ..*layout }, is_closed: false })
    }

    /// Adds the next packet if it belongs to the same flow, has the same headers except for lengths,
    /// identification and checksums, and is no longer than the first. `first` is the first packet. Returns
    /// whether it was added.
    pub(crate) fn add(&mut self, first: &[u8], layout: &Layout, packet: &[u8]) -> bool {
        let Some(next) = Self::begin(layout, packet) else { return false };
        let fits = !self.is_closed
            && next.layout.stride <= self.layout.stride
            && self.layout.packets < MAX_PACKETS
            && self.layout.len + next.layout.stride <= MAX_BYTES
            && next.layout.version == self.layout.version
            && same_headers(self.layout.version, first, packet);
        if fits {
            self.is_closed = next.layout.stride < self.layout.stride;
            self.layout.len += next.layout.stride;
            self.layout.packets += 1;
        }
        fits
    }

    /// Returns the layout of the super-packet so far.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// Compares everything but lengths, identification and checksums.
fn same_headers(version: Version, a: &[u8], b: &[u8]) -> bool {
    let same: &[std::ops::Range<usize>] = match version {
        Version::V4 => &[0..2, 6..10, 12..24],
        Version::V6 => &[0..4, 6..44],
    };
    same.iter().all(|range| a.get(range.clone()) == b.get(range.clone()))
}
