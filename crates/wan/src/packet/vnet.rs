//! Header before each packet on a TUN device (`virtio_net_hdr`, virtio 1.2 section 5.1.6).

/// Bytes of the header.
pub(crate) const VNET_LEN: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum is not computed yet; its field holds the pseudo-header's sum.
const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_ECN`.
const GSO_ECN: u8 = 0x80;

/// Kind of super-packet, which determines how it is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gso {
    /// Single packet.
    None,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams over IPv4 or IPv6.
    Udp,
}

/// The parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vnet {
    /// Whether the receiver of the packet has to complete the transport checksum.
    pub needs_checksum: bool,
    /// Kind of super-packet.
    pub gso: Gso,
    /// Header bytes that each packet needs.
    pub header_len: u16,
    /// Payload bytes per packet, except the last.
    pub gso_size: u16,
    /// Start of the checksummed part, from the start of the packet.
    pub checksum_start: u16,
    /// Offset of the checksum from there.
    pub checksum_offset: u16,
}

impl Vnet {
    /// Header of a single packet with complete checksums.
    pub(crate) const PLAIN: Self = Self {
        needs_checksum: false,
        gso: Gso::None,
        header_len: 0,
        gso_size: 0,
        checksum_start: 0,
        checksum_offset: 0,
    };

    /// Parses the header. Returns `None` for kinds that were not requested.
    pub(crate) fn parse(bytes: &[u8; VNET_LEN]) -> Option<Self> {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let gso = match bytes[1] & !GSO_ECN {
            0 => Gso::None,
            1 => Gso::Tcp4,
            4 => Gso::Tcp6,
            5 => Gso::Udp,
            _ => return None,
        };
        Some(Self {
            needs_checksum: bytes[0] & NEEDS_CSUM != 0,
            gso,
            header_len: word(2),
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        })
    }

    /// Serialises the header. `ecn`: a TCP super-packet has CWR set.
    pub(crate) fn write(&self, ecn: bool) -> [u8; VNET_LEN] {
        let gso = match self.gso {
            Gso::None => 0,
            Gso::Tcp4 => 1,
            Gso::Tcp6 => 4,
            Gso::Udp => 5,
        };
        let ecn = ecn && matches!(self.gso, Gso::Tcp4 | Gso::Tcp6);
        let mut bytes = [0; VNET_LEN];
        bytes[0] = if self.needs_checksum { NEEDS_CSUM } else { 0 };
        bytes[1] = gso | if ecn { GSO_ECN } else { 0 };
        let words = [self.header_len, self.gso_size, self.checksum_start, self.checksum_offset];
        for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}
