use super::PacketError;
use super::field::{Reader, Writer, split};

/// Length of the header before the body.
pub const COMMON_HEADER_LEN: usize = 7;

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketKind {
    /// A piece of the object.
    Data = 1,
    /// The last piece of the object.
    DataFin = 2,
    /// Feedback: what the receiver has received.
    Feedback = 3,
    /// Data sender to data receiver: probes whether a datagram of this size gets through.
    Probe = 6,
    /// A part of a piece that was sent whole before and no longer fits the path MTU.
    DataPart = 7,
}

impl PacketKind {
    /// Returns the kind with this number, if it exists.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Data,
            2 => Self::DataFin,
            3 => Self::Feedback,
            6 => Self::Probe,
            7 => Self::DataPart,
            _ => return None,
        })
    }
}

/// The header of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonHeader {
    /// Kind of the packet.
    pub kind: PacketKind,
    /// Packet number, 48 bits: one per transmission and direction, never reused.
    pub pn: u64,
}

impl CommonHeader {
    /// Parses the header and ignores what follows it.
    ///
    /// # Errors
    /// [`PacketError::Truncated`]; [`PacketError::Kind`] if the first byte is not a kind.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketError> {
        let (fields, _) = split::<COMMON_HEADER_LEN>(packet)?;
        let mut fields = Reader(fields);
        let byte = fields.u8();
        let kind = PacketKind::from_byte(byte).ok_or(PacketError::Kind(byte))?;
        Ok(Self { kind, pn: fields.u48() })
    }

    /// Writes the header to the start of `packet`.
    ///
    /// # Panics
    /// If `packet` is shorter than [`COMMON_HEADER_LEN`].
    pub fn write(&self, packet: &mut [u8]) {
        Writer(&mut packet[..COMMON_HEADER_LEN]).u8(self.kind as u8).u48(self.pn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_ends_early_is_an_error() {
        for len in 0..COMMON_HEADER_LEN {
            let cut = CommonHeader::parse(&[3, 0, 0, 0, 0, 0, 1][..len]);
            assert_eq!(cut, Err(PacketError::Truncated { len, needed: 7 }));
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "does not fit 48 bits")]
    fn a_packet_number_past_the_last_panics() {
        CommonHeader { kind: PacketKind::Data, pn: 1 << 48 }.write(&mut [0; 7]);
    }
}
