//! The Internet checksum (RFC 1071) and the pseudo-headers (RFC 793, RFC 768, RFC 8200 section 8.1).

/// An unfolded ones' complement sum.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Checksum(u64);

impl Checksum {
    /// Adds bytes. Only the last call may add an odd number of bytes.
    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        let mut chunks = bytes.chunks_exact(4);
        for chunk in &mut chunks {
            self.0 += u64::from(u32::from_be_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]));
        }
        let mut rest = [0; 4];
        rest[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        self.0 += u64::from(u32::from_be_bytes(rest));
        self
    }

    /// Adds a number.
    pub(super) fn number(mut self, number: u32) -> Self {
        self.0 += u64::from(number);
        self
    }

    /// Folds the sum to 16 bits.
    pub(super) fn fold(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }
}

/// Returns the sum of the pseudo-header: both addresses (adjacent), protocol and length.
pub(super) fn pseudo_header(addresses: &[u8], protocol: u8, len: u32) -> Checksum {
    Checksum::default().bytes(addresses).number(u32::from(protocol)).number(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        let sum = Checksum::default().bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.fold(), 0xddf2);
    }

    #[test]
    fn a_trailing_byte_is_the_high_one() {
        assert_eq!(Checksum::default().bytes(&[0x12, 0x34, 0x56]).fold(), 0x1234 + 0x5600);
    }
}
