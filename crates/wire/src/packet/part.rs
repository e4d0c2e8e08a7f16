use super::field::{Reader, Writer, split};
use super::{MAX_OFFSET, MAX_SEQ, PacketError};

/// Length of the fields of a `DATA_PART` before the payload.
pub const PART_BODY_LEN: usize = 21;

/// The fields of a `DATA_PART` body: a part of a packet that was sent whole before and no longer fits the
/// path MTU. The payload follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartBody {
    /// Sequence number of the whole packet, at most [`MAX_SEQ`].
    pub seq: u64,
    /// Offset of the whole packet's payload in the object in bytes.
    pub offset: u64,
    /// Time of sending the part: microseconds of the sender's clock, wrapped to 32 bits.
    pub timestamp: u32,
    /// Offset of the part in the whole payload in bytes.
    pub skip: u16,
    /// Length of the whole payload.
    pub total_len: u16,
    /// Whether the whole packet ends the object.
    pub fin: bool,
}

impl PartBody {
    /// Parses the fields of a plaintext body; the payload is `body[PART_BODY_LEN..]`, is not empty and lies
    /// within the whole, which ends at or below [`MAX_OFFSET`].
    ///
    /// # Errors
    /// [`PacketError::Truncated`]; [`PacketError::NoPayload`]; [`PacketError::Sequence`] and
    /// [`PacketError::Offset`] above their limits; [`PacketError::Part`] if the part exceeds the whole.
    pub fn parse(body: &[u8]) -> Result<Self, PacketError> {
        let (fields, payload) = split::<PART_BODY_LEN>(body)?;
        let mut fields = Reader(fields);
        let (seq, offset, timestamp) = (fields.u48(), fields.u48(), fields.u32());
        let (skip, total_len, fin) = (fields.u16(), fields.u16(), fields.u8());
        if seq > MAX_SEQ {
            return Err(PacketError::Sequence(seq));
        }
        if payload.is_empty() {
            return Err(PacketError::NoPayload);
        }
        if fin > 1 || usize::from(skip) + payload.len() > usize::from(total_len) {
            return Err(PacketError::Part);
        }
        if offset + u64::from(total_len) > MAX_OFFSET {
            return Err(PacketError::Offset(offset));
        }
        Ok(Self { seq, offset, timestamp, skip, total_len, fin: fin == 1 })
    }

    /// Writes the fields to the start of `body`; the payload belongs in `body[PART_BODY_LEN..]`.
    ///
    /// # Panics
    /// If `body` is shorter than [`PART_BODY_LEN`].
    pub fn write(&self, body: &mut [u8]) {
        let mut fields = Writer(&mut body[..PART_BODY_LEN]);
        fields.u48(self.seq).u48(self.offset).u32(self.timestamp);
        fields.u16(self.skip).u16(self.total_len).u8(u8::from(self.fin));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(part: PartBody, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0; PART_BODY_LEN + payload];
        part.write(&mut bytes);
        bytes
    }

    const PART: PartBody =
        PartBody { seq: 7, offset: 9_000, timestamp: 5, skip: 1_000, total_len: 1_433, fin: false };

    #[test]
    fn the_format_never_changes() {
        let bytes = body(PartBody { fin: true, ..PART }, 2);
        let expected =
            [0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0x23, 0x28, 0, 0, 0, 5, 0x03, 0xe8, 0x05, 0x99, 1, 0, 0];
        assert_eq!(bytes, expected);
        assert_eq!(PartBody::parse(&bytes), Ok(PartBody { fin: true, ..PART }));
    }

    #[test]
    fn a_part_is_within_its_packet() {
        assert!(PartBody::parse(&body(PART, 433)).is_ok());
        assert_eq!(PartBody::parse(&body(PART, 434)), Err(PacketError::Part));
        assert_eq!(PartBody::parse(&body(PART, 0)), Err(PacketError::NoPayload));
        let end = PartBody { offset: MAX_OFFSET - 1_432, ..PART };
        assert_eq!(PartBody::parse(&body(end, 1)), Err(PacketError::Offset(MAX_OFFSET - 1_432)));
    }

    #[test]
    fn short_bodies_and_other_flags_are_refused() {
        let mut bytes = body(PART, 4);
        bytes[20] = 2;
        assert_eq!(PartBody::parse(&bytes), Err(PacketError::Part));
        assert!(matches!(PartBody::parse(&bytes[..20]), Err(PacketError::Truncated { .. })));
    }
}
