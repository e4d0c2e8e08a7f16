use super::PacketError;
use super::field::{Reader, Writer, split};

/// Bytes in front of the body of every kind but HELLO.
pub const COMMON_HEADER_LEN: usize = 7;
/// Bytes in front of the body of a HELLO.
pub const HELLO_HEADER_LEN: usize = 11;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketKind {
    /// A piece of the object.
    Data = 1,
    /// The last piece of the object.
    DataFin = 2,
    /// What the receiver has.
    Feedback = 3,
    /// Client to server: opens the UDP path of a session.
    Hello = 4,
    /// Answer to a HELLO, of the same size.
    HelloAck = 5,
    /// Data sender to data receiver: does a datagram of this size pass?
    Probe = 6,
    /// A part of a piece of the object: what was sent whole before and no longer fits the path.
    DataPart = 7,
}

impl PacketKind {
    /// The kind with this number, if there is one.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Data,
            2 => Self::DataFin,
            3 => Self::Feedback,
            4 => Self::Hello,
            5 => Self::HelloAck,
            6 => Self::Probe,
            7 => Self::DataPart,
            _ => return None,
        })
    }

    /// Bytes in front of the body.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Hello => HELLO_HEADER_LEN,
            _ => COMMON_HEADER_LEN,
        }
    }
}

/// What every packet starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonHeader {
    /// What the packet is.
    pub kind: PacketKind,
    /// Its packet number, 48 bits: one per transmission and direction, never used twice.
    pub pn: u64,
}

impl CommonHeader {
    /// Reads the header; what follows it is not looked at.
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

/// What a HELLO starts with: the one packet that must be routed before it can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloHeader {
    /// Packet number, 48 bits.
    pub pn: u64,
    /// Which session it opens; not secret.
    pub session: u32,
}

impl HelloHeader {
    /// Reads the header; a packet of another kind is an error.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketError> {
        let common = CommonHeader::parse(packet)?;
        if common.kind != PacketKind::Hello {
            return Err(PacketError::Kind(common.kind as u8));
        }
        let (fields, _) = split::<HELLO_HEADER_LEN>(packet)?;
        Ok(Self { pn: common.pn, session: Reader(&fields[COMMON_HEADER_LEN..]).u32() })
    }

    /// Writes the header to the start of `packet`.
    ///
    /// # Panics
    /// If `packet` is shorter than [`HELLO_HEADER_LEN`].
    pub fn write(&self, packet: &mut [u8]) {
        Writer(&mut packet[..HELLO_HEADER_LEN]).u8(PacketKind::Hello as u8).u48(self.pn).u32(self.session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_ends_early_is_an_error() {
        let packet = [4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2];
        for len in 0..COMMON_HEADER_LEN {
            assert_eq!(CommonHeader::parse(&packet[..len]), Err(PacketError::Truncated { len, needed: 7 }));
        }
        for len in COMMON_HEADER_LEN..HELLO_HEADER_LEN {
            assert_eq!(HelloHeader::parse(&packet[..len]), Err(PacketError::Truncated { len, needed: 11 }));
        }
    }

    #[test]
    fn only_a_hello_has_a_session() {
        let mut packet = [0; 32];
        CommonHeader { kind: PacketKind::HelloAck, pn: 1 }.write(&mut packet);
        assert_eq!(HelloHeader::parse(&packet), Err(PacketError::Kind(5)));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "does not fit 48 bits")]
    fn a_packet_number_past_the_last_is_a_defect() {
        CommonHeader { kind: PacketKind::Data, pn: 1 << 48 }.write(&mut [0; 7]);
    }
}
